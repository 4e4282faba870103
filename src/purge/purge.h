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
#include "storage/block.h"
#include "storage/spin.h"

#include "base/types.h"

/* How a visit of the worker to a database ended. */
typedef enum VisitResult
{
	VISIT_DIED,					/* by an error that it could not report */
	VISIT_FAILED,				/* by an error that it reports */
	VISIT_NO_EXTENSION,
	VISIT_LOCKED,				/* another session has locked the table or the database */
	VISIT_UNFINISHED,			/* the visit ran out of time */
	VISIT_DONE
} VisitResult;

/* Bytes of an error message that are kept. */
#define VISIT_MESSAGE_SIZE	512

/* Report of a worker. The launcher reads it when the worker has ended. */
typedef struct VisitReport
{
	uint64		visit;			/* visit that it belongs to */
	VisitResult result;
	BlockNumber next_block;		/* where the next visit begins */
	int			sqlstate;
	char		message[VISIT_MESSAGE_SIZE];
	char		detail[VISIT_MESSAGE_SIZE];
	char		hint[VISIT_MESSAGE_SIZE];
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
} PurgePatience;

/* Result of a batch. */
typedef struct PurgeBatch
{
	VisitResult result;
	BlockNumber next_block;
	BlockNumber nblocks;
	int64		purged;
} PurgeBatch;

/* purge.c: the rule */
extern PurgeState *purge_state;
extern void purge_init(void);
extern int64 purge_leases(void);
extern PurgeBatch purge_batch(BlockNumber first_block);
extern bool purge_has(TransactionId xid);
extern bool purge_is_brief(TransactionId xid, PurgePatience *patience);
extern void purge_note_grant(void);

/* expired.c: notices of leases that expired */
extern void tell_expired(TimestampTz after, TimestampTz until);

/* worker.c: the background workers */
extern void worker_init(void);

#endif							/* LEASE_LOCK_PURGE_H */
