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

#include "rules/rules.h"
#include "wait/wait.h"

/*
 * Find what blocks a waiter in one of its lines: a list of SlotBlocker in
 * ascending order of lease slots. A slot that a transaction changes may be in
 * it twice.
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
		blockers = lappend(blockers, blocker);
	}
	return blockers;
}
