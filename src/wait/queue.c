/*-------------------------------------------------------------------------
 *
 * queue.c
 *		The wait queue in shared memory.
 *
 * See queue.h for its contents. If the server has no shared area, its waiters
 * look at their leases every lease_lock.poll_interval.
 *
 * Only its own backend changes a waiter, except for the state of its entries.
 * The description of a waiter is written while its ticket is 0. A copy of the
 * description is valid if the ticket was the same before and after copying.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/names.h"
#include "base/shared_memory.h"
#include "wait/queue.h"

static WaitQueue *queue = NULL;

/* Waiters whose latches must be set after the bucket's lock is released. */
static int *woken = NULL;
static int	nwoken = 0;

static Size
queue_size(void)
{
	return add_size(offsetof(WaitQueue, waiters), mul_size(MaxBackends, sizeof(Waiter)));
}

static void
create_waiter(Waiter *waiter, int number)
{
	pg_atomic_init_u64(&waiter->ticket, 0);
	pg_atomic_init_u64(&waiter->called_for, 0);
	pg_atomic_init_u64(&waiter->alarm, 0);
	pg_atomic_init_u32(&waiter->news, 0);
	pg_atomic_init_u32(&waiter->suspect, 0);
	for (int i = 0; i < MAX_LINES; i++)
	{
		waiter->entry[i].waiter = number;
		pg_atomic_init_u64(&waiter->entry[i].turn, 0);
		pg_atomic_init_u32(&waiter->entry[i].state, TURN_QUEUED);
	}
}

static void
create_queue(void *memory, int tranche)
{
	WaitQueue  *q = memory;

	pg_atomic_init_u64(&q->last_ticket, 0);
	for (int i = 0; i < NUM_BUCKETS; i++)
	{
		LWLockInitialize(&q->buckets[i].lock, tranche);
		pg_atomic_init_u32(&q->buckets[i].count, 0);
		q->buckets[i].first = q->buckets[i].last = NOBODY;
	}
	for (int i = 0; i < MaxBackends; i++)
		create_waiter(&q->waiters[i], i);
}

static const SharedPart queue_part = {"lease_lock queue 3", queue_size, create_queue, (void **) &queue};

void
queue_init(void)
{
	add_shared_part(&queue_part);
}

/*
 * Attach to the queue; false if this server has none. This may allocate
 * memory, so a transaction that must wake waiters at its end attaches before
 * that.
 */
bool
queue_attach(void)
{
	if (!attach_shared_area())
		return false;
	if (woken == NULL)
		woken = MemoryContextAlloc(TopMemoryContext, MaxBackends * sizeof(int));
	return true;
}

uint64
queue_hash(const text *resource)
{
	return hash_text(resource, MyDatabaseId);
}

Bucket *
queue_bucket(uint64 hash)
{
	return &queue->buckets[hash % NUM_BUCKETS];
}

/*
 * Can there be a waiter for this resource? If nobody waits, this check is the
 * whole cost of the queue. The caller has already made its change visible to
 * others, and a waiter is counted before it looks, so one of them sees the
 * other. That needs the barrier.
 */
bool
queue_may_have(uint64 hash)
{
	if (queue == NULL)
		return false;
	pg_memory_barrier();
	return pg_atomic_read_u32(&queue_bucket(hash)->count) > 0;
}

Waiter *
queue_waiter(int number)
{
	return &queue->waiters[number];
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

/* Find the next entry of a line; after NULL, the first one. The caller holds the bucket's lock. */
Entry *
queue_next_in_line(const Bucket *bucket, const Entry *previous, uint64 hash)
{
	Entry	   *entry = queue_entry(previous == NULL ? bucket->first : previous->next);

	while (entry != NULL && (entry->hash != hash || entry->database != MyDatabaseId))
		entry = queue_entry(entry->next);
	return entry;
}

/* Append an entry to its line. The caller holds the bucket's lock. */
void
queue_append(Bucket *bucket, Entry *entry)
{
	int			number = entry_number(entry);

	pg_atomic_write_u64(&entry->turn, pg_atomic_add_fetch_u64(&queue->last_ticket, 1));
	entry->previous = bucket->last;
	entry->next = NOBODY;
	if (bucket->last == NOBODY)
		bucket->first = number;
	else
		queue_entry(bucket->last)->next = number;
	bucket->last = number;
	pg_atomic_fetch_add_u32(&bucket->count, 1);
}

/* Remove an entry from its line. The caller holds the bucket's lock. */
void
queue_take_out(Bucket *bucket, Entry *entry)
{
	if (entry->previous == NOBODY)
		bucket->first = entry->next;
	else
		queue_entry(entry->previous)->next = entry->next;

	if (entry->next == NOBODY)
		bucket->last = entry->previous;
	else
		queue_entry(entry->next)->previous = entry->previous;
	pg_atomic_fetch_sub_u32(&bucket->count, 1);
}

/*
 * Describe this backend as a waiter, and append it to the lines of the first
 * resources.
 */
Waiter *
queue_join(text **resources, const WaiterInfo *info)
{
	Waiter	   *waiter = queue_waiter(MY_PROC_NUMBER);

	Assert(pg_atomic_read_u64(&waiter->ticket) == 0);
	waiter->info = *info;
	pg_atomic_write_u64(&waiter->called_for, 0);
	pg_atomic_write_u64(&waiter->alarm, (uint64) NO_ALARM);
	pg_atomic_write_u32(&waiter->suspect, 0);

	for (int i = 0; i < info->nlines; i++)
	{
		Entry	   *entry = &waiter->entry[i];
		Bucket	   *bucket;

		entry->database = MyDatabaseId;
		entry->hash = queue_hash(resources[i]);
		entry->awaited = InvalidTransactionId;
		entry->called_at = 0;
		entry->known_end = NEVER;
		bucket = queue_bucket(entry->hash);

		LWLockAcquire(&bucket->lock, LW_EXCLUSIVE);
		entry_set_state(entry, TURN_QUEUED);
		queue_append(bucket, entry);
		LWLockRelease(&bucket->lock);
	}

	pg_write_barrier();
	pg_atomic_write_u64(&waiter->ticket, pg_atomic_add_fetch_u64(&queue->last_ticket, 1));
	return waiter;
}

/* End a wait. The waiter's entries must be out of their lines. */
void
queue_leave(Waiter *waiter)
{
	pg_atomic_write_u64(&waiter->ticket, 0);
	pg_memory_barrier();
}

static void
set_latch(int number)
{
	SetLatch(&GetPGProcByNumber(number)->procLatch);
}

/*
 * Make a waiter look again. The latch alone is not enough: between a look and
 * the sleep the waiter may wait for something else, and reset the latch. The
 * caller holds the bucket's lock, and calls queue_set_latches() after it
 * releases the lock.
 */
void
queue_wake(const Entry *entry)
{
	pg_atomic_fetch_add_u32(&queue->waiters[entry->waiter].news, 1);
	if (nwoken < MaxBackends)
		woken[nwoken++] = entry->waiter;
	else
		set_latch(entry->waiter);	/* a waiter for many resources may be woken more than once */
}

void
queue_set_latches(void)
{
	while (nwoken > 0)
		set_latch(woken[--nwoken]);
}

void
queue_suspect(uint64 ticket)
{
	for (int i = 0; i < MaxBackends; i++)
	{
		Waiter	   *waiter = &queue->waiters[i];

		if (pg_atomic_read_u64(&waiter->ticket) != ticket)
			continue;
		pg_atomic_write_u32(&waiter->suspect, 1);
		pg_atomic_fetch_add_u32(&waiter->news, 1);
		set_latch(i);
	}
}

static void
copy_lines(const Waiter *waiter, WaiterCopy *copy)
{
	const char *name = copy->info.names;

	for (int i = 0; i < copy->info.nlines; i++)
	{
		const Entry *entry = &waiter->entry[i];
		WaiterLine *line = &copy->line[i];

		line->hash = entry->hash;
		line->turn = pg_atomic_read_u64((pg_atomic_uint64 *) &entry->turn);
		line->state = entry_state(entry);
		line->awaited = entry->awaited;
		copy->is_called |= line->state == TURN_CALLED;
		line->resource = i < copy->info.nnamed ? name : NULL;
		line->resource_length = copy->info.name_length[i];
		name += line->resource_length;
	}
}

/* Copy a waiter of this database; NULL if there is none. */
static WaiterCopy *
copy_waiter(Waiter *waiter)
{
	uint64		ticket = pg_atomic_read_u64(&waiter->ticket);
	WaiterCopy *copy;

	pg_read_barrier();
	if (ticket == 0 || waiter->info.database != MyDatabaseId)
		return NULL;

	copy = palloc(sizeof(WaiterCopy));
	copy->info = waiter->info;
	copy->ticket = ticket;
	copy->is_called = pg_atomic_read_u64(&waiter->called_for) != 0;
	pg_read_barrier();
	if (pg_atomic_read_u64(&waiter->ticket) == ticket)
	{
		copy_lines(waiter, copy);
		pg_read_barrier();
		if (pg_atomic_read_u64(&waiter->ticket) == ticket)
			return copy;
	}
	pfree(copy);
	return NULL;
}

/* For list_sort(): in the order of turns. */
static int
compare_turns(const ListCell *a, const ListCell *b)
{
	uint64		x = ((const WaiterCopy *) lfirst(a))->line[0].turn;
	uint64		y = ((const WaiterCopy *) lfirst(b))->line[0].turn;

	return x < y ? -1 : x > y;
}

List *
waiters_list(void)
{
	List	   *list = NIL;

	if (!queue_attach())
		return NIL;

	for (int i = 0; i < MaxBackends; i++)
	{
		WaiterCopy *copy = copy_waiter(&queue->waiters[i]);

		if (copy != NULL)
			list = lappend(list, copy);
	}
	list_sort(list, compare_turns);
	return list;
}
