/*-------------------------------------------------------------------------
 *
 * Turns of waiters: which waiter may take a lease, and which ones a change
 * wakes.
 *
 * For each resource, waiters are served in the order of arrival: a free lease
 * goes only to the first waiter of its line. These rules keep the line moving:
 *
 * - A waiter joins the line before it looks. A transaction that changed a
 *   lease first becomes visible and then reads the line. So one of the two
 *   sees the other.
 * - A wake-up increments the waiter's news counter. The waiter sleeps only if
 *   the counter has not changed since before its look, whatever it waited for
 *   meanwhile.
 * - The first waiter sleeps at most until the end of the lease that it saw. A
 *   grant whose lease ends earlier wakes it: see Waiter.alarm.
 * - A waiter that leaves, or stands aside, wakes the waiter that is first
 *   after that, unless there is nothing to find for it.
 * - The waiters that sleep in the line watch the first, above all the last of
 *   them: see turns_next_watch(). A new waiter is awake when it arrives,
 *   so it takes over the watch without a wake-up. If the first waiter was
 *   called and does not look within lease_lock.handoff_timeout, a watcher
 *   looks at the lease. If the lease is free, may_take_turn() moves the first
 *   waiter to the end of the line, where it is skipped until it looks.
 * - A waiter in the lock manager keeps its turn while the transaction that it
 *   waits for is running. From the end of that transaction on it counts as
 *   called.
 *
 *		state		first in line?	ends
 *		queued		yes				when called, or with the wait
 *		called		yes				when it looks and is refused; skipped when overdue
 *		away		yes				when back; called when the transaction has ended
 *		aside		no				when it may take its turn, or is refused otherwise
 *		skipped		no				when it looks
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/procarray.h"
#include "utils/guc.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/sessions.h"
#include "wait/turns.h"

/* A lease that the current transaction changed. */
typedef struct Change
{
	uint64		hash;
	TimestampTz expires_at;		/* in the past: the lease is free */
} Change;

/* Beyond this number of changes, all waiters in the buckets of the changed leases are woken. */
#define MAX_CHANGES 64

/* Two waiters that know the end of the same lease differ by less, in microseconds. */
#define ALARM_SLACK 1000

static int	handoff_timeout = 1000;

static Change changes[MAX_CHANGES];
static int	nchanges = 0;
static bool more_changed[NUM_BUCKETS];
static bool has_more_changes = false;

/* Buckets with waiters for leases that end with this session. */
static bool session_buckets[NUM_BUCKETS];

static void wake_after_transaction(XactEvent event, void *arg);
static void wake_after_subtransaction(SubXactEvent event, SubTransactionId subid,
									  SubTransactionId parent, void *arg);

void
turns_init(void)
{
	DefineCustomIntVariable("lease_lock.handoff_timeout",
							"Time that the first waiter has to take a lease that became free.",
							"After that it goes to the end of the queue.",
							&handoff_timeout,
							1000, 10, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	RegisterXactCallback(wake_after_transaction, NULL);
	RegisterSubXactCallback(wake_after_subtransaction, NULL);
}

/* Was the waiter called for another of its resources? Then it will take that lease. */
static bool
is_called_elsewhere(const Entry *entry)
{
	uint64		called_for = pg_atomic_read_u64(&queue_waiter(entry->waiter)->called_for);

	return called_for != 0 && called_for != entry->hash;
}

static bool
is_passed_over(const Entry *entry)
{
	return entry_state(entry) == TURN_ASIDE || entry_state(entry) == TURN_SKIPPED || is_called_elsewhere(entry);
}

/* Does the waiter check the first one of its line while it sleeps? */
static bool
can_watch(const Entry *entry)
{
	return !is_passed_over(entry) && entry_state(entry) != TURN_AWAY;
}

/*
 * Find the first entry that is not passed over. Here and below, the caller
 * holds the bucket's lock.
 */
static Entry *
first_in_line(const Bucket *bucket, uint64 hash)
{
	Entry	   *entry = queue_next_in_line(bucket, NULL, hash);

	while (entry != NULL && is_passed_over(entry))
		entry = queue_next_in_line(bucket, entry, hash);
	return entry;
}

/* Find the last entry that can watch. */
static Entry *
watcher_in_line(const Bucket *bucket, uint64 hash)
{
	Entry	   *entry = queue_previous_in_line(bucket, NULL, hash);

	while (entry != NULL && !can_watch(entry))
		entry = queue_previous_in_line(bucket, entry, hash);
	return entry;
}

static bool
comes_before(const Entry *a, const Entry *b)
{
	return pg_atomic_read_u64((pg_atomic_uint64 *) &a->turn) < pg_atomic_read_u64((pg_atomic_uint64 *) &b->turn);
}

static void
call(Entry *entry)
{
	uint64		none = 0;

	pg_atomic_compare_exchange_u64(&queue_waiter(entry->waiter)->called_for, &none, entry->hash);
	if (entry_state(entry) != TURN_CALLED)
	{
		entry->called_at = clock_monotonic();
		entry_set_state(entry, TURN_CALLED);
	}
}

/*
 * Make waiters look that were called for another resource. If they do not get
 * that, nothing else would wake them for this line.
 */
static void
notify_called_elsewhere(const Bucket *bucket, uint64 hash)
{
	Entry	   *entry = NULL;

	while ((entry = queue_next_in_line(bucket, entry, hash)) != NULL)
		if (is_called_elsewhere(entry))
			queue_notify(entry);
}

/*
 * An entry left the line, or lost its place in it: wake the waiters that are
 * first or watcher instead. The entry may have been first although it was
 * passed over lately: so the order of arrival counts. first_has_to_look is
 * false if there is nothing to find for the first.
 */
static void
notify_successors(const Bucket *bucket, const Entry *gone, bool first_has_to_look)
{
	Entry	   *first = first_in_line(bucket, gone->hash);
	Entry	   *watcher = watcher_in_line(bucket, gone->hash);

	if (first_has_to_look && first != NULL && comes_before(gone, first) && entry_state(first) != TURN_AWAY)
	{
		call(first);
		queue_notify(first);
	}
	if (watcher != NULL && watcher != first && comes_before(watcher, gone))
		queue_notify(watcher);
}

static bool
is_overdue(const Entry *entry)
{
	return entry_state(entry) == TURN_CALLED &&
		clock_monotonic() - entry->called_at >= handoff_timeout * INT64CONST(1000);
}

/* Move an entry to the end of its line, and skip it until its waiter looks. */
static void
skip(Bucket *bucket, Entry *entry)
{
	entry_set_state(entry, TURN_SKIPPED);
	pg_atomic_write_u64(&queue_waiter(entry->waiter)->called_for, 0);
	queue_take_out(bucket, entry);
	queue_append(bucket, entry);
}

/*
 * May this backend take the free lease of this line? If not, this calls the
 * first waiter of the line. If the first waiter waits for a transaction that
 * has not ended as far as we know, this sets *awaited to that transaction
 * instead.
 */
static bool
may_take_turn(Bucket *bucket, uint64 hash, TransactionId ended, TransactionId *awaited)
{
	Entry	   *entry;

	/* This backend is looking, and at this resource. */
	for (entry = NULL; (entry = queue_next_in_line(bucket, entry, hash)) != NULL;)
		if (entry->waiter == MY_PROC_NUMBER)
		{
			pg_atomic_write_u64(&queue_waiter(MY_PROC_NUMBER)->called_for, hash);
			if (is_passed_over(entry))
				entry_set_state(entry, TURN_QUEUED);
		}

	while ((entry = first_in_line(bucket, hash)) != NULL && entry->waiter != MY_PROC_NUMBER)
	{
		if (is_overdue(entry))
		{
			skip(bucket, entry);
			continue;
		}
		if (entry_state(entry) == TURN_AWAY)
		{
			if (TransactionIdIsValid(ended) && entry->awaited == ended)
				call(entry);	/* the lock manager wakes it */
			else
				*awaited = entry->awaited;
		}
		else if (entry_state(entry) == TURN_QUEUED)
		{
			call(entry);
			queue_notify(entry);
		}
		return false;
	}
	return true;
}

/*
 * May this backend take this lease, which is free? It may not while others
 * have waited longer. Then the first of them is called.
 */
bool
wait_is_my_turn(const text *resource)
{
	uint64		hash;
	TransactionId ended = InvalidTransactionId;

	if (!queue_attach())
		return true;
	hash = queue_hash(resource);
	if (!queue_may_have(hash))
		return true;

	for (;;)
	{
		Bucket	   *bucket = queue_bucket(hash);
		TransactionId awaited = InvalidTransactionId;
		bool		mine;

		LWLockAcquire(&bucket->lock, LW_EXCLUSIVE);
		mine = may_take_turn(bucket, hash, ended, &awaited);
		LWLockRelease(&bucket->lock);
		queue_wake_notified();

		if (!TransactionIdIsValid(awaited) || TransactionIdIsInProgress(awaited))
			return mine;
		ended = awaited;
	}
}

/*
 * Remember that the current transaction changed a lease, so that its waiters
 * are woken when the transaction ends. Of several changes the earliest end
 * counts, since they may be of different slots.
 */
void
wait_note_change(const text *resource, TimestampTz expires_at)
{
	uint64		hash;

	if (!queue_attach())
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
	if (queue_attach())
	{
		memset(more_changed, true, sizeof(more_changed));
		has_more_changes = true;
	}
}

/*
 * Call the first waiter of a line because of a change. If it will look by
 * itself before the lease ends, it need not be woken; so most grants wake
 * nobody. It is woken even if it was called before, since it may have found
 * the lease taken again, and be about to sleep.
 */
static void
tell_first(Entry *first, const Change *change, bool committed)
{
	TimestampTz today = clock_now();

	if (entry_state(first) == TURN_AWAY)
		return;					/* looks by itself when its wait ends */
	if (committed && change->expires_at > today &&
		(int64) pg_atomic_read_u64(&queue_waiter(first->waiter)->alarm) <=
		clock_monotonic() + (change->expires_at - today))
		return;
	call(first);
	queue_notify(first);
}

/* Wake the waiters of a line that must know of a change. */
static void
tell_line(const Change *change, bool committed)
{
	Bucket	   *bucket = queue_bucket(change->hash);
	Entry	   *entry = NULL;
	bool		told_first = false;

	if (!queue_may_have(change->hash))
		return;

	LWLockAcquire(&bucket->lock, LW_EXCLUSIVE);
	while ((entry = queue_next_in_line(bucket, entry, change->hash)) != NULL)
	{
		if (entry_state(entry) == TURN_ASIDE || is_called_elsewhere(entry))
			queue_notify(entry);	/* may wait for its own owner's lease; or see notify_called_elsewhere() */
		else if (!told_first && entry_state(entry) != TURN_SKIPPED)
		{
			tell_first(entry, change, committed);
			told_first = true;
		}
	}
	LWLockRelease(&bucket->lock);
	queue_wake_notified();
}

/* Wake all waiters in a bucket. */
static void
tell_bucket(int number)
{
	Bucket	   *bucket = queue_bucket(number);

	if (!queue_may_have(number))
		return;

	LWLockAcquire(&bucket->lock, LW_SHARED);
	for (Entry *entry = queue_entry(bucket->first); entry != NULL; entry = queue_entry(entry->next))
		if (entry->database == MyDatabaseId)
			queue_notify(entry);
	LWLockRelease(&bucket->lock);
	queue_wake_notified();
}

static void
wake_waiters(bool committed)
{
	for (int i = 0; i < nchanges; i++)
		tell_line(&changes[i], committed);
	for (int i = 0; i < NUM_BUCKETS && has_more_changes; i++)
		if (more_changed[i])
			tell_bucket(i);
}

/*
 * At commit and abort the transaction is no longer in progress for other
 * sessions. At PREPARE it is, and waiters for the lease must now wait for the
 * prepared transaction.
 */
static void
wake_after_transaction(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			wake_waiters(event == XACT_EVENT_COMMIT);
			nchanges = 0;
			if (has_more_changes)
				memset(more_changed, 0, sizeof(more_changed));
			has_more_changes = false;
			break;
		default:
			break;
	}
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
			tell_bucket(i);
}

/* Remember to wake the waiters of a lease when this session ends. */
void
wait_note_session_lease(const text *resource)
{
	static bool wakes_at_exit = false;

	if (!queue_attach())
		return;
	if (!wakes_at_exit)
		before_shmem_exit(wake_after_session, (Datum) 0);
	wakes_at_exit = true;
	session_buckets[queue_hash(resource) % NUM_BUCKETS] = true;
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
 * The waiter looked and was refused. It waits for its turn again, whatever its
 * state was. Returns true if it has been notified since the look, and must
 * look again first.
 */
bool
turns_were_refused(Waiter *waiter, uint32 news_seen)
{
	for (Entry *entry = queue_own_entry(waiter); entry != NULL; entry = queue_entry(entry->sibling))
	{
		Bucket	   *bucket = queue_bucket(entry->hash);

		if (entry_state(entry) == TURN_QUEUED)
			continue;			/* a concurrent call also changes the news counter */
		LWLockAcquire(&bucket->lock, LW_EXCLUSIVE);
		if (pg_atomic_read_u32(&waiter->news) == news_seen)
			entry_set_state(entry, TURN_QUEUED);
		LWLockRelease(&bucket->lock);
	}
	pg_atomic_write_u64(&waiter->called_for, 0);
	pg_memory_barrier();
	return pg_atomic_read_u32(&waiter->news) != news_seen;
}

/* Change the state of a waiter for one resource, which was refused. So it is not called any more. */
static void
change_state(Waiter *waiter, TurnState state, TransactionId awaited)
{
	Entry	   *entry = queue_own_entry(waiter);
	Bucket	   *bucket = queue_bucket(entry->hash);

	LWLockAcquire(&bucket->lock, LW_EXCLUSIVE);
	entry->awaited = awaited;
	entry_set_state(entry, state);
	pg_atomic_write_u64(&waiter->called_for, 0);
	notify_successors(bucket, entry, true);
	LWLockRelease(&bucket->lock);
	queue_wake_notified();
}

/*
 * Let other waiters go first, because a lease of the same owner blocks this
 * one, and no other. Returns false if it stood aside already. From now on
 * every change wakes the waiter, whether it is first or not.
 */
bool
turns_stand_aside(Waiter *waiter)
{
	if (entry_state(queue_own_entry(waiter)) == TURN_ASIDE)
		return false;
	change_state(waiter, TURN_ASIDE, InvalidTransactionId);
	return true;
}

/* The waiter is about to wait in the lock manager, where it sees no wake-ups. */
void
turns_go_away(Waiter *waiter, TransactionId awaited)
{
	if (entry_state(queue_own_entry(waiter)) != TURN_ASIDE)
		change_state(waiter, TURN_AWAY, awaited);
}

/* The waiter is back, and looks. If it was called because it was late, it stays called. */
void
turns_come_back(Waiter *waiter)
{
	Entry	   *entry = queue_own_entry(waiter);
	Bucket	   *bucket = queue_bucket(entry->hash);

	LWLockAcquire(&bucket->lock, LW_EXCLUSIVE);
	if (entry_state(entry) == TURN_AWAY)
		entry_set_state(entry, TURN_QUEUED);
	LWLockRelease(&bucket->lock);
}

/*
 * Until when may this waiter sleep without a check of the first waiter of its
 * line? The last waiter checks often, the others more rarely, the more waiters
 * sleep behind them. So the line moves on even if the last waiters are
 * stopped, and a long line causes few wake-ups. A waiter for several resources
 * checks often.
 */
int64
turns_next_watch(const Waiter *waiter)
{
	Entry	   *own = queue_own_entry(waiter);
	Bucket	   *bucket = queue_bucket(own->hash);
	bool		is_first;
	int			behind = 0;

	if (own->sibling == NOBODY)
	{
		LWLockAcquire(&bucket->lock, LW_SHARED);
		is_first = first_in_line(bucket, own->hash) == own;
		for (Entry *entry = own; !is_first && (entry = queue_next_in_line(bucket, entry, own->hash)) != NULL;)
			behind += can_watch(entry);
		LWLockRelease(&bucket->lock);
		if (is_first)
			return PG_INT64_MAX;
	}
	return clock_monotonic() + handoff_timeout * INT64CONST(1000) * (behind + 1);
}

/*
 * Has the first waiter in a line of this waiter not taken its turn in time?
 * Then this waiter must look.
 */
bool
turns_are_overdue(const Waiter *waiter)
{
	for (Entry *own = queue_own_entry(waiter); own != NULL; own = queue_entry(own->sibling))
	{
		Bucket	   *bucket = queue_bucket(own->hash);
		Entry	   *first;
		bool		overdue;
		TransactionId awaited = InvalidTransactionId;

		LWLockAcquire(&bucket->lock, LW_SHARED);
		first = first_in_line(bucket, own->hash);
		overdue = first != NULL && is_overdue(first);
		if (first != NULL && first != own && entry_state(first) == TURN_AWAY)
			awaited = first->awaited;
		LWLockRelease(&bucket->lock);

		if (overdue || (TransactionIdIsValid(awaited) && !TransactionIdIsInProgress(awaited)))
			return true;
	}
	return false;
}

/* Does the leaving waiter know of an earlier end of a lease than the next one? */
static bool
knows_earlier_end(const Departure *departure, const Entry *next)
{
	return next != NULL && departure->known_end != 0 &&
		(int64) pg_atomic_read_u64(&queue_waiter(next->waiter)->alarm) > departure->known_end + ALARM_SLACK;
}

/*
 * Does the next waiter have to look when the first one leaves?
 *
 * If the first one leaves without a lease, yes: the next one may find room
 * where the first one did not, and it was not told what only the first one had
 * to hear. Not for what was granted: the commit tells, unless it leaves room
 * at once. For another resource of a waiter that was granted one, only if it
 * was called for that as well, or may know when a lease ends: or all who wait
 * for several would wake each other.
 */
static bool
has_to_look(const Departure *departure, const Entry *entry, const Entry *next)
{
	if (!departure->granted)
		return true;
	if (entry->hash == departure->hash)
		return departure->shares;
	return entry_state(entry) == TURN_CALLED || knows_earlier_end(departure, next);
}

/*
 * Leave all lines. Returns when the waiter was called for the lease that it
 * was granted, or 0 if it was not called.
 */
int64
turns_leave(Waiter *waiter, const Departure *departure)
{
	int64		called_at = 0;

	for (Entry *entry = queue_own_entry(waiter); entry != NULL; entry = queue_entry(entry->sibling))
	{
		Bucket	   *bucket = queue_bucket(entry->hash);
		bool		next_has_to_look;

		LWLockAcquire(&bucket->lock, LW_EXCLUSIVE);
		queue_take_out(bucket, entry);
		next_has_to_look = has_to_look(departure, entry, first_in_line(bucket, entry->hash));
		notify_successors(bucket, entry, next_has_to_look);
		if (next_has_to_look)
			notify_called_elsewhere(bucket, entry->hash);
		if (departure->granted && entry->hash == departure->hash && entry_state(entry) == TURN_CALLED)
			called_at = entry->called_at;
		LWLockRelease(&bucket->lock);
		queue_wake_notified();
	}
	queue_leave(waiter);
	return called_at;
}
