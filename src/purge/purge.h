/*-------------------------------------------------------------------------
 *
 * Removal of leases that ended: the rule, and the state that sessions share
 * with the purge worker.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_PURGE_H
#define LEASE_LOCK_PURGE_H

#include "port/atomics.h"
#include "postmaster/bgworker.h"
#include "storage/block.h"
#include "storage/spin.h"

#include "base/types.h"

/* How a visit of the worker to a database ended. */
typedef enum VisitResult
{
	VISIT_FAILED,				/* by an error, which was logged */
	VISIT_NO_EXTENSION,
	VISIT_LOCKED,				/* another session has locked the table or the database */
	VISIT_UNFINISHED,			/* the visit ran out of time */
	VISIT_DONE
} VisitResult;

/* What the launcher tells the worker. */
typedef struct VisitOrder
{
	uint64		visit;
	Oid			database;
	BlockNumber first_block;
	TimestampTz told_until;		/* send notices of leases that expired after this time */
	TimestampTz tell_until;		/* and up to this time */
} VisitOrder;

StaticAssertDecl(sizeof(VisitOrder) <= BGW_EXTRALEN, "an order has to fit into bgw_extra");

/* Report of a worker. The launcher reads it when the worker has ended. */
typedef struct VisitReport
{
	uint64		visit;			/* visit that it belongs to */
	VisitResult result;
	BlockNumber next_block;		/* where the next visit begins */
	bool		rows_left;		/* in the blocks that it visited */
} VisitReport;

/* Beyond this number of databases, any database may have had grants. */
#define MAX_GRANTED_IN	64

/* In shared memory. */
typedef struct PurgeState
{
	pg_atomic_uint32 round;		/* of the launcher; from 1 */
	pg_atomic_uint32 batch_xid; /* last transaction in which the worker removed rows */

	slock_t		mutex;			/* protects the next two */
	int			ngranted_in;	/* MAX_GRANTED_IN + 1: more than fit */
	Oid			granted_in[MAX_GRANTED_IN]; /* databases, in this round */

	VisitReport report;			/* of the worker; there is only one at a time */
} PurgeState;

/* How long a request has waited for the worker's batch. */
typedef struct PurgePatience
{
	int64		until;			/* monotonic clock; 0: has not waited yet */
	long		pause;
	int			ended;			/* transactions that had ended */
} PurgePatience;

/* Result of a batch. */
typedef struct PurgeBatch
{
	VisitResult result;
	BlockNumber next_block;
	BlockNumber nblocks;
	int64		purged;
	bool		rows_left;
} PurgeBatch;

/* purge.c: the rule */
extern PurgeState *purge_state;
extern void purge_init(void);
extern int64 purge_leases(void);
extern PurgeBatch purge_batch(BlockNumber first_block);
extern TransactionId purge_met(const LeaseRows *rows);
extern bool wait_for_purge(TransactionId xid, PurgePatience *patience);
extern void purge_note_grant(void);

/* expired.c: notices of leases that expired */
extern void tell_expired(TimestampTz after, TimestampTz until);

/* launcher.c: the background worker that sends others */
extern void launcher_init(void);

#endif							/* LEASE_LOCK_PURGE_H */
