/*-------------------------------------------------------------------------
 *
 * view.c
 *		Waiters and what blocks them, for the view lease_waiters.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/proc.h"
#include "utils/builtins.h"

#include "wait/queue.h"

/* A waiter, with what others may share that wait for the same. */
typedef struct ListedWaiter
{
	const Waiter *waiter;
	ShownWaiter shown;
	List	   *pids;			/* found in the rows of its resources */
} ListedWaiter;

/* Show the first lease and the first transaction among the obstacles. */
static void
show_obstacles(ShownWaiter *shown, const List *obstacles)
{
	ListCell   *cell;

	foreach(cell, obstacles)
	{
		const SlotBlocker *obstacle = lfirst(cell);

		if (shown->lease == NULL)
			shown->lease = obstacle->lease;
		if (!TransactionIdIsValid(shown->transaction))
			shown->transaction = obstacle->transaction;
	}
}

/*
 * Look for what blocks a waiter for one resource. before is one that is before
 * it in its line, or NULL.
 */
static void
look_for_obstacles(ListedWaiter *listed, LeaseStore *store, const ListedWaiter *before)
{
	const Waiter *waiter = listed->waiter;
	TransactionId awaited = waiter->entry[0].awaited;
	LeaseRows  *rows;

	if (before != NULL && before->waiter->info.mode == waiter->info.mode &&
		before->waiter->entry[0].awaited == awaited)
	{
		listed->shown.lease = before->shown.lease;
		listed->shown.transaction = before->shown.transaction;
		listed->pids = before->pids;
		return;
	}
	rows = look_at_line(store, &waiter->info, 0);
	show_obstacles(&listed->shown, find_obstacles(rows, &waiter->info));
	listed->pids = find_blocking_pids(rows, &waiter->info, awaited);
}

/* A waiter for any of several resources is in several lines, and has no single obstacle. */
static void
look_in_all_lines(ListedWaiter *listed, LeaseStore *store)
{
	const Waiter *waiter = listed->waiter;

	for (int i = 0; i < waiter->info.nlines; i++)
		listed->pids = list_concat_unique_int(listed->pids,
											  find_blocking_pids(look_at_line(store, &waiter->info,
																			  i),
																 &waiter->info,
																 waiter->entry[i].awaited));
}

/* The last one in the list that waits for the same resource, and no other. */
static const ListedWaiter *
find_before(const List *list, const Waiter *waiter)
{
	const ListedWaiter *before = NULL;
	ListCell   *cell;

	foreach(cell, list)
	{
		const ListedWaiter *other = lfirst(cell);

		if (other->waiter->info.nresources == 1 &&
			other->waiter->entry[0].line.number == waiter->entry[0].line.number)
			before = other;
	}
	return before;
}

/* Describe a waiter whose blocking processes, apart from those of server locks, are known. */
static void
describe(ListedWaiter *listed)
{
	const WaiterInfo *info = &listed->waiter->info;
	ShownWaiter *shown = &listed->shown;
	const PGPROC *proc = GetPGProcByNumber(listed->waiter->entry[0].waiter);

	shown->resource = info->nresources == 1 ? named_resource(info, 0) : NULL;
	shown->owner = cstring_to_text_with_len(info->owner, info->owner_length);
	shown->pid = info->pid;
	shown->role = info->role;
	shown->since = info->since;
	shown->deadline = info->deadline;
	shown->mode = info->mode;
	shown->permits = info->permits;
	shown->pids = list_concat_unique_int(list_copy(listed->pids), server_blocking_pids(proc));
	shown->pids = list_delete_int(shown->pids, info->pid);
	list_sort(shown->pids, list_int_cmp);
}

/* List the waiters of this database, in the order of turns: a list of ShownWaiter. */
List *
wait_show(LeaseStore *store)
{
	List	   *list = NIL;
	List	   *result = NIL;
	ListCell   *cell;

	foreach(cell, waiters_list())
	{
		ListedWaiter *listed = palloc0(sizeof(ListedWaiter));

		listed->waiter = lfirst(cell);
		if (listed->waiter->info.nresources == 1)
		{
			const ListedWaiter *before = find_before(list, listed->waiter);

			listed->shown.position = before != NULL ? before->shown.position + 1 : 1;
			look_for_obstacles(listed, store, before);
		}
		else
			look_in_all_lines(listed, store);
		describe(listed);
		list = lappend(list, listed);
		result = lappend(result, &listed->shown);
	}
	return result;
}
