/*-------------------------------------------------------------------------
 *
 * queue.h
 *		The wait queue in shared memory, for the files of this folder.
 *
 * A *waiter* is a backend that waits. It has an *entry* for each resource that
 * it waits for, up to MAX_LINES. The entries for one resource form its *line*,
 * in the order of arrival.
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

#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/proc.h"

#include "wait/wait.h"

#define NOBODY			(-1)
#define NUM_BUCKETS		256

/*
 * Maximum number of lines for one waiter, and space for the names of their
 * resources. It looks at further resources every second.
 */
#define MAX_LINES		17
#define NAMES_SPACE		(4 * MAX_NAME_LENGTH)

/*
 * Which line. The hash finds its bucket. The first waiter of a line, which
 * compares names, gives it a number that no other line ever has.
 */
typedef struct Line
{
	uint64		hash;			/* of database and resource */
	uint64		number;			/* 0: there is no such line */
} Line;

/* State of a waiter in one of its lines. */
typedef enum TurnState
{
	TURN_QUEUED,				/* waits for its turn */
	TURN_CALLED,				/* has its turn, and must take it in time */
	TURN_AWAY,					/* waits for a transaction in the lock manager */
	TURN_ASIDE,					/* blocked by its own owner's lease: others go first */
	TURN_SKIPPED				/* did not look when called; until it looks */
} TurnState;

/*
 * Its neighbours in the list of a bucket, as numbers of entries. The bucket is
 * in the circle, too, as NOBODY.
 */
typedef struct Link
{
	int			previous;
	int			next;
} Link;

/* A waiter in one of its lines. */
typedef struct Entry
{
	Link		link;
	int			waiter;
	Line		line;
	pg_atomic_uint64 turn;		/* grows along the line */
	pg_atomic_uint32 state;		/* TurnState */
	TransactionId awaited;		/* transaction that refused it, if known */
	MonotonicTime called_at;	/* since when it is called */
	MonotonicTime known_end;	/* when, as far as it knows, the lease may become free; AT_ONCE:
								 * at any time */
} Entry;

/* Description of a waiter. It does not change while the waiter waits. */
typedef struct WaiterInfo
{
	int			pid;
	Oid			database;
	Oid			role;
	TimestampTz since;
	TimestampTz deadline;		/* DT_NOEND: none */
	LeaseMode	mode;
	int			permits;
	int			nresources;		/* if more than 1, any of them will do */
	int			nlines;			/* for the first ones of them */
	int			owner_length;
	int			name_length[MAX_LINES];
	char		owner[MAX_NAME_LENGTH];
	char		names[NAMES_SPACE];
} WaiterInfo;

typedef struct Waiter
{
	pg_atomic_uint64 ticket;	/* of this wait; 0: no wait, or not described yet */
	pg_atomic_uint64 alarm;		/* a MonotonicTime: when it looks without being woken. While it
								 * is awake that is NEVER, so that every change wakes it */
	pg_atomic_uint32 news;		/* counts wake-ups */
	pg_atomic_uint32 suspect;	/* must check for a deadlock at once */
	bool		commits;		/* before it sleeps, which may take long */
	Entry		entry[MAX_LINES];
	WaiterInfo	info;
} Waiter;

typedef struct Bucket
{
	LWLock		lock;
	Link		ends;			/* its next entry is the first one, its previous entry the last
								 * one */
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
static inline MonotonicTime
monotonic_time(TimestampTz time)
{
	return time == DT_NOEND ? NEVER : mono_from_now(time - clock_now());
}

/* queue.c: the memory */
extern void queue_init(void);	/* at load time */
extern uint64 queue_hash(const text *resource); /* of a resource of this database; needs the
												 * shared area */
extern bool queue_may_have(uint64 hash);	/* can there be a waiter? */
extern bool queue_is_entry_for(const Entry *entry, const text *resource);
extern Waiter *queue_waiter(int number);
extern MonotonicTime queue_alarm(const Waiter *waiter);
extern void queue_set_alarm(Waiter *waiter, MonotonicTime alarm);
extern Entry *queue_entry(int number);	/* NULL for NOBODY */
extern Waiter *queue_join(text **resources, int nresources, const LeaseRequest *request,
						  int64 timeout);
extern void queue_suspect(int number);	/* make a waiter check for a deadlock */

/*
 * Lock the bucket of a hash. What follows needs the lock. The unlock sets the
 * latches of the waiters for whom a wake-up was noted.
 */
extern void queue_lock(uint64 hash);
extern void queue_unlock_and_wake(uint64 hash);
extern Line queue_find_line(uint64 hash, const text *resource);
extern Entry *queue_next_in_line(const Entry *previous, Line line);
extern void queue_append(Entry *entry);
extern void queue_take_out(Entry *entry);
extern void queue_note_wakeup(const Entry *entry);
extern void call_first(Line line, MonotonicTime free_at);	/* turns.c */

/* turns.c: changes of a waiter's state by its own backend */
extern void turns_init(void);	/* at load time */
extern MonotonicTime turns_were_refused(Waiter *waiter, int line, const Refusal *refusal,
										uint32 news_seen);
extern MonotonicTime turns_leave(Waiter *waiter, const text *granted);

/* wake.c */
extern void wake_init(void);	/* at load time */

/* sleep.c */
extern void sleep_until(MonotonicTime until);
extern void check_client(void);

/* lockwait.c: a wait in the lock manager with a time limit */
extern bool lock_wait_until(MonotonicTime until, void (*work) (void *arg), void *arg);

/* queue.c: the description of waiters */
extern text *named_resource(const WaiterInfo *info, int line);
extern List *waiters_list(void);	/* copies of all Waiters of this database, in the order of
									 * turns */

/* What blocks a lease slot for a request: a committed lease, an open transaction, or both. */
typedef struct SlotBlocker
{
	int			slot;
	const Lease *lease;			/* or NULL */
	TransactionId transaction;	/* or invalid */
	int			pid;			/* of that transaction, or else of the session that the lease
								 * ends with; 0: none */
} SlotBlocker;

/* obstacles.c */
extern int	transaction_pid(TransactionId xid);
extern LeaseRows *look_at_line(LeaseStore *store, const WaiterInfo *info, int line);
extern List *find_obstacles(const LeaseRows *rows, const WaiterInfo *info);
extern List *find_blocking_pids(const LeaseRows *rows, const WaiterInfo *info,
								TransactionId awaited);
extern List *server_blocking_pids(const PGPROC *proc);

/* deadlock.c */
extern void check_deadlock(void);

#endif							/* LEASE_LOCK_QUEUE_H */
