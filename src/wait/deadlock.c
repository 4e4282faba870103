/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *		Leases whose owners wait for each other.
 *
 * The server's detector sees transactions. The holder of a committed lease is
 * none: only its name tells that it waits for something else. So the search
 * goes from process to process:
 *
 * - From a waiter to the owners who hold what it waits for, and so to the
 *   waiters that call themselves by an owner's name; and to the
 *   processes whose open transactions are in its way.
 * - From a process that waits in the lock manager, for a lease or anything
 *   else, to those that pg_blocking_pids() names.
 *
 * Back at the start, nobody in the circle can ever go on, before a lease of it
 * expires.
 *
 * Anybody can wait under any name. So a name leads to a waiter only if the
 * waiter's role has the privileges of the role that acquired the lease, as a
 * release needs: nobody can make somebody else's wait fail.
 *
 * All members of a circle find the same one. The victim is the one that came
 * last among those that sleep in the queue: whoever finds the circle tells it to check. A
 * circle without any is for the server to find.
 *
 * What the search reads may change under it. A circle counts when a second search
 * finds it the same, with every wait (its ticket, or when it began) and what is in its
 * way (token, transaction, process) unchanged: then all of them were there at
 * once, between the two.
 *
 * An owner that waits for a lease of its own is no deadlock: owners may have
 * several sessions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/privileges.h"
#include "monitor/stats.h"
#include "wait/queue.h"

/* A process that waits, and what leads on from it. */
typedef struct Step
{
	int			pid;
	const WaiterInfo *waiter;	/* NULL: waits for no lease */
	bool		sleeps;			/* in the queue, where it can be told to check */
	uint64		wait;			/* what makes it the same wait: ticket, or start */
	int64		obstacle;		/* and the same obstacle: token, xid, or pid */
} Step;

/* Who is in the way: a process, or whoever waits by a name. */
typedef struct Blocker
{
	int			pid;			/* 0: it is an owner */
	text	   *owner;
	Oid			role;			/* that acquired the owner's lease */
	int64		obstacle;
} Blocker;

typedef struct Search
{
	LeaseStore *store;
	const GrantOutcome *refusal;	/* of the own wait */
	List	   *path;			/* of Step */
	List	   *visited;		/* int list: pids */
} Search;

static List *
add_process(List *blockers, int pid, int64 obstacle)
{
	Blocker    *blocker;

	if (pid == 0)
		return blockers;		/* prepared, or gone */
	blocker = palloc0(sizeof(Blocker));
	blocker->pid = pid;
	blocker->obstacle = obstacle;
	return lappend(blockers, blocker);
}

static List *
add_transaction(List *blockers, TransactionId xid)
{
	return add_process(blockers, BackendXidGetPid(SubTransGetTopmostTransaction(xid)), xid);
}

/* Who keeps a process waiting in the lock manager? */
static List *
lock_manager_blockers(int pid)
{
	Datum		array = DirectFunctionCall1(pg_blocking_pids, Int32GetDatum(pid));
	Datum	   *pids;
	int			npids;
	List	   *blockers = NIL;

	deconstruct_array(DatumGetArrayTypeP(array), INT4OID, sizeof(int32), true, TYPALIGN_INT, &pids, NULL, &npids);
	for (int i = 0; i < npids; i++)
		blockers = add_process(blockers, DatumGetInt32(pids[i]), DatumGetInt32(pids[i]));
	return blockers;
}

/* Who keeps a waiter from its lease? */
static List *
lease_blockers(LeaseStore *store, const WaiterInfo *waiter)
{
	Obstacles	obstacles = find_obstacles(store, waiter);
	List	   *blockers = NIL;
	ListCell   *cell;

	if (waiter->mode == MODE_PERMIT && list_length(obstacles.leases) + list_length(obstacles.transactions) > 1)
		return NIL;				/* any of them will do: no deadlock before all are part of one */

	foreach(cell, obstacles.leases)
	{
		Lease	   *lease = lfirst(cell);
		Blocker    *blocker = palloc0(sizeof(Blocker));

		blocker->owner = lease->owner;
		blocker->role = lease->holder;
		blocker->obstacle = lease->token;
		blockers = lappend(blockers, blocker);
	}
	foreach(cell, obstacles.transactions)
		blockers = add_transaction(blockers, (TransactionId) lfirst_int(cell));
	return blockers;
}

static List *
find_blockers(Search *search, const Step *step)
{
	if (step->waiter == NULL)
		return lock_manager_blockers(step->pid);
	if (step->sleeps)
		return lease_blockers(search->store, step->waiter);
	if (step->pid != MyProcPid)
		return lock_manager_blockers(step->pid);
	return add_transaction(NIL, search->refusal->transaction); /* for which we are going to wait */
}

/* Does a blocker's name mean this waiter? */
static bool
is_meant(const WaiterInfo *waiter, const Blocker *blocker)
{
	return waiter->owner_length == (int) VARSIZE_ANY_EXHDR(blocker->owner) &&
		memcmp(waiter->owner, VARDATA_ANY(blocker->owner), waiter->owner_length) == 0 &&
		has_privs_of_role(waiter->role, blocker->role);
}

static bool
is_blocker(const Step *step, const Blocker *blocker)
{
	return blocker->pid != 0 ? step->pid == blocker->pid :
		step->waiter != NULL && is_meant(step->waiter, blocker);
}

static Step *
make_step(const Search *search, int pid, const WaiterInfo *waiter)
{
	Step	   *step = palloc0(sizeof(Step));
	PGPROC	   *proc;

	step->pid = pid;
	step->waiter = waiter;
	if (waiter != NULL)
	{
		step->wait = waiter->ticket;
		step->sleeps = pid == MyProcPid ? search->refusal->result != REFUSED_BUSY :
			waiter->state != TURN_AWAY && lock_manager_blockers(pid) == NIL;
	}
	else if ((proc = BackendPidGetProc(pid)) != NULL)
		step->wait = pg_atomic_read_u64(&proc->waitStart);
	return step;
}

/* The processes that a blocker stands for, if they wait, as steps. */
static List *
blocker_steps(const Search *search, const Blocker *blocker)
{
	List	   *steps = NIL;
	ListCell   *cell;

	if (blocker->pid != 0)
		return list_make1(make_step(search, blocker->pid, waiter_of_pid(blocker->pid)));

	foreach(cell, waiters_of_owner(blocker->owner))
	{
		const WaiterInfo *waiter = lfirst(cell);

		if (is_meant(waiter, blocker))
			steps = lappend(steps, make_step(search, waiter->pid, waiter));
	}
	return steps;
}

/* Extend the path until it comes back to its start; false when it cannot. */
static bool
find_circle(Search *search)
{
	Step	   *start = linitial(search->path);
	Step	   *end = llast(search->path);
	ListCell   *blocker_cell;

	check_stack_depth();
	CHECK_FOR_INTERRUPTS();

	foreach(blocker_cell, find_blockers(search, end))
	{
		Blocker    *blocker = lfirst(blocker_cell);
		ListCell   *cell;

		end->obstacle = blocker->obstacle;
		if (is_blocker(start, blocker))
		{
			if (list_length(search->path) > 1)
				return true;
			continue;
		}

		foreach(cell, blocker_steps(search, blocker))
		{
			Step	   *step = lfirst(cell);

			if (list_member_int(search->visited, step->pid))
				continue;
			search->visited = lappend_int(search->visited, step->pid);
			search->path = lappend(search->path, step);
			if (find_circle(search))
				return true;
			search->path = list_delete_last(search->path);
		}
	}
	return false;
}

/* Find a circle that the own wait is part of; NIL when there is none. */
static List *
own_circle(const GrantOutcome *refusal)
{
	Search		search = {.store = store_open(AccessShareLock), .refusal = refusal};
	WaiterInfo *self = waiter_of_pid(MyProcPid);

	search.path = list_make1(make_step(&search, MyProcPid, self));
	search.visited = list_make1_int(MyProcPid);
	if (!find_circle(&search))
		search.path = NIL;
	store_close(search.store);
	return search.path;
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
		Step	   *x = lfirst(ca);
		Step	   *y = lfirst(cb);

		if (x->pid != y->pid || x->wait != y->wait || x->obstacle != y->obstacle)
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
		const Step *step = lfirst(cell);
		const Step *next = lnext(circle, cell) != NULL ? lfirst(lnext(circle, cell)) : linitial(circle);
		const WaiterInfo *waiter = step->waiter;

		if (text.len > 0)
			appendStringInfoChar(&text, '\n');
		if (waiter == NULL)
		{
			appendStringInfo(&text, "Process %d waits for a lock; blocked by process %d.", step->pid, next->pid);
			continue;
		}
		appendStringInfo(&text, "Process %d waits for the lease on \"%.*s\"", waiter->pid,
						 waiter->resource_length, waiter->resource);
		if (may_see_owner(waiter->role))
			appendStringInfo(&text, " for owner \"%.*s\"", waiter->owner_length, waiter->owner);
		if (step->sleeps)
			appendStringInfo(&text, "; held by the owner of process %d.", next->pid);
		else
			appendStringInfo(&text, "; blocked by process %d.", next->pid);
	}
	return text.data;
}

/* Choose the member of the circle that has to fail; NULL when the server chooses. */
static const Step *
choose_victim(List *circle)
{
	const Step *victim = NULL;
	ListCell   *cell;

	foreach(cell, circle)
	{
		const Step *step = lfirst(cell);

		if (step->sleeps && (victim == NULL || step->waiter->ticket > victim->waiter->ticket))
			victim = step;
	}
	return victim;
}

/* Have another waiter check for a deadlock now. */
static void
tell(const Step *step)
{
	for (int i = 0; i < MaxBackends; i++)
	{
		Waiter	   *waiter = queue_waiter(i);

		if (pg_atomic_read_u64(&waiter->ticket) == step->waiter->ticket)
		{
			pg_atomic_write_u32(&waiter->suspect, 1);
			queue_wake(waiter);
		}
	}
}

/*
 * Raise an error if the own wait is part of a deadlock, and came last into it.
 */
void
check_deadlock(const GrantOutcome *refusal)
{
	List	   *circle = own_circle(refusal);
	const Step *victim = choose_victim(circle);
	const WaiterInfo *self;

	if (victim == NULL || !same_circle(circle, own_circle(refusal)))
		return;
	if (victim->pid != MyProcPid)
	{
		tell(victim);
		return;
	}

	self = victim->waiter;
	stats_count(STATS_DEADLOCKS);
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected while waiting for the lease on \"%s\"",
					pnstrdup(self->resource, self->resource_length)),
			 errdetail_internal("%s", describe_circle(circle)),
			 errhint("Release what you hold and begin again; take leases in the same order everywhere.")));
}
