/*-------------------------------------------------------------------------
 *
 * wait.h
 *		Waiting in turn.
 *
 * A wait is a loop around a try: see wait_in_turn() in grant/request.c. It joins
 * the queue before it looks, so that it misses no release, and ends with
 * wait_end(), also after an error.
 *
 * The try calls wait_take_turn() before it takes a free lease, and
 * wait_note_refusal() for each resource whose lease it does not get.
 *
 * A *waiter* is a backend that waits. It has an *entry* for each resource that
 * it waits for, up to MAX_LINES. The entries for one resource form its *line*,
 * in the order of arrival.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_WAIT_H
#define LEASE_LOCK_WAIT_H

#include "nodes/pg_list.h"
#include "port/atomics.h"

#include "store/store.h"

/* wait.c: the steps of the loop */
extern void wait_init(void);
extern bool wait_is_likely(text **resources, int nresources);
extern void wait_begin(text **resources, int nresources, const LeaseRequest *request, int64 timeout);
extern bool wait_is_called(void);
extern bool wait_lock_resource(const text *resource);
extern void wait_note_refusal(int which, const GrantOutcome *refusal);
extern bool wait_may_go_on(const GrantOutcome *refusal);
extern void wait_commits(bool begins);
extern void wait_sleep(const GrantOutcome *refusal);
extern void wait_look_again(void);
extern void wait_end(const text *granted);

/* turns.c: turns of waiters */
extern bool wait_take_turn(const text *resource);

/* wake.c: wake-ups */
extern void wait_note_change(const text *resource, TimestampTz expires_at);
extern void wait_note_session_lease(const text *resource);

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

/* Its neighbours in the list of a bucket, as numbers of entries. The bucket is in the circle, too, as NOBODY. */
typedef struct Link
{
	int			previous;
	int			next;
} Link;

/* A waiter's place in a line. */
typedef struct Entry
{
	Link		link;
	int			waiter;
	Line		line;
	pg_atomic_uint64 turn;		/* grows along the line */
	pg_atomic_uint32 state;		/* TurnState */
	TransactionId awaited;		/* transaction that refused it, if known */
	int64		called_at;		/* since when it is called */
	int64		known_end;		/* when, as far as it knows, the lease may become free; 0: at any time */
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
	pg_atomic_uint64 alarm;		/* when it looks without being woken */
	pg_atomic_uint32 news;		/* counts wake-ups */
	pg_atomic_uint32 suspect;	/* must check for a deadlock at once */
	bool		commits;		/* before it sleeps, which may take long */
	Entry		entry[MAX_LINES];
	WaiterInfo	info;
} Waiter;

/* queue.c: the description of waiters */
extern text *named_resource(const WaiterInfo *info, int line);
extern List *waiters_list(void);	/* copies of all Waiters of this database, in the order of turns */

/* What blocks a lease slot for a request: a committed lease, an open transaction, or both. */
typedef struct SlotBlocker
{
	int			slot;
	const Lease *lease;			/* or NULL */
	TransactionId transaction;	/* or invalid */
	int			pid;			/* of that transaction, or else of the session that the lease ends with; 0: none */
} SlotBlocker;

/* obstacles.c */
extern List *find_obstacles(LeaseStore *store, const Waiter *waiter, int line);
extern int	transaction_pid(TransactionId xid);

#endif							/* LEASE_LOCK_WAIT_H */
