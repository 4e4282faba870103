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

#include "utils/builtins.h"

#include "base/clock.h"
#include "base/compat.h"
#include "rules/rules.h"
#include "store/store.h"
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
	TimestampTz now = clock_now();
	Obstacles	obstacles = {NIL, NIL};
	LeaseRows  *rows;

	if (waiter->nresources > 1)
		return obstacles;

	rows = palloc(sizeof(LeaseRows));	/* the leases point into it */
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
