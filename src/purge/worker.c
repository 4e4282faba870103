/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The purge worker: removes leases that ended, in all databases.
 *
 * The launcher is not connected to a database. Every lease_lock.purge_interval
 * it lists the databases and sends a worker to each of them in turn. There is
 * one worker at a time, however many databases there are. The worker leaves
 * after a short while, done or not, because a database with a session in it
 * cannot be dropped, copied or renamed.
 *
 * The launcher remembers the result of the last visit to each database. It
 * sends no worker to a database without the extension until a lease is granted
 * there, or for a long time: see purge_note_grant(). It visits a new database
 * once, since that may be a copy with leases in it.
 *
 * A worker that fails leaves its error in shared memory. The launcher writes
 * the error to the log, unless it is the same as the last time. If the worker
 * cannot even connect, the server ends it and logs that itself. Then the
 * launcher waits longer and longer between its visits to that database.
 *
 * The worker connects as the bootstrap superuser. So it must not run anything
 * that a user defines. It runs no SQL; it reads and deletes rows through the
 * table access method. It does not ask for expressions or predicates of
 * indexes, since the relation cache evaluates the constants in them. As a
 * second line of defense, it acts as the owner of the lock table, in a
 * security-restricted operation, as autovacuum and REINDEX do.
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
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "commands/extension.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/clock.h"
#include "base/compat.h"
#include "purge/purge.h"

/* Seconds until a launcher that failed is started again. */
#define LAUNCHER_RESTART	10

/* About how long a worker stays in a database, in microseconds. */
#define VISIT_TIME			(2 * USECS_PER_SEC)

/* After this time the launcher terminates the worker, in case it hangs. */
#define LONGEST_VISIT		(15 * USECS_PER_SEC)

/* How often to look for the extension in a database without grants. */
#define ABSENT_INTERVAL		(USECS_PER_SEC * SECS_PER_MINUTE * 10)

/* Longest time between visits to a database whose workers cannot connect. */
#define FAILED_INTERVAL		(SECS_PER_HOUR * USECS_PER_SEC)

/*
 * The worker rests this many times as long as it worked, so it uses at most a
 * fifth of a processor.
 */
#define REST_FACTOR			4

/* Arguments of a worker. */
typedef struct VisitOrder
{
	uint64		visit;
	Oid			database;
	BlockNumber first_block;
	TimestampTz told_until;		/* send notices of leases that expired after this time */
	TimestampTz tell_until;		/* and up to this time */
} VisitOrder;

StaticAssertDecl(sizeof(VisitOrder) <= BGW_EXTRALEN, "an order has to fit into bgw_extra");

/* State of a database in the launcher. */
typedef struct Database
{
	Oid			oid;			/* hash key */
	NameData	name;
	uint64		listed_in;		/* round */
	bool		visited;		/* ever */
	int64		visited_at;		/* begin of that round, monotonic clock */
	VisitResult result;
	BlockNumber next_block;
	int			deaths;			/* workers in sequence that ended without a report */
	TimestampTz told_until;		/* notices of leases that expired up to this time are sent; 0: none */
	char		message[VISIT_MESSAGE_SIZE];	/* last error; empty: none */
} Database;

PGDLLEXPORT void lease_purge_launcher_main(Datum arg);
PGDLLEXPORT void lease_purge_worker_main(Datum arg);

static int	purge_interval = 10000;

static HTAB *databases;
static uint64 current_round = 0;
static int64 round_begun_at;
static uint64 current_visit = 0;
static bool no_slot = false;

static void
init_worker(BackgroundWorker *worker, const char *type, const char *function)
{
	memset(worker, 0, sizeof(BackgroundWorker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	strlcpy(worker->bgw_type, type, BGW_MAXLEN);
	strlcpy(worker->bgw_name, type, BGW_MAXLEN);
	strlcpy(worker->bgw_library_name, "lease_lock", BGW_MAXLEN);
	strlcpy(worker->bgw_function_name, function, BGW_MAXLEN);
}

void
worker_init(void)
{
	BackgroundWorker launcher;

	DefineCustomIntVariable("lease_lock.purge_interval",
							"Time between two purges of all databases by the purge worker.",
							"0 turns the worker off. There is no worker unless the library is preloaded.",
							&purge_interval,
							10000, 0, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	/* pg_upgrade expects that no other session is connected. */
	if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
		return;

	init_worker(&launcher, "lease_lock purge launcher", "lease_purge_launcher_main");
	launcher.bgw_restart_time = LAUNCHER_RESTART;
	RegisterBackgroundWorker(&launcher);
}

/* The name that pg_stat_activity shows while launcher and worker sleep. */
static uint32
wait_event(void)
{
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("LeaseLockPurge");
	return event;
}

/* Sleep for a time in microseconds, without limit if it is negative, or until the latch is set. */
static void
nap(int64 usecs)
{
	int			events = WL_LATCH_SET | WL_EXIT_ON_PM_DEATH;

	if (usecs >= 0)
		events |= WL_TIMEOUT;
	if (WaitLatch(MyLatch, events, Min((usecs + 999) / 1000, INT_MAX), wait_event()) & WL_LATCH_SET)
		ResetLatch(MyLatch);

	/* Nothing is in progress here, so exit without a message in the log. */
	if (ProcDiePending)
		proc_exit(1);
	CHECK_FOR_INTERRUPTS();

	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

static LOCKTAG
database_tag(Oid database)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, database, 0);
	return tag;
}

/*
 * Lock the database, unless another session is about to drop, copy or rename
 * it. Such a session holds a lock on the database that keeps new sessions out,
 * and waits for the others to leave. While we hold our lock, no session can
 * begin to do so.
 */
static bool
lock_database(Oid database)
{
	LOCKTAG		tag = database_tag(database);

	return LockAcquire(&tag, RowExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
}

static void
unlock_database(Oid database)
{
	LOCKTAG		tag = database_tag(database);

	LockRelease(&tag, RowExclusiveLock, true);
}

static bool
may_stay(void)
{
	if (!lock_database(MyDatabaseId))
		return false;
	unlock_database(MyDatabaseId);
	return true;
}

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

/* --- the worker -------------------------------------------------------------- */

static void
report_progress(BlockNumber block, BlockNumber nblocks)
{
	char		activity[100];

	snprintf(activity, sizeof(activity), "purging leases that ended: block %u of %u", block, nblocks);
	pgstat_report_activity(STATE_RUNNING, activity);
}

/*
 * Lock the lock table as a batch does, and return its owner. Returns
 * InvalidOid if there is no table, or if it is locked.
 */
static Oid
lock_table_owner(void)
{
	Oid			extension = get_extension_oid("lease_lock", true);
	Oid			relid = InvalidOid;
	Oid			owner = InvalidOid;
	HeapTuple	tuple;

	if (OidIsValid(extension))
		relid = get_relname_relid("lease_lock", get_extension_schema(extension));
	if (!OidIsValid(relid) || !ConditionalLockRelationOid(relid, RowExclusiveLock))
		return InvalidOid;

	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	if (HeapTupleIsValid(tuple))
	{
		owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
		ReleaseSysCache(tuple);
	}
	return owner;
}

/*
 * Purge a batch with the privileges of the owner of the lock table, which
 * cannot change while the table is locked. An error ends the transaction,
 * which restores the role. Without an owner, the batch only finds out why
 * there is none.
 */
static PurgeBatch
purge_as_owner(BlockNumber first_block)
{
	Oid			owner = lock_table_owner();
	Oid			user;
	int			context;
	PurgeBatch	batch;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(OidIsValid(owner) ? owner : user, context | SECURITY_RESTRICTED_OPERATION);
	batch = purge_batch(first_block);
	SetUserIdAndSecContext(user, context);
	return batch;
}

/*
 * Purge batch after batch, until the table is done or the time is up. The
 * worker rests between batches, to leave the processor and the disk to other
 * sessions.
 */
static PurgeBatch
visit(const VisitOrder *order)
{
	PurgeBatch	batch = {.result = VISIT_UNFINISHED, .next_block = order->first_block};
	int64		begun_at = clock_monotonic();

	report_progress(order->first_block, order->first_block);
	begin_transaction();
	if (may_stay())
		tell_expired(order->told_until, order->tell_until);
	end_transaction();

	for (;;)
	{
		int64		batch_begun_at = clock_monotonic();

		begin_transaction();
		if (may_stay())
			batch = purge_as_owner(batch.next_block);
		else
			batch.result = VISIT_LOCKED;
		end_transaction();

		if (batch.result != VISIT_UNFINISHED || clock_monotonic() - begun_at >= VISIT_TIME)
			return batch;

		report_progress(batch.next_block, batch.nblocks);
		nap((clock_monotonic() - batch_begun_at) * REST_FACTOR);
	}
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

static void
copy_text(char *to, const char *from)
{
	int			length = from == NULL ? 0 : strlen(from);

	if (length >= VISIT_MESSAGE_SIZE)
		length = pg_mbcliplen(from, length, VISIT_MESSAGE_SIZE - 1);
	memcpy(to, from == NULL ? "" : from, length);
	to[length] = '\0';
}

static void
report_error(VisitReport *report, const ErrorData *error)
{
	copy_text(report->message, error->message);
	copy_text(report->detail, error->detail);
	copy_text(report->hint, error->hint);
	report->sqlstate = error->sqlerrcode;
	report->result = error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ? VISIT_LOCKED : VISIT_FAILED;
}

/*
 * Entry point of the worker. It catches an error of the visit, because the
 * server logs every worker that exits with an error.
 */
void
lease_purge_worker_main(Datum arg)
{
	VisitReport *report = &purge_state->report;
	VisitOrder	order;
	MemoryContext context;

	memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	/* Connecting to a database that is being dropped would be a fatal error. */
	if (!lock_database(order.database))
	{
		report->result = VISIT_LOCKED;
		return;
	}
	override_settings();
	BackgroundWorkerInitializeConnectionByOid(order.database, InvalidOid, 0);
	unlock_database(order.database);

	context = CurrentMemoryContext;
	PG_TRY();
	{
		PurgeBatch	last = visit(&order);

		if (report->visit == order.visit)
		{
			report->next_block = last.next_block;
			report->result = last.result;
		}
	}
	PG_CATCH();
	{
		ErrorData  *error;

		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		if (report->visit == order.visit)
			report_error(report, error);
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
}

/* --- the launcher ------------------------------------------------------------ */

/* Can sessions connect? A database whose DROP was interrupted does not allow that. */
static bool
is_open(Form_pg_database database)
{
	return database->datallowconn && database->datconnlimit != DATCONNLIMIT_INVALID_DB;
}

/* Does the database still exist, and can sessions connect to it? */
static bool
may_enter(Oid database)
{
	Relation	catalog;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	begin_transaction();
	if (lock_database(database))
	{
		catalog = table_open(DatabaseRelationId, AccessShareLock);
		scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
		while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
		{
			Form_pg_database row = (Form_pg_database) GETSTRUCT(tuple);

			found = row->oid == database && is_open(row);
		}
		systable_endscan(scan);
		table_close(catalog, AccessShareLock);
		unlock_database(database);
	}
	end_transaction();
	return found;
}

/* Bring the list of databases up to date. */
static void
list_databases(void)
{
	Relation	catalog;
	SysScanDesc scan;
	HeapTuple	tuple;
	HASH_SEQ_STATUS known;
	Database   *database;

	begin_transaction();
	catalog = table_open(DatabaseRelationId, AccessShareLock);
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_database row = (Form_pg_database) GETSTRUCT(tuple);
		bool		found;

		if (!is_open(row))
			continue;

		database = hash_search(databases, &row->oid, HASH_ENTER, &found);
		if (!found)
			memset((char *) database + sizeof(Oid), 0, sizeof(Database) - sizeof(Oid));
		database->name = row->datname;
		database->listed_in = current_round;
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	end_transaction();

	hash_seq_init(&known, databases);
	while ((database = hash_seq_search(&known)) != NULL)
		if (database->listed_in != current_round)
			hash_search(databases, &database->oid, HASH_REMOVE, NULL);
}

/* Visit databases without the extension again if leases were granted there since the last round. */
static void
note_grants(void)
{
	Oid			granted_in[MAX_GRANTED_IN];
	int			ngranted_in;
	HASH_SEQ_STATUS known;
	Database   *database;

	SpinLockAcquire(&purge_state->mutex);
	ngranted_in = purge_state->ngranted_in;
	memcpy(granted_in, purge_state->granted_in, sizeof(granted_in));
	purge_state->ngranted_in = 0;
	SpinLockRelease(&purge_state->mutex);
	pg_atomic_fetch_add_u32(&purge_state->round, 1);

	hash_seq_init(&known, databases);
	while ((database = hash_seq_search(&known)) != NULL)
	{
		bool		granted = ngranted_in > MAX_GRANTED_IN;

		for (int i = 0; i < ngranted_in && !granted; i++)
			granted = granted_in[i] == database->oid;
		if (granted && database->result == VISIT_NO_EXTENSION)
			database->visited = false;
	}
}

static bool
is_due(const Database *database)
{
	int64		interval = purge_interval * INT64CONST(1000);
	int64		since = round_begun_at - database->visited_at;

	if (!database->visited)
		return true;

	switch (database->result)
	{
		case VISIT_UNFINISHED:
			return true;
		case VISIT_NO_EXTENSION:
			return since >= Max(interval, ABSENT_INTERVAL);
		case VISIT_DIED:
			return since >= Min(interval << Min(database->deaths - 1, 20), Max(interval, FAILED_INTERVAL));
		default:
			return since >= interval;
	}
}

/* Wait until the worker is gone. */
static void
wait_for_worker(BackgroundWorkerHandle *worker)
{
	int64		until = clock_monotonic() + LONGEST_VISIT;
	bool		terminated = false;
	pid_t		pid;

	while (GetBackgroundWorkerPid(worker, &pid) != BGWH_STOPPED)
	{
		int64		left = until - clock_monotonic();

		if (left <= 0 && !terminated)
		{
			TerminateBackgroundWorker(worker);
			terminated = true;
		}
		nap(terminated ? -1 : left);
	}
}

static bool
start_worker(const Database *database, TimestampTz tell_until, BackgroundWorkerHandle **handle)
{
	VisitReport *report = &purge_state->report;
	VisitOrder	order = {
		.visit = ++current_visit,
		.database = database->oid,
		.first_block = database->next_block,
		.told_until = database->told_until,
		.tell_until = tell_until
	};
	BackgroundWorker worker;

	report->visit = order.visit;
	report->result = VISIT_DIED;
	report->next_block = order.first_block;

	init_worker(&worker, "lease_lock purge worker", "lease_purge_worker_main");
	worker.bgw_flags |= BGWORKER_INTERRUPTIBLE;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	if (order.told_until == 0)
		order.told_until = order.tell_until - purge_interval * INT64CONST(1000);
	memcpy(worker.bgw_extra, &order, sizeof(order));
	return RegisterDynamicBackgroundWorker(&worker, handle);
}

/* Log an error, unless the last visit had the same one, and log when the error is over. */
static void
tell_outcome(Database *database, const VisitReport *report)
{
	switch (report->result)
	{
		case VISIT_FAILED:
			if (strcmp(database->message, report->message) == 0)
				return;
			ereport(WARNING,
					(errcode(report->sqlstate),
					 errmsg("could not purge leases in database \"%s\": %s",
							NameStr(database->name), report->message),
					 report->detail[0] ? errdetail_internal("%s", report->detail) : 0,
					 report->hint[0] ? errhint("%s", report->hint) : 0));
			strlcpy(database->message, report->message, VISIT_MESSAGE_SIZE);
			break;
		case VISIT_DONE:
		case VISIT_UNFINISHED:
			if (database->message[0])
				ereport(LOG,
						(errmsg("leases in database \"%s\" are purged again", NameStr(database->name))));
			database->message[0] = '\0';
			break;
		case VISIT_NO_EXTENSION:
			database->message[0] = '\0';
			break;
		case VISIT_LOCKED:
		case VISIT_DIED:
			break;
	}
}

/* Send a worker and remember how it went. */
static void
visit_database(Database *database)
{
	VisitReport *report = &purge_state->report;
	BackgroundWorkerHandle *worker;
	TimestampTz tell_until;

	database->visited = true;
	database->visited_at = round_begun_at;
	database->result = VISIT_LOCKED;
	if (!may_enter(database->oid))
		return;

	tell_until = clock_now();
	if (!start_worker(database, tell_until, &worker))
	{
		if (!no_slot)
			ereport(WARNING,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("could not start a worker to purge leases: no background worker slot is free"),
					 errhint("Increase max_worker_processes. Until then leases that ended stay in their tables, which does no other harm.")));
		no_slot = true;
		return;
	}
	no_slot = false;

	wait_for_worker(worker);
	pfree(worker);

	database->result = report->result;
	if (report->result == VISIT_DONE || report->result == VISIT_UNFINISHED)
		database->told_until = tell_until;
	database->next_block = report->result == VISIT_DONE ? 0 : report->next_block;
	database->deaths = report->result == VISIT_DIED ? database->deaths + 1 : 0;
	tell_outcome(database, report);
}

/* Visit every database that is due. Returns whether any visit ran out of time. */
static bool
visit_databases(void)
{
	Oid		   *due = palloc(hash_get_num_entries(databases) * sizeof(Oid));
	int			ndue = 0;
	bool		unfinished = false;
	HASH_SEQ_STATUS known;
	Database   *database;

	hash_seq_init(&known, databases);
	while ((database = hash_seq_search(&known)) != NULL)
		if (is_due(database))
			due[ndue++] = database->oid;

	for (int i = 0; i < ndue && purge_interval > 0; i++)
	{
		database = hash_search(databases, &due[i], HASH_FIND, NULL);
		visit_database(database);
		unfinished = unfinished || database->result == VISIT_UNFINISHED;
	}
	pfree(due);
	return unfinished;
}

/* Microseconds until the next round begins; negative: not before the latch is set. */
static int64
time_to_next_round(void)
{
	if (purge_interval == 0)
		return -1;
	if (current_round == 0)
		return 0;
	return Max(round_begun_at + purge_interval * INT64CONST(1000) - clock_monotonic(), 0);
}

/*
 * Entry point of the launcher. If it ends with an error, the server restarts
 * it after LAUNCHER_RESTART seconds.
 */
void
lease_purge_launcher_main(Datum arg)
{
	HASHCTL		control = {.keysize = sizeof(Oid), .entrysize = sizeof(Database)};
	int64		until_next;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	databases = hash_create("lease_lock databases", 64, &control, HASH_ELEM | HASH_BLOBS);

	for (;;)
	{
		pgstat_report_activity(STATE_IDLE, NULL);
		while ((until_next = time_to_next_round()) != 0)
			nap(until_next);

		current_round++;
		round_begun_at = clock_monotonic();
		clock_report_step();
		pgstat_report_activity(STATE_RUNNING, "purging leases that ended");
		list_databases();
		note_grants();
		while (visit_databases() && time_to_next_round() > 0)
			;
	}
}
