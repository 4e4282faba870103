/*-------------------------------------------------------------------------
 *
 * holder.c
 *		What a holder, or an administrator, does to a lease.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"

#include "base/compat.h"
#include "base/names.h"
#include "base/printable.h"
#include "base/subxact.h"
#include "change/change.h"
#include "lease/lease.h"

/* --- Release -------------------------------------------------------------- */

static bool
write_release(LeaseAction *action)
{
	Lease		lease = action->row->lease;

	if (lease.holds > 1 && action->held && !action->all_holds)
	{
		lease.holds--;
		change_lease(action->store, action->row, &lease, CHANGE_COUNT_DOWN, NULL);
	}
	else
	{
		make_tombstone(&lease, Max(action->now, lease.hold_until));	/* min_hold may keep it */
		change_lease(action->store, action->row, &lease, CHANGE_RELEASE, &action->row->lease);
	}
	return true;
}

/*
 * Release the lease that the claim means, even if it has expired, unless it
 * was taken over. Returns false if there is no such lease. A lease that was
 * acquired several times must be released as many times.
 */
bool
release_lease(const text *resource, const Claim *claim)
{
	LeaseAction action = {.resource = resource, .claim = *claim, .kind = ACTION_END, .even_expired = true};

	return act_on_lease(&action, write_release);
}

/* Release all leases of this owner; returns their number. */
int64
release_all_leases(const text *owner)
{
	LeaseAction action = {.claim = {.owner = owner}, .kind = ACTION_END, .even_expired = true, .all_holds = true};

	return act_on_all_leases(&action, write_release);
}

/* --- Renewal and payload --------------------------------------------------
 *
 * Neither waits for transactions that only rely on the lease, so that
 * heartbeats continue during a long transaction of the same owner.
 */

static bool
write_renewal(LeaseAction *action)
{
	Lease		lease = action->row->lease;

	lease.expires_at = Max(lease.expires_at, action->now + action->ttl);
	change_lease(action->store, action->row, &lease, CHANGE_RENEW, NULL);
	return true;
}

/* Extend a held lease to at least ttl from now; false if it is not held. */
bool
renew_lease(const text *resource, int64 ttl, const Claim *claim)
{
	LeaseAction action = {.resource = resource, .claim = *claim, .kind = ACTION_PROLONG, .ttl = ttl};

	return act_on_lease(&action, write_renewal);
}

/* Extend every lease that this owner holds; returns their number. */
int64
renew_all_leases(int64 ttl, const text *owner)
{
	LeaseAction action = {.claim = {.owner = owner}, .kind = ACTION_PROLONG, .ttl = ttl};

	return act_on_all_leases(&action, write_renewal);
}

/* Several leases of an owner that are renewed together. */
typedef struct Renewals
{
	text	  **resources;
	int			nresources;
	int64		ttl;
	Claim		claim;
} Renewals;

/* SubtransactionWork: renew one after the other, until one is not held. */
static bool
renew_each(void *arg)
{
	const Renewals *all = arg;

	for (int i = 0; i < all->nresources; i++)
		if (!renew_lease(all->resources[i], all->ttl, &all->claim))
			return false;
	return true;
}

/*
 * Extend the leases of an owner on all of these resources. If one of them is
 * not held, extends none and returns false. The resources are sorted, so that
 * two such calls cannot deadlock with each other.
 */
bool
renew_leases(text **resources, int nresources, int64 ttl, const text *owner)
{
	Renewals	all = {resources, nresources, ttl, {.owner = owner}};

	return run_subtransaction(renew_each, &all, NULL);
}

static bool
write_payload(LeaseAction *action)
{
	Lease		lease = action->row->lease;

	lease.payload = action->payload;
	change_lease(action->store, action->row, &lease, CHANGE_PAYLOAD, NULL);
	return true;
}

/* Replace or remove the payload of a held lease; false if the lease is not held. */
bool
set_payload(const text *resource, const text *owner, Datum payload)
{
	LeaseAction action = {
		.resource = resource,
		.claim = {.owner = owner},
		.kind = ACTION_PROLONG,
		.payload = payload
	};

	return act_on_lease(&action, write_payload);
}

/* --- Transfer and downgrade: a new token ---------------------------------- */

/* Date the lease as granted now, with a new token, which the action returns. */
static void
grant_anew(LeaseAction *action, Lease *lease)
{
	action->token = store_next_token(action->store, last_token(&action->rows));
	lease->token = action->token;
	lease->granted_at = action->now;
	lease->xid = GetTopFullTransactionId();
}

/* An owner has at most one lease on a resource. */
static void
require_no_other_lease(const LeaseRows *rows, const text *owner, TimestampTz now)
{
	for (int i = 0; i < rows->count; i++)
	{
		const LeaseRow *row = &rows->row[i];

		if (is_owner(&row->lease, owner) && (is_open(row) || is_held(&row->lease, now)))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("new owner already has a lease on \"%s\"", printable(row->lease.resource)),
					 errhint("An owner has at most one lease on a resource.")));
	}
}

/* Otherwise the new owner would lose the lease when a session ends that it does not know. */
static void
require_no_session(const Lease *lease)
{
	if (lease->session_pid != 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("lease on \"%s\" cannot be transferred", printable(lease->resource)),
				 errdetail("It ends with the session that acquired it."),
				 errhint("Release it, or acquire it without session => true.")));
}

static bool
write_transfer(LeaseAction *action)
{
	Lease		lease = action->row->lease;

	require_no_session(&lease);
	if (!is_owner(&lease, action->new_owner))
		require_no_other_lease(&action->rows, action->new_owner, action->now);
	action->role = lease.role;
	lease.owner = action->new_owner;
	lease.holds = 1;
	grant_anew(action, &lease);
	change_lease(action->store, action->row, &lease, CHANGE_TRANSFER, &action->row->lease);
	return true;
}

/*
 * Hand a held lease over, with a new token; false if the owner does not hold
 * it. The role that acquired it, its mode and its end stay the same.
 */
bool
transfer_lease(const text *resource, const text *owner, text *new_owner, int64 *token)
{
	LeaseAction action = {
		.resource = resource,
		.claim = {.owner = owner},
		.kind = ACTION_END,
		.gives_token = true,
		.new_owner = new_owner
	};

	if (!act_on_lease(&action, write_transfer))
		return false;
	if (!same_text(owner, new_owner))
		require_lease_allowed(resource, new_owner, action.role);
	*token = action.token;
	return true;
}

/*
 * Write the shared lease to a lease slot of its own. The exclusive lease
 * becomes a tombstone, under one hold of the resource lock. So readers may
 * join, and no writer gets in between.
 *
 * The shared lease has a new token. So a fenced service can tell a late
 * request under the exclusive lease from one under the shared lease.
 */
static bool
write_downgrade(LeaseAction *action)
{
	const LeaseRow *seat = free_seat(&action->rows, action->now);
	Lease		exclusive = action->row->lease;
	Lease		shared = action->row->lease;

	if (exclusive.mode != MODE_EXCLUSIVE)
		return false;

	shared.mode = MODE_SHARED;
	shared.slot = seat ? seat->lease.slot : unused_slot(&action->rows);
	grant_anew(action, &shared);

	make_tombstone(&exclusive, action->now);
	change_lease(action->store, action->row, &exclusive, CHANGE_REPLACE, NULL);
	change_lease(action->store, seat, &shared, CHANGE_DOWNGRADE, &action->row->lease);
	return true;
}

/*
 * Turn a held exclusive lease into a shared one; false if the owner does not
 * hold it exclusively. Everything else about the lease stays. Waits for
 * transactions that rely on the exclusive lease.
 */
bool
downgrade_lease(const text *resource, const text *owner, int64 *token)
{
	LeaseAction action = {
		.resource = resource,
		.claim = {.owner = owner},
		.kind = ACTION_END,
		.gives_token = true
	};
	bool		downgraded = act_on_lease(&action, write_downgrade);

	*token = action.token;
	return downgraded;
}

/* --- Break ---------------------------------------------------------------- */

/* End every lease on the resource. */
static bool
write_break(LeaseAction *action)
{
	for (int i = 0; i < action->rows.count; i++)
	{
		const LeaseRow *row = &action->rows.row[i];
		Lease		lease = row->lease;

		if (is_open(row) || is_free(&lease, action->now))
			continue;
		make_tombstone(&lease, action->now);
		change_lease(action->store, row, &lease, CHANGE_BREAK, &row->lease);
	}
	return true;
}

/*
 * Free the resource, whoever holds it; false if it was free already. Waits for
 * open transactions that change a lease on it, or rely on one.
 */
bool
break_leases(const text *resource)
{
	LeaseAction action = {.resource = resource, .kind = ACTION_BREAK, .even_expired = true};

	return act_on_lease(&action, write_break);
}
