/*-------------------------------------------------------------------------
 *
 * turns.c
 *		Whose turn it is, and who has to hear of a change.
 *
 * First come, first served, for each resource: a free lease goes to the first
 * of its line, and to nobody else. These rules keep the line moving:
 *
 * - A waiter joins before it looks. A transaction that changed a lease first
 *   becomes visible, then looks at the line. One of the two sees the other.
 * - A wake-up counts up the waiter's news. The waiter sleeps only if there was
 *   none since before it looked, whatever it waited for in between.
 * - The first waiter sleeps no longer than the lease that it saw lasts. A
 *   grant that ends earlier than that wakes it: see Waiter.alarm.
 * - A waiter that leaves, or stands aside, wakes the one that is first then,
 *   unless that has nothing to find.
 * - The last waiter that sleeps in the line keeps watch over the first. It
 *   is awake when it comes, so that the watch passes without a wake-up. When the
 *   first was called and does not come within lease_lock.handoff_timeout, the
 *   watcher looks at the lease; if it is free, may_take_turn() moves the first to
 *   the end of the line, where it is skipped until it comes.
 * - A waiter that waits in the lock manager is excused while the transaction
 *   that it named is running. From then on it is as if it had been called.
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
#include "storage/procarray.h"
#include "utils/guc.h"

#include "base/clock.h"
#include "base/compat.h"
#include "store/session_lock.h"
#include "wait/turns.h"

/* A lease that the current transaction changed. */
typedef struct Change
{
	uint64		hash;
	TimestampTz expires_at;		/* in the past: it is free */
} Change;

/* More than this are not kept apart: everybody in their buckets is woken. */
#define MAX_CHANGES 64

/* Two alarms for the end of one lease are as far apart as the clocks are read. */
#define ALARM_SLACK 10000

static int	handoff_timeout = 1000;

static Change changes[MAX_CHANGES];
static int	nchanges = 0;
static bool more_changed[NUM_BUCKETS];
static bool has_more_changes = false;

bool		turn_was_refused = false;

static void tell_session_ended(const text *resource);
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

	session_lease_ended = tell_session_ended;
	RegisterXactCallback(wake_after_transaction, NULL);
	RegisterSubXactCallback(wake_after_subtransaction, NULL);
}

int
turns_handoff_timeout(void)
{
	return handoff_timeout;
}

/* Who counts in a line. */
typedef struct Line
{
	Entry	   *first;			/* NULL: anybody may take the lease */
	Entry	   *watcher;		/* the last that sleeps in the queue */
} Line;

/* Was the waiter called for another of its resources? It will take that one. */
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

/* Find the first that is not passed over. The caller holds the bucket's lock, here and below. */
static Entry *
first_in_line(const Bucket *bucket, uint64 hash)
{
	Entry	   *entry = queue_next_in_line(bucket, NULL, hash);

	while (entry != NULL && is_passed_over(entry))
		entry = queue_next_in_line(bucket, entry, hash);
	return entry;
}

static Line
survey_line(const Bucket *bucket, uint64 hash)
{
	Entry	   *last = queue_previous_in_line(bucket, NULL, hash);

	while (last != NULL && (is_passed_over(last) || entry_state(last) == TURN_AWAY))
		last = queue_previous_in_line(bucket, last, hash);
	return (Line) {first_in_line(bucket, hash), last};
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
 * Have those look once more that were called for something else: should they not
 * get that, nobody else would tell them of this line.
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
 * Wake who became first or watcher by a change of the line. Some changes leave
 * the first nothing to find.
 */
static void
notify_successors(Line before, Line after, bool first_has_to_look)
{
	if (first_has_to_look && after.first != NULL && after.first != before.first &&
		entry_state(after.first) != TURN_AWAY)
	{
		call(after.first);
		queue_notify(after.first);
	}
	if (after.watcher != NULL && after.watcher != before.watcher && after.watcher != after.first)
		queue_notify(after.watcher);
}

static bool
is_overdue(const Entry *entry)
{
	return entry_state(entry) == TURN_CALLED &&
		clock_monotonic() - entry->called_at >= handoff_timeout * INT64CONST(1000);
}

/* Have others come first until this one comes. */
static void
skip(Bucket *bucket, Entry *entry)
{
	entry_set_state(entry, TURN_SKIPPED);
	pg_atomic_write_u64(&queue_waiter(entry->waiter)->called_for, 0);
	queue_take_out(bucket, entry);
	queue_append(bucket, entry);
}

/*
 * May this backend take the free lease of this line? If not, the first of the
 * line is called; or *awaited is the transaction that the first waits for, if
 * that has not ended as far as we know. The caller holds the lock.
 */
static bool
may_take_turn(Bucket *bucket, uint64 hash, TransactionId ended, TransactionId *awaited)
{
	Entry	   *entry;

	/* Whoever asks has come, and for this one. */
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
				call(entry);	/* the lock manager has woken it */
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
 * May this backend take the lease, which is free? Not while others have been
 * waiting for longer; then the first of them is called.
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
		{
			turn_was_refused |= !mine;
			return mine;
		}
		ended = awaited;
	}
}

/*
 * Remember that the current transaction changed a lease, so that its waiters
 * are woken when the outcome is known. Of several changes the earliest end
 * counts: they may be of different slots.
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

/*
 * Tell the first waiter of a change. One that looks by itself before the lease
 * ends need not hear of it: most grants wake nobody. It is woken even if it
 * was called before, since it may be about to sleep, having found the lease
 * taken again.
 */
static void
tell_first(Entry *first, const Change *change, bool committed)
{
	TimestampTz today = clock_now();

	if (entry_state(first) == TURN_AWAY)
		return;					/* comes by itself */
	if (committed && change->expires_at > today &&
		(int64) pg_atomic_read_u64(&queue_waiter(first->waiter)->alarm) <=
		clock_monotonic() + (change->expires_at - today))
		return;
	call(first);
	queue_notify(first);
}

/* Wake those who have to hear of a change. */
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
			queue_notify(entry);	/* the lease may have been its own owner's; see notify_called_elsewhere() */
		else if (!told_first && entry_state(entry) != TURN_SKIPPED)
		{
			tell_first(entry, change, committed);
			told_first = true;
		}
	}
	LWLockRelease(&bucket->lock);
	queue_wake_notified();
}

/* Wake everybody in a bucket. */
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
 * At commit and abort the transaction is no longer in progress for others. At
 * PREPARE it is, and those who wait for the lease have to wait for it.
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
 * A lease ended because this session ends. There is no transaction whose end
 * would tell its waiters.
 */
static void
tell_session_ended(const text *resource)
{
	wait_note_change(resource, DT_NOBEGIN);
	wake_waiters(true);
}

/* What a subtransaction changed is as it was, although its parent goes on. */
static void
wake_after_subtransaction(SubXactEvent event, SubTransactionId subid,
						  SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		wake_waiters(false);
}

/*
 * The waiter looked and was refused. It waits for its turn again, wherever it
 * was before; if it has been called since the look, it has to look first.
 */
bool
turns_were_refused(Waiter *waiter, uint32 news_seen)
{
	for (Entry *entry = queue_own_entry(waiter); entry != NULL; entry = queue_entry(entry->sibling))
	{
		Bucket	   *bucket = queue_bucket(entry->hash);

		if (entry_state(entry) == TURN_QUEUED)
			continue;			/* if somebody calls just now, there is news */
		LWLockAcquire(&bucket->lock, LW_EXCLUSIVE);
		if (pg_atomic_read_u32(&waiter->news) == news_seen)
			entry_set_state(entry, TURN_QUEUED);
		LWLockRelease(&bucket->lock);
	}
	pg_atomic_write_u64(&waiter->called_for, 0);
	pg_memory_barrier();
	return pg_atomic_read_u32(&waiter->news) != news_seen;
}

/* Change the state of a waiter for one lease. */
static void
change_state(Waiter *waiter, TurnState state, TransactionId awaited)
{
	Entry	   *entry = queue_own_entry(waiter);
	Bucket	   *bucket = queue_bucket(entry->hash);
	Line		before;

	LWLockAcquire(&bucket->lock, LW_EXCLUSIVE);
	before = survey_line(bucket, entry->hash);
	entry->awaited = awaited;
	entry_set_state(entry, state);
	notify_successors(before, survey_line(bucket, entry->hash), true);
	LWLockRelease(&bucket->lock);
	queue_wake_notified();
}

/*
 * Let others go first: what is in the way is a lease of the same owner, which
 * is in nobody else's. False if they do already. From now on the waiter hears of
 * every change, first or not.
 */
bool
turns_stand_aside(Waiter *waiter)
{
	if (entry_state(queue_own_entry(waiter)) == TURN_ASIDE)
		return false;
	change_state(waiter, TURN_ASIDE, InvalidTransactionId);
	return true;
}

/* The waiter is about to wait in the lock manager, where it hears of nothing else. */
void
turns_go_away(Waiter *waiter, TransactionId awaited)
{
	if (entry_state(queue_own_entry(waiter)) != TURN_ASIDE)
		change_state(waiter, TURN_AWAY, awaited);
}

/* It is back, and looks. If it was called because it was late it remains so. */
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
 * Has this waiter, which is going to sleep, to keep watch over the first? One
 * that waits for several resources does so in all of its lines.
 */
bool
turns_keeps_watch(const Waiter *waiter)
{
	Entry	   *own = queue_own_entry(waiter);
	Bucket	   *bucket = queue_bucket(own->hash);
	Line		line;

	if (own->sibling != NOBODY)
		return true;
	LWLockAcquire(&bucket->lock, LW_SHARED);
	line = survey_line(bucket, own->hash);
	LWLockRelease(&bucket->lock);
	return line.watcher == own && line.first != own;
}

/* Does somebody not come who has a turn, in a line of this waiter? Then it has to look. */
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

/* Do two waiters of a line need the same to go away? */
static bool
want_the_same(const Entry *a, const Entry *b)
{
	const WaiterInfo *x = &queue_waiter(a->waiter)->info;
	const WaiterInfo *y = &queue_waiter(b->waiter)->info;

	return x->mode == y->mode && x->permits == y->permits;
}

/*
 * Does the next waiter have to look when the first one leaves? Not for what was
 * granted: the commit tells, unless it leaves room at once. Otherwise it
 * does if it wants something else than the first one, if that was called and did not
 * look since, or if that would have looked earlier than the next one.
 */
static bool
has_to_look(const Departure *departure, const Entry *entry, const Entry *next)
{
	if (departure->granted && entry->hash == departure->hash)
		return departure->shares;
	if (entry_state(entry) == TURN_CALLED)
		return true;
	return next != NULL &&
		(!want_the_same(entry, next) ||
		 (int64) pg_atomic_read_u64(&queue_waiter(next->waiter)->alarm) > departure->known_end + ALARM_SLACK);
}

/*
 * Leave all lines. Returns when the waiter was called to what was granted, 0 if
 * it was not.
 */
int64
turns_leave(Waiter *waiter, const Departure *departure)
{
	int64		called_at = 0;

	for (Entry *entry = queue_own_entry(waiter); entry != NULL; entry = queue_entry(entry->sibling))
	{
		Bucket	   *bucket = queue_bucket(entry->hash);
		Line		before;
		Line		after;

		LWLockAcquire(&bucket->lock, LW_EXCLUSIVE);
		before = survey_line(bucket, entry->hash);
		queue_take_out(bucket, entry);
		after = survey_line(bucket, entry->hash);
		if (has_to_look(departure, entry, after.first))
		{
			notify_successors(before, after, true);
			notify_called_elsewhere(bucket, entry->hash);
		}
		else
			notify_successors(before, after, false);
		if (departure->granted && entry->hash == departure->hash && entry_state(entry) == TURN_CALLED)
			called_at = entry->called_at;
		LWLockRelease(&bucket->lock);
		queue_wake_notified();
	}
	queue_leave(waiter);
	return called_at;
}
