/*-------------------------------------------------------------------------
 *
 * Changes of a waiter's state by its own backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_TURNS_H
#define LEASE_LOCK_TURNS_H

#include "wait/queue.h"

extern void turns_init(void);	/* at load time */

/* This backend as a waiter. */
extern bool turns_were_refused(Waiter *waiter, uint32 news_seen);
extern bool turns_stand_aside(Waiter *waiter);
extern void turns_go_away(Waiter *waiter, TransactionId awaited);
extern void turns_come_back(Waiter *waiter);
extern int64 turns_next_watch(const Waiter *waiter);
extern bool turns_are_overdue(const Waiter *waiter);

/* Leave all lines. */
typedef struct Departure
{
	bool		granted;
	uint64		hash;			/* of the resource whose lease was granted */
	bool		shares;			/* the granted lease leaves room for others */
	int64		known_end;		/* end of the first lease that it knew of, monotonic clock; 0: unknown */
} Departure;

extern int64 turns_leave(Waiter *waiter, const Departure *departure);

/* sleep.c */
extern void sleep_until(int64 until);
extern void check_client(void);

#endif							/* LEASE_LOCK_TURNS_H */
