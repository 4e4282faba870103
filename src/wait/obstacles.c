/*-------------------------------------------------------------------------
 *
 * The leases and transactions that block a waiter, from the lock table.
 *
 * This is the only file of this folder that reads leases.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "base/clock.h"
#include "base/compat.h"
#include "rules/rules.h"
#include "store/store.h"
#include "wait/wait.h"

/*
 * Find the leases and open transactions that block a waiter for one resource.
 * A waiter for several resources needs only one of them, so it gets an empty
 * result.
 */
Obstacles
find_obstacles(LeaseStore *store, const WaiterInfo *waiter)
{
	text	   *resource = cstring_to_text_with_len(waiter->resource, waiter->resource_length);
	TimestampTz now = clock_now();
	Obstacles	obstacles = {NIL, NIL};
	LeaseRows  *rows;

	if (waiter->nresources > 1)
		return obstacles;

	rows = palloc(sizeof(LeaseRows));	/* the result points into it */
	store_look(store, resource, rows);
	for (int i = rows->count - 1; i >= 0; i--)
	{
		LeaseRow   *row = &rows->row[i];
		Obstacle	obstacle = obstacle_in(row, now);

		if (!obstacle.exists || (waiter->mode == MODE_SHARED && row->lease.slot != EXCLUSIVE_SLOT))
			continue;
		if (TransactionIdIsValid(obstacle.transaction))
			obstacles.transactions = list_append_unique_int(obstacles.transactions, (int) obstacle.transaction);
		if (!TransactionIdIsValid(row->inserted_by) && is_held(&row->lease, now))
			obstacles.leases = lappend(obstacles.leases, &row->lease);
	}
	return obstacles;
}
