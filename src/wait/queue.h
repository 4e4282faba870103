/*-------------------------------------------------------------------------
 *
 * queue.h
 *		The wait queue in shared memory, for the files of this folder.
 *
 * A *waiter* is a backend that waits. It has an *entry* for each resource that
 * it waits for, up to MAX_LINES. The entries of one resource form its *line*,
 * in the order of arrival. The lines are kept in *buckets*, by the hash of the
 * resource. Each bucket has a list of entries, a lock, and a count, which shows
 * without the lock that the bucket is empty.
 *
 * The bucket's lock protects an entry. The description of a waiter is written
 * before its ticket is set, and does not change while it waits. So it is read
 * without a lock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_QUEUE_H
#define LEASE_LOCK_QUEUE_H

#include "port/atomics.h"
#include "storage/lwlock.h"

#include "wait/waiter.h"

#define NOBODY			(-1)
#define NUM_BUCKETS		256

/* Times of the monotonic clock. A waiter with NO_ALARM is awake: every change must wake it. */
#define NO_ALARM		PG_INT64_MAX
#define NEVER			PG_INT64_MAX

/* A waiter's place in a line. */
typedef struct Entry
{
	int			previous;		/* entry in the bucket, or NOBODY */
	int			next;
	int			waiter;
	Oid			database;
	uint64		hash;			/* of resource and database */
	pg_atomic_uint64 turn;		/* grows along the line */
	pg_atomic_uint32 state;		/* TurnState; written with the lock */
	TransactionId awaited;		/* transaction that refused it, if known */
	int64		called_at;		/* since when it is called */
	int64		known_end;		/* when, as far as it knows, the lease may become free; 0: at any time */
} Entry;

typedef struct Waiter
{
	pg_atomic_uint64 ticket;	/* of this wait; 0: no wait, or not described yet */
	pg_atomic_uint64 called_for;	/* hash of the resource whose turn it was given first; 0: none */
	pg_atomic_uint64 alarm;		/* when it looks without being woken */
	pg_atomic_uint32 news;		/* counts wake-ups */
	pg_atomic_uint32 suspect;	/* must check for a deadlock at once */
	Entry		entry[MAX_LINES];
	WaiterInfo	info;
} Waiter;

typedef struct Bucket
{
	LWLock		lock;
	pg_atomic_uint32 count;
	int			first;			/* entry, or NOBODY */
	int			last;
	char		pad[PG_CACHE_LINE_SIZE - sizeof(LWLock) - 3 * sizeof(int)];
} Bucket;

typedef struct WaitQueue
{
	pg_atomic_uint64 last_ticket;
	Bucket		buckets[NUM_BUCKETS];
	Waiter		waiters[FLEXIBLE_ARRAY_MEMBER]; /* indexed by PGPROC number */
} WaitQueue;

static inline TurnState
entry_state(const Entry *entry)
{
	return (TurnState) pg_atomic_read_u32((pg_atomic_uint32 *) &entry->state);
}

static inline void
entry_set_state(Entry *entry, TurnState state)
{
	pg_atomic_write_u32(&entry->state, state);
}

/* queue.c: the memory */
extern void queue_init(void);	/* at load time */
extern bool queue_attach(void); /* false: this server has no queue */
extern uint64 queue_hash(const text *resource); /* of a resource of this database */
extern Bucket *queue_bucket(uint64 hash);
extern bool queue_may_have(uint64 hash);	/* can there be a waiter? */
extern Waiter *queue_waiter(int number);
extern Entry *queue_entry(int number);	/* NULL for NOBODY */
extern Entry *queue_next_in_line(const Bucket *bucket, const Entry *previous, uint64 hash);
extern void queue_append(Bucket *bucket, Entry *entry);
extern void queue_take_out(Bucket *bucket, Entry *entry);
extern Waiter *queue_join(text **resources, const WaiterInfo *info);
extern void queue_leave(Waiter *waiter);	/* its entries must be out of their lines */

/* Wake a waiter, under the bucket's lock; it gets up when the lock is released and the latches are set. */
extern void queue_wake(const Entry *entry);
extern void queue_set_latches(void);
extern void queue_suspect(uint64 ticket);	/* make it check for a deadlock */

#endif							/* LEASE_LOCK_QUEUE_H */
