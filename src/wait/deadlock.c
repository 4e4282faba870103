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
 * All members of a deadlock find the same one. Of the members that sleep in the
 * queue, the one that came last is the victim. A member that finds the deadlock
 * makes the victim check. If no member sleeps in the queue, the server finds
 * the deadlock.
 *
 * The search reads state that changes meanwhile. So a deadlock counts only if a
 * second search finds it the same: each wait (its ticket, or when it began) and
 * each obstacle (token, transaction, process, turn) must be unchanged. Then all
 * of them existed at the same moment, between the two searches.
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

#include "base/clock.h"
#include "base/compat.h"
#include "base/names.h"
#include "base/printable.h"
#include "base/privileges.h"
#include "monitor/monitor.h"
#include "wait/turns.h"

/* What has to happen before something else can go on. */
typedef enum EdgeKind
{
	EDGE_PART,					/* from a node to a part of its condition */
	EDGE_OWNER,					/* the owner ends a lease */
	EDGE_PROCESS,				/* the process ends a transaction, or releases a lock */
	EDGE_ORDER					/* the waiter takes its turn, or leaves the line */
} EdgeKind;

/*
 * A process that waits, an owner that waiters act for, or a part of the
 * condition under which a waiter can go on. It can go on when so many of its
 * edges lead to nodes that can.
 */
typedef struct WaitNode
{
	int			pid;			/* of a process; else 0 */
	const WaiterCopy *waiter;	/* NULL: the process does not wait for a lease */
	uint64		wait;			/* identifies the wait: ticket, or start time */
	bool		sleeps;			/* in the queue, so it can be the victim */
	const Lease *lease;			/* of an owner; else NULL */
	List	   *edges;
	int			needed;
	bool		stuck;			/* cannot go on, as far as the search knows */
	bool		reached;		/* by a walk along the edges, */
	const struct WaitNode *from;	/* from this node, */
	EdgeKind	through;		/* through such an edge */
} WaitNode;

#define ALL_EDGES	(-1)

typedef struct Edge
{
	EdgeKind	kind;
	WaitNode   *to;				/* NULL: a node that can go on */
	uint64		obstacle;		/* identifies the obstacle: token, xid, pid or turn */
} Edge;

/* A line of a waiter. All of them are sorted by hash and turn. */
typedef struct PlaceInLine
{
	const WaiterCopy *waiter;
	const WaiterLine *line;
} PlaceInLine;

typedef struct Search
{
	LeaseStore *store;
	List	   *waiters;		/* of WaiterCopy */
	PlaceInLine *places;
	int			nplaces;
	List	   *nodes;			/* of WaitNode; first our own process */
} Search;

static WaitNode *process_node(Search *search, int pid);

/* --- The graph ------------------------------------------------------------ */

static WaitNode *
new_node(Search *search, int needed)
{
	WaitNode   *node = palloc0(sizeof(WaitNode));

	node->needed = needed;
	node->stuck = true;
	search->nodes = lappend(search->nodes, node);
	return node;
}

static void
add_edge(WaitNode *node, EdgeKind kind, WaitNode *to, uint64 obstacle)
{
	Edge	   *edge = palloc(sizeof(Edge));

	*edge = (Edge) {kind, to, obstacle};
	node->edges = lappend(node->edges, edge);
}

/* The waiter waits for a process. It never waits for itself, and nobody waits for a process that ended. */
static void
add_process(Search *search, WaitNode *node, const WaitNode *self, EdgeKind kind, int pid, uint64 obstacle)
{
	add_edge(node, kind, pid == 0 || pid == self->pid ? NULL : process_node(search, pid), obstacle);
}

/* The process that runs a transaction; 0 if none does. One that ended long ago must not be looked up. */
static int
transaction_pid(TransactionId xid)
{
	return TransactionIdIsInProgress(xid) ? BackendXidGetPid(SubTransGetTopmostTransaction(xid)) : 0;
}

/* The processes that block a process in the lock manager. */
static void
add_lock_holders(Search *search, WaitNode *node)
{
	Datum		array = DirectFunctionCall1(pg_blocking_pids, Int32GetDatum(node->pid));
	Datum	   *pids;
	int			npids;

	deconstruct_array(DatumGetArrayTypeP(array), INT4OID, sizeof(int32), true, TYPALIGN_INT, &pids, NULL, &npids);
	for (int i = 0; i < npids; i++)
		add_process(search, node, node, EDGE_PROCESS, DatumGetInt32(pids[i]), DatumGetInt32(pids[i]));
}

/*
 * Does the waiter act for the owner of the lease? Any session can wait under
 * any owner name, and acquire a lease under it. So the roles of both must have
 * each other's privileges. Otherwise a session could make the waits of others
 * fail.
 */
static bool
acts_for(const WaiterCopy *waiter, const Lease *lease)
{
	const WaiterInfo *info = &waiter->info;

	return info->owner_length == (int) VARSIZE_ANY_EXHDR(lease->owner) &&
		memcmp(info->owner, VARDATA_ANY(lease->owner), info->owner_length) == 0 &&
		has_privs_of_role(info->role, lease->role) &&
		has_privs_of_role(lease->role, info->role);
}

/*
 * The node of the owner of a lease. The owner is stuck if a waiter that acts
 * for it is.
 */
static WaitNode *
owner_node(Search *search, const Lease *lease)
{
	ListCell   *cell;
	WaitNode   *node;

	foreach(cell, search->nodes)
	{
		node = lfirst(cell);
		if (node->lease != NULL && node->lease->role == lease->role && same_text(node->lease->owner, lease->owner))
			return node;
	}

	node = new_node(search, ALL_EDGES);
	node->lease = lease;
	foreach(cell, search->waiters)
	{
		const WaiterCopy *waiter = lfirst(cell);

		if (acts_for(waiter, lease))
			add_edge(node, EDGE_PART, process_node(search, waiter->info.pid), waiter->ticket);
	}
	return node;
}

/* What one lease slot must wait for. An owner that waits for its own lease is not stuck: it may have several sessions. */
static void
add_slot(Search *search, WaitNode *node, const WaitNode *self, const SlotBlocker *blocker)
{
	const Lease *lease = blocker->lease;

	if (TransactionIdIsValid(blocker->transaction))
	{
		add_process(search, node, self, EDGE_PROCESS, transaction_pid(blocker->transaction), blocker->transaction);
		return;					/* its end decides what becomes of the lease */
	}
	if (lease == NULL)
		return;					/* kept or delayed, which ends by itself */
	add_edge(node, EDGE_OWNER, acts_for(self->waiter, lease) ? NULL : owner_node(search, lease), lease->token);
	if (lease->session_pid != 0)
		add_process(search, node, self, EDGE_PROCESS, lease->session_pid, lease->token);
}

/* The slots of permits: as many of them must become free as there are too many. */
static void
add_permits(Search *search, WaitNode *node, const WaitNode *self, List *blockers)
{
	WaitNode   *permits = new_node(search, 0);
	WaitNode   *slot = NULL;
	int			last_slot = EXCLUSIVE_SLOT;
	int			taken = 0;
	ListCell   *cell;

	foreach(cell, blockers)
	{
		const SlotBlocker *blocker = lfirst(cell);

		if (blocker->slot == EXCLUSIVE_SLOT)
			continue;
		if (blocker->slot != last_slot)
		{
			slot = new_node(search, ALL_EDGES);
			add_edge(permits, EDGE_PART, slot, blocker->slot);
			last_slot = blocker->slot;
			taken++;
		}
		add_slot(search, slot, self, blocker);
	}
	permits->needed = Max(taken - self->waiter->info.permits + 1, 0);
	add_edge(node, EDGE_PART, permits, 0);
}

static int
compare_places(const void *a, const void *b)
{
	const WaiterLine *x = ((const PlaceInLine *) a)->line;
	const WaiterLine *y = ((const PlaceInLine *) b)->line;

	if (x->hash != y->hash)
		return x->hash < y->hash ? -1 : 1;
	return x->turn < y->turn ? -1 : x->turn > y->turn;
}

/* The process of the waiter runs this transaction, so that it goes before those who wait for that. */
static bool
runs(const WaitNode *self, TransactionId xid)
{
	return TransactionIdIsValid(xid) && transaction_pid(xid) == self->pid;
}

/* The waiter before this one in its line, whose turn comes first. It waits for those before it. */
static void
add_waiter_before(Search *search, WaitNode *node, const WaitNode *self, const WaiterLine *line)
{
	PlaceInLine own = {self->waiter, line};
	PlaceInLine *place = bsearch(&own, search->places, search->nplaces, sizeof(PlaceInLine), compare_places);

	while (place != NULL && --place >= search->places && place->line->hash == line->hash)
	{
		if (place->line->state == TURN_ASIDE || place->line->state == TURN_SKIPPED ||
			place->waiter == self->waiter || runs(self, place->line->awaited))
			continue;
		add_process(search, node, self, EDGE_ORDER, place->waiter->info.pid, place->line->turn);
		return;
	}
}

/* All that must happen before a waiter gets the lease of one of its lines. */
static void
add_line(Search *search, WaitNode *to, const WaitNode *self, const WaiterLine *line)
{
	LeaseMode	mode = self->waiter->info.mode;
	List	   *blockers = find_obstacles(search->store, line, mode);
	ListCell   *cell;

	foreach(cell, blockers)
	{
		const SlotBlocker *blocker = lfirst(cell);

		if (mode != MODE_PERMIT || blocker->slot == EXCLUSIVE_SLOT)
			add_slot(search, to, self, blocker);
	}
	if (mode == MODE_PERMIT)
		add_permits(search, to, self, blockers);
	if (line->state != TURN_ASIDE)
		add_waiter_before(search, to, self, line);
}

/* What a waiter waits for: its line, or any of several. */
static void
add_lines(Search *search, WaitNode *node)
{
	const WaiterCopy *waiter = node->waiter;
	WaitNode   *any;

	if (waiter->info.nresources == 1)
	{
		add_line(search, node, node, &waiter->line[0]);
		return;
	}

	any = new_node(search, 1);
	add_edge(node, EDGE_PART, any, 0);
	if (waiter->info.nnamed < waiter->info.nresources)
		add_edge(any, EDGE_PART, NULL, 0);	/* resources that are not known */
	for (int i = 0; i < waiter->info.nnamed; i++)
	{
		WaitNode   *part = new_node(search, ALL_EDGES);

		add_edge(any, EDGE_PART, part, i);
		add_line(search, part, node, &waiter->line[i]);
	}
}

static const WaiterCopy *
find_waiter(const Search *search, int pid)
{
	ListCell   *cell;

	foreach(cell, search->waiters)
		if (((WaiterCopy *) lfirst(cell))->info.pid == pid)
			return lfirst(cell);
	return NULL;
}

static void
describe_process(Search *search, WaitNode *node)
{
	const WaiterCopy *waiter = node->waiter;
	PGPROC	   *proc = BackendPidGetProc(node->pid);

	if (waiter == NULL && proc != NULL)
		node->wait = pg_atomic_read_u64(&proc->waitStart);
	add_lock_holders(search, node);
	if (waiter == NULL)
		return;

	node->wait = waiter->ticket;
	node->sleeps = node->edges == NIL && waiter->line[0].state != TURN_AWAY;
	if (waiter->is_called || waiter->line[0].state == TURN_SKIPPED)
		return;					/* it looks, or is about to */
	if (waiter->line[0].state == TURN_AWAY)
		add_process(search, node, node, EDGE_PROCESS, transaction_pid(waiter->line[0].awaited), waiter->line[0].awaited);
	else
		add_lines(search, node);
}

/* The node of a process: each process once, whatever waits for it. */
static WaitNode *
process_node(Search *search, int pid)
{
	ListCell   *cell;
	WaitNode   *node;

	check_stack_depth();
	CHECK_FOR_INTERRUPTS();

	foreach(cell, search->nodes)
		if (((WaitNode *) lfirst(cell))->pid == pid)
			return lfirst(cell);

	node = new_node(search, ALL_EDGES);
	node->pid = pid;
	node->waiter = find_waiter(search, pid);
	describe_process(search, node);
	return node;
}

static void
sort_places(Search *search)
{
	ListCell   *cell;

	search->places = palloc(sizeof(PlaceInLine) * MAX_LINES * list_length(search->waiters));
	foreach(cell, search->waiters)
	{
		const WaiterCopy *waiter = lfirst(cell);

		for (int i = 0; i < waiter->info.nlines; i++)
			search->places[search->nplaces++] = (PlaceInLine) {waiter, &waiter->line[i]};
	}
	qsort(search->places, search->nplaces, sizeof(PlaceInLine), compare_places);
}

/* --- Nodes in a deadlock -------------------------------------------------- */

/* Mark the nodes that can go on; returns whether there were any. */
static bool
let_go_on(const Search *search)
{
	bool		any = false;
	bool		changed;

	do
	{
		changed = false;
		for (int i = list_length(search->nodes) - 1; i >= 0; i--)
		{
			WaitNode   *node = list_nth(search->nodes, i);
			int			free = 0;
			ListCell   *cell;

			if (!node->stuck)
				continue;
			foreach(cell, node->edges)
				free += ((Edge *) lfirst(cell))->to == NULL || !((Edge *) lfirst(cell))->to->stuck;
			if (free >= (node->needed == ALL_EDGES ? list_length(node->edges) : node->needed))
			{
				node->stuck = false;
				any = changed = true;
			}
		}
	} while (changed);
	return any;
}

/* Mark the nodes that a walk from this one reaches, and through what. */
static void
walk_from(const Search *search, WaitNode *start)
{
	List	   *next = list_make1(start);
	ListCell   *cell;

	foreach(cell, search->nodes)
		((WaitNode *) lfirst(cell))->reached = false;
	for (int i = 0; i < list_length(next); i++)
	{
		WaitNode   *node = list_nth(next, i);

		foreach(cell, node->edges)
		{
			const Edge *edge = lfirst(cell);

			if (edge->to == NULL || !edge->to->stuck || edge->to->reached)
				continue;
			edge->to->reached = true;
			edge->to->from = node;
			edge->to->through = edge->kind;
			next = lappend(next, edge->to);
		}
	}
	list_free(next);
}

/* Does the node reach one of those that lead back? */
static bool
leads_back(const WaitNode *node, const WaitNode *start)
{
	ListCell   *cell;

	foreach(cell, node->edges)
	{
		const WaitNode *to = ((Edge *) lfirst(cell))->to;

		if (to != NULL && to->stuck && (to == start || to->reached))
			return true;
	}
	return false;
}

/*
 * Let all nodes go on that are in no circle with our own: if they are stuck,
 * then by another deadlock, which has a victim of its own. Returns whether
 * there were any.
 */
static bool
leave_own_circles(const Search *search)
{
	WaitNode   *own = linitial(search->nodes);
	List	   *forward = NIL;
	bool		changed;
	bool		any = false;
	ListCell   *cell;

	walk_from(search, own);
	foreach(cell, search->nodes)
	{
		WaitNode   *node = lfirst(cell);

		if (node->stuck && node->reached)
			forward = lappend(forward, node);
		node->reached = false;
	}

	/* From here on, "reached" means that the node leads back to our own. */
	do
	{
		changed = false;
		for (int i = list_length(forward) - 1; i >= 0; i--)
		{
			WaitNode   *node = list_nth(forward, i);

			if (!node->reached && leads_back(node, own))
				node->reached = changed = true;
		}
	} while (changed);

	foreach(cell, search->nodes)
	{
		WaitNode   *node = lfirst(cell);

		any |= node->stuck && !node->reached;
		node->stuck &= node->reached;
	}
	return any;
}

/* Find the nodes that are in a deadlock with our own process; are there any? */
static bool
find_deadlock(Search *search)
{
	WaitNode   *own;
	bool		changed = true;

	search->waiters = waiters_list();
	sort_places(search);
	own = process_node(search, MyProcPid);

	while (own->stuck && changed)
	{
		changed = let_go_on(search);
		changed |= leave_own_circles(search);
	}
	return own->stuck;
}

/* Would all the others go on if this one failed? */
static bool
frees_all(const Search *search, WaitNode *victim)
{
	List	   *members = NIL;
	bool		all = true;
	ListCell   *cell;

	foreach(cell, search->nodes)
		if (((WaitNode *) lfirst(cell))->stuck)
			members = lappend(members, lfirst(cell));

	victim->stuck = false;
	let_go_on(search);
	foreach(cell, members)
	{
		WaitNode   *node = lfirst(cell);

		all &= !node->stuck;
		node->stuck = true;
	}
	list_free(members);
	return all;
}

/*
 * Choose the member of the deadlock that must fail: the last one whose end
 * lets all others go on; NULL if the server chooses.
 */
static WaitNode *
choose_victim(const Search *search)
{
	WaitNode   *last = NULL;
	WaitNode   *last_of_all = NULL;
	ListCell   *cell;

	foreach(cell, search->nodes)
	{
		WaitNode   *node = lfirst(cell);

		if (!node->stuck || !node->sleeps)
			continue;
		if (last_of_all == NULL || node->wait > last_of_all->wait)
			last_of_all = node;
		if ((last == NULL || node->wait > last->wait) && frees_all(search, node))
			last = node;
	}
	return last != NULL ? last : last_of_all;
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

		if (!node->stuck)
			continue;
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

/* Append a name that another role may have chosen, with nothing in it that could forge a line. */
static void
append_quoted(StringInfo text, const char *name, int length)
{
	appendStringInfoChar(text, '"');
	append_printable(text, name, length, "\"\\");
	appendStringInfoChar(text, '"');
}

static void
append_what(StringInfo text, const WaiterInfo *info)
{
	if (info->nresources > 1)
		appendStringInfo(text, "one of %d leases", info->nresources);
	else
	{
		appendStringInfoString(text, "the lease on ");
		append_quoted(text, info->names, info->name_length[0]);
	}
}

/* Describe the wait of one process for another. Owners are shown only to roles that may see them. */
static void
append_wait(StringInfo text, const WaitNode *node, const WaitNode *next, EdgeKind kind)
{
	if (node->waiter == NULL)
	{
		appendStringInfo(text, "Process %d waits for a lock; blocked by process %d.", node->pid, next->pid);
		return;
	}
	appendStringInfo(text, "Process %d waits for ", node->pid);
	append_what(text, &node->waiter->info);
	if (may_see_owner(node->waiter->info.role))
	{
		appendStringInfoString(text, " for owner ");
		append_quoted(text, node->waiter->info.owner, node->waiter->info.owner_length);
	}
	appendStringInfo(text, kind == EDGE_OWNER ? "; held by the owner of process %d." :
					 kind == EDGE_ORDER ? "; behind process %d in its queue." : "; blocked by process %d.", next->pid);
}

/* Describe the shortest circle through our own process. */
static char *
describe_circle(const Search *search)
{
	WaitNode   *own = linitial(search->nodes);
	List	   *lines = NIL;
	const WaitNode *next = own;
	EdgeKind	kind = EDGE_PART;
	StringInfoData text;
	ListCell   *cell;

	walk_from(search, own);
	for (const WaitNode *node = own->from, *to = own;; to = node, node = node->from)
	{
		StringInfoData line;

		if (to->through != EDGE_PART)
			kind = to->through;
		if (node->pid == 0)
			continue;
		initStringInfo(&line);
		append_wait(&line, node, next, kind);
		lines = lcons(line.data, lines);
		if (node == own)
			break;
		next = node;
	}

	initStringInfo(&text);
	foreach(cell, lines)
		appendStringInfo(&text, "%s%s", text.len > 0 ? "\n" : "", (char *) lfirst(cell));
	return text.data;
}

static void
fail_as_victim(const Search *search, const WaiterInfo *info)
{
	StringInfoData what;

	initStringInfo(&what);
	append_what(&what, info);
	stats_count(STATS_DEADLOCKS);
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected while waiting for %s", what.data),
			 errdetail_internal("%s", describe_circle(search)),
			 errhint("Release what you hold and begin again. Acquire leases in the same order in all sessions.")));
}

/* Raise an error if our own wait is part of a deadlock and is its victim. */
void
check_deadlock(void)
{
	LeaseStore *store = store_open(AccessShareLock);
	Search		first = {.store = store};
	Search		second = {.store = store};
	WaitNode   *victim = NULL;

	if (find_deadlock(&first) && find_deadlock(&second) && signature(&first) == signature(&second))
		victim = choose_victim(&second);
	store_close(store);

	if (victim == NULL)
		return;
	if (victim->pid == MyProcPid)
		fail_as_victim(&second, &victim->waiter->info);
	else
		queue_suspect(victim->wait);
}
