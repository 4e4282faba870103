/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *		Deadlocks between leases.
 *
 * The server's deadlock detector sees transactions. The holder of a committed
 * lease is no transaction: only its owner name shows that it waits for
 * something else. So this search builds a graph of the processes that wait,
 * and of the owners whose leases they wait for. src/README.md shows its edges
 * as a table.
 *
 * A process that does not wait can go on; so can a prepared transaction. At
 * first, all nodes count as stuck. The search removes those that can go on.
 * Then it removes those that are in no circle with its own process, since
 * another deadlock has stuck them. What remains is the deadlock, and each of
 * its members finds the same one. The victim is a member that sleeps in the
 * queue: the last one whose end lets all others go on, else the last one. Any
 * other member that finds it makes the victim search. If no member sleeps in
 * the queue, the server finds the deadlock. A search visits each process and
 * each owner once, and looks once at each line that it reaches, or once for
 * each number of permits stated there. Nothing is found for a waiter with
 * resources that it has no entry for.
 *
 * The search reads state that changes meanwhile. So a deadlock counts only if a
 * second search finds it the same: each wait (its ticket, or when it began) and
 * each obstacle (token, transaction, turn, begin of a wait for a lock) must be
 * unchanged.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"

#include "monitor/monitor.h"
#include "wait/queue.h"

/* What has to happen before something else can go on. */
typedef enum EdgeKind
{
	EDGE_PART,					/* to a part of a condition, or to a waiter that acts for an
								 * owner */
	EDGE_OWNER,					/* the owner ends a lease */
	EDGE_PROCESS,				/* the process ends a transaction, or releases a lock */
	EDGE_ORDER					/* the waiter takes its turn, or leaves the line */
} EdgeKind;

/*
 * A process that waits, an owner that waiters act for, or a part of the
 * condition under which processes can go on.
 */
typedef struct WaitNode
{
	uint64		key;			/* of a process or an owner in the hash table */
	int			pid;			/* of a process; else 0 */
	const Lease *lease;			/* one of an owner; else NULL */
	struct SeenEntry *entry;	/* for a waiter of a line, and all before it; else NULL */
	const Waiter *waiter;		/* NULL: the process does not wait for a lease. It is not copied,
								 * see list_entries() */
	List	   *entries;			/* of the waiter in its lines */
	uint64		wait;			/* ticket of the waiter */
	bool		looks;			/* in one of its lines, or is about to, or commits */
	bool		is_awaited;		/* a waiter was refused because of a transaction of this process */
	bool		sleeps;			/* in the queue, so it can be the victim */
	List	   *edges;
	List	   *waited_for;		/* the edges that lead here */
	uint64		obstacles;		/* a sum that identifies what the edges stand for */
	int			nstuck;			/* edges that lead to stuck nodes */
	int			spare;			/* number of them that do not keep it from going on */
	bool		stuck;			/* in the graph, and cannot go on, as far as the search knows */
	const struct Edge *reached; /* by a walk, last through this edge; NULL: not reached */
} WaitNode;

typedef struct Edge
{
	EdgeKind	kind;
	WaitNode   *from;
	WaitNode   *to;
} Edge;

/* What the search has seen of a waiter in one of its lines. */
typedef struct SeenEntry
{
	uint64		line_number;	/* which no other line has */
	uint64		turn;
	TurnState	state;
	TransactionId awaited;		/* that refused it */
	int			awaited_pid;	/* its process; 0: none */
	int			line;			/* among those of the waiter */
	int			spare;			/* number of slots that may stay taken */
	WaitNode   *process;		/* of the waiter */
	WaitNode   *up_to_here;		/* this waiter and all before it */
	struct SeenEntry *first;		/* of the line */

	/*
	 * What blocks all waiters of the line that ask for the same as this one,
	 * which is the first of them.
	 */
	bool		looked;
	List	   *blockers;		/* of SlotBlocker */
	WaitNode   *obstacles;		/* the same as a node, for all to whom none of them belongs;
								 * NULL: not yet made */
} SeenEntry;

/* The waiters under an owner's name, by the hash of the name. */
typedef struct NamedWaiters
{
	uint64		hash;
	List	   *entries;		/* one of each waiter */
} NamedWaiters;

typedef struct Search
{
	LeaseStore *store;
	HTAB	   *named;			/* the nodes of processes and owners */
	HTAB	   *by_owner;		/* NamedWaiters; NULL: not yet made */
	SeenEntry  *entries;			/* sorted by line and turn */
	int			nentries;
	List	   *nodes;			/* the graph; first our own process. In the end, the members of
								 * the deadlock */
} Search;

/* --- The graph ------------------------------------------------------------ */

/* The node of a process, or of the owner of a lease: once for each, whatever waits for it. */
static WaitNode *
find_node(Search *search, int pid, const Lease *lease)
{
	uint64		key = lease == NULL ? (uint64) pid :
		hash_text(lease->owner, wait_queue->seed + lease->role);

	for (;; key++)
	{
		bool		found;
		WaitNode   *node = hash_search(search->named, &key, HASH_ENTER, &found);

		if (!found)
			*node = (WaitNode) {.key = key, .pid = pid, .lease = lease};
		if (node->pid == pid &&
			(lease == NULL ||
			 (node->lease->role == lease->role && same_text(node->lease->owner, lease->owner))))
			return node;
	}
}

/*
 * Let a node wait for another one, which belongs to the graph then. The
 * obstacle is a token, transaction, time or turn.
 */
static void
add_edge(Search *search, WaitNode *from, EdgeKind kind, WaitNode *to, uint64 obstacle)
{
	Edge	   *edge = palloc(sizeof(Edge));

	*edge = (Edge) {kind, from, to};
	from->edges = lappend(from->edges, edge);
	from->obstacles += hash_bytes_uint32_extended((uint32) kind, obstacle);
	to->waited_for = lappend(to->waited_for, edge);
	if (!to->stuck)
		search->nodes = lappend(search->nodes, to);
	to->stuck = true;
}

static WaitNode *
add_part(Search *search, WaitNode *whole, int spare)
{
	WaitNode   *part = palloc0(sizeof(WaitNode));

	part->spare = spare;
	add_edge(search, whole, EDGE_PART, part, 0);
	return part;
}

/* Wait for a process, unless it has ended: then its pid is 0. */
static void
add_process(Search *search, WaitNode *node, int pid, uint64 obstacle)
{
	if (pid != 0)
		add_edge(search, node, EDGE_PROCESS, find_node(search, pid, NULL), obstacle);
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
	const WaiterInfo *info = &waiter->info;
	int			length = VARSIZE_ANY_EXHDR(lease->owner);

	return info->owner_length == length &&
		memcmp(info->owner, VARDATA_ANY(lease->owner), length) == 0 &&
		has_privs_of_role(info->role, lease->role) &&
		has_privs_of_role(lease->role, info->role);
}

static int
compare_entries(const void *a, const void *b)
{
	const SeenEntry *x = a;
	const SeenEntry *y = b;

	if (x->line_number != y->line_number)
		return x->line_number < y->line_number ? -1 : 1;
	return x->turn < y->turn ? -1 : x->turn > y->turn;
}

/*
 * List the waiters of this database, where they are: to copy all of them would
 * take longer than the search. The ticket is read first. So what is read of a
 * wait that has ended belongs to a ticket that the second search does not find.
 */
static void
list_entries(Search *search)
{
	HASHCTL		table = {.keysize = sizeof(uint64), .entrysize = sizeof(WaitNode),
						 .hcxt = CurrentMemoryContext};

	search->named = hash_create("waits", 128, &table, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	search->entries = palloc_extended(sizeof(SeenEntry) * MaxBackends * MAX_LINES, MCXT_ALLOC_HUGE);
	for (int i = 0; i < MaxBackends; i++)
	{
		const Waiter *waiter = queue_waiter(i);
		const WaiterInfo *info = &waiter->info;
		uint64		ticket = pg_atomic_read_u64((pg_atomic_uint64 *) &waiter->ticket);
		WaitNode   *process;

		pg_read_barrier();
		if (ticket == 0 || info->database != MyDatabaseId)
			continue;
		process = find_node(search, info->pid, NULL);
		process->waiter = waiter;
		process->wait = ticket;
		process->looks = waiter->commits;
		for (int line = 0; line < info->nlines; line++)
		{
			SeenEntry  *entry = &search->entries[search->nentries++];

			*entry = (SeenEntry) {.process = process, .line = line};
			entry->line_number = waiter->entry[line].line.number;
			entry->turn = entry_turn(&waiter->entry[line]);
			entry->state = entry_state(&waiter->entry[line]);
			entry->awaited = waiter->entry[line].awaited;
			entry->spare = info->mode == MODE_EXCLUSIVE ? 0 :
				info->mode == MODE_PERMIT ? info->permits - 1 : MAX_SLOT;
			process->looks |= entry->state == TURN_CALLED || entry->state == TURN_SKIPPED;
		}
	}
	qsort(search->entries, search->nentries, sizeof(SeenEntry), compare_entries);
	for (SeenEntry *entry = search->entries; entry < search->entries + search->nentries; entry++)
	{
		bool		first = entry == search->entries || entry[-1].line_number != entry->line_number;

		entry->first = first ? entry : entry[-1].first;
		entry->awaited_pid = !first && entry[-1].awaited == entry->awaited ?
			entry[-1].awaited_pid : transaction_pid(entry->awaited);
		if (entry->awaited_pid != 0)
			find_node(search, entry->awaited_pid, NULL)->is_awaited = true;
		entry->up_to_here = palloc0(sizeof(WaitNode));
		entry->up_to_here->entry = entry;
		entry->process->entries = lappend(entry->process->entries, entry);
	}
}

/* A waiter that stands aside, or was skipped, is before nobody. */
static bool
is_before_others(const SeenEntry *entry)
{
	return entry->state != TURN_ASIDE && entry->state != TURN_SKIPPED;
}

/*
 * This waiter of a line and those before it, in one node: a long line has as
 * many edges as waiters, not their square.
 */
static void
describe_entry(Search *search, WaitNode *node)
{
	SeenEntry  *entry = node->entry;

	if (is_before_others(entry))
		add_edge(search, node, EDGE_PART, entry->process, 0);
	if (entry > entry->first)
		add_edge(search, node, EDGE_PART, entry[-1].up_to_here, 0);
}

/*
 * The waiters before this one in its line, except for those that wait for a
 * transaction of this process.
 */
static void
add_waiters_before(Search *search, WaitNode *node, SeenEntry *own)
{
	if (own > own->first && !own->process->is_awaited)
		add_edge(search, node, EDGE_ORDER, own[-1].up_to_here, own[-1].turn);
	else
		for (SeenEntry *entry = own->first; entry < own; entry++)
			if (is_before_others(entry) && entry->awaited_pid != own->process->pid)
				add_edge(search, node, EDGE_ORDER, entry->process, entry->turn);
}

/* Is this the waiter's own lease or transaction? */
static bool
is_own(const Waiter *waiter, const SlotBlocker *blocker)
{
	return blocker->pid == waiter->info.pid ||
		(blocker->lease != NULL && acts_for(waiter, blocker->lease));
}

/*
 * What must happen to the slots of a resource. Of the slots of permits, all but
 * (permits - 1) must become free. No process waits for itself. An owner that waits
 * for its own lease is not stuck: it may have several sessions. So what belongs
 * to *own is left out. If own is NULL, nothing is.
 */
static void
add_obstacles(Search *search, WaitNode *node, List *blockers, int spare, const Waiter *own)
{
	WaitNode   *others = NULL;
	WaitNode   *slot = node;
	int			last_slot = EXCLUSIVE_SLOT;
	ListCell   *cell;

	foreach(cell, blockers)
	{
		const SlotBlocker *blocker = lfirst(cell);
		const Lease *lease = blocker->lease;
		/* its end decides what becomes of the lease */
		bool		open = TransactionIdIsValid(blocker->transaction);

		if (others == NULL && blocker->slot != EXCLUSIVE_SLOT)
			others = add_part(search, node, spare);
		if (blocker->slot != last_slot)
			slot = add_part(search, others, 0);
		last_slot = blocker->slot;
		if (own == NULL || own->info.pid != blocker->pid)
			add_process(search, slot, blocker->pid,
						open ? blocker->transaction : lease != NULL ? lease->token : 0);
		if (!open && lease != NULL && (own == NULL || !acts_for(own, lease)))
			add_edge(search, slot, EDGE_OWNER, find_node(search, 0, lease), lease->token);
	}
}

/* All that must happen before a waiter gets the lease of one of its lines. */
static void
add_line(Search *search, WaitNode *node, SeenEntry *entry)
{
	const Waiter *waiter = entry->process->waiter;
	SeenEntry  *same = entry->first;
	bool		own = false;
	ListCell   *cell;

	/* A transaction that changes or locks a free row blocks only who wants that row. */
	add_process(search, node, entry->awaited_pid, entry->awaited);
	if (entry->state == TURN_AWAY)
		return;

	while (same->spare != entry->spare)
		same++;
	if (!same->looked)
		same->blockers = find_obstacles(look_at_line(search->store, &waiter->info, entry->line),
										&waiter->info);
	same->looked = true;
	foreach(cell, same->blockers)
		own |= is_own(waiter, lfirst(cell));
	if (own)
		add_obstacles(search, node, same->blockers, entry->spare, waiter);
	else
	{
		if (same->obstacles == NULL)
			add_obstacles(search, same->obstacles = palloc0(sizeof(WaitNode)), same->blockers,
						  entry->spare, NULL);
		add_edge(search, node, EDGE_PART, same->obstacles, 0);
	}
	if (entry->state != TURN_ASIDE)
		add_waiters_before(search, node, entry);
}

/* Wait for the processes that block this one by locks of the server. */
static void
add_server_blockers(Search *search, WaitNode *node)
{
	PGPROC	   *proc = node->waiter != NULL ? GetPGProcByNumber(node->waiter->entry[0].waiter) :
		BackendPidGetProc(node->pid);
	uint64		since = proc != NULL ? pg_atomic_read_u64(&proc->waitStart) : 0;
	ListCell   *cell;

	foreach(cell, proc != NULL ? server_blocking_pids(proc) : NIL)
		add_process(search, node, lfirst_int(cell), since);
}

/*
 * A waiter goes on when it gets the lease of any of its lines, or of one more
 * resource, whose name is not known.
 */
static void
describe_process(Search *search, WaitNode *node)
{
	int			nlines = list_length(node->entries);
	WaitNode   *any;
	ListCell   *cell;

	add_server_blockers(search, node);
	if (nlines == 0 || node->looks || node->waiter->info.nlines < node->waiter->info.nresources)
		return;
	node->sleeps = node->edges == NIL &&
		((const SeenEntry *) linitial(node->entries))->state != TURN_AWAY;
	any = add_part(search, node, nlines - 1);
	foreach(cell, node->entries)
		add_line(search, nlines == 1 ? any : add_part(search, any, 0), lfirst(cell));
}

static NamedWaiters *
find_named(Search *search, const char *owner, int length, HASHACTION action)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) owner, length,
										   wait_queue->seed);
	bool		found;
	NamedWaiters *named = hash_search(search->by_owner, &hash, action, &found);

	if (named != NULL && !found)
		named->entries = NIL;
	return named;
}

/* Sort the waiters by owner, so that an owner is not compared with all of them. */
static void
sort_by_owner(Search *search)
{
	HASHCTL		table = {.keysize = sizeof(uint64), .entrysize = sizeof(NamedWaiters),
						 .hcxt = CurrentMemoryContext};

	search->by_owner = hash_create("waiters by owner", 128, &table,
								   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	for (SeenEntry *entry = search->entries; entry < search->entries + search->nentries; entry++)
	{
		const WaiterInfo *info = &entry->process->waiter->info;
		NamedWaiters *named;

		if (entry->line != 0)
			continue;
		named = find_named(search, info->owner, info->owner_length, HASH_ENTER);
		named->entries = lappend(named->entries, entry);
	}
}

/* An owner is stuck if a waiter that acts for it is. */
static void
describe_owner(Search *search, WaitNode *node)
{
	const text *owner = node->lease->owner;
	const NamedWaiters *named;
	ListCell   *cell;

	if (search->by_owner == NULL)
		sort_by_owner(search);
	named = find_named(search, VARDATA_ANY(owner), VARSIZE_ANY_EXHDR(owner), HASH_FIND);
	foreach(cell, named != NULL ? named->entries : NIL)
	{
		const SeenEntry *entry = lfirst(cell);

		if (acts_for(entry->process->waiter, node->lease))
			add_edge(search, node, EDGE_PART, entry->process, 0);
	}
}

/* --- Nodes in a deadlock -------------------------------------------------- */

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
		if (node->stuck && node->nstuck <= node->spare)
			free = lappend(free, node);
	}
	for (int i = 0; i < list_length(free); i++)
	{
		WaitNode   *node = list_nth(free, i);

		node->stuck = false;
		foreach(cell, node->waited_for)
		{
			WaitNode   *from = ((Edge *) lfirst(cell))->from;

			from->nstuck--;
			if (from->stuck && from->nstuck == from->spare)
				free = lappend(free, from);
		}
	}
	list_free(free);
}

/*
 * Walk from our own process through the stuck nodes, to each by the shortest
 * way, or, backwards, against the edges. Nodes that the walk does not reach are
 * no longer stuck, as far as this search is concerned: another deadlock that
 * holds them has a victim of its own. Our own node may be among them.
 */
static void
keep_reached(Search *search, bool backwards)
{
	WaitNode   *own = linitial(search->nodes);
	List	   *reached = list_make1(own);
	ListCell   *cell;

	foreach(cell, search->nodes)
		((WaitNode *) lfirst(cell))->reached = NULL;
	for (int i = 0; i < list_length(reached); i++)
	{
		const WaitNode *node = list_nth(reached, i);

		foreach(cell, backwards ? node->waited_for : node->edges)
		{
			const Edge *edge = lfirst(cell);
			WaitNode   *end = backwards ? edge->from : edge->to;

			if (!end->stuck || end->reached != NULL)
				continue;
			end->reached = edge;
			if (end != own)
				reached = lappend(reached, end);
		}
	}
	foreach(cell, search->nodes)
		((WaitNode *) lfirst(cell))->stuck &= ((WaitNode *) lfirst(cell))->reached != NULL;
	search->nodes = reached;
}

/* Find the nodes that are in a deadlock with our own process; are there any? */
static bool
find_deadlock(Search *search)
{
	WaitNode   *own;
	int			nnodes;

	list_entries(search);
	own = find_node(search, MyProcPid, NULL);
	own->stuck = true;
	search->nodes = list_make1(own);
	for (int i = 0; i < list_length(search->nodes); i++)
	{
		WaitNode   *node = list_nth(search->nodes, i);

		CHECK_FOR_INTERRUPTS();
		if (node->pid != 0)
			describe_process(search, node);
		else if (node->lease != NULL)
			describe_owner(search, node);
		else if (node->entry != NULL)
			describe_entry(search, node);
	}

	do
	{
		nnodes = list_length(search->nodes);
		let_go_on(search);
		keep_reached(search, true);
		keep_reached(search, false);
	} while (own->stuck && list_length(search->nodes) < nnodes);
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
		bool		is_later = victim == NULL || node->wait >= victim->wait;
		bool		frees;

		CHECK_FOR_INTERRUPTS();
		if (!node->sleeps || (victim_frees && !is_later))
			continue;
		frees = frees_all(search, node);
		if (!frees && (victim_frees || !is_later))
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

		sum += node->obstacles + hash_bytes_uint32_extended((uint32) node->pid, node->wait);
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

/*
 * Describe the wait of one process for another. Owners are shown only to roles
 * that may see them.
 */
static char *
describe_wait(const WaitNode *node, EdgeKind kind, int blocker)
{
	Waiter	   *waiter = unconstify(Waiter *, node->waiter);
	WaiterInfo *info = palloc(sizeof(WaiterInfo));
	char	   *owner = "";

	if (waiter != NULL)
		*info = waiter->info;
	pg_read_barrier();
	/* the copy may be of another wait */
	if (waiter == NULL || pg_atomic_read_u64(&waiter->ticket) != node->wait)
		return psprintf("Process %d waits for a lock; blocked by process %d.", node->pid, blocker);
	if (error_may_show_owner(info->role))
		owner = psprintf(" for owner %s", quoted(info->owner, info->owner_length));
	return psprintf(kind == EDGE_OWNER ?
					"Process %d waits for %s%s; held by the owner of process %d." :
					kind == EDGE_ORDER ?
					"Process %d waits for %s%s; behind process %d in its queue." :
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

	for (const Edge *edge = own->reached;; edge = edge->from->reached)
	{
		if (edge->kind != EDGE_PART)
			kind = edge->kind;
		if (edge->from->pid == 0)
			continue;
		text = psprintf("%s%s%s", describe_wait(edge->from, kind, blocker), *text ? "\n" : "",
						text);
		blocker = edge->from->pid;
		if (edge->from == own)
			return text;
	}
}

/*
 * Raise an error if our own wait is part of a deadlock and is its victim. While
 * another session alters or maintains the table, there is no check: it must not
 * make a wait longer.
 */
void
check_deadlock(void)
{
	LeaseStore *store = store_open_unless_locked(AccessShareLock);
	Search		first = {.store = store};
	Search		second = {.store = store};
	WaitNode   *victim = NULL;

	if (store == NULL)
		return;
	if (find_deadlock(&first) && find_deadlock(&second) && signature(&first) == signature(&second))
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
			 errhint("Release what you hold and begin again. Acquire leases in the same order in "
					 "all sessions.")));
}
