/*-------------------------------------------------------------------------
 *
 * purge.h
 *		Removal of leases that ended: the rule, and what the sessions and the
 *		purge worker have to know of each other.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_PURGE_H
#define LEASE_LOCK_PURGE_H

#include "port/atomics.h"
#include "storage/block.h"
#include "storage/spin.h"

#include "lease_lock.h"

/* How a visit of the worker to a database ended. */
typedef enum VisitResult
{
	VISIT_DIED,					/* with an error that it could not report */
	VISIT_FAILED,				/* with an error that it reports */
	VISIT_NO_EXTENSION,
	VISIT_LOCKED,				/* the table, or the database, is somebody else's */
	VISIT_UNFINISHED,			/* there is more to do than one visit may do */
	VISIT_DONE
} VisitResult;

/* Bytes of an error message that are kept. */
#define VISIT_MESSAGE_SIZE	512

/* What a worker tells the launcher, who reads it when the worker is gone. */
typedef struct VisitReport
{
	uint64		visit;			/* whose report it is */
	VisitResult result;
	BlockNumber next_block;		/* where to go on */
	int			sqlstate;
	char		message[VISIT_MESSAGE_SIZE];
	char		detail[VISIT_MESSAGE_SIZE];
	char		hint[VISIT_MESSAGE_SIZE];
} VisitReport;

/* More databases than this are not kept apart: any may have had grants. */
#define MAX_GRANTED_IN	64

/* In shared memory. There is none unless the library is preloaded. */
typedef struct PurgeState
{
	pg_atomic_uint32 round;		/* of the launcher; from 1 */
	pg_atomic_uint32 batch_xid; /* last transaction in which the worker removed rows */

	slock_t		mutex;			/* of what follows */
	int			ngranted_in;	/* MAX_GRANTED_IN + 1: too many to tell */
	Oid			granted_in[MAX_GRANTED_IN]; /* databases, in this round */

	VisitReport report;			/* of the one worker that there is */
} PurgeState;

/* How long a session has waited already for the worker's batch. */
typedef struct PurgePatience
{
	int64		until;			/* by the monotonic clock; 0: not waited */
	long		pause;
} PurgePatience;

/* What became of a batch. */
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

/* expired.c: telling of leases that ended by themselves */
extern void tell_expired(TimestampTz after, TimestampTz until);

/* worker.c: who does it every now and then */
extern void worker_init(void);

#endif							/* LEASE_LOCK_PURGE_H */
