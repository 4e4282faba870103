/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *		Deadlocks between leases.
 *
 * The server's deadlock detector sees transactions. The holder of a committed
 * lease is no transaction: only its owner name shows that it waits for
 * something else. So this search builds a graph of the processes that wait,
 * and of the owners whose leases they wait for. src/README.md shows its edges
 * as a table, and says when nodes of the graph are in a deadlock.
 *
 * The search reads state that changes meanwhile. So a deadlock counts only if a
 * second search finds it the same: each wait (its ticket, or when it began) and
 * each obstacle (token, transaction, process, turn) must be unchanged.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "monitor/monitor.h"
#include "wait/queue.h"

/* What has to happen before something else can go on. */
typedef enum EdgeKind
{
	EDGE_PART,					/* to a part of a condition, or to a waiter that acts for an owner */
	EDGE_OWNER,					/* the owner ends a lease */
	EDGE_PROCESS,				/* the process ends a transaction, or releases a lock */
	EDGE_ORDER					/* the waiter takes its turn, or leaves the line */
} EdgeKind;

/*
 * A process that waits, a part of the condition under which it can go on, or
 * an owner that waiters act for.
 */
typedef struct WaitNode
{
	int			pid;			/* of the process; 0: an owner */
	bool		is_part;		/* of its condition */
	const Waiter *waiter;		/* NULL: the process does not wait for a lease */
	const Lease *lease;			/* of an owner; else NULL */
	uint64		wait;			/* identifies the wait: ticket, or start time */
	bool		sleeps;			/* in the queue, so it can be the victim */
	List	   *edges;
	List	   *waited_for;		/* the edges that lead here */
	int			nstuck;			/* edges that lead to stuck nodes */
	int			spare;			/* so many of these do not keep it from going on */
	bool		stuck;			/* cannot go on, as far as the search knows */
	const struct Edge *reached; /* by a walk, last through this edge; NULL: not reached */
} WaitNode;

typedef struct Edge
{
	EdgeKind	kind;
	WaitNode   *from;
	WaitNode   *to;
	uint64		obstacle;		/* identifies the obstacle: token, xid, pid or turn */
} Edge;

/* A waiter in one of its lines. Aside or skipped, it is before nobody. */
typedef struct Place
{
	uint64		hash;			/* of the line */
	uint64		turn;
	const Waiter *waiter;
	int			awaited_pid;	/* of the transaction that refused it; 0: none */
	WaitNode   *up_to_here;		/* this waiter and all before it; NULL: not yet made */
} Place;

typedef struct Search
{
	LeaseStore *store;
	List	   *waiters;		/* of Waiter */
	Place	   *places;			/* sorted by line and turn */
	int			nplaces;
	List	   *nodes;			/* of WaitNode; first our own process. In the end, the members of the deadlock */
	List	   *named;			/* those of them that are processes or owners */
} Search;

/* --- The graph ------------------------------------------------------------ */

static WaitNode *
new_node(Search *search, WaitNode values)
{
	WaitNode   *node = palloc(sizeof(WaitNode));

	*node = values;
	node->stuck = true;
	search->nodes = lappend(search->nodes, node);
	if (!node->is_part)
		search->named = lappend(search->named, node);
	return node;
}

/* The node of a process, or of the owner of a lease: once for each, whatever waits for it. */
static WaitNode *
find_node(Search *search, int pid, const Lease *lease)
{
	ListCell   *cell;

	foreach(cell, search->named)
	{
		WaitNode   *node = lfirst(cell);

		if (node->pid == pid &&
			(lease == NULL || (node->lease->role == lease->role && same_text(node->lease->owner, lease->owner))))
			return node;
	}
	return new_node(search, (WaitNode) {.pid = pid, .lease = lease});
}

static void
add_edge(WaitNode *from, EdgeKind kind, WaitNode *to, uint64 obstacle)
{
	Edge	   *edge = palloc(sizeof(Edge));

	*edge = (Edge) {kind, from, to, obstacle};
	from->edges = lappend(from->edges, edge);
	to->waited_for = lappend(to->waited_for, edge);
}

static WaitNode *
add_part(Search *search, WaitNode *whole, int spare)
{
	WaitNode   *part = new_node(search, (WaitNode) {
		.pid = whole->pid,
		.is_part = true,
		.waiter = whole->waiter,
		.spare = spare
	});

	add_edge(whole, EDGE_PART, part, 0);
	return part;
}

/* Wait for a process. None waits for itself, nor for one that has ended, whose pid is 0. */
static void
add_process(Search *search, WaitNode *node, EdgeKind kind, int pid, uint64 obstacle)
{
	if (pid != 0 && pid != node->pid)
		add_edge(node, kind, find_node(search, pid, NULL), obstacle);
}

/* The process that runs a transaction; 0 if none does. One that ended long ago must not be looked up. */
static int
transaction_pid(TransactionId xid)
{
	return TransactionIdIsInProgress(xid) ? BackendXidGetPid(SubTransGetTopmostTransaction(xid)) : 0;
}

static bool
has_name_of_owner(const Waiter *waiter, const Lease *lease)
{
	const WaiterInfo *info = &waiter->info;

	return info->owner_length == (int) VARSIZE_ANY_EXHDR(lease->owner) &&
		memcmp(info->owner, VARDATA_ANY(lease->owner), info->owner_length) == 0;
}

/*
 * Does the waiter act for the owner of the lease? Any session can wait under
 * any owner name, and acquire a lease under it. So the roles of both must have
 * each other's privileges. Otherwise a session could make the waits of others
 * fail.
 */
static bool
acts_for(const Waiter *waiter, const Lease *lease)
{
	return has_name_of_owner(waiter, lease) &&
		has_privs_of_role(waiter->info.role, lease->role) &&
		has_privs_of_role(lease->role, waiter->info.role);
}

/* What one lease slot must wait for. An owner that waits for its own lease is not stuck: it may have several sessions. */
static void
add_slot(Search *search, WaitNode *node, const SlotBlocker *blocker)
{
	const Lease *lease = blocker->lease;

	if (TransactionIdIsValid(blocker->transaction)) /* its end decides what becomes of the lease */
		add_process(search, node, EDGE_PROCESS, transaction_pid(blocker->transaction), blocker->transaction);
	else if (lease != NULL)		/* else kept or delayed, which ends by itself */
	{
		if (!acts_for(node->waiter, lease))
			add_edge(node, EDGE_OWNER, find_node(search, 0, lease), lease->token);
		add_process(search, node, EDGE_PROCESS, lease->session_pid, lease->token);
	}
}

static int
compare_places(const void *a, const void *b)
{
	const Place *x = a;
	const Place *y = b;

	if (x->hash != y->hash)
		return x->hash < y->hash ? -1 : 1;
	return x->turn < y->turn ? -1 : x->turn > y->turn;
}

static void
list_places(Search *search)
{
	ListCell   *cell;

	search->waiters = waiters_list();
	search->places = palloc(sizeof(Place) * Max(1, list_length(search->waiters) * MAX_LINES));
	foreach(cell, search->waiters)
	{
		const Waiter *waiter = lfirst(cell);

		for (int i = 0; i < waiter->info.nlines; i++)
		{
			const Entry *entry = &waiter->entry[i];

			if (entry_state(entry) != TURN_ASIDE && entry_state(entry) != TURN_SKIPPED)
				search->places[search->nplaces++] = (Place)
			{
				entry->hash, entry_turn(entry), waiter, transaction_pid(entry->awaited), NULL
			};
		}
	}
	qsort(search->places, search->nplaces, sizeof(Place), compare_places);
}

/*
 * The waiters from the first of a line up to this place, as one node: a long
 * line has as many edges as waiters, not their square.
 */
static WaitNode *
up_to_here(Search *search, Place *first, Place *last)
{
	for (Place *place = first; place <= last; place++)
	{
		WaitNode   *process;

		if (place->up_to_here != NULL)
			continue;
		process = find_node(search, place->waiter->info.pid, NULL);
		process->waiter = place->waiter;
		place->up_to_here = new_node(search, (WaitNode) {.pid = process->pid, .is_part = true});
		add_edge(place->up_to_here, EDGE_PART, process, 0);
		if (place > first)
			add_edge(place->up_to_here, EDGE_PART, place[-1].up_to_here, 0);
	}
	return last->up_to_here;
}

/*
 * The waiters before this one in its line. One that waits for a transaction of
 * this process comes after it.
 */
static void
add_waiters_before(Search *search, WaitNode *node, const Entry *own)
{
	Place		limit = {.hash = own->hash, .turn = entry_turn(own)};
	Place	   *first = search->places;
	Place	   *end;
	bool		awaits_us = false;

	while (first < search->places + search->nplaces && first->hash < own->hash)
		first++;
	for (end = first; end < search->places + search->nplaces && compare_places(end, &limit) < 0; end++)
		awaits_us |= end->awaited_pid == node->pid;
	if (end > first && !awaits_us)
		add_edge(node, EDGE_ORDER, up_to_here(search, first, end - 1), end[-1].turn);
	else
		for (Place *place = first; place < end; place++)
			if (place->awaited_pid != node->pid)
				add_process(search, node, EDGE_ORDER, place->waiter->info.pid, place->turn);
}

/*
 * All that must happen before a waiter gets the lease of one of its lines. Of
 * the slots of permits, all but (permits - 1) must become free.
 */
static void
add_line(Search *search, WaitNode *node, int line)
{
	const Waiter *waiter = node->waiter;
	List	   *blockers = find_obstacles(search->store, waiter, line);
	WaitNode   *permits = NULL;
	WaitNode   *slot = NULL;
	int			last_slot = EXCLUSIVE_SLOT;
	ListCell   *cell;

	foreach(cell, blockers)
	{
		const SlotBlocker *blocker = lfirst(cell);

		if (waiter->info.mode != MODE_PERMIT || blocker->slot == EXCLUSIVE_SLOT)
		{
			add_slot(search, node, blocker);
			continue;
		}
		if (permits == NULL)
			permits = add_part(search, node, waiter->info.permits - 1);
		if (blocker->slot != last_slot)
			slot = add_part(search, permits, 0);
		last_slot = blocker->slot;
		add_slot(search, slot, blocker);
	}
	/* A transaction that changes or locks a free row blocks only who wants that row. */
	add_process(search, node, EDGE_PROCESS, transaction_pid(waiter->entry[line].awaited), waiter->entry[line].awaited);
	if (entry_state(&waiter->entry[line]) != TURN_ASIDE)
		add_waiters_before(search, node, &waiter->entry[line]);
}

/* Any of the lines will do, or one more resource, whose name is not known. */
static void
add_lines(Search *search, WaitNode *node)
{
	const WaiterInfo *info = &node->waiter->info;
	WaitNode   *any = add_part(search, node, info->nresources - 1);

	for (int i = 0; i < info->nnamed; i++)
		add_line(search, add_part(search, any, 0), i);
}

/* Does the waiter look, or is it about to? */
static bool
will_look(const Waiter *waiter)
{
	for (int i = 0; i < waiter->info.nlines; i++)
		if (entry_state(&waiter->entry[i]) == TURN_CALLED || entry_state(&waiter->entry[i]) == TURN_SKIPPED)
			return true;
	return false;
}

/* Can the process, or another one of its parallel query, wait for a lock of the server? It is read without a lock. */
static bool
may_wait_for_lock(const PGPROC *proc)
{
	return proc->waitLock != NULL || proc->lockGroupLeader != NULL;
}

/* Wait for the processes that block this one by locks of the server. Asking the server is expensive. */
static void
add_server_blockers(Search *search, WaitNode *node)
{
	PGPROC	   *proc = BackendPidGetProc(node->pid);
	Datum	   *pids;
	int			npids;

	if (proc == NULL || proc == MyProc || !may_wait_for_lock(proc))
		return;
	node->wait = pg_atomic_read_u64(&proc->waitStart);
	deconstruct_array(DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids, Int32GetDatum(node->pid))),
					  INT4OID, sizeof(int32), true, TYPALIGN_INT, &pids, NULL, &npids);
	for (int i = 0; i < npids; i++)
		add_process(search, node, EDGE_PROCESS, DatumGetInt32(pids[i]), DatumGetInt32(pids[i]));
}

static const Waiter *
waiter_of(const Search *search, int pid)
{
	ListCell   *cell;

	foreach(cell, search->waiters)
		if (((const Waiter *) lfirst(cell))->info.pid == pid)
			return lfirst(cell);
	return NULL;
}

static void
describe_process(Search *search, WaitNode *node)
{
	const Entry *entry;

	add_server_blockers(search, node);
	if (node->waiter == NULL)
		node->waiter = waiter_of(search, node->pid);
	if (node->waiter == NULL)
		return;
	node->wait = pg_atomic_read_u64((pg_atomic_uint64 *) &node->waiter->ticket);
	entry = &node->waiter->entry[0];
	node->sleeps = node->edges == NIL && entry_state(entry) != TURN_AWAY;
	if (will_look(node->waiter))
		return;
	if (entry_state(entry) == TURN_AWAY)
		add_process(search, node, EDGE_PROCESS, transaction_pid(entry->awaited), entry->awaited);
	else
		add_lines(search, node);
}

/* An owner is stuck if a waiter that acts for it is. */
static void
describe_owner(Search *search, WaitNode *node)
{
	ListCell   *cell;

	foreach(cell, search->waiters)
	{
		const Waiter *waiter = lfirst(cell);

		if (acts_for(waiter, node->lease))
			add_process(search, node, EDGE_PART, waiter->info.pid, 0);
	}
}

/* --- Nodes in a deadlock -------------------------------------------------- */

/* Let a node go on if it can: then it is appended to the list. */
static List *
let_node_go_on(WaitNode *node, List *free)
{
	if (!node->stuck || node->nstuck > node->spare)
		return free;
	node->stuck = false;
	return lappend(free, node);
}

/* Let the nodes go on that can, then those that wait for these, and so on. */
static void
let_go_on(const Search *search)
{
	List	   *free = NIL;
	ListCell   *cell;

	foreach(cell, search->nodes)
	{
		WaitNode   *node = lfirst(cell);
		ListCell   *edge_cell;

		node->nstuck = 0;
		foreach(edge_cell, node->edges)
			node->nstuck += ((Edge *) lfirst(edge_cell))->to->stuck;
	}
	foreach(cell, search->nodes)
		free = let_node_go_on(lfirst(cell), free);
	for (int i = 0; i < list_length(free); i++)
	{
		foreach(cell, ((WaitNode *) list_nth(free, i))->waited_for)
		{
			WaitNode   *node = ((Edge *) lfirst(cell))->from;

			node->nstuck--;
			free = let_node_go_on(node, free);
		}
	}
	list_free(free);
}

/*
 * Mark the stuck nodes that a walk from our own one reaches, each by the
 * shortest way; or, against the edges, the stuck nodes that reach it.
 */
static void
walk(const Search *search, bool backwards)
{
	List	   *next = list_make1(linitial(search->nodes));
	ListCell   *cell;

	foreach(cell, search->nodes)
		((WaitNode *) lfirst(cell))->reached = NULL;
	for (int i = 0; i < list_length(next); i++)
	{
		const WaitNode *node = list_nth(next, i);

		foreach(cell, backwards ? node->waited_for : node->edges)
		{
			const Edge *edge = lfirst(cell);
			WaitNode   *end = backwards ? edge->from : edge->to;

			if (!end->stuck || end->reached != NULL)
				continue;
			end->reached = edge;
			next = lappend(next, end);
		}
	}
	list_free(next);
}

/*
 * Let the nodes go on that are in no circle with our own: if they are stuck,
 * then by another deadlock, which has a victim of its own. Returns whether
 * there were any.
 */
static bool
leave_own_circles(const Search *search)
{
	bool		any = false;

	for (int backwards = false; backwards <= true; backwards++)
	{
		ListCell   *cell;

		walk(search, backwards);
		foreach(cell, search->nodes)
		{
			WaitNode   *node = lfirst(cell);

			any |= node->stuck && node->reached == NULL;
			node->stuck &= node->reached != NULL;
		}
	}
	return any;
}

/* Find the nodes that are in a deadlock with our own process; are there any? */
static bool
find_deadlock(Search *search)
{
	WaitNode   *own;
	ListCell   *cell;

	list_places(search);
	own = find_node(search, MyProcPid, NULL);
	for (int i = 0; i < list_length(search->nodes); i++)
	{
		WaitNode   *node = list_nth(search->nodes, i);

		CHECK_FOR_INTERRUPTS();
		if (node->lease != NULL)
			describe_owner(search, node);
		else if (!node->is_part)
			describe_process(search, node);
	}

	do
		let_go_on(search);
	while (own->stuck && leave_own_circles(search));

	foreach(cell, search->nodes)
		if (!((WaitNode *) lfirst(cell))->stuck)
			search->nodes = foreach_delete_current(search->nodes, cell);
	return own->stuck;
}

/* Would all members go on if this one failed? */
static bool
frees_all(const Search *search, WaitNode *victim)
{
	bool		all = true;
	ListCell   *cell;

	victim->stuck = false;
	let_go_on(search);
	foreach(cell, search->nodes)
	{
		all &= !((WaitNode *) lfirst(cell))->stuck;
		((WaitNode *) lfirst(cell))->stuck = true;
	}
	return all;
}

/*
 * Choose the member of the deadlock that must fail: the last one whose end
 * lets all others go on, or else the last one; NULL if the server chooses.
 */
static WaitNode *
choose_victim(const Search *search)
{
	WaitNode   *victim = NULL;
	bool		victim_frees = false;
	ListCell   *cell;

	foreach(cell, search->nodes)
	{
		WaitNode   *node = lfirst(cell);
		bool		frees = node->sleeps && frees_all(search, node);

		if (!node->sleeps ||
			(victim != NULL && (frees == victim_frees ? node->wait < victim->wait : victim_frees)))
			continue;
		victim = node;
		victim_frees = frees;
	}
	return victim;
}

/* A number that is the same as long as the members, their waits and what they wait for are. */
static uint64
signature(const Search *search)
{
	uint64		sum = 0;
	ListCell   *cell;

	foreach(cell, search->nodes)
	{
		const WaitNode *node = lfirst(cell);
		ListCell   *edge_cell;

		sum += hash_bytes_uint32_extended((uint32) node->pid, node->wait);
		foreach(edge_cell, node->edges)
		{
			const Edge *edge = lfirst(edge_cell);

			sum += hash_bytes_uint32_extended((uint32) edge->kind, edge->obstacle);
		}
	}
	return sum;
}

/* --- The error ------------------------------------------------------------ */

/* A name that another role may have chosen, with nothing in it that could forge a line. */
static char *
quoted(const char *name, int length)
{
	StringInfoData text;

	initStringInfo(&text);
	append_printable(&text, name, length, "\"\\");
	return psprintf("\"%s\"", text.data);
}

static char *
wanted_lease(const WaiterInfo *info)
{
	if (info->nresources > 1)
		return psprintf("one of %d leases", info->nresources);
	return psprintf("the lease on %s", quoted(info->names, info->name_length[0]));
}

/* Describe the wait of one process for another. Owners are shown only to roles that may see them. */
static char *
describe_wait(const WaitNode *node, EdgeKind kind, int blocker)
{
	const WaiterInfo *info;
	char	   *owner = "";

	if (node->waiter == NULL)
		return psprintf("Process %d waits for a lock; blocked by process %d.", node->pid, blocker);
	info = &node->waiter->info;
	if (may_see_owner(info->role))
		owner = psprintf(" for owner %s", quoted(info->owner, info->owner_length));
	return psprintf(kind == EDGE_OWNER ? "Process %d waits for %s%s; held by the owner of process %d." :
					kind == EDGE_ORDER ? "Process %d waits for %s%s; behind process %d in its queue." :
					"Process %d waits for %s%s; blocked by process %d.",
					node->pid, wanted_lease(info), owner, blocker);
}

/* Describe the shortest circle through our own process. */
static char *
describe_circle(const Search *search)
{
	WaitNode   *own = linitial(search->nodes);
	int			blocker = own->pid;
	EdgeKind	kind = EDGE_PART;
	char	   *text = "";

	walk(search, false);
	for (const Edge *edge = own->reached;; edge = edge->from->reached)
	{
		if (edge->kind != EDGE_PART)
			kind = edge->kind;
		if (edge->from->is_part || edge->from->lease != NULL)
			continue;
		text = psprintf("%s%s%s", describe_wait(edge->from, kind, blocker), *text ? "\n" : "", text);
		blocker = edge->from->pid;
		if (edge->from == own)
			return text;
	}
}

/* --- Waits that must end -------------------------------------------------- */

/* Does this process wait for no lease and no lock? One that has ended, whose pid is 0, does not. */
static bool
waits_for_nothing(int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);

	return proc == NULL ||
		(!may_wait_for_lock(proc) &&
		 pg_atomic_read_u64(&queue_waiter(GetNumberFromPGProc(proc))->ticket) == 0);
}

/*
 * Can this waiter, if it is stuck, hold up a line that nothing else does? So it
 * can if it acts for an owner that blocks the line (the roles are not asked), or
 * if it is before us and blocked by something that does not block us.
 */
static bool
may_hold_up(const Waiter *waiter, const Waiter *own, int line, List *blockers)
{
	const Entry *limit = &own->entry[line];
	bool		blocked_otherwise = entry_state(&waiter->entry[0]) == TURN_AWAY ||
		may_wait_for_lock(GetPGProcByNumber(waiter->entry[0].waiter)) ||
		(own->info.mode == MODE_SHARED && waiter->info.mode != MODE_SHARED);
	ListCell   *cell;

	foreach(cell, blockers)
	{
		const Lease *lease = ((const SlotBlocker *) lfirst(cell))->lease;

		if (lease != NULL && has_name_of_owner(waiter, lease))
			return true;
	}
	for (const Entry *entry = waiter->entry; entry < waiter->entry + waiter->info.nlines; entry++)
		if (entry->hash == limit->hash && entry_turn(entry) < entry_turn(limit))
			return blocked_otherwise || TransactionIdIsValid(entry->awaited);
	return false;
}

/* Does nothing that blocks this line wait for anything itself? The waiters are read where they are. */
static bool
line_must_move(LeaseStore *store, const Waiter *own, int line)
{
	List	   *blockers = find_obstacles(store, own, line);
	ListCell   *cell;

	if (!waits_for_nothing(transaction_pid(own->entry[line].awaited)))
		return false;
	foreach(cell, blockers)
	{
		const SlotBlocker *blocker = lfirst(cell);

		if (!waits_for_nothing(transaction_pid(blocker->transaction)) ||
			(blocker->lease != NULL && !waits_for_nothing(blocker->lease->session_pid)))
			return false;
	}
	for (int i = 0; i < MaxBackends; i++)
	{
		const Waiter *waiter = queue_waiter(i);

		CHECK_FOR_INTERRUPTS();
		if (pg_atomic_read_u64((pg_atomic_uint64 *) &waiter->ticket) != 0 &&
			waiter->info.database == MyDatabaseId && may_hold_up(waiter, own, line, blockers))
			return false;
	}
	return true;
}

/*
 * Must the wait of this waiter end, so that a search would find nothing? A
 * search reads the whole line, and in a long line most waits are of this kind.
 * If nothing that blocks the line waits itself, the first waiter can go on, so
 * the second one can, and so on, whatever other lines they are in.
 */
static bool
must_end(LeaseStore *store, const Waiter *own)
{
	if (will_look(own) || own->info.nnamed < own->info.nresources)
		return true;
	if (entry_state(&own->entry[0]) == TURN_AWAY)
		return waits_for_nothing(transaction_pid(own->entry[0].awaited));
	for (int i = 0; i < own->info.nnamed; i++)
		if (line_must_move(store, own, i))
			return true;
	return false;
}

/* Raise an error if our own wait is part of a deadlock and is its victim. */
void
check_deadlock(void)
{
	LeaseStore *store = store_open(AccessShareLock);
	Search		first = {.store = store};
	Search		second = {.store = store};
	WaitNode   *victim = NULL;

	if (!must_end(store, queue_waiter(MY_PROC_NUMBER)) &&
		find_deadlock(&first) && find_deadlock(&second) && signature(&first) == signature(&second))
		victim = choose_victim(&second);
	store_close(store);

	if (victim == NULL)
		return;
	if (victim->pid != MyProcPid)
	{
		queue_suspect(victim->waiter->entry[0].waiter);
		return;
	}
	stats_count(STATS_DEADLOCKS);
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected while waiting for %s", wanted_lease(&victim->waiter->info)),
			 errdetail_internal("%s", describe_circle(&second)),
			 errhint("Release what you hold and begin again. Acquire leases in the same order in all sessions.")));
}
