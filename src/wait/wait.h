/*-------------------------------------------------------------------------
 *
 * wait.h
 *		Waiting in turn.
 *
 * A wait is a loop around a try. It joins the queue before it looks, so that
 * it misses no release, and tells the queue the outcome of each try:
 *
 *		wait_begin(resources, nresources, &request, timeout, NULL);
 *		PG_TRY();
 *		{
 *			while ((outcome = try(&request)).result != GRANTED && wait_for(&outcome))
 *				;
 *		}
 *		PG_CATCH();
 *		{
 *			wait_end(NULL);
 *			PG_RE_THROW();
 *		}
 *		PG_END_TRY();
 *		wait_end(outcome.result == GRANTED ? request.resource : NULL);
 *
 * wait_for() returns false when the time is over. The try calls
 * wait_is_my_turn() before it takes a free lease.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_WAIT_H
#define LEASE_LOCK_WAIT_H

#include "nodes/pg_list.h"

#include "store/store.h"

/* State of a waiter in its line. */
typedef enum TurnState
{
	TURN_QUEUED,				/* waits for its turn */
	TURN_CALLED,				/* has its turn, and must take it in time */
	TURN_AWAY,					/* waits for a transaction in the lock manager */
	TURN_ASIDE,					/* blocked by its own owner's lease: others go first */
	TURN_SKIPPED				/* did not look when called; until it looks */
} TurnState;

/* Description of a waiter. Copies are made without a lock. */
typedef struct WaiterInfo
{
	uint64		ticket;			/* of this wait */
	uint64		turn;			/* orders the waiters for the same resource */
	TurnState	state;			/* meaningful for a single resource */
	int			pid;
	Oid			database;
	Oid			role;
	TimestampTz since;
	TimestampTz deadline;		/* DT_NOEND: none */
	LeaseMode	mode;
	int			permits;
	int			nresources;		/* if more than 1, any of them will do */
	uint64		hash;			/* of resource and database, if there is only one resource */
	uint64		owner_hash;
	int			resource_length;
	int			owner_length;
	char		resource[MAX_NAME_LENGTH];
	char		owner[MAX_NAME_LENGTH];
} WaiterInfo;

/* wait.c: the loop above */
extern void wait_init(void);
extern bool wait_is_likely(text **resources, int nresources);
extern void wait_begin(text **resources, int nresources, const LeaseRequest *request,
					   int64 timeout, void (*before_sleep) (void));
extern bool wait_is_called(const text *resource);
extern bool wait_for(const GrantOutcome *refusal);
extern void wait_end(const text *granted);

/* turns.c: turns of waiters, and wake-ups */
extern bool wait_is_my_turn(const text *resource);
extern void wait_note_session_lease(const text *resource);
extern void wait_note_change(const text *resource, TimestampTz expires_at);
extern void wait_note_drop(void);

/* queue.c: lists of waiters */
extern List *waiters_list(void);
extern List *waiters_of_owner(const text *owner);
extern WaiterInfo *waiter_of_pid(int pid);

/* obstacles.c: what blocks a waiter */
typedef struct Obstacles
{
	List	   *leases;			/* of Lease: committed leases that all conflict */
	List	   *transactions;	/* int list: open transactions that all conflict */
} Obstacles;

extern Obstacles find_obstacles(LeaseStore *store, const WaiterInfo *waiter);

/* lockwait.c: a wait in the lock manager with a time limit */
extern bool lock_wait_until(int64 until, void (*work) (void *arg), void *arg);

/* deadlock.c: deadlocks between leases */
extern void check_deadlock(const GrantOutcome *refusal);

#endif							/* LEASE_LOCK_WAIT_H */
