/*-------------------------------------------------------------------------
 *
 * queue.h
 *		The wait queue in shared memory, for the files of this folder.
 *
 * The lines are kept in *buckets*, by a hash of database and resource. Each
 * bucket has a list of entries, and a lock that protects the list. Whether the
 * list is empty is read without the lock.
 *
 * The hash only finds a line: lines with equal hashes are told apart by their
 * names. It has a secret random seed, so nobody can choose names that meet in
 * one bucket, and slow down the waits of others.
 *
 * The description of a waiter is written before its ticket is set, and does
 * not change while it waits. So it is read without a lock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_QUEUE_H
#define LEASE_LOCK_QUEUE_H

#include "storage/lwlock.h"

#include "wait/wait.h"

#define NOBODY			(-1)
#define NUM_BUCKETS		256

/* Times of the monotonic clock. A waiter with NO_ALARM is awake: every change must wake it. */
#define NO_ALARM		PG_INT64_MAX
#define NEVER			PG_INT64_MAX

typedef struct Bucket
{
	LWLock		lock;
	Link		ends;			/* its next entry is the first one, its previous entry the last one */
	char		pad[PG_CACHE_LINE_SIZE - sizeof(LWLock) - sizeof(Link)];
} Bucket;

typedef struct WaitQueue
{
	uint64		seed;			/* of hashes; not to be shown */
	int			nhashes;		/* in a build for races: so few different ones; else 0 */
	pg_atomic_uint64 last_ticket;
	Bucket		buckets[NUM_BUCKETS];
	Waiter		waiters[FLEXIBLE_ARRAY_MEMBER]; /* indexed by PGPROC number */
} WaitQueue;

extern WaitQueue *wait_queue;	/* NULL: this server has none */

static inline Bucket *
bucket_of(uint64 hash)
{
	return &wait_queue->buckets[hash % NUM_BUCKETS];
}

static inline TurnState
entry_state(const Entry *entry)
{
	return (TurnState) pg_atomic_read_u32((pg_atomic_uint32 *) &entry->state);
}

static inline uint64
entry_turn(const Entry *entry)
{
	return pg_atomic_read_u64((pg_atomic_uint64 *) &entry->turn);
}

/* A lease time, on the monotonic clock. */
static inline int64
monotonic_time(TimestampTz time)
{
	return time == DT_NOEND ? NEVER : clock_monotonic() + (time - clock_now());
}

/* queue.c: the memory */
extern void queue_init(void);	/* at load time */
extern uint64 queue_hash(const text *resource); /* of a resource of this database; needs the shared area */
extern bool queue_may_have(uint64 hash);	/* can there be a waiter? */
extern bool queue_is_entry_for(const Entry *entry, const text *resource);
extern Waiter *queue_waiter(int number);
extern Entry *queue_entry(int number);	/* NULL for NOBODY */
extern Waiter *queue_join(text **resources, int nresources, const LeaseRequest *request, int64 timeout);
extern void queue_suspect(int number);	/* make a waiter check for a deadlock */

/* Lock the bucket of a hash. What follows needs the lock; the unlock sets the latches of waiters that were woken. */
extern void queue_lock(uint64 hash);
extern void queue_unlock(uint64 hash);
extern Line queue_find_line(uint64 hash, const text *resource);
extern Entry *queue_next_in_line(const Entry *previous, Line line);
extern void queue_append(Entry *entry);
extern void queue_take_out(Entry *entry);
extern void queue_wake(const Entry *entry);
extern void call_first(Line line, int64 free_at);	/* turns.c */

/* turns.c: changes of a waiter's state by its own backend */
extern void turns_init(void);	/* at load time */
extern int64 turns_were_refused(Waiter *waiter, int line, const GrantOutcome *refusal, uint32 news_seen);
extern int64 turns_leave(Waiter *waiter, const text *granted);

/* wake.c */
extern void wake_init(void);	/* at load time */

/* sleep.c */
extern void sleep_until(int64 until);
extern void check_client(void);

/* lockwait.c: a wait in the lock manager with a time limit */
extern bool lock_wait_until(int64 until, void (*work) (void *arg), void *arg);

/* deadlock.c */
extern void check_deadlock(void);

#endif							/* LEASE_LOCK_QUEUE_H */
