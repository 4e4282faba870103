/*-------------------------------------------------------------------------
 *
 * action.c
 *		What a holder, or an administrator, does to a lease.
 *
 * If another transaction is changing the lease, or relies on it, the action
 * waits for that transaction, so that its answer is final. It does not hold
 * the resource lock while it waits. If it is to end the lease, it holds the
 * ending lock instead: else assertions that come later could keep it waiting
 * for ever.
 *
 * Why a late release is right. A transaction that takes a lease over, or ends
 * it, writes its row. The release finds that row open and waits, or finds it
 * changed and answers false, or finds it as it was and answers true.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "nodes/bitmapset.h"
#include "utils/memutils.h"

#include "change/change.h"
#include "hold/hold.h"
#include "monitor/monitor.h"

/* An action that is being carried out. */
typedef struct RunningAction
{
	const LeaseAction *asked;
	LeaseStore *store;
	Bitmapset  *ending;			/* lease slots whose ending lock it holds */
	Overtakers	overtakers;

	/* Read under the resource lock, the time before the rows. */
	TimestampTz now;
	LeaseRows	rows;			/* of the resource */
	const LeaseRow *row;		/* the lease that is meant */
	bool		held;			/* it has not expired */

	/* Set by the write, for some actions. */
	int64		token;			/* the new one */
	const text *counted_owner;	/* has one more lease now, */
	Oid			counted_role;	/* of this role */
} RunningAction;

/*
 * The functions write_... write an action under the resource lock. They return
 * false if it does not apply to the lease.
 */

/*
 * Does the released lease keep others from the resource for longer than it does
 * if a crash loses the release? A lease of a session ends with a crash.
 */
static bool
keeps_for_longer(const Lease *released, const Lease *held)
{
	return released->kept_for != NULL &&
		(held->session_number != 0 || released->expires_at > held->expires_at);
}

/*
 * End the lease, even if it has expired, unless it was taken over. A lease that
 * was acquired several times must be released as many times.
 */
static bool
write_release(RunningAction *action)
{
	Lease		lease = action->row->lease;

	if (lease.holds > 1 && action->held && !action->asked->of_all)
	{
		lease.holds--;
		change_lease(action->store, action->row, &lease, CHANGE_COUNT_DOWN, NULL);
	}
	else
	{
		make_released(&lease, action->now);
		change_lease(action->store, action->row, &lease,
					 keeps_for_longer(&lease, &action->row->lease) ? CHANGE_KEEP : CHANGE_RELEASE,
					 &action->row->lease);
	}
	return true;
}

/* Extend the lease to at least ttl from now. */
static bool
write_renewal(RunningAction *action)
{
	Lease		lease = action->row->lease;

	lease.expires_at = Max(lease.expires_at, action->now + action->asked->ttl);
	change_lease(action->store, action->row, &lease, CHANGE_RENEW, NULL);
	/* Whoever counted between the old end and the write has not counted this lease. */
	if (clock_now() >= action->row->lease.expires_at)
	{
		action->counted_owner = lease.owner;
		action->counted_role = lease.role;
	}
	return true;
}

/* Replace or remove the payload. */
static bool
write_payload(RunningAction *action)
{
	Lease		lease = action->row->lease;

	lease.payload = action->asked->payload;
	change_lease(action->store, action->row, &lease, CHANGE_PAYLOAD, NULL);
	return true;
}

/* Date the lease as granted now, with a new token, which the action returns. */
static void
grant_anew(RunningAction *action, Lease *lease)
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
					 errmsg("new owner already has a lease on \"%s\"",
							printable(row->lease.resource)),
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

/* Hand the lease over. The role that acquired it, its mode and its end stay the same. */
static bool
write_transfer(RunningAction *action)
{
	Lease		lease = action->row->lease;

	require_no_session(&lease);
	if (!is_owner(&lease, action->asked->new_owner))
	{
		require_no_other_lease(&action->rows, action->asked->new_owner, action->now);
		action->counted_owner = action->asked->new_owner;
		action->counted_role = lease.role;
	}
	lease.owner = action->asked->new_owner;
	lease.holds = 1;
	grant_anew(action, &lease);
	change_lease(action->store, action->row, &lease, CHANGE_TRANSFER, &action->row->lease);
	return true;
}

/*
 * Turn an exclusive lease into a shared one, in a lease slot of its own. The exclusive lease
 * becomes a tombstone, under one hold of the resource lock. So readers may
 * join, and no writer gets in between.
 *
 * The shared lease has a new token. So a fenced service can tell a late
 * request under the exclusive lease from one under the shared lease.
 */
static bool
write_downgrade(RunningAction *action)
{
	Lease		exclusive = action->row->lease;
	Lease		shared = action->row->lease;
	LeaseRows	others = action->rows;
	LeaseRequest request = {.mode = MODE_SHARED, .owner = shared.owner};
	Decision	seat;

	if (exclusive.mode != MODE_EXCLUSIVE)
		return false;

	others.count--;				/* the exclusive slot comes last */
	seat = decide(&others, &request, action->now);
	if (seat.refused)
		return false;
	shared.mode = MODE_SHARED;
	shared.slot = seat.slot;
	grant_anew(action, &shared);

	make_tombstone(&exclusive, action->now);
	change_lease(action->store, action->row, &exclusive, CHANGE_REPLACE, NULL);
	change_lease(action->store, seat.target, &shared, CHANGE_DOWNGRADE, &action->row->lease);
	return true;
}

/*
 * End every lease on the resource. Its holders have the grace to notice, but
 * no more time than their leases had.
 */
static bool
write_break(RunningAction *action)
{
	for (int i = 0; i < action->rows.count; i++)
	{
		const LeaseRow *row = &action->rows.row[i];
		Lease		lease = row->lease;

		if (is_open(row) || is_free(&lease, action->now))
			continue;
		make_tombstone(&lease, action->now + action->asked->grace);
		change_lease(action->store, row, &lease, CHANGE_BREAK, &row->lease);
	}
	return true;
}

static const struct
{
	OwnAction	kind;
	bool		even_expired;	/* the lease need not be held */
	bool		gives_token;	/* the lease gets a new token */
	bool		(*write) (RunningAction *action);
}			actions[] = {
	[LEASE_RELEASE] = {ACTION_END, true, false, write_release},
	[LEASE_RENEW] = {ACTION_PROLONG, false, false, write_renewal},
	[LEASE_RESTART] = {ACTION_PROLONG, true, false, write_renewal},
	[LEASE_SET_PAYLOAD] = {ACTION_PROLONG, false, false, write_payload},
	[LEASE_TRANSFER] = {ACTION_END, false, true, write_transfer},
	[LEASE_DOWNGRADE] = {ACTION_END, false, true, write_downgrade},
	[LEASE_BREAK] = {ACTION_BREAK, true, false, write_break}
};

/*
 * Look, and find the lease that is meant. If it is held, no other row of the
 * resource matters to a release, unless that has to wait. A renewal always uses
 * the index: that removes dead versions. Else a session that only renews a lease
 * would leave all of them.
 */
static ClaimedLease
find_lease(RunningAction *action)
{
	OwnAction	kind = actions[action->asked->verb].kind;
	ClaimedLease claimed = {0};

	if (kind == ACTION_END && !actions[action->asked->verb].gives_token &&
		store_look_at_last_written(action->store, action->asked->resource, &action->rows))
		claimed = find_claimed(&action->rows, &action->asked->claim, kind, action->now);
	if (!claimed.holds || TransactionIdIsValid(claimed.transaction))
	{
		store_look(action->store, action->asked->resource, &action->rows);
		if (kind == ACTION_BREAK)
			return find_breakable(&action->rows, action->now);
		claimed = find_claimed(&action->rows, &action->asked->claim, kind, action->now);
	}
	if (claimed.row != NULL && !may_act(&claimed.row->lease))
		refuse_permission(&claimed.row->lease);
	return claimed;
}

/*
 * Take the ending lock of a lease slot, unless the action has it already. Who has
 * it may wait for this transaction, if that uses a lease of the resource. Then the
 * action goes on without: the other ending goes before later assertions, too.
 */
static void
begin_ending(RunningAction *action, int slot)
{
	const text *resource = action->asked->resource;

	if (bms_is_member(slot, action->ending))
		return;
	if (uses_any(&action->rows))
	{
		if (!try_to_lock_ending(resource, slot))
			return;
	}
	else
		lock_ending(resource, slot, ExclusiveLock);
	action->ending = bms_add_member(action->ending, slot);
}

/* Give the ending locks back. */
static void
stop_ending(RunningAction *action)
{
	for (int slot = -1; (slot = bms_next_member(action->ending, slot)) >= 0;)
		unlock_ending(action->asked->resource, slot, ExclusiveLock);
	bms_free(action->ending);
	action->ending = NULL;
}

/*
 * Wait for the transaction that must end before the action. An action that ends
 * leases takes the ending lock of the slot first. A break collects those of all
 * slots in which it had to wait. Of two breaks one waits for the other,
 * since they may meet the slots in different orders.
 */
static void
wait_to_act(RunningAction *action, const ClaimedLease *claimed)
{
	OwnAction	kind = actions[action->asked->verb].kind;

	Assert(claimed->row != NULL);	/* the transaction is in the way of a row */
	if (kind == ACTION_BREAK)
		begin_ending(action, ALL_SLOTS);
	if (kind == ACTION_BREAK || kind == ACTION_END)
		begin_ending(action, claimed->row->lease.slot);
	wait_unless_overtaken(&action->overtakers, claimed->transaction,
						  psprintf("\"%s\"", printable(action->asked->resource)));
}

/*
 * Look, and write what the action does to the lease that is meant, unless a
 * transaction must end first. The caller holds the resource lock.
 */
static ClaimedLease
act_under_lock(RunningAction *action, bool *done)
{
	ClaimedLease claimed;

	action->now = clock_now();
	claimed = find_lease(action);
	action->row = claimed.row;
	action->held = claimed.holds;
	if (claimed.row != NULL && !TransactionIdIsValid(claimed.transaction) &&
		(claimed.holds || actions[action->asked->verb].even_expired))
		*done = actions[action->asked->verb].write(action);
	return claimed;
}

/* Act, unless a transaction must end first. Then it has ended, and the result is false. */
static bool
try_to_act(RunningAction *action, bool *done)
{
	ClaimedLease claimed;

	lock_resource(action->asked->resource);
	PG_TRY();
	{
		claimed = act_under_lock(action, done);
	}
	PG_FINALLY();
	{
		unlock_resource(action->asked->resource);
	}
	PG_END_TRY();

	if (!TransactionIdIsValid(claimed.transaction))
		return true;
	wait_to_act(action, &claimed);
	return false;
}

ActionResult
act_on_lease(const LeaseAction *asked)
{
	RunningAction action = {.asked = asked};
	bool		done = false;

	durable_action_begins();
	action.store = store_open(RowExclusiveLock);
	store_prepare_write(action.store);
	if (actions[asked->verb].gives_token)
		store_prepare_token(action.store);
	while (!try_to_act(&action, &done))
		CHECK_FOR_INTERRUPTS();
	stop_ending(&action);
	if (action.counted_owner != NULL)
		require_lease_allowed(action.store, asked->resource, action.counted_owner,
							  action.counted_role);
	store_close(action.store);
	return (ActionResult) {done, action.token};
}

/* StoreFilter: leases of an owner that the caller may act on. */
static bool
is_own(const Lease *lease, const void *owner)
{
	return is_owner(lease, owner) && may_act(lease);
}

/* For list_sort: by the bytes of the resource. */
static int
compare_resources(const ListCell *a, const ListCell *b)
{
	return compare_texts(((const Lease *) lfirst(a))->resource,
						 ((const Lease *) lfirst(b))->resource);
}

/*
 * List the leases of an owner, without released ones. The list is sorted, so
 * that two sessions that work through it do not deadlock.
 *
 * Reads the whole table, unless a user has created an index on the owner.
 */
static List *
find_own_leases(const text *owner)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	StoreScan  *scan = store_scan_owned(store, owner, SCAN_COMMITTED, is_own, owner);
	List	   *found = NIL;
	ItemPointerData tid;
	Lease		lease;

	hint_at_owner_index(store, scan);
	while (store_next(scan, &lease, &tid))
	{
		Lease	   *own = palloc(sizeof(Lease));

		*own = (Lease) {.resource = DatumGetTextPCopy(PointerGetDatum(lease.resource)),
						.token = lease.token};
		found = lappend(found, own);
	}
	store_end_scan(scan);
	store_close(store);
	list_sort(found, compare_resources);
	return found;
}

/*
 * Act on all leases of the owner whom the action names; returns their number.
 *
 * Skips leases of roles that the caller may not act for, because another role
 * may happen to use the same owner name.
 */
int64
act_on_all_leases(const LeaseAction *action)
{
	LeaseAction one = *action;
	List	   *own_leases = find_own_leases(action->claim.owner);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "lease actions",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext caller_context = MemoryContextSwitchTo(context);
	int64		done = 0;
	ListCell   *cell;

	one.of_all = true;
	foreach(cell, own_leases)
	{
		const Lease *own = lfirst(cell);

		one.resource = own->resource;
		one.claim.token = &own->token;
		if (act_on_lease(&one).done)
			done++;
		MemoryContextReset(context);
	}

	MemoryContextSwitchTo(caller_context);
	MemoryContextDelete(context);
	return done;
}

/*
 * SubtransactionWork: renew the leases of an owner on several resources. If one
 * of them is not held, returns false, which takes back the other renewals.
 */
bool
renew_each(void *renewals)
{
	const SeveralRenewals *several = renewals;
	LeaseAction one = several->action;

	for (int i = 0; i < several->nresources; i++)
	{
		one.resource = several->resources[i];
		if (!act_on_lease(&one).done)
			return false;
	}
	return true;
}
