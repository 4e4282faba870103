/*-------------------------------------------------------------------------
 *
 * grant.c
 *		One try to get a lease.
 *
 * A try looks at the rows of the resource and decides. If it is refused, it has
 * locked and written nothing. Else it locks the resource, looks and
 * decides again, now that nobody else can write, and writes what the decision
 * names. src/README.md explains why no two owners get conflicting leases.
 *
 * Why a refusal is right. A look without the lock can miss rows, which makes
 * it refuse less. It can also read rows at different moments, and perhaps the
 * leases were never all held at one moment; a lease that a transaction was
 * changing was perhaps never committed. If a transaction ended meanwhile, a
 * refusal by several rows, or by one that was open, counts only if a look
 * under the lock confirms it (same_moment). No look begins again.
 * lease_token(), which takes no lock, reads what one snapshot shows.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"

#include "change/change.h"
#include "grant/grant.h"
#include "purge/purge.h"
#include "rules/rules.h"
#include "wait/wait.h"

/* Number of times that a grant may meet a row lock by hand between look and write. */
#define MAX_TRIES	10

/* With more rows of a resource, a takeover deletes those that it ends. */
#define MANY_ROWS	100

static GrantOutcome
refused(const LeaseRows *rows, const Decision *decision)
{
	GrantOutcome outcome = {.reason = decision->reason, .refusal = decision->refusal};

	if (outcome.refusal.open)
		outcome.refusal.brief = purge_met(rows);
	return outcome;
}

/* Refuse for a reason that the rows of the resource do not show. */
static GrantOutcome
refused_beside_rows(GrantReason reason, TimestampTz held_until)
{
	return (GrantOutcome) {.reason = reason,
						   .refusal = {.held_until = held_until, .open = reason == REASON_OPEN}};
}

/* The end of a lease that begins now. */
static TimestampTz
end_of_lease(const LeaseRequest *request, TimestampTz now)
{
	return request->ttl == FOREVER ? DT_NOEND : now + request->ttl;
}

/* Fill in a lease that is granted now. */
static Lease
new_lease(LeaseStore *store, const LeaseRequest *request, int16 slot, int64 last_token,
		  TimestampTz now)
{
	Lease		lease = {
		.resource = request->resource,
		.slot = slot,
		.owner = request->owner,
		.token = store_next_token(store, last_token),
		.granted_at = now,
		.expires_at = end_of_lease(request, now),
		.role = GetUserId(),
		.xid = GetTopFullTransactionId(),
		.mode = request->mode,
		.holds = 1,
		.hold_until = request->min_hold <= 0 ? DT_NOBEGIN : now + request->min_hold,
		.payload = request->payload
	};

	if (request->session)
	{
		lease.session_pid = MyProcPid;
		lease.session_number = session_number();
		wait_note_session_lease(lease.resource);
	}
	return lease;
}

/*
 * Write tombstones of what a grant to the target takes over. If there are many
 * of these, their rows are deleted instead. That is quicker, and later looks do
 * not have to read them.
 */
static void
end_taken_over(LeaseStore *store, const LeaseRequest *request, const LeaseRows *rows,
			   const LeaseRow *target, TimestampTz now)
{
	for (int i = 0; i < rows->count; i++)
	{
		Lease		ended = rows->row[i].lease;

		if (&rows->row[i] == target || !takes_over(request, &rows->row[i]))
			continue;
		make_tombstone(&ended, now);
		change_lease(store, &rows->row[i], rows->count > MANY_ROWS ? NULL : &ended, CHANGE_REPLACE,
					 NULL);
	}
}

static GrantOutcome
granted(const Lease *lease, GrantReason reason, TimestampTz now)
{
	return (GrantOutcome) {
		.granted = true,
		.reason = reason,
		.grant = {.token = lease->token, .granted_at = now, .expires_at = lease->expires_at}
	};
}

/*
 * Count one more acquisition of a lease that the owner holds. It must be
 * released once more, too.
 */
static void
count_once_more(Lease *lease, const LeaseRequest *request, TimestampTz now)
{
	if (lease->holds == PG_INT32_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("lease on \"%s\" was acquired too many times by the same owner",
						printable(request->resource)),
				 errhint("Release it as many times as it is acquired.")));
	lease->holds++;
	lease->expires_at = Max(lease->expires_at, end_of_lease(request, now));
	if (request->min_hold > 0)
		lease->hold_until = Max(lease->hold_until, now + request->min_hold);
}

/* Change the owner's lease to what the request asks for. What the request leaves out stays. */
static void
renew_as_requested(Lease *lease, const LeaseRequest *request, TimestampTz now)
{
	lease->expires_at = end_of_lease(request, now);
	if (request->min_hold != NOT_GIVEN)
		lease->hold_until = request->min_hold == 0 ? DT_NOBEGIN : now + request->min_hold;
}

/*
 * Grant the owner a lease that it holds already, even if transactions rely on
 * that lease. The caller has the privileges of the role that acquired it.
 */
static GrantOutcome
write_reacquired(LeaseStore *store, const LeaseRequest *request, const LeaseRow *row,
				 TimestampTz now)
{
	bool		renews = request->if_own == IF_OWN_RENEW;
	Lease		lease = row->lease;

	if (renews)
		renew_as_requested(&lease, request, now);
	else
		count_once_more(&lease, request, now);
	if (request->payload != (Datum) 0)
		lease.payload = request->payload;
	change_lease(store, row, &lease, renews ? CHANGE_RENEW : CHANGE_COUNT_UP, NULL);
	return granted(&lease, renews ? REASON_RENEWED : REASON_COUNTED, now);
}

/*
 * Take a hint that the lease is probably free, if there is one. It is used up
 * by that. With it, the look under the resource lock suffices, if it is our turn.
 */
static bool
take_hint_of_free_row(LeaseStore *store, const text *resource)
{
	LeaseRows	rows;

	return wait_is_called() ||
		(store_look_at_last_written(store, resource, &rows) &&
		 is_free(&rows.row->lease, clock_now()));
}

/*
 * Refuse by a look without the resource lock, so that a refusal costs no more
 * than reading. Returns false if the request needs a look under the lock. That
 * is also the case if the rows of several leases were read at different
 * moments: perhaps there was no moment at which all of them were held.
 */
static bool
refuse_by_first_look(LeaseStore *store, const LeaseRequest *request, GrantOutcome *outcome)
{
	LeaseRows	rows;
	Decision	decision;
	bool		probably_free = take_hint_of_free_row(store, request->resource);

	/* Asked only once, since a waiter that is called then may look before we ask again. */
	if (probably_free && wait_take_turn(request->resource))
		return false;

	store_look(store, request->resource, &rows);
	decision = decide(&rows, request, clock_now());
	if (decision.own != NULL)
		return false;
	if (decision.refused && rows.same_moment)
	{
		*outcome = refused(&rows, &decision);
		return true;
	}
	if (!probably_free && wait_take_turn(request->resource))
		return false;
	*outcome = refused_beside_rows(REASON_QUEUE, DT_NOEND);
	return true;
}

/* Refuse if lease_lock.failover_wait delays all grants now. */
static bool
refuse_too_early(LeaseStore *store, GrantOutcome *outcome)
{
	TimestampTz grants_from = era_grants_from(store);

	if (grants_from == DT_NOBEGIN || grants_from <= clock_now())
		return false;
	*outcome = refused_beside_rows(REASON_FAILOVER, grants_from);
	return true;
}

/*
 * Look and decide under the resource lock, and write. If another session locks
 * the row by hand between look and write, the next look meets that.
 *
 * The clock is read after the lock and before the look. If another transaction
 * has not asserted the expired lease by the time of the look, its assertion
 * reads the clock later, and finds the lease expired, too.
 */
static GrantOutcome
grant_under_lock(LeaseStore *store, const LeaseRequest *request)
{
	for (int tries = 0; tries < MAX_TRIES; tries++)
	{
		TimestampTz now = clock_now();
		LeaseRows	rows;
		Decision	decision;
		Lease		lease;

		store_look(store, request->resource, &rows);
		decision = decide(&rows, request, now);
		if (decision.own != NULL && may_act(&decision.own->lease))
			return write_reacquired(store, request, decision.own, now);
		if (decision.refused)
			return refused(&rows, &decision);

		lease = new_lease(store, request, decision.slot, last_token(&rows), now);
		if (try_change_lease(store, decision.target, &lease, CHANGE_GRANT,
							 decision.former ? &decision.former->lease : NULL))
		{
			end_taken_over(store, request, &rows, decision.target, now);
			return granted(&lease, REASON_NONE, now);
		}
	}
	store_refuse_written_by_hand(store);
}

/*
 * Grant the lease if that is possible now. Never waits for a transaction: a
 * row that another transaction is changing counts as held.
 */
GrantOutcome
try_grant(LeaseStore *store, const LeaseRequest *request)
{
	GrantOutcome outcome;

	if (refuse_too_early(store, &outcome) || refuse_by_first_look(store, request, &outcome))
		return outcome;

	store_prepare_write(store);
	store_prepare_token(store);
	if (!wait_lock_resource(request->resource)) /* the wait is over */
		return refused_beside_rows(REASON_OPEN, DT_NOEND);
	PG_TRY();
	{
		outcome = grant_under_lock(store, request);
	}
	PG_FINALLY();
	{
		unlock_resource(request->resource);
	}
	PG_END_TRY();

	if (outcome.granted && outcome.reason == REASON_NONE)
		require_lease_allowed(store, request->resource, request->owner, GetUserId());
	return outcome;
}
