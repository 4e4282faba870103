/*-------------------------------------------------------------------------
 *
 * Deadlocks between leases.
 *
 * The server's deadlock detector sees transactions. The holder of a committed
 * lease is no transaction: only its owner name shows that it waits for
 * something else. So this search goes from process to process:
 *
 * - From a waiter, to the waiters whose owner names hold the conflicting
 *   leases, and to the processes whose open transactions conflict.
 * - From a waiter, to the process whose session holds a conflicting session
 *   lease.
 * - From a process that waits in the lock manager, for a lease or anything
 *   else, to the processes that pg_blocking_pids() returns.
 *
 * If the search comes back to its start, no process in the circle can go on
 * before a lease in the circle expires.
 *
 * Any session can wait under any owner name, and acquire a lease under it. So a
 * name leads to a waiter only if the waiter's role and the role that acquired
 * the lease have each other's privileges. Otherwise a session could make the
 * waits of others fail.
 *
 * All members of a circle find the same circle. Of the members that sleep in
 * the queue, the one that came last is the victim. A member that finds the
 * circle tells the victim to check. If no member sleeps in the queue, the
 * server finds the deadlock.
 *
 * The search reads state that changes meanwhile. So a circle counts only if a
 * second search finds it the same: each wait (its ticket, or when it began)
 * and each obstacle (token, transaction, process) must be unchanged. Then all
 * of them existed at the same moment, between the two searches.
 *
 * An owner that waits for its own lease is not deadlocked: an owner may have
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
#include "base/printable.h"
#include "monitor/stats.h"
#include "wait/queue.h"

/* A process that waits, and what it waits for. */
typedef struct Step
{
	int			pid;
	const WaiterInfo *waiter;	/* NULL: does not wait for a lease */
	bool		sleeps;			/* in the queue, so it can be told to check */
	bool		behind_owner;	/* blocked by an owner, for whom the next process waits */
	uint64		wait;			/* identifies the wait: ticket, or start time */
	int64		obstacle;		/* identifies the obstacle: token, xid, or pid */
} Step;

/* What blocks a process: another process, or an owner that waiters may act for. */
typedef struct Blocker
{
	int			pid;			/* 0: it is an owner */
	text	   *owner;
	Oid			role;			/* role that acquired the owner's lease */
	int64		obstacle;
} Blocker;

typedef struct Search
{
	LeaseStore *store;
	const GrantOutcome *refusal;	/* of our own wait */
	List	   *path;			/* of Step */
	List	   *visited;		/* int list: pids */
} Search;

static List *
add_process(List *blockers, int pid, int64 obstacle)
{
	Blocker    *blocker;

	if (pid == 0)
		return blockers;		/* prepared, or ended */
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

/* The processes that block a process in the lock manager. */
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

/* The owners and processes that keep a waiter from its lease. */
static List *
lease_blockers(LeaseStore *store, const WaiterInfo *waiter)
{
	Obstacles	obstacles = find_obstacles(store, waiter);
	List	   *blockers = NIL;
	ListCell   *cell;

	if (waiter->mode == MODE_PERMIT && list_length(obstacles.leases) + list_length(obstacles.transactions) > 1)
		return NIL;				/* the end of any of them suffices: no deadlock while one of them can go on */

	foreach(cell, obstacles.leases)
	{
		Lease	   *lease = lfirst(cell);
		Blocker    *blocker = palloc0(sizeof(Blocker));

		blocker->owner = lease->owner;
		blocker->role = lease->role;
		blocker->obstacle = lease->token;
		blockers = lappend(blockers, blocker);
		if (lease->session_pid != 0)
			blockers = add_process(blockers, lease->session_pid, lease->token);
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
	return add_transaction(NIL, search->refusal->transaction); /* we are about to wait for it */
}

/* Is this a waiter of the blocker's owner, with the privileges to act for it? */
static bool
is_meant(const WaiterInfo *waiter, const Blocker *blocker)
{
	return waiter->owner_length == (int) VARSIZE_ANY_EXHDR(blocker->owner) &&
		memcmp(waiter->owner, VARDATA_ANY(blocker->owner), waiter->owner_length) == 0 &&
		has_privs_of_role(waiter->role, blocker->role) &&
		has_privs_of_role(blocker->role, waiter->role);
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
		step->sleeps = pid == MyProcPid ? search->refusal->result != REFUSED_OPEN :
			waiter->state != TURN_AWAY && lock_manager_blockers(pid) == NIL;
	}
	else if ((proc = BackendPidGetProc(pid)) != NULL)
		step->wait = pg_atomic_read_u64(&proc->waitStart);
	return step;
}

/* The waiting processes that a blocker stands for, as steps. */
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

/* Extend the path until it comes back to its start; false if no extension does. */
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
		end->behind_owner = blocker->pid == 0;
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

/* Find a circle that includes our own wait; NIL if there is none. */
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

/* Append a name that another role may have chosen, with nothing in it that could forge a line. */
static void
append_quoted(StringInfo text, const char *name, int length)
{
	appendStringInfoChar(text, '"');
	append_printable(text, name, length, "\"\\");
	appendStringInfoChar(text, '"');
}

/* Describe the waits of the circle. Owners are shown only to roles that may see them. */
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
		appendStringInfo(&text, "Process %d waits for the lease on ", waiter->pid);
		append_quoted(&text, waiter->resource, waiter->resource_length);
		if (may_see_owner(waiter->role))
		{
			appendStringInfoString(&text, " for owner ");
			append_quoted(&text, waiter->owner, waiter->owner_length);
		}
		if (step->behind_owner)
			appendStringInfo(&text, "; held by the owner of process %d.", next->pid);
		else
			appendStringInfo(&text, "; blocked by process %d.", next->pid);
	}
	return text.data;
}

/* Choose the member of the circle that must fail; NULL if the server chooses. */
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

/* Make another waiter check for a deadlock now. */
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

/* Raise an error if our own wait is part of a deadlock and is its victim. */
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
					printable_string(pnstrdup(self->resource, self->resource_length))),
			 errdetail_internal("%s", describe_circle(circle)),
			 errhint("Release what you hold and begin again; take leases in the same order everywhere.")));
}
