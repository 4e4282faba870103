/*-------------------------------------------------------------------------
 *
 * wait.h
 *		The wait queue, for those who wait and those who look at it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_WAIT_H
#define LEASE_LOCK_WAIT_H

#include "port/atomics.h"

#include "grant/grant.h"
#include "lease_lock.h"

/* So many hashes of resources take as much room as one name. */
#define MAX_HASHES	((int) (MAX_NAME_LENGTH / sizeof(uint64)))

/* An entry of the wait queue. */
typedef struct Waiter
{
	int			previous;		/* places of the neighbours */
	int			next;
	int			pid;
	Oid			database;
	Oid			role;
	uint64		ticket;			/* grows with the order of arrival */
	TimestampTz since;
	TimestampTz deadline;
	pg_atomic_uint64 alarm;		/* when it looks at the lease again by itself, monotonic */
	pg_atomic_uint32 news;		/* counts the wake-ups */
	int64		called_at;		/* monotonic; 0: its turn has not come */
	bool		in_lock_wait;	/* behind a transaction: cannot hear a call */
	bool		lost_turn;		/* did not hear one; unset by itself */
	bool		aside;			/* its own owner is in the way: others come first */
	bool		suspect;		/* to check for a deadlock at once */
	LeaseMode	mode;
	int			permits;
	int			nresources;		/* 1, or so many any of which will do */
	uint64		hash;			/* of resource and database, when there is one */
	int			resource_length;
	int			owner_length;
	union
	{
		char		resource[MAX_NAME_LENGTH];
		uint64		hashes[MAX_HASHES]; /* when there are several */
	};
	char		owner[MAX_NAME_LENGTH];
} Waiter;

/* wait.c: the queue */
extern void wait_init(void);
extern bool wait_is_my_turn(const text *resource);
extern void wait_note_change(const text *resource, TimestampTz expires_at);
extern void wait_join(text **resources, int nresources, const LeaseRequest *request, int64 timeout);
extern void wait_leave(bool granted);
extern int64 wait_remaining(void);
extern void wait_begin_look(void);
extern void wait_begin_lock(void);
extern void wait_end_lock(void);
extern int	wait_lock_limit(void);
extern void wait_check_lock_timeout(void);
extern void wait_stand_aside(bool aside);
extern void wait_sleep(const GrantOutcome *refusal);
extern bool wait_is_long(void);
extern List *wait_list(void);
extern void wait_suspect(const Waiter *waiter);

/* A waiter, and what it waits for. */
typedef struct BlockedWaiter
{
	const Waiter *waiter;
	int			position;		/* among those who wait for the same lease, from 1 */
	text	   *holder_owner;	/* NULL: nobody holds the lease, as far as committed */
	Oid			holder_role;
	TransactionId busy_xid;		/* open transaction that is changing the lease */
} BlockedWaiter;

extern List *blocked_waiters(void);

/* deadlock.c: leases that wait for each other */
extern void check_deadlock(void);

#endif							/* LEASE_LOCK_WAIT_H */
