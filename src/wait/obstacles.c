/*-------------------------------------------------------------------------
 *
 * obstacles.c
 *		What is in the way of a waiter, as the lock table tells.
 *
 * The only file of the queue that knows what a lease is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "wait/wait.h"

/*
 * Find what is in the way of a waiter for one resource: all of which has to go
 * before it gets anywhere. One of several holders of permits will do, and so
 * will any of several resources: then nothing in particular is in the way.
 */
Obstacles
find_obstacles(LeaseStore *store, const WaiterInfo *waiter)
{
	text	   *resource = cstring_to_text_with_len(waiter->resource, waiter->resource_length);
	Obstacles	obstacles = {NIL, NIL};
	ListCell   *cell;

	if (waiter->nresources > 1)
		return obstacles;

	if (store_probe(store, resource, GATE_SLOT) == PROBE_BUSY)
		obstacles.transactions = list_make1_int((int) store->busy.xid);
	obstacles.leases = current_leases(store, resource);
	if (waiter->mode != MODE_SHARED)
		foreach(cell, slot_transactions(store, resource))
			obstacles.transactions = lappend_int(obstacles.transactions, (int) ((BusyRow *) lfirst(cell))->xid);
	return obstacles;
}

/* What a transaction has that is in the way. */
typedef struct RowWait
{
	const LeaseRequest *request;
	const GrantOutcome *refusal;
} RowWait;

/* SubtransactionWork: nothing of it remains, neither the row lock nor the name. */
static bool
wait_for_row(void *arg)
{
	RowWait    *wait = arg;
	bool		needs_snapshot = !ActiveSnapshotSet();
	LeaseStore *store;

	if (wait->refusal->name_in_use)
	{
		wait_for_name(wait->request);
		return false;
	}

	if (needs_snapshot)
		PushActiveSnapshot(GetTransactionSnapshot());
	store = store_open(RowExclusiveLock);
	if (store_fetch(store, wait->request->resource, wait->refusal->locked_slot) &&
		(!is_held(&store->lease, clock_now()) || is_owner(&store->lease, wait->request->owner)))
		store_lock_row(store, wait->refusal->lock_mode, LockWaitBlock);
	store_close(store);
	if (needs_snapshot)
		PopActiveSnapshot();
	return false;
}

/*
 * Wait in the lock manager for whoever has what was in the way. No table lock
 * or snapshot of ours is held on to while a transaction changes the lease.
 */
void
wait_for_transaction(const LeaseRequest *request, const GrantOutcome *refusal)
{
	RowWait		wait = {request, refusal};
	ErrorData  *error;

	if (TransactionIdIsValid(refusal->busy.xid))
	{
		store_wait(refusal->busy);
		return;
	}
	error = run_subtransaction(wait_for_row, &wait);
	if (error != NULL)
		ReThrowError(error);
}
