/*-------------------------------------------------------------------------
 *
 * background.h
 *		Background workers of this library.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_BACKGROUND_H
#define LEASE_LOCK_BACKGROUND_H

#include "postmaster/bgworker.h"

/* Describe a worker that connects to a database, and is not started again. */
extern void describe_worker(BackgroundWorker *worker, const char *type, const char *function);

/* Sleep until the time is over, or the latch is set; true if the configuration was reloaded. */
extern bool worker_nap(int64 usecs);

/* Is no other session about to drop, copy or rename this database? */
extern bool may_stay_in_database(void);

extern bool lock_database(Oid database);
extern void unlock_database(Oid database);

#endif							/* LEASE_LOCK_BACKGROUND_H */
