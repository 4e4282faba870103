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
#include "base/shared_memory.h"
#include "wait/queue.h"

static WaitQueue *queue = NULL;

/* Waiters whose latches must be set after the bucket's lock is released. */
static int *notified = NULL;
static int	nnotified = 0;

static Size
entries_offset(void)
{
	return MAXALIGN(add_size(offsetof(WaitQueue, waiters), mul_size(MaxBackends, sizeof(Waiter))));
}

/* Each backend has its own entry, so a waiter for one lease never lacks one. */
static int
number_of_entries(void)
{
	return MaxBackends * (1 + POOL_ENTRIES);
}

static Size
queue_size(void)
{
	return add_size(entries_offset(), mul_size(number_of_entries(), sizeof(Entry)));
}

static Entry *
entry_at(WaitQueue *q, int number)
{
	return (Entry *) ((char *) q + entries_offset()) + number;
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
	{
		pg_atomic_init_u64(&q->waiters[i].ticket, 0);
		pg_atomic_init_u64(&q->waiters[i].called_for, 0);
		pg_atomic_init_u64(&q->waiters[i].alarm, 0);
		pg_atomic_init_u32(&q->waiters[i].news, 0);
		pg_atomic_init_u32(&q->waiters[i].suspect, 0);
	}

	LWLockInitialize(&q->pool_lock, tranche);
	q->first_free = NOBODY;
	for (int i = number_of_entries() - 1; i >= 0; i--)
	{
		Entry	   *entry = entry_at(q, i);

		pg_atomic_init_u64(&entry->turn, 0);
		pg_atomic_init_u32(&entry->state, TURN_QUEUED);
		entry->sibling = NOBODY;
		if (i >= MaxBackends)
		{
			entry->sibling = q->first_free;
			q->first_free = i;
		}
	}
}

static const SharedPart queue_part = {"lease_lock queue 2", queue_size, create_queue, (void **) &queue};

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
	if (notified == NULL)
		notified = MemoryContextAlloc(TopMemoryContext, MaxBackends * sizeof(int));
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
	return number == NOBODY ? NULL : entry_at(queue, number);
}

static int
entry_number(const Entry *entry)
{
	return (int) (entry - entry_at(queue, 0));
}

Entry *
queue_own_entry(const Waiter *waiter)
{
	return entry_at(queue, (int) (waiter - queue->waiters));
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

/*
 * Find the previous entry of a line; before NULL, the last one. The caller
 * holds the bucket's lock.
 */
Entry *
queue_previous_in_line(const Bucket *bucket, const Entry *next, uint64 hash)
{
	Entry	   *entry = queue_entry(next == NULL ? bucket->last : next->previous);

	while (entry != NULL && (entry->hash != hash || entry->database != MyDatabaseId))
		entry = queue_entry(entry->previous);
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

/* Take up to this many entries from the pool, as siblings of our own entry. */
static void
take_from_pool(Entry *own, int wanted)
{
	LWLockAcquire(&queue->pool_lock, LW_EXCLUSIVE);
	while (wanted-- > 0 && queue->first_free != NOBODY)
	{
		Entry	   *entry = queue_entry(queue->first_free);

		queue->first_free = entry->sibling;
		entry->sibling = own->sibling;
		own->sibling = entry_number(entry);
	}
	LWLockRelease(&queue->pool_lock);
}

/*
 * Describe this backend as a waiter, and append it to the lines of its
 * resources, or to as many lines as there are entries for.
 */
Waiter *
queue_join(text **resources, int nresources, const WaiterInfo *info)
{
	int			number = MY_PROC_NUMBER;
	Waiter	   *waiter = queue_waiter(number);
	Entry	   *own = entry_at(queue, number);
	int			i = 0;

	Assert(pg_atomic_read_u64(&waiter->ticket) == 0);
	waiter->info = *info;
	pg_atomic_write_u64(&waiter->called_for, 0);
	pg_atomic_write_u64(&waiter->alarm, NO_ALARM);
	pg_atomic_write_u32(&waiter->suspect, 0);
	own->sibling = NOBODY;
	if (nresources > 1)
		take_from_pool(own, Min(nresources, MAX_LINES) - 1);

	for (Entry *entry = own; entry != NULL; entry = queue_entry(entry->sibling))
	{
		Bucket	   *bucket;

		entry->waiter = number;
		entry->database = MyDatabaseId;
		entry->hash = queue_hash(resources[i++]);
		entry->called_at = 0;
		entry->awaited = InvalidTransactionId;
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
	Entry	   *own = queue_own_entry(waiter);
	Entry	   *last = queue_entry(own->sibling);

	pg_atomic_write_u64(&waiter->ticket, 0);
	pg_memory_barrier();
	if (last == NULL)
		return;

	while (last->sibling != NOBODY)
		last = queue_entry(last->sibling);
	LWLockAcquire(&queue->pool_lock, LW_EXCLUSIVE);
	last->sibling = queue->first_free;
	queue->first_free = own->sibling;
	own->sibling = NOBODY;
	LWLockRelease(&queue->pool_lock);
}

/* The number of lines that a waiter is in. */
int
queue_nlines(const Waiter *waiter)
{
	int			n = 0;

	for (Entry *entry = queue_own_entry(waiter); entry != NULL; entry = queue_entry(entry->sibling))
		n++;
	return n;
}

static void
set_latch(int number)
{
	SetLatch(&GetPGProcByNumber(number)->procLatch);
}

/*
 * Make a waiter look again. The latch alone is not enough: between a look and
 * the sleep the waiter may wait for something else, and reset the latch. The
 * caller holds the bucket's lock, and calls queue_wake_notified() after it
 * releases the lock.
 */
void
queue_notify(const Entry *entry)
{
	pg_atomic_fetch_add_u32(&queue->waiters[entry->waiter].news, 1);
	if (nnotified < MaxBackends)
		notified[nnotified++] = entry->waiter;
	else
		set_latch(entry->waiter);	/* a waiter for many resources may be notified more than once */
}

void
queue_wake_notified(void)
{
	while (nnotified > 0)
		set_latch(notified[--nnotified]);
}

void
queue_wake(Waiter *waiter)
{
	pg_atomic_fetch_add_u32(&waiter->news, 1);
	set_latch((int) (waiter - queue->waiters));
}

/* Copy the description of a waiter of this database; false if there is none. */
static bool
waiter_copy(Waiter *waiter, WaiterInfo *copy)
{
	uint64		ticket = pg_atomic_read_u64(&waiter->ticket);
	Entry	   *own = queue_own_entry(waiter);

	pg_read_barrier();
	if (ticket == 0 || waiter->info.database != MyDatabaseId)
		return false;

	*copy = waiter->info;
	copy->ticket = ticket;
	copy->turn = pg_atomic_read_u64(&own->turn);
	copy->state = entry_state(own);
	pg_read_barrier();
	return pg_atomic_read_u64(&waiter->ticket) == ticket;
}

/* For list_sort(): in the order of turns. */
static int
compare_turns(const ListCell *a, const ListCell *b)
{
	const WaiterInfo *x = lfirst(a);
	const WaiterInfo *y = lfirst(b);

	return x->turn < y->turn ? -1 : x->turn > y->turn;
}

/* Copy the waiters of this database that the condition selects, in the order of turns. */
static List *
copy_waiters(bool (*wanted) (const WaiterInfo *info, const void *arg), const void *arg)
{
	List	   *list = NIL;
	WaiterInfo *copy = palloc(sizeof(WaiterInfo));

	if (!queue_attach())
		return NIL;

	for (int i = 0; i < MaxBackends; i++)
	{
		/*
		 * Check before copying, which rules out most waiters. The copy is
		 * checked again, since the waiter may change.
		 */
		if (pg_atomic_read_u64(&queue->waiters[i].ticket) == 0 ||
			(wanted != NULL && !wanted(&queue->waiters[i].info, arg)))
			continue;
		if (!waiter_copy(&queue->waiters[i], copy) || (wanted != NULL && !wanted(copy, arg)))
			continue;
		list = lappend(list, copy);
		copy = palloc(sizeof(WaiterInfo));
	}
	list_sort(list, compare_turns);
	return list;
}

List *
waiters_list(void)
{
	return copy_waiters(NULL, NULL);
}

static bool
waits_as(const WaiterInfo *info, const void *arg)
{
	const text *owner = arg;

	return info->owner_hash == hash_text(owner, 0) &&
		info->owner_length == (int) VARSIZE_ANY_EXHDR(owner) &&
		memcmp(info->owner, VARDATA_ANY(owner), VARSIZE_ANY_EXHDR(owner)) == 0;
}

List *
waiters_of_owner(const text *owner)
{
	return copy_waiters(waits_as, owner);
}

static bool
has_pid(const WaiterInfo *info, const void *arg)
{
	return info->pid == *(const int *) arg;
}

WaiterInfo *
waiter_of_pid(int pid)
{
	List	   *found = copy_waiters(has_pid, &pid);

	return found == NIL ? NULL : linitial(found);
}
