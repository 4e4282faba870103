/*-------------------------------------------------------------------------
 *
 * queue.h
 *		The wait queue in shared memory, for the files of this folder.
 *
 * A *waiter* is a backend that waits. It has an *entry* for each resource that
 * it waits for. The entries of one resource form its *line*, in the order of
 * arrival. The lines are kept in *buckets*, by the hash of the resource. Each
 * bucket has a list of entries, a lock, and a count, which shows without the
 * lock that the bucket is empty.
 *
 * The bucket's lock protects an entry, except for the list of siblings, which
 * belongs to the waiter. The description of a waiter is written before its
 * ticket is set, and does not change while it waits. So it is read without a
 * lock, see waiter_copy().
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_QUEUE_H
#define LEASE_LOCK_QUEUE_H

#include "port/atomics.h"
#include "storage/lwlock.h"

#include "wait/wait.h"

#define NOBODY			(-1)
#define NUM_BUCKETS		256

/* Maximum number of lines for one waiter. It looks at further resources every second. */
#define MAX_LINES		128

/* Entries in the common pool, per backend. */
#define POOL_ENTRIES	16

/* The alarm of a waiter that is awake: every change must notify it. */
#define NO_ALARM		((uint64) PG_INT64_MAX)

/* A waiter's place in a line. */
typedef struct Entry
{
	int			previous;		/* entry in the bucket, or NOBODY */
	int			next;
	int			sibling;		/* next entry of the same waiter, or next free one */
	int			waiter;
	Oid			database;
	uint64		hash;			/* of resource and database */
	pg_atomic_uint64 turn;		/* grows along the line */
	pg_atomic_uint32 state;		/* TurnState; written with the lock */
	int64		called_at;		/* since when, monotonic clock */
	TransactionId awaited;		/* transaction that it waits for, if known */
} Entry;

typedef struct Waiter
{
	pg_atomic_uint64 ticket;	/* of this wait; 0: no wait, or not described yet */
	pg_atomic_uint64 called_for;	/* hash of the resource whose turn it was given first; 0: none */
	pg_atomic_uint64 alarm;		/* when it looks without being woken, monotonic clock */
	pg_atomic_uint32 news;		/* counts wake-ups */
	pg_atomic_uint32 suspect;	/* must check for a deadlock at once */
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
	LWLock		pool_lock;
	int			first_free;		/* entry of the pool */
	Bucket		buckets[NUM_BUCKETS];
	Waiter		waiters[FLEXIBLE_ARRAY_MEMBER]; /* indexed by PGPROC number; the entries follow */
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
extern uint64 queue_hash(const text *resource);	/* of a resource of this database */
extern Bucket *queue_bucket(uint64 hash);
extern bool queue_may_have(uint64 hash);	/* can there be a waiter? */
extern Waiter *queue_waiter(int number);
extern Entry *queue_entry(int number);	/* NULL for NOBODY */
extern Entry *queue_next_in_line(const Bucket *bucket, const Entry *previous, uint64 hash);
extern Entry *queue_previous_in_line(const Bucket *bucket, const Entry *next, uint64 hash);
extern Waiter *queue_join(text **resources, int nresources, const WaiterInfo *info);
extern void queue_leave(Waiter *waiter);	/* its entries must be out of their lines */
extern Entry *queue_own_entry(const Waiter *waiter);	/* head of its siblings */
extern int	queue_nlines(const Waiter *waiter);
extern void queue_append(Bucket *bucket, Entry *entry);
extern void queue_take_out(Bucket *bucket, Entry *entry);
extern void queue_notify(const Entry *entry);	/* caller holds the bucket's lock */
extern void queue_wake_notified(void);	/* caller does not hold it */
extern void queue_wake(Waiter *waiter); /* notify and wake one waiter */

#endif							/* LEASE_LOCK_QUEUE_H */
