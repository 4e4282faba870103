/*-------------------------------------------------------------------------
 *
 * queue.c
 *		The wait queue in shared memory.
 *
 * See queue.h for its contents. If the server has no shared area, its waiters
 * look at their leases every lease_lock.poll_interval.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/builtins.h"

#include "wait/queue.h"

WaitQueue  *wait_queue = NULL;

/*
 * Waiters whose latches must be set after the bucket's lock is released. Beyond
 * MAX_WOKEN, latches are set under the lock.
 */
#define MAX_WOKEN 100
static int	woken[MAX_WOKEN];
static int	nwoken = 0;

static Size
queue_size(void)
{
	return add_size(offsetof(WaitQueue, waiters), mul_size(MaxBackends, sizeof(Waiter)));
}

static void
create_queue(void *memory, int tranche)
{
	WaitQueue  *q = memory;

	if (!pg_strong_random(&q->seed, sizeof(q->seed)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a random seed")));
	q->nhashes = RACE_HASHES;
	pg_atomic_init_u64(&q->last_ticket, 0);
	for (int i = 0; i < NUM_BUCKETS; i++)
	{
		LWLockInitialize(&q->buckets[i].lock, tranche);
		q->buckets[i].ends = (Link) {NOBODY, NOBODY};
	}
	for (int i = 0; i < MaxBackends; i++)
	{
		Waiter	   *waiter = &q->waiters[i];

		pg_atomic_init_u64(&waiter->ticket, 0);
		pg_atomic_init_u64(&waiter->alarm, 0);
		pg_atomic_init_u32(&waiter->news, 0);
		pg_atomic_init_u32(&waiter->suspect, 0);
		for (int j = 0; j < MAX_LINES; j++)
		{
			waiter->entry[j].waiter = i;
			pg_atomic_init_u64(&waiter->entry[j].turn, 0);
			pg_atomic_init_u32(&waiter->entry[j].state, TURN_QUEUED);
		}
	}
}

static const SharedPart queue_part = {"lease_lock queue 6", queue_size, create_queue,
									  (void **) &wait_queue};

void
queue_init(void)
{
	add_shared_part(&queue_part);
}

uint64
queue_hash(const text *resource)
{
	uint64		hash = hash_text(resource, wait_queue->seed + MyDatabaseId);

	return wait_queue->nhashes == 0 ? hash : hash % wait_queue->nhashes;
}

/*
 * Can there be a waiter for this resource? If nobody waits, this check is the
 * whole cost of the queue. The caller has already made its change visible to
 * others, and a waiter is in the list before it looks, so one of them sees the
 * other. That needs the barrier.
 */
bool
queue_may_have(uint64 hash)
{
	pg_memory_barrier();
	return bucket_of(hash)->ends.next != NOBODY;
}

Waiter *
queue_waiter(int number)
{
	return &wait_queue->waiters[number];
}

MonotonicTime
queue_alarm(const Waiter *waiter)
{
	return (MonotonicTime) {(int64) pg_atomic_read_u64((pg_atomic_uint64 *) &waiter->alarm)};
}

/* With a barrier. */
void
queue_set_alarm(Waiter *waiter, MonotonicTime alarm)
{
	pg_atomic_exchange_u64(&waiter->alarm, (uint64) alarm.usecs);
}

Entry *
queue_entry(int number)
{
	return number == NOBODY ? NULL : &queue_waiter(number / MAX_LINES)->entry[number % MAX_LINES];
}

static int
entry_number(const Entry *entry)
{
	return entry->waiter * MAX_LINES + (int) (entry - queue_waiter(entry->waiter)->entry);
}

static void
set_latch(int number)
{
	SetLatch(&GetPGProcByNumber(number)->procLatch);
}

void
queue_lock(uint64 hash)
{
	LWLockAcquire(&bucket_of(hash)->lock, LW_EXCLUSIVE);
}

void
queue_unlock_and_wake(uint64 hash)
{
	LWLockRelease(&bucket_of(hash)->lock);
	while (nwoken > 0)
		set_latch(woken[--nwoken]);
}

/*
 * Note that a waiter must look again: queue_unlock_and_wake() sets its latch.
 * The latch alone is not enough: between a look and the sleep the waiter may
 * wait for something else, and reset the latch.
 */
void
queue_note_wakeup(const Entry *entry)
{
	pg_atomic_fetch_add_u32(&queue_waiter(entry->waiter)->news, 1);
	if (nwoken < MAX_WOKEN)
		woken[nwoken++] = entry->waiter;
	else
		set_latch(entry->waiter);
}

/*
 * The name of the resource of a line. If info is no copy, the waiter may begin
 * another wait meanwhile. Then the name means nothing.
 */
static const char *
name_in_line(const WaiterInfo *info, int line, int *length)
{
	int			start = 0;

	for (int i = 0; i < line; i++)
		start += info->name_length[i];
	*length = info->name_length[line];
	return info->names + Min(start, NAMES_SPACE - *length);
}

text *
named_resource(const WaiterInfo *info, int line)
{
	int			length;
	const char *name = name_in_line(info, line, &length);

	return cstring_to_text_with_len(name, length);
}

/*
 * Is this an entry for a resource of this database? The caller is its waiter,
 * or holds the bucket's lock.
 */
bool
queue_is_entry_for(const Entry *entry, const text *resource)
{
	const Waiter *waiter = queue_waiter(entry->waiter);
	int			length;
	const char *name = name_in_line(&waiter->info, (int) (entry - waiter->entry), &length);

	return waiter->info.database == MyDatabaseId &&
		length == (int) VARSIZE_ANY_EXHDR(resource) &&
		memcmp(name, VARDATA_ANY(resource), length) == 0;
}

/* The line for a resource of this database. */
Line
queue_find_line(uint64 hash, const text *resource)
{
	const Entry *entry = queue_entry(bucket_of(hash)->ends.next);

	while (entry != NULL && (entry->line.hash != hash || !queue_is_entry_for(entry, resource)))
		entry = queue_entry(entry->link.next);
	return entry != NULL ? entry->line : (Line) {hash, 0};
}

/* Find the next entry of a line; after NULL, the first one. */
Entry *
queue_next_in_line(const Entry *previous, Line line)
{
	Entry	   *entry = queue_entry(previous == NULL ? bucket_of(line.hash)->ends.next :
									previous->link.next);

	while (entry != NULL && entry->line.number != line.number)
		entry = queue_entry(entry->link.next);
	return entry;
}

/* A number that was never used before: of a turn, a line or a wait. */
static uint64
next_ticket(void)
{
	return pg_atomic_add_fetch_u64(&wait_queue->last_ticket, 1);
}

static Link *
link_of(uint64 hash, int number)
{
	return number == NOBODY ? &bucket_of(hash)->ends : &queue_entry(number)->link;
}

void
queue_append(Entry *entry)
{
	int			number = entry_number(entry);
	Link	   *ends = link_of(entry->line.hash, NOBODY);

	pg_atomic_write_u64(&entry->turn, next_ticket());
	entry->link = (Link) {ends->previous, NOBODY};
	link_of(entry->line.hash, ends->previous)->next = number;
	ends->previous = number;
}

void
queue_take_out(Entry *entry)
{
	link_of(entry->line.hash, entry->link.previous)->next = entry->link.next;
	link_of(entry->line.hash, entry->link.next)->previous = entry->link.previous;
}

/*
 * Describe this backend as a waiter. It has a line for each of the first
 * resources whose names there is space for.
 */
static void
describe_waiter(WaiterInfo *info, text **resources, int nresources, const LeaseRequest *request,
				int64 timeout)
{
	char	   *name = info->names;

	info->pid = MyProcPid;
	info->database = MyDatabaseId;
	info->role = GetUserId();
	info->since = clock_now();
	info->deadline = timeout == FOREVER ? DT_NOEND : info->since + timeout;
	info->mode = request->mode;
	info->permits = request->permits;
	info->owner_length = VARSIZE_ANY_EXHDR(request->owner);
	memcpy(info->owner, VARDATA_ANY(request->owner), info->owner_length);
	info->nresources = nresources;
	for (info->nlines = 0; info->nlines < Min(nresources, MAX_LINES); info->nlines++)
	{
		const text *resource = resources[info->nlines];
		int			length = VARSIZE_ANY_EXHDR(resource);

		if (name + length > info->names + sizeof(info->names))
			break;
		memcpy(name, VARDATA_ANY(resource), length);
		info->name_length[info->nlines] = length;
		name += length;
	}
}

/* Make this backend a waiter, in the lines of the first resources. */
Waiter *
queue_join(text **resources, int nresources, const LeaseRequest *request, int64 timeout)
{
	Waiter	   *waiter = queue_waiter(MY_PROC_NUMBER);

	Assert(pg_atomic_read_u64(&waiter->ticket) == 0);
	describe_waiter(&waiter->info, resources, nresources, request, timeout);
	queue_set_alarm(waiter, NEVER);
	pg_atomic_write_u32(&waiter->suspect, 0);
	waiter->commits = false;

	for (int i = 0; i < waiter->info.nlines; i++)
	{
		Entry	   *entry = &waiter->entry[i];
		uint64		hash = queue_hash(resources[i]);

		entry->awaited = InvalidTransactionId;
		entry->known_end = NEVER;
		pg_atomic_write_u32(&entry->state, TURN_QUEUED);
		queue_lock(hash);
		entry->line = queue_find_line(hash, resources[i]);
		if (entry->line.number == 0)
			entry->line.number = next_ticket();
		queue_append(entry);
		queue_unlock_and_wake(hash);
	}

	pg_write_barrier();
	pg_atomic_write_u64(&waiter->ticket, next_ticket());
	return waiter;
}

/* If the wait has ended meanwhile, this does no harm. */
void
queue_suspect(int number)
{
	Waiter	   *waiter = queue_waiter(number);

	pg_atomic_write_u32(&waiter->suspect, 1);
	pg_atomic_fetch_add_u32(&waiter->news, 1);
	set_latch(number);
}

/*
 * Copy a waiter of this database that had this ticket; NULL if the wait has
 * ended, or the ticket is 0.
 */
static Waiter *
copy_waiter(Waiter *waiter, uint64 ticket)
{
	Waiter	   *copy;

	pg_read_barrier();
	if (ticket == 0 || waiter->info.database != MyDatabaseId)
		return NULL;

	copy = palloc(sizeof(Waiter));
	memcpy(copy, waiter, sizeof(Waiter));
	pg_read_barrier();
	if (pg_atomic_read_u64(&waiter->ticket) == ticket)
		return copy;
	pfree(copy);
	return NULL;
}

/* For list_sort(): in the order of turns. */
static int
compare_turns(const ListCell *a, const ListCell *b)
{
	uint64		x = entry_turn(&((const Waiter *) lfirst(a))->entry[0]);
	uint64		y = entry_turn(&((const Waiter *) lfirst(b))->entry[0]);

	return x < y ? -1 : x > y;
}

/*
 * Does anybody wait for this resource? Not counted are waiters for so many
 * resources that they have no line for it.
 */
bool
wait_is_contended(const text *resource)
{
	uint64		hash = queue_hash(resource);
	bool		contended;

	if (!queue_may_have(hash))
		return false;
	queue_lock(hash);
	contended = queue_find_line(hash, resource).number != 0;
	queue_unlock_and_wake(hash);
	return contended;
}

List *
waiters_list(void)
{
	List	   *list = NIL;

	if (!attach_shared_area())
		return NIL;

	for (int i = 0; i < MaxBackends; i++)
	{
		Waiter	   *copy = copy_waiter(queue_waiter(i),
									   pg_atomic_read_u64(&queue_waiter(i)->ticket));

		if (copy != NULL)
			list = lappend(list, copy);
	}
	list_sort(list, compare_turns);
	return list;
}
