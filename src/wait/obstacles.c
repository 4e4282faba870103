/*-------------------------------------------------------------------------
 *
 * obstacles.c
 *		The leases and transactions that block a waiter, from the lock table.
 *
 * This is the only file of this folder that reads leases.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "storage/procarray.h"

#include "rules/rules.h"
#include "wait/wait.h"

/* The process that runs a transaction; 0 if none does. One that ended long ago must not be looked up. */
int
transaction_pid(TransactionId xid)
{
	return TransactionIdIsInProgress(xid) ? BackendXidGetPid(SubTransGetTopmostTransaction(xid)) : 0;
}

/*
 * Find what blocks a waiter in one of its lines: a list of SlotBlocker in
 * ascending order of lease slots. A slot that a transaction changes may be in
 * it twice. The waiter may begin another wait while it is read: then the
 * result means nothing.
 */
List *
find_obstacles(LeaseStore *store, const Waiter *waiter, int line)
{
	TimestampTz now = clock_now();
	List	   *blockers = NIL;
	LeaseRows  *rows = palloc(sizeof(LeaseRows));	/* the result points into it */

	store_look(store, named_resource(&waiter->info, line), rows);
	for (int i = rows->count - 1; i >= 0; i--)
	{
		const LeaseRow *row = &rows->row[i];
		Obstacle	obstacle = obstacle_in(row, now);
		SlotBlocker *blocker;

		if (!obstacle.exists || (waiter->info.mode == MODE_SHARED && row->lease.slot != EXCLUSIVE_SLOT))
			continue;
		blocker = palloc0(sizeof(SlotBlocker));
		blocker->slot = row->lease.slot;
		blocker->transaction = obstacle.transaction;
		if (!TransactionIdIsValid(row->inserted_by) && is_held(&row->lease, now))
			blocker->lease = &row->lease;
		if (TransactionIdIsValid(obstacle.transaction))
			blocker->pid = transaction_pid(obstacle.transaction);
		else if (blocker->lease != NULL)
			blocker->pid = row->lease.session_pid;
		blockers = lappend(blockers, blocker);
	}
	return blockers;
}
