/*-------------------------------------------------------------------------
 *
 * wake.c
 *		Wake-ups: a session that changes a lease wakes those who wait for it.
 *
 * A change is noted when it is written, and wakes at the end of the
 * transaction, when other sessions can see it: src/README.md explains why no
 * wake-up is lost.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"

#include "wait/queue.h"

/* A lease that the current transaction changed. */
typedef struct Change
{
	uint64		hash;
	TimestampTz expires_at;		/* in the past: the lease is free */
} Change;

/* Beyond this number of changes, all waiters in the buckets of the changed leases are woken. */
#define MAX_CHANGES 64

static Change changes[MAX_CHANGES];
static int	nchanges = 0;
static bool more_changed[NUM_BUCKETS];
static bool has_more_changes = false;

/* Buckets with waiters for leases that end with this session. */
static bool session_buckets[NUM_BUCKETS];

/*
 * Remember that the current transaction changed a lease, so that its waiters
 * are woken when the transaction ends. Of several changes the earliest end
 * counts, since they may be of different slots.
 */
void
wait_note_change(const text *resource, TimestampTz expires_at)
{
	uint64		hash;

	if (!attach_shared_area())
		return;

	hash = queue_hash(resource);
	for (int i = 0; i < nchanges; i++)
	{
		if (changes[i].hash == hash)
		{
			changes[i].expires_at = Min(changes[i].expires_at, expires_at);
			return;
		}
	}

	if (nchanges < MAX_CHANGES)
		changes[nchanges++] = (Change) {hash, expires_at};
	else
		more_changed[hash % NUM_BUCKETS] = has_more_changes = true;
}

/* Remember that the lock table is dropped, so that all waiters of the database look, and fail. */
void
wait_note_drop(void)
{
	if (attach_shared_area())
	{
		memset(more_changed, true, sizeof(more_changed));
		has_more_changes = true;
	}
}

/* Wake the waiters of a line that must know of a change. A rollback may free the lease at once. */
static void
wake_line(const Change *change, bool committed)
{
	int64		free_at = 0;
	Bucket	   *bucket;

	if (!queue_may_have(change->hash))
		return;

	if (committed && change->expires_at > clock_now())
		free_at = monotonic_time(change->expires_at);
	bucket = queue_lock(change->hash);
	call_first(bucket, change->hash, free_at);
	queue_unlock(bucket);
}

/* Wake all waiters of this database in some buckets. None of them may leave without handing that on. */
static void
wake_buckets(const bool *chosen)
{
	for (int i = 0; i < NUM_BUCKETS; i++)
	{
		Bucket	   *bucket;

		if (!chosen[i] || !queue_may_have(i))
			continue;
		bucket = queue_lock(i);
		for (Entry *entry = queue_entry(bucket->ends.next); entry != NULL; entry = queue_entry(entry->link.next))
		{
			if (queue_waiter(entry->waiter)->info.database != MyDatabaseId)
				continue;
			entry->known_end = 0;
			queue_wake(entry);
		}
		queue_unlock(bucket);
	}
}

static void
wake_waiters(bool committed)
{
	if (nchanges > 0)
		RACE_POINT("before waiters are woken");
	for (int i = 0; i < nchanges; i++)
		wake_line(&changes[i], committed);
	if (has_more_changes)
		wake_buckets(more_changed);
}

/*
 * At commit and abort the transaction is no longer in progress for other
 * sessions. At PREPARE it is, and waiters for the lease must now wait for the
 * prepared transaction.
 */
static void
wake_after_transaction(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	wake_waiters(event == XACT_EVENT_COMMIT);
	nchanges = 0;
	if (has_more_changes)
		memset(more_changed, 0, sizeof(more_changed));
	has_more_changes = false;
}

/* A rollback to a savepoint restores the leases at once, although the transaction goes on. */
static void
wake_after_subtransaction(SubXactEvent event, SubTransactionId subid,
						  SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		wake_waiters(false);
}

/*
 * The leases of this session end, and no end of a transaction would wake their
 * waiters. This wakes a few other waiters, too.
 */
static void
wake_after_session(int code, Datum arg)
{
	session_end();				/* before they look */
	wake_buckets(session_buckets);
}

/* Remember to wake the waiters of a lease when this session ends. */
void
wait_note_session_lease(const text *resource)
{
	static bool wakes_at_exit = false;

	if (!attach_shared_area())
		return;
	if (!wakes_at_exit)
		before_shmem_exit(wake_after_session, (Datum) 0);
	wakes_at_exit = true;
	session_buckets[queue_hash(resource) % NUM_BUCKETS] = true;
}

void
wake_init(void)
{
	RegisterXactCallback(wake_after_transaction, NULL);
	RegisterSubXactCallback(wake_after_subtransaction, NULL);
}
