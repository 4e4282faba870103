/*-------------------------------------------------------------------------
 *
 * launcher.c
 *		The purge launcher: sends a worker to each database with leases.
 *
 * The launcher is not connected to a database. Statistics tell it where leases
 * were granted. It visits that database every lease_lock.purge_interval, until
 * a visit finds that the lock table is empty. When it starts, it visits each
 * database once, since it does not know what happened before. There is one
 * worker at a time, however many databases there are.
 *
 * A standby has no launcher until it is promoted.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "monitor/monitor.h"
#include "purge/purge.h"

/* Seconds until a launcher that failed is started again. */
#define LAUNCHER_RESTART	10

/*
 * After this time the launcher terminates the worker, in case it hangs. A visit
 * takes some seconds, and as long as it takes to read the whole table twice.
 * If that were too long, leases would never be purged there.
 */
#define LONGEST_VISIT		(600 * USECS_PER_SEC)

/* Longest time between visits to a database in which workers fail. */
#define FAILED_INTERVAL		(SECS_PER_HOUR * USECS_PER_SEC)

/* A database with leases. */
typedef struct Database
{
	Visit		visit;			/* how the last one ended: the next one goes on from there */
	MonotonicTime visited_at;	/* begin of that round; AT_ONCE: visit it at once */
	int			failures;		/* in sequence */
} Database;

typedef enum DatabaseState
{
	DATABASE_GONE,
	DATABASE_CLOSED,			/* no session can connect */
	DATABASE_OPEN
} DatabaseState;

PGDLLEXPORT void lease_purge_launcher_main(Datum arg);

static int	purge_interval = 10000;

static List *databases = NIL;	/* in TopMemoryContext */
static MonotonicTime round_begun_at = {0};	/* AT_ONCE: none yet */
static TimestampTz noted_at;	/* lease time of the last look at what was granted */

void
launcher_init(void)
{
	BackgroundWorker launcher;

	DefineCustomIntVariable("lease_lock.purge_interval",
							"Time between two purges of a database that has leases.",
							"0 turns the worker off. There is no worker unless the library is "
							"preloaded.",
							&purge_interval,
							10000, 0, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	/* pg_upgrade expects that no other session is connected. */
	if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
		return;

	describe_worker(&launcher, "lease_lock purge launcher", "lease_purge_launcher_main");
	launcher.bgw_restart_time = LAUNCHER_RESTART;
	RegisterBackgroundWorker(&launcher);
}

static int64
interval_usecs(void)
{
	return purge_interval * INT64CONST(1000);
}

/*
 * Add a database to the list, unless it is there. Leases that expired after the
 * given time are told.
 */
static void
remember(Oid oid, TimestampTz told_until)
{
	MemoryContext caller_context;
	Database   *database;
	ListCell   *cell;

	foreach(cell, databases)
		if (((Database *) lfirst(cell))->visit.database == oid)
			return;
	caller_context = MemoryContextSwitchTo(TopMemoryContext);
	database = palloc0(sizeof(Database));
	database->visit.database = oid;
	database->visit.told_until = told_until;
	databases = lappend(databases, database);
	MemoryContextSwitchTo(caller_context);
}

/* Can sessions connect? A database whose DROP was interrupted does not allow that. */
static bool
is_open(Form_pg_database database)
{
	return database->datallowconn && database->datconnlimit != DATCONNLIMIT_INVALID_DB;
}

/* Find this database; or remember all to which sessions can connect, with that time. */
static DatabaseState
search_databases(Oid wanted, TimestampTz told_until)
{
	DatabaseState state = DATABASE_GONE;
	Relation	catalog;
	SysScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	catalog = table_open(DatabaseRelationId, AccessShareLock);
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_database row = (Form_pg_database) GETSTRUCT(tuple);

		if (!OidIsValid(wanted) && is_open(row))
			remember(row->oid, told_until);
		if (row->oid == wanted)
			state = is_open(row) ? DATABASE_OPEN : DATABASE_CLOSED;
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	CommitTransactionCommand();
	return state;
}

/*
 * Remember the databases in which leases were granted since the last look;
 * all when that is not known.
 */
static void
note_grants(void)
{
	bool		first = mono_equal(round_begun_at, AT_ONCE);
	TimestampTz now = clock_now();
	TimestampTz since = first ? now - interval_usecs() : noted_at;
	List	   *granted_in = stats_take_granted();
	ListCell   *cell;

	noted_at = now;
	if (first || list_member_oid(granted_in, InvalidOid))
		search_databases(InvalidOid, since);
	foreach(cell, granted_in)
		if (OidIsValid(lfirst_oid(cell)))
			remember(lfirst_oid(cell), since);
	list_free(granted_in);
}

/* After each failure but the first, the time between two visits doubles. */
static bool
is_due(const Database *database)
{
	int			doublings = Min(Max(database->failures - 1, 0), 20);
	int64		interval = Min(interval_usecs() << doublings,
							   Max(interval_usecs(), FAILED_INTERVAL));

	return mono_equal(database->visited_at, AT_ONCE) ||
		mono_between(database->visited_at, round_begun_at) >= interval;
}

/* Sleep. After a reload of the configuration, try again at once where workers failed. */
static void
nap(int64 usecs)
{
	ListCell   *cell;

	if (!worker_nap(usecs))
		return;
	foreach(cell, databases)
	{
		Database   *database = lfirst(cell);

		if (database->failures > 0)
			database->visited_at = AT_ONCE;
	}
}

/* Wait until the worker is gone. Until then no other database is purged. */
static void
wait_for_worker(BackgroundWorkerHandle *worker)
{
	MonotonicTime until = mono_from_now(LONGEST_VISIT);
	pid_t		pid = 0;

	while (GetBackgroundWorkerPid(worker, &pid) != BGWH_STOPPED)
	{
		int64		left = mono_until(until);

		if (left > 0)
		{
			nap(left);
			continue;
		}
		ereport(WARNING,
				(errmsg("terminating the worker that purges leases, because it takes too long"),
				 pid == 0 ? errdetail("It has not started yet.") :
				 errdetail("No leases are purged until process %d has ended.", (int) pid)));
		TerminateBackgroundWorker(worker);
		until = mono_from_now(LONGEST_VISIT);
	}
}

/* Send a worker, and wait for it; false if there is no slot for it. */
static bool
send_worker(Visit *visit)
{
	static bool no_slot = false;
	BackgroundWorkerHandle *handle;
	BackgroundWorker worker;

	visit->number = purge_state->visit.number + 1;
	visit->tell_until = clock_now();
	visit->result = VISIT_FAILED;	/* until the worker says something else */
	purge_state->visit = *visit;
	describe_worker(&worker, "lease_lock purge worker", "lease_purge_worker_main");
	worker.bgw_flags |= BGWORKER_INTERRUPTIBLE;
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = UInt32GetDatum(visit->number);
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
	{
		if (!no_slot)
			ereport(WARNING,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("could not start a worker to purge leases: no background worker slot "
							"is free"),
					 errhint("Increase max_worker_processes. Rows of leases that ended are kept "
							 "until a worker can start.")));
		no_slot = true;
		return false;
	}
	no_slot = false;
	wait_for_worker(handle);
	pfree(handle);
	*visit = purge_state->visit;
	return true;
}

/* Visit a database. Returns false if it is gone, or has no leases any more. */
static bool
visit_database(Database *database)
{
	Visit	   *visit = &database->visit;
	DatabaseState state = search_databases(visit->database, 0);

	database->visited_at = round_begun_at;
	if (state == DATABASE_GONE)
		return false;
	if (state == DATABASE_CLOSED || !send_worker(visit))
		return true;

	if (visit->result == VISIT_UNFINISHED)
		database->visited_at = AT_ONCE;
	database->failures = visit->result == VISIT_FAILED ? database->failures + 1 : 0;
	return visit->result != VISIT_EMPTY;
}

/* Visit every database that is due. Returns whether one is to be visited again at once. */
static bool
visit_databases(void)
{
	bool		again = false;
	ListCell   *cell;

	foreach(cell, databases)
	{
		Database   *database = lfirst(cell);

		if (purge_interval == 0 || !is_due(database))
			continue;
		if (visit_database(database))
			again = again || mono_equal(database->visited_at, AT_ONCE);
		else
		{
			databases = foreach_delete_current(databases, cell);
			pfree(database);
		}
	}
	return again;
}

/* Microseconds until the next round begins. */
static int64
time_to_next_round(void)
{
	if (purge_interval == 0)
		return FOREVER;
	if (mono_equal(round_begun_at, AT_ONCE))
		return 0;
	return mono_until(mono_add(round_begun_at, interval_usecs()));
}

/*
 * Entry point of the launcher. If it ends with an error, the server restarts
 * it after LAUNCHER_RESTART seconds.
 */
void
lease_purge_launcher_main(Datum arg)
{
	int64		until_next;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	for (;;)
	{
		pgstat_report_activity(STATE_IDLE, NULL);
		while ((until_next = time_to_next_round()) != 0)
			nap(until_next);

		pgstat_report_activity(STATE_RUNNING, "purging leases that ended");
		clock_report_step();
		note_grants();
		round_begun_at = clock_monotonic();
		while (visit_databases() && time_to_next_round() > 0)
			;
	}
}
