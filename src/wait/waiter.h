/*-------------------------------------------------------------------------
 *
 * waiter.h
 *		Waiters, and what blocks them.
 *
 * A *waiter* is a backend that waits. It has an *entry* for each resource that
 * it waits for, up to MAX_LINES. The entries for one resource form its *line*,
 * in the order of arrival.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_WAITER_H
#define LEASE_LOCK_WAITER_H

#include "nodes/pg_list.h"
#include "port/atomics.h"

#include "store/store.h"

/* Maximum number of lines for one waiter. It looks at further resources every second. */
#define MAX_LINES		17

/* Space for the names of the resources of a waiter. Deadlocks are not searched behind names that do not fit. */
#define NAMES_SPACE		(4 * MAX_NAME_LENGTH)

/* State of a waiter in one of its lines. */
typedef enum TurnState
{
	TURN_QUEUED,				/* waits for its turn */
	TURN_CALLED,				/* has its turn, and must take it in time */
	TURN_AWAY,					/* waits for a transaction in the lock manager */
	TURN_ASIDE,					/* blocked by its own owner's lease: others go first */
	TURN_SKIPPED				/* did not look when called; until it looks */
} TurnState;

/* A waiter's place in a line. */
typedef struct Entry
{
	int			previous;		/* entry in the bucket, or NOBODY */
	int			next;
	int			waiter;
	uint64		hash;			/* of resource and database */
	pg_atomic_uint64 turn;		/* grows along the line */
	pg_atomic_uint32 state;		/* TurnState; written with the lock */
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
	int			nnamed;			/* lines whose resource is in names */
	int			owner_length;
	int			name_length[MAX_LINES];
	char		owner[MAX_NAME_LENGTH];
	int			names_used;
	char		names[NAMES_SPACE];
} WaiterInfo;

typedef struct Waiter
{
	pg_atomic_uint64 ticket;	/* of this wait; 0: no wait, or not described yet */
	pg_atomic_uint64 alarm;		/* when it looks without being woken */
	pg_atomic_uint32 news;		/* counts wake-ups */
	pg_atomic_uint32 suspect;	/* must check for a deadlock at once */
	Entry		entry[MAX_LINES];
	WaiterInfo	info;
} Waiter;

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

/* queue.c */
extern List *waiters_list(void);	/* copies of all Waiters of this database, in the order of turns */

/* What blocks a lease slot for a request: a committed lease, an open transaction, or both. */
typedef struct SlotBlocker
{
	int			slot;
	const Lease *lease;			/* or NULL */
	TransactionId transaction;	/* or invalid */
} SlotBlocker;

/* obstacles.c */
extern List *find_obstacles(LeaseStore *store, const Waiter *waiter, int line);

#endif							/* LEASE_LOCK_WAITER_H */
