/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The purge worker: removes leases that ended, in one database.
 *
 * The worker leaves after a short while, done or not, because a database with
 * a session in it cannot be dropped, copied or renamed.
 *
 * The worker connects as the bootstrap superuser. So it must not run anything
 * that a user defines. It runs no SQL; it reads and deletes rows through the
 * table access method. It does not ask for expressions or predicates of
 * indexes, since the relation cache evaluates the constants in them. As a
 * second line of defense, it acts as the owner of the lock table, in a
 * security-restricted operation, as autovacuum and REINDEX do.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"		/* get_database_name() from 19 on */
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "monitor/monitor.h"
#include "purge/purge.h"
#include "store/store.h"

/* About how long a worker stays in a database, in microseconds. */
#define VISIT_TIME			(2 * USECS_PER_SEC)

/*
 * The worker rests this many times as long as it worked, so it uses at most a
 * fifth of a processor, unless a batch takes long: it rests in its visit only.
 */
#define REST_FACTOR			4

/*
 * When it has read the whole table and removed fewer rows than one for each
 * block, it does not begin again before so many times as long: it reads at most
 * during a fiftieth of the time. If it removes more, reading is not what costs.
 */
#define READ_FACTOR			50

PGDLLEXPORT void lease_purge_worker_main(Datum arg);

static void
begin_transaction(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
}

static void
end_transaction(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
}

static void
report_progress(BlockNumber block, BlockNumber nblocks)
{
	char		activity[100];

	snprintf(activity, sizeof(activity), "purging leases that ended: block %u of %u", block,
			 nblocks);
	pgstat_report_activity(STATE_RUNNING, activity);
}

/* Let the launcher know, unless it no longer waits for this visit. */
static void
report(const Visit *visit)
{
	if (purge_state->visit.number == visit->number)
		purge_state->visit = *visit;
}

/* StoreFilter: leases that expired since the last visit. */
static bool
has_expired(const Lease *lease, const void *arg)
{
	const Visit *visit = arg;

	return lease->owner != NULL &&
		lease->expires_at > visit->told_until && lease->expires_at <= visit->tell_until;
}

/*
 * Send notices of leases that expired: no code runs when that happens. The next
 * visit does not send them again, whatever happens to this one. Of leases that
 * expire later, and of those whose session has ended, the purge of the row
 * tells, if it comes first.
 */
static void
tell_expired(Visit *visit)
{
	LeaseStore *store;
	bool		told;

	begin_transaction();
	told = !event_is_watched(EVENT_EXPIRED);
	if (!told && may_stay_in_database() &&
		store_open_if_free(AccessShareLock, &store) == STORE_OPEN)
	{
		StoreScan  *scan = store_scan(store, SCAN_COMMITTED, has_expired, visit);
		ItemPointerData tid;
		Lease		lease;

		while (store_next(scan, &lease, &tid))
			tell_watchers(EVENT_EXPIRED, &lease);
		store_end_scan(scan);
		store_close(store);
		told = true;
	}
	end_transaction();

	if (told)
		visit->told_until = visit->tell_until;
	report(visit);
}

/*
 * Purge a batch, in a transaction of its own. Returns the number of blocks of
 * the table.
 */
static BlockNumber
purge_next_batch(Visit *visit)
{
	int64		cost_before = clock_used();
	BlockNumber nblocks = 0;

	begin_transaction();
	visit->result = VISIT_LOCKED;
	if (may_stay_in_database())
		nblocks = purge_batch(visit);
	end_transaction();
	visit->cost += clock_used() - cost_before;
	return nblocks;
}

/*
 * Purge batch after batch, until the table is done or the time is up. The
 * worker rests between batches, to leave the processor and the disk to other
 * sessions.
 */
static void
purge(Visit *visit)
{
	MonotonicTime until = mono_from_now(VISIT_TIME);

	if (visit->next_block == 0)
	{
		visit->purged = visit->cost = 0;
		visit->result = VISIT_DONE;
		if (!mono_has_come(visit->purge_from))
			return;
	}
	do
	{
		MonotonicTime begun_at = clock_monotonic();
		BlockNumber nblocks = purge_next_batch(visit);

		if (visit->result == VISIT_DONE && visit->purged < nblocks)
			visit->purge_from = mono_from_now(visit->cost * READ_FACTOR);
		if (visit->result != VISIT_UNFINISHED)
			return;

		report_progress(visit->next_block, nblocks);
		worker_nap(Min(mono_since(begun_at) * REST_FACTOR, mono_until(until)));
	} while (!mono_has_come(until));
}

/*
 * Override settings of the database, or of the superuser, that are not meant
 * for the worker.
 */
static void
override_settings(void)
{
	static const char *const settings[][2] = {
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
#if PG_VERSION_NUM >= 170000
		{"transaction_timeout", "0"},
#endif
		{"lock_timeout", "1s"},
		{"search_path", "pg_catalog, pg_temp"},
		/* If a crash undoes a batch, the next visit repeats it. */
		{"synchronous_commit", "off"}
	};

	for (int i = 0; i < (int) lengthof(settings); i++)
		SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
}

/* ErrorContextCallback */
static void
add_context(void *arg)
{
	errcontext("purge of leases that ended in database \"%s\"", (const char *) arg);
}

/*
 * The visit failed. A lock that another session holds is no error: the next
 * visit tries again.
 */
static VisitResult
log_failure(void)
{
	VisitResult result = geterrcode() == ERRCODE_LOCK_NOT_AVAILABLE ? VISIT_LOCKED : VISIT_FAILED;

	HOLD_INTERRUPTS();
	if (result == VISIT_FAILED)
		EmitErrorReport();
	AbortCurrentTransaction();
	MemoryContextSwitchTo(TopMemoryContext);
	FlushErrorState();
	RESUME_INTERRUPTS();
	return result;
}

/*
 * Connect to the database; false if another session is about to drop it, which
 * would make that a fatal error.
 */
static bool
connect_to(Oid database)
{
	if (!lock_database(database))
		return false;
	override_settings();
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
	unlock_database(database);
	return true;
}

/*
 * Do a part of the visit. An error is caught, because the server logs every
 * worker that exits with an error, and for the other part. Returns false if there
 * was one; visit->result is that of the error then.
 */
static bool
do_part(void (*part) (Visit *visit), Visit *visit)
{
	volatile bool done = false;

	PG_TRY();
	{
		part(visit);
		done = true;
	}
	PG_CATCH();
	{
		visit->result = log_failure();
	}
	PG_END_TRY();
	return done;
}

/*
 * Visit the database. If notices cannot be sent, as when the queue of NOTIFY is
 * full, they are lost: rows are purged all the same, and that tells nothing. After
 * an error the next visit begins with the first block, in case the error is in the
 * block that this one has reached.
 */
static void
visit_database(Visit *visit)
{
	ErrorContextCallback callback;

	StartTransactionCommand();
	callback.arg = MemoryContextStrdup(TopMemoryContext, get_database_name(MyDatabaseId));
	CommitTransactionCommand();
	callback.callback = add_context;
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	report_progress(visit->next_block, visit->next_block);
	if (!do_part(tell_expired, visit) && visit->result == VISIT_FAILED)
		visit->told_until = DT_NOEND;
	if (!do_part(purge, visit))
		visit->next_block = 0;
	visit->told_until = Min(visit->told_until, visit->tell_until);	/* told, or lost */
	error_context_stack = callback.previous;
}

/* Entry point of the worker. The argument is the number of the visit. */
void
lease_purge_worker_main(Datum arg)
{
	Visit		visit = purge_state->visit;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	if (visit.number != DatumGetUInt32(arg))
		return;
	if (connect_to(visit.database))
		visit_database(&visit);
	else
		visit.result = VISIT_LOCKED;
	report(&visit);
}
