/*-------------------------------------------------------------------------
 *
 * purge.h
 *		Removal of leases that ended: the rule, and the state that sessions share
 *		with the purge worker.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_PURGE_H
#define LEASE_LOCK_PURGE_H

#include "port/atomics.h"

#include "server/server.h"

/* How a visit of the worker to a database ended. */
typedef enum VisitResult
{
	VISIT_FAILED,				/* by an error, which was logged */
	VISIT_LOCKED,				/* another session has locked the table or the database */
	VISIT_UNFINISHED,			/* the visit ran out of time */
	VISIT_DONE,
	VISIT_EMPTY					/* there are no rows, or there is no extension */
} VisitResult;

/* A visit: what the launcher tells the worker, and what the worker answers. */
typedef struct Visit
{
	uint32		number;
	Oid			database;
	BlockNumber next_block;		/* where the purge begins, and then where it goes on the next
								 * time */
	int64		purged;			/* rows that were removed before that block */
	int64		cost;			/* processor time of that, in microseconds */
	MonotonicTime purge_from;	/* it does not begin with the first block before this time */
	TimestampTz told_until;		/* notices of leases that expired up to this time were sent */
	TimestampTz tell_until;		/* send those of leases that expired up to this time */
	VisitResult result;
} Visit;

/* In shared memory. */
typedef struct PurgeState
{
	pg_atomic_uint32 batch_xid; /* last transaction in which the worker removed rows */
	Visit		visit;			/* the last one; the launcher reads it when the worker has ended */
} PurgeState;

/* How long a request has waited for the worker's batch. */
typedef struct PurgePatience
{
	MonotonicTime until;		/* AT_ONCE: has not waited yet */
	int			ended;			/* transactions that had ended */
} PurgePatience;

/* purge.c: the rule */
extern PurgeState *purge_state;
extern void purge_init(void);
extern int64 purge_leases(void);
extern BlockNumber purge_batch(Visit *visit);
extern TransactionId purge_met(const LeaseRows *rows);
extern bool wait_for_purge(TransactionId xid, PurgePatience *patience);

/* launcher.c: the background worker that sends others */
extern void launcher_init(void);

#endif							/* LEASE_LOCK_PURGE_H */
