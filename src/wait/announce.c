/*-------------------------------------------------------------------------
 *
 * announce.c
 *		Notices that a session begins to wait for a lease.
 *
 * NOTIFY sends at commit. A waiter commits only after its wait, when it is too
 * late to ask the holder to give way. So a background worker, the announcer,
 * sends the notices of waits. It reads from the queue what they say. A waiter
 * only stores the ticket of its wait, to ask for them. If that wait has ended
 * meanwhile, nothing is sent.
 *
 * The server has at most one announcer, however many sessions wait. It serves
 * one database, stays for a moment after its last notice, and starts another
 * one if sessions of another database have notices to send. These are delayed
 * by that moment at most, however many notices there are here. While it runs, it
 * advances the time until which it counts as running. If it dies, the first
 * waiter after that time starts another one.
 *
 * lease_wait() commits before it sleeps, and needs no announcer.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "monitor/monitor.h"
#include "wait/queue.h"

/* How long an announcer may take to start, and how long it stays without work, in microseconds. */
#define LONGEST_START	(10 * USECS_PER_SEC)
#define LINGER			USECS_PER_SEC

PGDLLEXPORT void lease_announce_main(Datum arg);

/*
 * Start an announcer for this database, unless one is running. Without a free
 * worker slot no notice is sent.
 */
static void
start_announcer(Oid database)
{
	uint64		now = clock_monotonic();
	uint64		runs_until = pg_atomic_read_u64(&wait_queue->announcer_until);
	BackgroundWorker worker;

	if (runs_until > now ||
		!pg_atomic_compare_exchange_u64(&wait_queue->announcer_until, &runs_until, now + LONGEST_START))
		return;
	describe_worker(&worker, "lease_lock announcer", "lease_announce_main");
	worker.bgw_main_arg = ObjectIdGetDatum(database);
	if (!RegisterDynamicBackgroundWorker(&worker, NULL))
		pg_atomic_write_u64(&wait_queue->announcer_until, 0);
}

static void
tell_wanted(text *resource, text *owner, Oid role, LeaseMode mode)
{
	Lease		wanted = {.resource = resource, .owner = owner, .role = role, .mode = mode};

	tell_watchers(EVENT_WANTED, &wanted);
}

/*
 * Have the waiter of this backend announced. The announcer looks for waiters
 * after it says that it stops, so either it finds this one, or we find that
 * there is no announcer.
 */
static void
ask_announcer(Waiter *waiter)
{
	pg_atomic_exchange_u64(&waiter->unannounced, pg_atomic_read_u64(&waiter->ticket));
	start_announcer(MyDatabaseId);
	SetLatch(&GetPGProcByNumber(pg_atomic_read_u32(&wait_queue->announcer))->procLatch);
}

/*
 * Notify the watches of these resources that this session has begun to wait:
 * at once, or when the transaction commits, if it commits before it sleeps. The
 * announcer knows only the resources that the queue names.
 */
void
wait_announce(text **resources, int nresources, const LeaseRequest *request, bool commits)
{
	Waiter	   *waiter = attach_shared_area() ? queue_waiter(MY_PROC_NUMBER) : NULL;

	if (!event_is_watched(EVENT_WANTED))
		return;
	for (int i = 0; i < nresources; i++)
	{
		if (commits)
			tell_wanted(resources[i], request->owner, GetUserId(), request->mode);
		else if (waiter != NULL && i < waiter->info.nlines && watches_of(EVENT_WANTED, resources[i]) != NIL)
		{
			ask_announcer(waiter);
			break;
		}
	}
}

/* --- the announcer ----------------------------------------------------------- */

/* The ticket of a wait that is to be announced; 0 if it is not, or has ended. */
static uint64
unannounced_ticket(Waiter *waiter)
{
	uint64		ticket = pg_atomic_read_u64(&waiter->unannounced);
	bool		waits = ticket == pg_atomic_read_u64(&waiter->ticket);

	pg_read_barrier();			/* the description is read later */
	return waits ? ticket : 0;
}

/*
 * Find the next database with notices to send, in the circle of OIDs, so that
 * each has its turn. Ours is the last one.
 */
static Oid
next_database(void)
{
	Oid			next = InvalidOid;

	for (int i = 0; i < MaxBackends; i++)
	{
		Waiter	   *waiter = queue_waiter(i);

		if (unannounced_ticket(waiter) != 0 &&
			(next == InvalidOid || waiter->info.database - MyDatabaseId - 1 < next - MyDatabaseId - 1))
			next = waiter->info.database;
	}
	return next;
}

/* Send the notices of a wait, unless it is over. */
static void
announce(Waiter *waiter, uint64 ticket)
{
	const Waiter *copy = queue_copy(waiter, ticket);

	for (int i = 0; copy != NULL && i < copy->info.nlines; i++)
		tell_wanted(named_resource(&copy->info, i),
					cstring_to_text_with_len(copy->info.owner, copy->info.owner_length),
					copy->info.role, copy->info.mode);
}

/*
 * Announce all waits of this database; false if there are none. Each is taken
 * before it is announced, so that an error does not come again and again.
 */
static bool
announce_all(void)
{
	bool		any = false;

	for (int i = 0; i < MaxBackends; i++)
	{
		Waiter	   *waiter = queue_waiter(i);
		uint64		ticket = unannounced_ticket(waiter);

		if (ticket == 0 || waiter->info.database != MyDatabaseId ||
			!pg_atomic_compare_exchange_u64(&waiter->unannounced, &ticket, 0))
			continue;
		if (!any)
		{
			SetCurrentStatementStartTimestamp();
			StartTransactionCommand();
			pgstat_report_activity(STATE_RUNNING, "notifying watches of a wait");
		}
		any = true;
		announce(waiter, ticket);
	}
	if (any)
	{
		CommitTransactionCommand();
		pgstat_report_activity(STATE_IDLE, NULL);
	}
	return any;
}

/*
 * Send notices until there have been none for a while, or a session wants to
 * drop the database. If another database has notices to send, leave in any case
 * after that time.
 */
static void
serve(void)
{
	int64		begun_at = clock_monotonic();
	int64		idle_from = begun_at;
	int64		now;
	Oid			next;

	do
	{
		pg_atomic_write_u64(&wait_queue->announcer_until, clock_monotonic() + LONGEST_START);
		if (announce_all())
			idle_from = clock_monotonic();
		else
			worker_nap(LINGER);
		now = clock_monotonic();
		next = now - begun_at < LINGER ? InvalidOid : next_database();
	} while (now - idle_from < LINGER && (!OidIsValid(next) || next == MyDatabaseId) && may_stay_in_database());
}

/* No announcer is running now. Start another one if there is something to announce, here (after an error) or elsewhere. */
static void
stop(int code, Datum arg)
{
	Oid			database;

	pg_atomic_exchange_u64(&wait_queue->announcer_until, 0);
	database = next_database();
	if (OidIsValid(database))
		start_announcer(database);
}

/* Entry point of the announcer. */
void
lease_announce_main(Datum arg)
{
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	/* Limit waits for locks. Else each new announcer could hang at the same lock, until all worker slots are taken. */
	SetConfigOption("lock_timeout", "5s", PGC_SUSET, PGC_S_OVERRIDE);
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, BGWORKER_BYPASS_ALLOWCONN);

	/* Conversions of encodings are found by this path. The owner of the database may have set another one. */
	SetConfigOption("search_path", "pg_catalog, pg_temp", PGC_SUSET, PGC_S_OVERRIDE);

	/* A crash ends the wait as well. */
	SetConfigOption("synchronous_commit", "off", PGC_SUSET, PGC_S_OVERRIDE);

	StartTransactionCommand();
	if (!attach_shared_area())
		return;
	CommitTransactionCommand();

	before_shmem_exit(stop, (Datum) 0);
	pg_atomic_exchange_u32(&wait_queue->announcer, MY_PROC_NUMBER);
	serve();
}
