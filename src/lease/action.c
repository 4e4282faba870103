/*-------------------------------------------------------------------------
 *
 * action.c
 *		The shape of every action on a lease that is committed.
 *
 * If another transaction is changing the lease, or relies on it, the action
 * waits for that transaction, so that its answer is final. It does not hold
 * the resource lock while it waits.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/names.h"
#include "base/privileges.h"
#include "change/change.h"
#include "lease/lease.h"

/*
 * Look, and find the lease that is meant. If it is held, no other row of the
 * resource matters to a release. A renewal always uses the index: that removes
 * dead versions. Else a session that only renews a lease would leave all of them.
 */
static ClaimedLease
find_lease(LeaseAction *action)
{
	ClaimedLease claimed = {0};

	if (action->kind == ACTION_END && !action->gives_token &&
		store_look_at_last_written(action->store, action->resource, &action->rows))
		claimed = find_claimed(&action->rows, &action->claim, action->kind, action->now);
	if (!claimed.holds)
	{
		store_look(action->store, action->resource, &action->rows);
		if (action->kind == ACTION_BREAK)
			return find_breakable(&action->rows, action->now);
		claimed = find_claimed(&action->rows, &action->claim, action->kind, action->now);
	}
	if (claimed.row != NULL)
		require_role_privileges(&claimed.row->lease);
	return claimed;
}

/*
 * Find the lease that is meant, and write what the action does to it. Returns
 * false, with nothing written, if there is no such lease.
 */
bool
act_on_lease(LeaseAction *action, LeaseWrite write)
{
	ClaimedLease claimed;
	bool		done = false;

	durable_action_begins();
	action->store = store_open(RowExclusiveLock);
	if (action->gives_token)
		store_prepare_token(action->store);
	do
	{
		CHECK_FOR_INTERRUPTS();

		lock_resource(action->resource);
		action->now = clock_now();
		claimed = find_lease(action);
		action->row = claimed.row;
		action->held = claimed.holds;
		if (claimed.row != NULL && !TransactionIdIsValid(claimed.transaction) &&
			(claimed.holds || action->even_expired))
			done = write(action);
		unlock_resource(action->resource);
		if (TransactionIdIsValid(claimed.transaction))
			store_wait_for(claimed.transaction);
	} while (TransactionIdIsValid(claimed.transaction));
	store_close(action->store);
	return done;
}

/* A lease of an owner, and how to find it again. */
typedef struct OwnLease
{
	text	   *resource;
	int64		token;
} OwnLease;

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
	return compare_texts(((const OwnLease *) lfirst(a))->resource, ((const OwnLease *) lfirst(b))->resource);
}

/*
 * List the leases of an owner, without released ones. The list is sorted, so
 * that two sessions that work through it do not deadlock.
 *
 * Reads the whole table. With an index on the owner, the updates of every
 * grant and release would no longer be HOT.
 */
static List *
find_own_leases(const text *owner)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	StoreScan  *scan = store_scan(store, SCAN_COMMITTED, is_own, owner);
	List	   *found = NIL;
	ItemPointerData tid;
	Lease		lease;

	while (store_next(scan, &lease, &tid))
	{
		OwnLease   *own = palloc(sizeof(OwnLease));

		own->resource = (text *) PG_DETOAST_DATUM_COPY(PointerGetDatum(lease.resource));
		own->token = lease.token;
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
act_on_all_leases(LeaseAction *action, LeaseWrite write)
{
	List	   *own_leases = find_own_leases(action->claim.owner);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "lease actions", ALLOCSET_SMALL_SIZES);
	MemoryContext caller_context = MemoryContextSwitchTo(context);
	int64		done = 0;
	ListCell   *cell;

	foreach(cell, own_leases)
	{
		const OwnLease *own = lfirst(cell);

		action->resource = own->resource;
		action->claim.token = &own->token;
		if (act_on_lease(action, write))
			done++;
		MemoryContextReset(context);
	}

	MemoryContextSwitchTo(caller_context);
	MemoryContextDelete(context);
	return done;
}
