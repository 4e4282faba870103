/*-------------------------------------------------------------------------
 *
 * wake.c
 *		Wake-ups: a session that changes a lease wakes those who wait for it.
 *
 * A change is noted when it is written, and wakes at the end of the
 * transaction, when other sessions can see it.
 *
 * Who wakes whom. A transaction notes the leases that it changes, with the
 * time from which each may be free. When the transaction has ended or is
 * prepared, or is rolled back to a savepoint, it *calls* the first waiter of
 * each line (call_first): it sets the state, counts the wake-up (news) and
 * sets the latch, after it has unlocked the line (queue_note_wakeup,
 * queue_unlock_and_wake). If it changed leases of several lines in one bucket,
 * it calls the first waiter of each line there. A waiter has set its *alarm*
 * to the end of the lease that it saw. If it will look by then, nobody calls
 * it. So most grants and renewals wake nobody. Waiters before it that are
 * passed over are always woken as well, since they may be looking at that
 * moment.
 *
 * Why no wake-up is lost.
 *
 * - A waiter joins its line before it looks. A change becomes visible before
 *   its transaction reads the line. So one of the two sees the other.
 *
 * - A waiter reads news before it looks, and sleeps only while the count is
 *   still the same. While it looks it has no alarm, so every change counts. It
 *   sets the state of its entries before its alarm.
 *
 * - Of the waiters that are not passed over, only the first hears of a change.
 *   So its entry keeps what it knows: called, or the time at which the lease
 *   may become free (known_end), which a change that did not wake it sets,
 *   too. A waiter that takes its turn knows that the lease is free. A waiter
 *   that leaves a line hands on what it knows (leave_line): the next one is
 *   called unless it will look by itself by then. It is called in any case if
 *   the one that leaves was called and had not looked yet, was refused because
 *   of a transaction, was granted a shared lease or a permit, or asked for
 *   another mode or number of permits. If the first waiter came before the one
 *   that leaves, only one that waits for a transaction hears of it: the
 *   session of that transaction may have passed over it. Whoever leaves with
 *   an exclusive lease hands on nothing, since its commit or rollback calls
 *   the next one.
 *
 * - A waiter that stands aside calls the next one, and looks once more before
 *   it sleeps.
 *
 * - The end of a prepared transaction, a row lock that is given up and a write
 *   by hand wake nobody. A waiter that a transaction blocks waits in the lock
 *   manager, or looks again every second. All others look after
 *   deadlock_timeout and then at growing intervals, up to 30 s.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"

#include "wait/queue.h"

/* What the current transaction changed, in one bucket of the queue. */
typedef struct Change
{
	uint64		hash;
	const text *resource;		/* in TopTransactionContext */
	bool		all_lines;		/* of the bucket, since several of them may have to know */
	TimestampTz expires_at;		/* in the past: the lease is free */
} Change;

static Change changes[NUM_BUCKETS];
static int	nchanges = 0;

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
	text	   *copy;

	if (!attach_shared_area())
		return;

	hash = queue_hash(resource);
	for (int i = 0; i < nchanges; i++)
	{
		if (bucket_of(changes[i].hash) == bucket_of(hash))
		{
			changes[i].all_lines |= !same_text(changes[i].resource, resource);
			changes[i].expires_at = Min(changes[i].expires_at, expires_at);
			return;
		}
	}
	copy = MemoryContextAlloc(TopTransactionContext, VARSIZE_ANY(resource));
	memcpy(copy, resource, VARSIZE_ANY(resource));
	changes[nchanges++] = (Change) {hash, copy, false, expires_at};
}

/*
 * Call the first waiter of each line that a bucket has for this database. It
 * does no harm to call one whose lease has not changed.
 */
static void
call_all_lines(uint64 hash)
{
	Entry	   *entry = queue_entry(bucket_of(hash)->ends.next);

	for (; entry != NULL; entry = queue_entry(entry->link.next))
		if (queue_waiter(entry->waiter)->info.database == MyDatabaseId &&
			queue_next_in_line(NULL, entry->line) == entry)
			call_first(entry->line, AT_ONCE);
}

/* Wake the waiters that must know of a change. A rollback may free the lease at once. */
static void
wake_after_change(const Change *change, bool committed)
{
	MonotonicTime free_at = AT_ONCE;

	if (!queue_may_have(change->hash))
		return;

	if (committed && change->expires_at > clock_now())
		free_at = monotonic_time(change->expires_at);
	queue_lock(change->hash);
	if (change->all_lines)
		call_all_lines(change->hash);
	else
		call_first(queue_find_line(change->hash, change->resource), free_at);
	queue_unlock_and_wake(change->hash);
}

static void
wake_waiters(bool committed)
{
	if (nchanges > 0)
		RACE_POINT("before waiters are woken");
	for (int i = 0; i < nchanges; i++)
		wake_after_change(&changes[i], committed);
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
	for (int i = 0; i < NUM_BUCKETS; i++)
		if (session_buckets[i])
			wake_after_change(&(Change) {.hash = i, .all_lines = true}, true);
}

/* Remember to wake the waiters of a lease when this session ends. */
void
wait_note_session_lease(const text *resource)
{
	static bool wakes_at_exit = false;

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
