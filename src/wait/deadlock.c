/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *		Leases whose owners wait for each other.
 *
 * The server's detector sees transactions. The holder of a committed lease is
 * none: only its name tells that it waits for another lease. So the walk goes
 * from a waiter to the owner who holds what it waits for, to the
 * waiters of that owner's name, and so on; back at the start, nobody in
 * the circle can ever go on, before a lease of it expires.
 *
 * A lease that an open transaction has taken leads to whoever runs that
 * transaction, if it waits for a lease in turn; the server's detector sees
 * only the one half of such a circle.
 *
 * All members of a circle find the same one. The member that came last is the
 * victim, and nobody else: who finds another one tells it to check. One that
 * waits in the lock manager cannot be told; it comes to look by itself.
 *
 * What the walk reads may change under it. A circle counts when a second walk
 * finds it the same, with every wait (its ticket) and every lease (its token)
 * unchanged: then all of them were there at once, between the two.
 *
 * An owner that waits for a lease of its own is no deadlock: owners may have
 * several sessions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/procarray.h"
#include "utils/builtins.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/privileges.h"
#include "rules/rules.h"
#include "store/store.h"
#include "monitor/stats.h"
#include "wait/wait.h"

/* A waiter, and the lease in its way. */
typedef struct Edge
{
	const Waiter *waiter;
	int64		grant;			/* token, or transaction id while uncommitted */
} Edge;

static bool
waits_as(const Waiter *waiter, const text *owner)
{
	return waiter->owner_length == (int) VARSIZE_ANY_EXHDR(owner) &&
		memcmp(waiter->owner, VARDATA_ANY(owner), waiter->owner_length) == 0;
}

/* Who is in the way of a waiter: an open transaction, or an owner. */
typedef struct Blocker
{
	int			pid;			/* of a transaction; 0: nobody runs it any more */
	text	   *owner;			/* NULL: it is a transaction */
	int64		grant;			/* what makes it the same one: xid or token */
} Blocker;

static bool
is_blocker(const Waiter *waiter, const Blocker *blocker)
{
	return blocker->owner == NULL ? waiter->pid == blocker->pid : waits_as(waiter, blocker->owner);
}

/* Whoever runs an open transaction; without a pid when nobody does. */
static Blocker *
transaction_blocker(TransactionId xid)
{
	Blocker    *blocker = palloc0(sizeof(Blocker));

	blocker->pid = BackendXidGetPid(SubTransGetTopmostTransaction(xid));
	blocker->grant = xid;
	return blocker;
}

/*
 * Find out who is in the way of a waiter, and could wait in turn: all of whom
 * have to leave before it gets anywhere. One of several holders of permits
 * will do, and any of several resources; that is no deadlock before all of
 * them are part of one, and is not looked for.
 */
static List *
find_blockers(LeaseStore *store, const Waiter *waiter)
{
	text	   *resource = cstring_to_text_with_len(waiter->resource, waiter->resource_length);
	TimestampTz now = clock_now();
	List	   *blockers = NIL;
	LeaseRows	rows;

	if (waiter->nresources > 1)
		return NIL;

	store_look(store, resource, &rows);
	for (int i = 0; i < rows.count; i++)
	{
		const LeaseRow *row = &rows.row[i];
		Obstacle	obstacle = obstacle_in(row, now);
		Blocker    *blocker;

		if (!obstacle.exists || (waiter->mode == MODE_SHARED && row->lease.slot != EXCLUSIVE_SLOT))
			continue;
		if (TransactionIdIsValid(obstacle.transaction))
			blocker = transaction_blocker(obstacle.transaction);
		else
		{
			blocker = palloc0(sizeof(Blocker));
			blocker->owner = row->lease.owner;
			blocker->grant = row->lease.token;
		}
		if (blocker->owner != NULL || blocker->pid != 0)
			blockers = lappend(blockers, blocker);
	}
	if (waiter->mode == MODE_PERMIT && list_length(blockers) > 1)
		return NIL;
	return blockers;
}

/*
 * Extend the path, which ends with a waiter, until it comes back to its start;
 * false when it cannot. visited keeps those who were tried.
 */
static bool
find_circle(LeaseStore *store, List *waiters, List **path, List **visited)
{
	Edge	   *start = linitial(*path);
	Edge	   *end = llast(*path);
	ListCell   *blocker_cell;

	check_stack_depth();

	foreach(blocker_cell, find_blockers(store, end->waiter))
	{
		Blocker    *blocker = lfirst(blocker_cell);
		ListCell   *cell;

		end->grant = blocker->grant;
		if (is_blocker(start->waiter, blocker))
		{
			if (list_length(*path) > 1)
				return true;
			continue;
		}

		foreach(cell, waiters)
		{
			Waiter	   *waiter = lfirst(cell);
			Edge	   *edge;

			if (!is_blocker(waiter, blocker) || list_member_ptr(*visited, waiter))
				continue;

			edge = palloc0(sizeof(Edge));
			edge->waiter = waiter;
			*visited = lappend(*visited, waiter);
			*path = lappend(*path, edge);
			if (find_circle(store, waiters, path, visited))
				return true;
			*path = list_delete_last(*path);
		}
	}
	return false;
}

/* Find a circle that the own wait is part of; NIL when there is none. */
static List *
own_circle(void)
{
	LeaseStore *store = store_open(AccessShareLock);
	List	   *waiters = wait_list();
	List	   *path = NIL;
	List	   *visited = NIL;
	ListCell   *cell;

	foreach(cell, waiters)
	{
		Waiter	   *waiter = lfirst(cell);

		if (waiter->pid == MyProcPid)
		{
			Edge	   *edge = palloc0(sizeof(Edge));

			edge->waiter = waiter;
			path = list_make1(edge);
			visited = list_make1(waiter);
		}
	}
	if (path != NIL && !find_circle(store, waiters, &path, &visited))
		path = NIL;

	store_close(store);
	return path;
}

static bool
same_circle(List *a, List *b)
{
	ListCell   *ca;
	ListCell   *cb;

	if (list_length(a) != list_length(b))
		return false;
	forboth(ca, a, cb, b)
	{
		Edge	   *x = lfirst(ca);
		Edge	   *y = lfirst(cb);

		if (x->waiter->ticket != y->waiter->ticket || x->grant != y->grant)
			return false;
	}
	return true;
}

/* Say who waits for whom; owners only to those who may know them. */
static char *
describe_circle(List *circle)
{
	StringInfoData text;
	ListCell   *cell;

	initStringInfo(&text);
	foreach(cell, circle)
	{
		const Waiter *waiter = ((Edge *) lfirst(cell))->waiter;
		const Waiter *next = lnext(circle, cell) != NULL ?
			((Edge *) lfirst(lnext(circle, cell)))->waiter :
			((Edge *) linitial(circle))->waiter;

		if (text.len > 0)
			appendStringInfoChar(&text, '\n');
		appendStringInfo(&text, "Process %d waits for the lease on \"%.*s\"", waiter->pid,
						 waiter->resource_length, waiter->resource);
		if (may_see_owner(waiter->role))
			appendStringInfo(&text, " for owner \"%.*s\"", waiter->owner_length, waiter->owner);
		appendStringInfo(&text, "; held by the owner of process %d.", next->pid);
	}
	return text.data;
}

/*
 * Raise an error if the own wait is part of a deadlock and came last into it.
 */
void
check_deadlock(void)
{
	List	   *circle = own_circle();
	const Waiter *self;
	const Waiter *victim;
	ListCell   *cell;

	if (circle == NIL || !same_circle(circle, own_circle()))
		return;

	self = victim = ((Edge *) linitial(circle))->waiter;
	foreach(cell, circle)
	{
		const Waiter *waiter = ((Edge *) lfirst(cell))->waiter;

		if (waiter->ticket > victim->ticket && !waiter->in_lock_wait)
			victim = waiter;
	}

	if (victim != self)
	{
		wait_suspect(victim);
		return;
	}
	stats_count(STATS_DEADLOCKS);
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected while waiting for the lease on \"%s\"",
					pnstrdup(self->resource, self->resource_length)),
			 errdetail_internal("%s", describe_circle(circle)),
			 errhint("Release what you hold and begin again; take leases in the same order everywhere.")));
}

/* What is in the way of a waiter: a lease, or an open transaction. */
static void
describe_blocker(LeaseStore *store, BlockedWaiter *blocked)
{
	const Waiter *waiter = blocked->waiter;
	text	   *resource = cstring_to_text_with_len(waiter->resource, waiter->resource_length);
	TimestampTz now = clock_now();
	LeaseRows	rows;
	int			obstacles = 0;

	store_look(store, resource, &rows);
	for (int i = rows.count - 1; i >= 0; i--)
	{
		const LeaseRow *row = &rows.row[i];
		Obstacle	obstacle = obstacle_in(row, now);

		if (!obstacle.exists || (waiter->mode == MODE_SHARED && row->lease.slot != EXCLUSIVE_SLOT))
			continue;
		obstacles++;
		if (TransactionIdIsValid(obstacle.transaction))
			blocked->busy_xid = obstacle.transaction;
		if (!TransactionIdIsValid(row->inserted_by) && is_held(&row->lease, now))
		{
			blocked->holder_owner = row->lease.owner;
			blocked->holder_role = row->lease.holder;
		}
	}
	if (waiter->mode == MODE_PERMIT && obstacles > 1)
		blocked->busy_xid = InvalidTransactionId;
}

/* List who waits in this database, and for what. */
List *
blocked_waiters(void)
{
	List	   *waiters = wait_list();
	List	   *blocked = NIL;
	LeaseStore *store = store_open(AccessShareLock);
	ListCell   *cell;

	foreach(cell, waiters)
	{
		BlockedWaiter *b = palloc0(sizeof(BlockedWaiter));
		ListCell   *other;

		b->waiter = lfirst(cell);
		foreach(other, blocked)
		{
			BlockedWaiter *earlier = lfirst(other);

			if (earlier->waiter->hash == b->waiter->hash)
				b->position = earlier->position;
		}
		b->position++;
		describe_blocker(store, b);
		blocked = lappend(blocked, b);
	}
	store_close(store);
	return blocked;
}
