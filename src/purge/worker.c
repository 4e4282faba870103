/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The purge worker: removes leases that ended, in one database.
 *
 * The worker leaves after a short while, done or not, because a database with
 * a session in it cannot be dropped, copied or renamed. It logs its errors
 * itself. The launcher then waits longer and longer between its visits.
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

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/lmgr.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/background.h"
#include "base/clock.h"
#include "base/compat.h"
#include "purge/purge.h"

/* About how long a worker stays in a database, in microseconds. */
#define VISIT_TIME			(2 * USECS_PER_SEC)

/*
 * The worker rests this many times as long as it worked, so it uses at most a
 * fifth of a processor.
 */
#define REST_FACTOR			4

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
	bool		rows_left = false;

	report_progress(order->first_block, order->first_block);
	begin_transaction();
	if (may_stay_in_database())
		tell_expired(order->told_until, order->tell_until);
	end_transaction();

	for (;;)
	{
		int64		batch_begun_at = clock_monotonic();

		begin_transaction();
		if (may_stay_in_database())
			batch = purge_as_owner(batch.next_block);
		else
			batch.result = VISIT_LOCKED;
		end_transaction();
		batch.rows_left = rows_left = rows_left || batch.rows_left;

		if (batch.result != VISIT_UNFINISHED || clock_monotonic() - begun_at >= VISIT_TIME)
			return batch;

		report_progress(batch.next_block, batch.nblocks);
		worker_nap((clock_monotonic() - batch_begun_at) * REST_FACTOR);
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

/* ErrorContextCallback */
static void
add_context(void *arg)
{
	errcontext("purge of leases that ended in database \"%s\"", (const char *) arg);
}

/* Have errors say which database is meant. */
static void
begin_context(ErrorContextCallback *callback)
{
	StartTransactionCommand();
	callback->arg = MemoryContextStrdup(TopMemoryContext, get_database_name(MyDatabaseId));
	CommitTransactionCommand();
	callback->callback = add_context;
	callback->previous = error_context_stack;
	error_context_stack = callback;
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
 * Entry point of the worker. It catches an error of the visit, because the
 * server logs every worker that exits with an error.
 */
void
lease_purge_worker_main(Datum arg)
{
	VisitReport *report = &purge_state->report;
	PurgeBatch	last = {.result = VISIT_LOCKED};
	ErrorContextCallback callback;
	VisitOrder	order;

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

	begin_context(&callback);
	PG_TRY();
	{
		last = visit(&order);
	}
	PG_CATCH();
	{
		last.result = log_failure();
		last.next_block = order.first_block;
		last.rows_left = true;
	}
	PG_END_TRY();
	error_context_stack = callback.previous;

	if (report->visit != order.visit)
		return;					/* the launcher no longer waits for this visit */
	report->next_block = last.next_block;
	report->rows_left = last.rows_left;
	report->result = last.result;
}
