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
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_WAIT_H
#define LEASE_LOCK_WAIT_H

#include "nodes/pg_list.h"

#include "store/store.h"

/* wait.c: the steps of the loop */
extern void wait_init(void);
extern bool wait_look_for_others(text **resources, int nresources);
extern void wait_begin(text **resources, int nresources, const LeaseRequest *request,
					   int64 timeout);
extern bool wait_is_called(void);
extern LeaseStore *wait_open_store(void);
extern bool wait_lock_resource(const text *resource);
extern void wait_note_refusal(int which, const Refusal *refusal);
extern bool wait_may_go_on(void);
extern void wait_begin_commit(void);
extern void wait_end_commit(void);
extern void wait_sleep(const Refusal *refusal);
extern void wait_prepare_look(void);
extern void wait_end(const text *granted);

/* turns.c: turns of waiters */
extern bool wait_take_turn(const text *resource);

/* wake.c: wake-ups */
extern void wait_note_change(const text *resource, TimestampTz expires_at);
extern void wait_note_session_lease(const text *resource);

/* view.c: what the view lease_waiters shows */
typedef struct ShownWaiter
{
	text	   *resource;		/* NULL: any of several */
	text	   *owner;
	int			pid;
	Oid			role;
	TimestampTz since;
	TimestampTz deadline;		/* DT_NOEND: none */
	LeaseMode	mode;
	int			permits;
	int			position;		/* among the waiters for this resource alone */
	const Lease *lease;			/* one that blocks it; NULL: none */
	TransactionId transaction;	/* one that blocks it; invalid: none */
	List	   *pids;			/* of processes that block it; 0 for prepared transactions */
} ShownWaiter;

extern List *wait_show(LeaseStore *store);
extern bool wait_is_contended(const text *resource);	/* needs the shared area */

#endif							/* LEASE_LOCK_WAIT_H */
