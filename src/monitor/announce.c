/*-------------------------------------------------------------------------
 *
 * Notices that a session begins to wait for a lease.
 *
 * NOTIFY sends at commit. A waiter commits only after its wait, when it is too
 * late to ask the holder to give way. So a separate background worker sends
 * the notices of a wait. They are in a segment of dynamic shared memory, which
 * the waiter keeps until its wait ends. A worker that starts too late finds no
 * segment, and sends nothing.
 *
 * lease_wait() commits before it sleeps, and needs no worker.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "monitor/watches.h"

/* Data for the worker: channel and payload alternate, each with a terminating zero. */
typedef struct Announcement
{
	int			count;
	char		texts[FLEXIBLE_ARRAY_MEMBER];
} Announcement;

static dsm_segment *announcement = NULL;

PGDLLEXPORT void lease_announce_main(Datum arg);

static Size
size_of(List *notices)
{
	Size		size = offsetof(Announcement, texts);
	ListCell   *cell;

	foreach(cell, notices)
	{
		Notice	   *notice = lfirst(cell);

		size += strlen(notice->channel) + strlen(notice->payload) + 2;
	}
	return size;
}

static char *
append_text(char *end, const char *string)
{
	Size		size = strlen(string) + 1;

	memcpy(end, string, size);
	return end + size;
}

static void
fill(Announcement *announced, List *notices)
{
	char	   *end = announced->texts;
	ListCell   *cell;

	announced->count = list_length(notices);
	foreach(cell, notices)
	{
		Notice	   *notice = lfirst(cell);

		end = append_text(append_text(end, notice->channel), notice->payload);
	}
}

/* Start a worker that sends the notices. Without a free worker slot no notice is sent. */
static void
start_worker(List *notices)
{
	BackgroundWorker worker = {0};

	announcement = dsm_create(size_of(notices), DSM_CREATE_NULL_IF_MAXSEGMENTS);
	if (announcement == NULL)
		return;
	fill(dsm_segment_address(announcement), notices);

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_type, "lease_lock announcer", BGW_MAXLEN);
	strlcpy(worker.bgw_name, "lease_lock announcer", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "lease_lock", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "lease_announce_main", BGW_MAXLEN);
	memcpy(worker.bgw_extra, &MyDatabaseId, sizeof(Oid));
	worker.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(announcement));
	if (!RegisterDynamicBackgroundWorker(&worker, NULL))
		announce_end();
}

/*
 * Notify the watches of these resources that a session begins to wait: at
 * once, or when the transaction commits, if it commits before it sleeps.
 */
void
announce_wanted(const LeaseRequest *request, text **resources, int nresources, bool commits)
{
	List	   *notices = NIL;

	announcement = NULL;		/* the segment of a wait that failed is gone */
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
		start_worker(notices);
}

/* End the announcement with the wait. */
void
announce_end(void)
{
	if (announcement != NULL)
		dsm_detach(announcement);
	announcement = NULL;
}

/* Entry point of the worker. */
void
lease_announce_main(Datum arg)
{
	dsm_segment *segment;
	Oid			database;

	memcpy(&database, MyBgworkerEntry->bgw_extra, sizeof(Oid));
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);

	/* A crash ends the wait as well. */
	SetConfigOption("synchronous_commit", "off", PGC_SUSET, PGC_S_OVERRIDE);

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	pgstat_report_activity(STATE_RUNNING, "telling who watches that a lease is wanted");
	segment = dsm_attach(DatumGetUInt32(arg));
	if (segment != NULL)
	{
		const Announcement *announced = dsm_segment_address(segment);
		const char *text = announced->texts;

		for (int i = 0; i < announced->count; i++)
		{
			const char *payload = text + strlen(text) + 1;

			Async_Notify(text, payload);
			text = payload + strlen(payload) + 1;
		}
		dsm_detach(segment);
	}
	CommitTransactionCommand();
	pgstat_report_activity(STATE_IDLE, NULL);
}
