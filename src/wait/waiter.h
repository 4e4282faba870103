/*-------------------------------------------------------------------------
 *
 * waiter.h
 *		Descriptions of waiters, and of what blocks them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_WAITER_H
#define LEASE_LOCK_WAITER_H

#include "nodes/pg_list.h"

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
	uint64		owner_hash;
	int			owner_length;
	int			name_length[MAX_LINES];
	char		owner[MAX_NAME_LENGTH];
	char		names[NAMES_SPACE];
} WaiterInfo;

/* The place of a waiter in one line. */
typedef struct WaiterLine
{
	uint64		hash;			/* of resource and database */
	uint64		turn;			/* orders the waiters of the line */
	TurnState	state;
	TransactionId awaited;		/* transaction that refused it there, if known */
	const char *resource;		/* NULL: not known */
	int			resource_length;
} WaiterLine;

/* A copy of all that is known of a waiter. */
typedef struct WaiterCopy
{
	uint64		ticket;			/* of this wait */
	bool		is_called;		/* in one of its lines: it looks, or is about to */
	WaiterLine	line[MAX_LINES];
	WaiterInfo	info;
} WaiterCopy;

/* queue.c */
extern List *waiters_list(void);	/* of WaiterCopy, in the order of turns */

/* What blocks a lease slot for a request: a committed lease, an open transaction, or both. */
typedef struct SlotBlocker
{
	int			slot;
	const Lease *lease;			/* or NULL */
	TransactionId transaction;	/* or invalid */
} SlotBlocker;

/* obstacles.c */
extern List *find_obstacles(LeaseStore *store, const WaiterLine *line, LeaseMode mode);

#endif							/* LEASE_LOCK_WAITER_H */
