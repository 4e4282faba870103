/*-------------------------------------------------------------------------
 *
 * turns.h
 *		Changes of a waiter's state by its own backend, and calls of others.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_TURNS_H
#define LEASE_LOCK_TURNS_H

#include "wait/queue.h"

extern void turns_init(void);	/* at load time */

/* Why a look did not get the lease of one line. */
typedef struct LineRefusal
{
	bool		own_lease;		/* because of a lease of the same owner */
	TransactionId transaction;	/* because of this transaction, if known */
	int64		known_end;		/* when the lease may become free, monotonic clock; 0: at any time */
} LineRefusal;

/* This backend as a waiter. */
extern bool turns_were_refused(Waiter *waiter, const LineRefusal *refusals, bool goes_away, uint32 news_seen);
extern void turns_come_back(Waiter *waiter);
extern int64 turns_next_watch(const Waiter *waiter);
extern bool turns_are_overdue(const Waiter *waiter);
extern int64 turns_leave(Waiter *waiter, uint64 granted);

/* The caller of these holds the bucket's lock, and calls queue_set_latches() afterwards. */
extern void call_first(const Bucket *bucket, uint64 hash, int64 free_at);

/* wake.c */
extern void wake_init(void);	/* at load time */

/* sleep.c */
extern void sleep_until(int64 until);
extern void check_client(void);

/* lockwait.c: a wait in the lock manager with a time limit */
extern bool lock_wait_until(int64 until, void (*work) (void *arg), void *arg);

/* deadlock.c */
extern void check_deadlock(void);

#endif							/* LEASE_LOCK_TURNS_H */
