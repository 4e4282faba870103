/*-------------------------------------------------------------------------
 *
 * turns.c
 *		Turns of waiters: which waiter may take a lease.
 *
 * For each resource, waiters are served in the order of arrival: a free lease
 * goes only to the first waiter of its line. src/README.md explains the states,
 * and why the line moves and no wake-up is lost.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/guc.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/race.h"
#include "wait/turns.h"
#include "wait/wait.h"

/* Two waiters that know the end of the same lease differ by less, in microseconds. */
#define ALARM_SLACK 1000

/* A waiter checks the first one of its line after as many times handoff_timeout as there are waiters before it. */
#define MAX_WATCH_FACTOR 8

static int	handoff_timeout = 1000;

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
 * The lease of this line may become free at the given time of the monotonic
 * clock: see to it that the first waiter looks by then. If it will look by
 * itself, it need not be woken, so most grants wake nobody. It only notes the
 * time, in case that it leaves before it looks.
 *
 * Waiters that are passed over are woken as well, since they may be looking
 * now: nobody will tell them later.
 */
void
call_first(const Bucket *bucket, uint64 hash, int64 free_at)
{
	Entry	   *entry = NULL;

	while ((entry = queue_next_in_line(bucket, entry, hash)) != NULL)
	{
		if (is_passed_over(entry))
		{
			if (entry->waiter != MY_PROC_NUMBER)
				queue_wake(entry);
			continue;
		}

		if (entry->waiter == MY_PROC_NUMBER)
			return;				/* knows of its own change */
		if (entry_state(entry) == TURN_AWAY)
		{
			/* It looks when its wait ends. If it waits for one of the others here, that goes first: see waits_for_me(). */
			while ((entry = queue_next_in_line(bucket, entry, hash)) != NULL)
				if (TransactionIdIsValid(GetPGProcByNumber(entry->waiter)->xid))
					queue_wake(entry);
			return;
		}
		entry->known_end = Min(entry->known_end, free_at);
		if ((int64) pg_atomic_read_u64(&queue_waiter(entry->waiter)->alarm) > free_at &&
			(int64) pg_atomic_read_u64(&queue_waiter(entry->waiter)->alarm) - free_at > ALARM_SLACK)
		{
			call(entry);
			queue_wake(entry);
		}
		return;
	}
}

/*
 * Has this waiter not looked in time? It must look when it is called, and at
 * the time of its alarm, since nobody calls it when a lease expires.
 */
static bool
is_overdue(const Entry *entry)
{
	int64		alarm = (int64) pg_atomic_read_u64(&queue_waiter(entry->waiter)->alarm);
	int64		due = entry_state(entry) == TURN_CALLED ? entry->called_at : alarm;

	return clock_monotonic() - due >= handoff_timeout * INT64CONST(1000);
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
 * Does the waiter wait for a transaction of this backend? Then it cannot take
 * the lease before us. If we waited for its turn, neither could go on.
 */
static bool
waits_for_me(const Entry *entry)
{
	return TransactionIdIsValid(entry->awaited) && entry_state(entry) != TURN_CALLED &&
		TransactionIdIsCurrentTransactionId(entry->awaited);
}

/* This backend looks, and at this resource: it is not passed over any more. */
static void
show_up(const Bucket *bucket, uint64 hash)
{
	Entry	   *entry = NULL;

	while ((entry = queue_next_in_line(bucket, entry, hash)) != NULL)
		if (entry->waiter == MY_PROC_NUMBER)
		{
			pg_atomic_write_u64(&queue_waiter(MY_PROC_NUMBER)->called_for, hash);
			if (is_passed_over(entry))
				entry_set_state(entry, TURN_QUEUED);
		}
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
	Entry	   *next;

	show_up(bucket, hash);
	for (entry = queue_next_in_line(bucket, NULL, hash); entry != NULL; entry = next)
	{
		next = queue_next_in_line(bucket, entry, hash);
		if (entry->waiter == MY_PROC_NUMBER)
			return true;
		if (is_passed_over(entry) || waits_for_me(entry))
			continue;
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
			queue_wake(entry);
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
wait_take_turn(const text *resource)
{
	uint64		hash;
	TransactionId ended = InvalidTransactionId;

	if (!queue_attach())
		return true;
	hash = queue_hash(resource);
	if (!queue_may_have(hash))
		return true;

	RACE_POINT("before its turn");
	for (;;)
	{
		Bucket	   *bucket = queue_bucket(hash);
		TransactionId awaited = InvalidTransactionId;
		bool		mine;

		LWLockAcquire(&bucket->lock, LW_EXCLUSIVE);
		mine = may_take_turn(bucket, hash, ended, &awaited);
		LWLockRelease(&bucket->lock);
		queue_set_latches();

		if (!TransactionIdIsValid(awaited) || TransactionIdIsInProgress(awaited))
			return mine;
		ended = awaited;
	}
}

/* This waiter waits for a transaction. If its session is in the line, that goes first: see waits_for_me(). */
static void
wake_session_of(const Bucket *bucket, uint64 hash, TransactionId top)
{
	Entry	   *entry = NULL;

	while ((entry = queue_next_in_line(bucket, entry, hash)) != NULL)
		if (GetPGProcByNumber(entry->waiter)->xid == top)
			queue_wake(entry);
}

/*
 * One line of a waiter was refused. Returns true if the waiter has just stood
 * aside. It must look once more, since it was not woken for earlier changes.
 */
static bool
line_was_refused(Bucket *bucket, Entry *entry, const LineRefusal *refusal, bool goes_away, TransactionId top)
{
	TurnState	state = refusal->own_lease ? TURN_ASIDE : goes_away ? TURN_AWAY : TURN_QUEUED;
	bool		stands_aside = state == TURN_ASIDE && entry_state(entry) != TURN_ASIDE;

	entry->awaited = refusal->transaction;
	entry->known_end = refusal->known_end;
	entry_set_state(entry, state);
	if (TransactionIdIsValid(top))
		wake_session_of(bucket, entry->hash, top);
	if (stands_aside)
	{
		pg_atomic_write_u64(&queue_waiter(entry->waiter)->called_for, 0);
		call_first(bucket, entry->hash, 0);
	}
	return stands_aside;
}

/*
 * The waiter looked and was refused. It waits for its turn again, whatever its
 * state was, or in the lock manager if it goes away. Returns true if it must
 * look again first, because it was woken since the look.
 */
bool
turns_were_refused(Waiter *waiter, const LineRefusal *refusals, bool goes_away, uint32 news_seen)
{
	bool		look_again = false;

	for (int i = 0; i < waiter->info.nlines; i++)
	{
		Entry	   *entry = &waiter->entry[i];
		Bucket	   *bucket = queue_bucket(entry->hash);
		TransactionId top = InvalidTransactionId;

		if (TransactionIdIsValid(refusals[i].transaction))
			top = SubTransGetTopmostTransaction(refusals[i].transaction);
		LWLockAcquire(&bucket->lock, LW_EXCLUSIVE);
		if (pg_atomic_read_u32(&waiter->news) == news_seen)
			look_again |= line_was_refused(bucket, entry, &refusals[i], goes_away, top);
		LWLockRelease(&bucket->lock);
		queue_set_latches();
	}
	pg_atomic_write_u64(&waiter->called_for, 0);
	pg_memory_barrier();
	return look_again || pg_atomic_read_u32(&waiter->news) != news_seen;
}

/*
 * The wait in the lock manager has ended. From now on changes must wake the
 * waiter. If it was called because it was late, it stays called.
 */
void
turns_come_back(Waiter *waiter)
{
	Entry	   *entry = &waiter->entry[0];
	Bucket	   *bucket = queue_bucket(entry->hash);

	LWLockAcquire(&bucket->lock, LW_EXCLUSIVE);
	if (entry_state(entry) == TURN_AWAY)
		entry_set_state(entry, TURN_QUEUED);
	LWLockRelease(&bucket->lock);
}

/* The number of waiters before this entry, up to MAX_WATCH_FACTOR. */
static int
waiters_before(const Bucket *bucket, const Entry *own)
{
	Entry	   *entry = NULL;
	int			n = 0;

	while ((entry = queue_next_in_line(bucket, entry, own->hash)) != own && n < MAX_WATCH_FACTOR)
		n += !is_passed_over(entry);
	return n;
}

/*
 * Until when may this waiter sleep without a check of the first waiter of its
 * line? The second one checks often, and the others more rarely. So the line
 * moves on even if many are stopped, and a long line causes few wake-ups.
 */
int64
turns_next_watch(const Waiter *waiter)
{
	int			factor = 0;

	for (int i = 0; i < waiter->info.nlines; i++)
	{
		const Entry *own = &waiter->entry[i];
		Bucket	   *bucket = queue_bucket(own->hash);
		int			before = 0;

		LWLockAcquire(&bucket->lock, LW_SHARED);
		if (!is_passed_over(own))
			before = waiters_before(bucket, own);
		LWLockRelease(&bucket->lock);
		if (before > 0)
			factor = factor == 0 ? before : Min(factor, before);
	}
	return factor == 0 ? NEVER : clock_monotonic() + handoff_timeout * INT64CONST(1000) * factor;
}

/*
 * Has the first waiter in a line of this waiter not taken its turn in time?
 * Then this waiter must look.
 */
bool
turns_are_overdue(const Waiter *waiter)
{
	for (int i = 0; i < waiter->info.nlines; i++)
	{
		const Entry *own = &waiter->entry[i];
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

/*
 * When must the next waiter look, after this one has left? At once if this one
 * was called and has not looked since, or is granted something else than the
 * next one wants. Otherwise when this one would have had to look.
 */
static int64
handed_on(const Waiter *waiter, const Entry *entry, const Entry *next)
{
	const WaiterInfo *info;

	if (next == NULL || entry_state(entry) == TURN_CALLED)
		return 0;
	info = &queue_waiter(next->waiter)->info;
	return info->mode == waiter->info.mode && info->permits == waiter->info.permits ? entry->known_end : 0;
}

/*
 * Leave one line. A waiter that was first hands on what it knows. A grant of an
 * exclusive lease need not: its commit or rollback wakes the next one.
 */
static void
leave_line(const Waiter *waiter, Bucket *bucket, Entry *entry, bool granted)
{
	Entry	   *next;

	queue_take_out(bucket, entry);
	next = first_in_line(bucket, entry->hash);
	if (next != NULL && comes_before(next, entry) && !TransactionIdIsValid(next->awaited))
		return;					/* a session that it waits for may have passed over it, and waited for this one */
	if (!granted)
		call_first(bucket, entry->hash, handed_on(waiter, entry, next));
	else if (waiter->info.mode != MODE_EXCLUSIVE)
		call_first(bucket, entry->hash, 0);
}

/*
 * Leave all lines, with the lease on the resource with this hash, or with none
 * if that is 0. Returns since when the lease was free, as far as the waiter
 * knows, on the monotonic clock; else 0.
 */
int64
turns_leave(Waiter *waiter, uint64 granted)
{
	int64		now = clock_monotonic();
	int64		free_since = 0;

	RACE_POINT("before a waiter leaves");
	for (int i = 0; i < waiter->info.nlines; i++)
	{
		Entry	   *entry = &waiter->entry[i];
		Bucket	   *bucket = queue_bucket(entry->hash);

		LWLockAcquire(&bucket->lock, LW_EXCLUSIVE);
		leave_line(waiter, bucket, entry, entry->hash == granted);
		if (entry->hash == granted)
		{
			free_since = entry->known_end <= now ? entry->known_end : 0;
			if (entry_state(entry) == TURN_CALLED && (free_since == 0 || entry->called_at < free_since))
				free_since = entry->called_at;
		}
		LWLockRelease(&bucket->lock);
		queue_set_latches();
	}
	queue_leave(waiter);
	return free_since;
}
