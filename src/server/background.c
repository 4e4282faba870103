/*-------------------------------------------------------------------------
 *
 * background.c
 *		Background workers of this library.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/guc.h"

#include "server/server.h"

void
describe_worker(BackgroundWorker *worker, const char *type, const char *function)
{
	memset(worker, 0, sizeof(BackgroundWorker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker->bgw_name, type, BGW_MAXLEN);
	strlcpy(worker->bgw_library_name, "lease_lock", BGW_MAXLEN);
	strlcpy(worker->bgw_function_name, function, BGW_MAXLEN);
}

/*
 * Lock the database, unless another session is about to drop, copy or rename
 * it. Such a session holds a lock on the database that keeps new sessions out,
 * and waits for the others to leave. While we hold our lock, no session can
 * begin to do so.
 */
bool
lock_database(Oid database)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, database, 0);
	return LockAcquire(&tag, RowExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
}

void
unlock_database(Oid database)
{
	UnlockSharedObjectForSession(DatabaseRelationId, database, 0, RowExclusiveLock);
}

bool
may_stay_in_database(void)
{
	if (!lock_database(MyDatabaseId))
		return false;
	unlock_database(MyDatabaseId);
	return true;
}

/*
 * Sleep for a time in microseconds, at most 24 days, or until the latch is set.
 * Returns true if the configuration was reloaded.
 */
bool
worker_nap(int64 usecs)
{
	if (WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
				  Min(usecs / 1000 + 1, INT_MAX),
				  WaitEventExtensionNew("LeaseLockWorker")) & WL_LATCH_SET)
		ResetLatch(MyLatch);

	/* Nothing is in progress here, so exit without a message in the log. */
	if (ProcDiePending)
		proc_exit(1);
	CHECK_FOR_INTERRUPTS();

	if (!ConfigReloadPending)
		return false;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	return true;
}
