/*-------------------------------------------------------------------------
 *
 * announce.c
 *		Notices that a session begins to wait for a lease.
 *
 * NOTIFY sends at commit. A waiter commits only after its wait, when it is too
 * late to ask the holder to give way. So a background worker, the announcer,
 * sends the notices of waits. They are in a segment of dynamic shared memory,
 * which the waiter keeps until its wait ends. The handle of the segment is in
 * the waiter's place in the shared area. An announcer that comes too late finds
 * no segment, and sends nothing.
 *
 * The server has at most one announcer, however many sessions wait. It serves
 * one database, stays for a moment after its last notice, and starts another
 * one if sessions of another database have notices to send. These wait for no
 * longer than that moment, however many notices there are here. While it works,
 * it moves the time ahead until which it counts as running. So if it dies, the
 * next waiter after that time starts another one.
 *
 * lease_wait() commits before it sleeps, and needs no announcer.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/atomics.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"

#include "monitor/monitor.h"

/* How long an announcer may take to start, and how long it stays without work, in microseconds. */
#define LONGEST_START	(10 * USECS_PER_SEC)
#define LINGER			USECS_PER_SEC

typedef struct Announcements
{
	pg_atomic_uint64 runs_until;	/* the announcer, monotonic clock; 0: there is none */
	pg_atomic_uint32 announcer; /* PGPROC number */
	pg_atomic_uint64 places[FLEXIBLE_ARRAY_MEMBER]; /* indexed by PGPROC number; 0: nothing to send */
} Announcements;

/* The content of a place. */
#define PLACE_OF(database, segment)	((uint64) (database) << 32 | (segment))
#define DATABASE_OF(place)			((Oid) ((place) >> 32))
#define SEGMENT_OF(place)			((dsm_handle) (place))

static Announcements *announcements = NULL;
static dsm_segment *announcement = NULL;	/* channel and payload of each notice alternate; an empty channel ends them */

PGDLLEXPORT void lease_announce_main(Datum arg);

static Size
announcements_size(void)
{
	return add_size(offsetof(Announcements, places), mul_size(MaxBackends, sizeof(pg_atomic_uint64)));
}

static void
create_announcements(void *memory, int tranche)
{
	Announcements *created = memory;

	pg_atomic_init_u64(&created->runs_until, 0);
	pg_atomic_init_u32(&created->announcer, 0);
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u64(&created->places[i], 0);
}

static const SharedPart announcements_part = {
	"lease_lock announcements 2", announcements_size, create_announcements, (void **) &announcements
};

void
announce_init(void)
{
	add_shared_part(&announcements_part);
}

/*
 * Start an announcer for this database, unless one is running. Without a free
 * worker slot no notice is sent.
 */
static void
start_announcer(Oid database)
{
	uint64		now = clock_monotonic();
	uint64		runs_until = pg_atomic_read_u64(&announcements->runs_until);
	BackgroundWorker worker;

	if (runs_until > now ||
		!pg_atomic_compare_exchange_u64(&announcements->runs_until, &runs_until, now + LONGEST_START))
		return;
	describe_worker(&worker, "lease_lock announcer", "lease_announce_main");
	worker.bgw_main_arg = ObjectIdGetDatum(database);
	if (!RegisterDynamicBackgroundWorker(&worker, NULL))
		pg_atomic_write_u64(&announcements->runs_until, 0);
}

/*
 * The segment goes with the wait, or with the session. The place must go with
 * it: the database may be dropped then.
 */
static void
clear_place(dsm_segment *segment, Datum arg)
{
	pg_atomic_write_u64(&announcements->places[MY_PROC_NUMBER], 0);
	announcement = NULL;
}

/*
 * Have the notices sent. The announcer looks for notices after it says that it
 * stops, so either it finds these, or we find that there is no announcer.
 */
static void
announce(List *notices)
{
	StringInfoData texts;
	ListCell   *cell;

	if (!attach_shared_area())
		return;
	initStringInfo(&texts);
	foreach(cell, notices)
	{
		Notice	   *notice = lfirst(cell);

		appendBinaryStringInfo(&texts, notice->channel, strlen(notice->channel) + 1);
		appendBinaryStringInfo(&texts, notice->payload, strlen(notice->payload) + 1);
	}
	announcement = dsm_create(texts.len + 1, DSM_CREATE_NULL_IF_MAXSEGMENTS);
	if (announcement == NULL)
		return;
	on_dsm_detach(announcement, clear_place, (Datum) 0);
	memcpy(dsm_segment_address(announcement), texts.data, texts.len + 1);

	pg_write_barrier();
	pg_atomic_write_u64(&announcements->places[MY_PROC_NUMBER],
						PLACE_OF(MyDatabaseId, dsm_segment_handle(announcement)));
	pg_memory_barrier();
	start_announcer(MyDatabaseId);
	SetLatch(&GetPGProcByNumber(pg_atomic_read_u32(&announcements->announcer))->procLatch);
}

/*
 * Notify the watches of these resources that a session begins to wait: at
 * once, or when the transaction commits, if it commits before it sleeps.
 */
void
announce_wanted(const LeaseRequest *request, text **resources, int nresources, bool commits)
{
	List	   *notices = NIL;

	for (int i = 0; i < nresources && event_is_watched(EVENT_WANTED); i++)
	{
		Lease		wanted = {
			.resource = resources[i],
			.owner = request->owner,
			.role = GetUserId(),
			.mode = request->mode
		};

		if (commits)
			tell_watchers(EVENT_WANTED, &wanted);
		else
			notices = list_concat(notices, find_notices(EVENT_WANTED, &wanted));
	}
	if (notices != NIL)
		announce(notices);
}

/* End the announcement with the wait. */
void
announce_end(void)
{
	if (announcement != NULL)
		dsm_detach(announcement);
}

/* --- the announcer ----------------------------------------------------------- */

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
		uint64		place = pg_atomic_read_u64(&announcements->places[i]);
		Oid			database = DATABASE_OF(place);

		if (place != 0 && (next == InvalidOid || database - MyDatabaseId - 1 < next - MyDatabaseId - 1))
			next = database;
	}
	return next;
}

/* Send the notices in a segment, unless the wait is over. */
static void
send_notices(dsm_handle handle)
{
	dsm_segment *segment = dsm_attach(handle);
	const char *channel;
	const char *payload;

	if (segment == NULL)
		return;
	for (channel = dsm_segment_address(segment); *channel != '\0'; channel = payload + strlen(payload) + 1)
	{
		payload = channel + strlen(channel) + 1;
		Async_Notify(channel, payload);
	}
	dsm_detach(segment);
}

/* Send all notices of this database; false if there are none. */
static bool
send_all(void)
{
	bool		any = false;

	for (int i = 0; i < MaxBackends; i++)
	{
		uint64		place = pg_atomic_read_u64(&announcements->places[i]);

		if (place == 0 || DATABASE_OF(place) != MyDatabaseId ||
			!pg_atomic_compare_exchange_u64(&announcements->places[i], &place, 0))
			continue;
		if (!any)
		{
			SetCurrentStatementStartTimestamp();
			StartTransactionCommand();
			pgstat_report_activity(STATE_RUNNING, "notifying watches of a wait");
		}
		any = true;
		send_notices(SEGMENT_OF(place));
	}
	if (any)
	{
		CommitTransactionCommand();
		pgstat_report_activity(STATE_IDLE, NULL);
	}
	return any;
}

/* Is it time to leave, since there was no notice to send for a while, or to others? */
static bool
may_leave(int64 begun_at, int64 idle_from)
{
	int64		now = clock_monotonic();
	Oid			next;

	if (now - idle_from >= LINGER || !may_stay_in_database())
		return true;
	next = now - begun_at >= LINGER ? next_database() : InvalidOid;
	return OidIsValid(next) && next != MyDatabaseId;
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

	for (;;)
	{
		bool		any;

		pg_atomic_write_u64(&announcements->runs_until, clock_monotonic() + LONGEST_START);
		any = send_all();
		if (any)
			idle_from = clock_monotonic();
		if (may_leave(begun_at, idle_from))
			return;
		if (!any)
			worker_nap(LINGER);
	}
}

/* Nobody is the announcer now. */
static void
stop(int code, Datum arg)
{
	pg_atomic_write_u64(&announcements->runs_until, 0);
	pg_memory_barrier();
}

/* Entry point of the announcer. */
void
lease_announce_main(Datum arg)
{
	Oid			database;

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	/* Do not hang where the next announcer would hang, too, until all worker slots are taken. */
	SetConfigOption("lock_timeout", "5s", PGC_SUSET, PGC_S_OVERRIDE);
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, BGWORKER_BYPASS_ALLOWCONN);

	/* A crash ends the wait as well. */
	SetConfigOption("synchronous_commit", "off", PGC_SUSET, PGC_S_OVERRIDE);

	StartTransactionCommand();
	if (!attach_shared_area())
		return;
	CommitTransactionCommand();

	PG_ENSURE_ERROR_CLEANUP(stop, (Datum) 0);
	{
		pg_atomic_write_u32(&announcements->announcer, MY_PROC_NUMBER);
		pg_memory_barrier();
		serve();
	}
	PG_END_ENSURE_ERROR_CLEANUP(stop, (Datum) 0);
	stop(0, (Datum) 0);
	database = next_database();
	if (OidIsValid(database))
		start_announcer(database);
}
