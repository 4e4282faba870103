/*-------------------------------------------------------------------------
 *
 * turns.c
 *		Turns of waiters: which waiter may take a lease.
 *
 * For each resource, waiters are served in the order of arrival: a free lease
 * goes only to the first waiter of its line. src/README.md has a table of the
 * states. wake.c explains why no wake-up is lost.
 *
 * Why a stopped waiter does not block the others. A waiter behind others looks
 * after handoff_timeout for each of them, at most eight (next_line_check). If
 * it finds the lease free, it skips a first waiter that was called longer than
 * handoff_timeout ago, or has slept past its alarm by more than that
 * (take_turn). A waiter that leaves behind a waiter that was called so long ago
 * wakes the next one. A waiter that is away keeps its turn while that
 * transaction runs.
 *
 * What a waiter for several resources knows. Each entry has its own state,
 * transaction and known_end. It may be called in several. It takes the first
 * lease that it may have, and leaves all lines; in each of them the rule above
 * holds. The lock manager waits for one transaction only. So it sleeps in the
 * queue, and while transactions are among its obstacles it looks every second.
 * So does one for a permit with several obstacles, or with resources that it
 * has no entry for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "access/xact.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/guc.h"

#include "wait/queue.h"

/* Two waiters that know the end of the same lease differ by less, in microseconds. */
#define ALARM_SLACK 1000

/* A waiter checks its line after as many times handoff_timeout as there are waiters before it. */
#define MAX_CHECK_FACTOR 8

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

/* Do others go first? */
static bool
is_passed_over(const Entry *entry)
{
	return entry_state(entry) == TURN_ASIDE || entry_state(entry) == TURN_SKIPPED;
}

/*
 * The next waiter of a line that is not passed over; after NULL, the first one.
 * Here and below, the caller holds the bucket's lock.
 */
static Entry *
next_not_passed(Entry *entry, Line line)
{
	while ((entry = queue_next_in_line(entry, line)) != NULL && is_passed_over(entry))
		;
	return entry;
}

static MonotonicTime
alarm_of(const Entry *entry)
{
	return queue_alarm(queue_waiter(entry->waiter));
}

static void
call(Entry *entry)
{
	if (entry_state(entry) != TURN_CALLED)
	{
		entry->called_at = clock_monotonic();
		pg_atomic_write_u32(&entry->state, TURN_CALLED);
	}
}

/*
 * Note a wake-up of the sessions in the line that run this transaction or, if
 * it is invalid, any transaction. They go before waiters that wait for it: see
 * waits_for_me().
 */
static void
note_sessions_wakeup(Line line, TransactionId top)
{
	Entry	   *entry = NULL;

	while ((entry = queue_next_in_line(entry, line)) != NULL)
	{
		TransactionId xid = GetPGProcByNumber(entry->waiter)->xid;

		if (TransactionIdIsValid(xid) && (xid == top || !TransactionIdIsValid(top)))
			queue_note_wakeup(entry);
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
call_first(Line line, MonotonicTime free_at)
{
	Entry	   *entry = NULL;

	while ((entry = queue_next_in_line(entry, line)) != NULL && is_passed_over(entry))
		if (entry->waiter != MY_PROC_NUMBER)
			queue_note_wakeup(entry);

	if (entry == NULL)
		return;
	if (entry_state(entry) != TURN_AWAY)	/* else it looks when its wait ends */
		entry->known_end = mono_min(entry->known_end, free_at);
	if (entry->waiter == MY_PROC_NUMBER)
		return;					/* we know of our own change, and hand it on when we leave */
	if (entry_state(entry) != TURN_AWAY && mono_between(free_at, alarm_of(entry)) > ALARM_SLACK)
	{
		call(entry);
		queue_note_wakeup(entry);
		return;
	}
	if (TransactionIdIsValid(entry->awaited))
		note_sessions_wakeup(line, InvalidTransactionId);
}

/*
 * Has this waiter not looked in time? It must look when it is called, and at
 * the time of its alarm, since nobody calls it when a lease expires.
 */
static bool
is_overdue(const Entry *entry)
{
	MonotonicTime due = entry_state(entry) == TURN_CALLED ? entry->called_at : alarm_of(entry);

	return mono_since(due) >= handoff_timeout * INT64CONST(1000);
}

/* Move an entry to the end of its line, and skip it until its waiter looks. */
static void
skip(Entry *entry)
{
	pg_atomic_write_u32(&entry->state, TURN_SKIPPED);
	if (entry->link.next == NOBODY)
		return;					/* it is the last one; queue_may_have() must not see the bucket
								 * empty */
	queue_take_out(entry);
	queue_append(entry);
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

/* Take the turn of this backend in a line, unless another waiter comes first: call that. */
static bool
take_turn(Line line)
{
	Entry	   *entry;
	Entry	   *next;

	for (entry = queue_next_in_line(NULL, line); entry != NULL; entry = next)
	{
		next = queue_next_in_line(entry, line);
		if (entry->waiter == MY_PROC_NUMBER)
		{
			/* It found the lease free, whoever else was told, and what it knew before. */
			if (!mono_has_come(entry->known_end))
				entry->known_end = AT_ONCE;
			if (is_passed_over(entry))
				pg_atomic_write_u32(&entry->state, TURN_QUEUED);
			return true;
		}
		if (is_passed_over(entry) || waits_for_me(entry))
			continue;
		if (is_overdue(entry))
		{
			skip(entry);
			continue;
		}

		if (entry_state(entry) == TURN_QUEUED)
		{
			call(entry);
			queue_note_wakeup(entry);
		}
		else if (entry_state(entry) == TURN_AWAY && !TransactionIdIsInProgress(entry->awaited))
			call(entry);		/* the lock manager wakes it */
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
	bool		mine;

	if (!attach_shared_area() || !queue_may_have(hash = queue_hash(resource)))
		return true;

	RACE_POINT("before its turn");
	queue_lock(hash);
	mine = take_turn(queue_find_line(hash, resource));
	queue_unlock_and_wake(hash);
	return mine;
}

/*
 * Until when may a waiter sleep? The second one checks often, the others more
 * rarely, so that few wake up.
 */
static MonotonicTime
next_line_check(const Entry *own)
{
	Entry	   *entry = NULL;
	int			before = 0;

	while ((entry = queue_next_in_line(entry, own->line)) != own && before < MAX_CHECK_FACTOR)
		before++;
	return before == 0 ? NEVER : mono_from_now(handoff_timeout * INT64CONST(1000) * before);
}

/*
 * The waiter looked for the lease of one of its lines, and was refused. It
 * waits for its turn again, whatever its state was, or in the lock manager.
 *
 * Returns until when it may sleep without a look that lets the line move on if
 * the first waiter is stopped; AT_ONCE if it must look again at once. So it must
 * if it was woken since it began to look, or has just stood aside, since it was
 * not woken for earlier changes.
 */
MonotonicTime
turns_were_refused(Waiter *waiter, int line, const Refusal *refusal, uint32 news_seen)
{
	Entry	   *entry = &waiter->entry[line];
	bool		awaits = TransactionIdIsValid(refusal->transaction);
	TurnState	state = refusal->own_lease ? TURN_ASIDE :
		awaits && waiter->info.nresources == 1 ? TURN_AWAY : TURN_QUEUED;
	/* may read from disk, so not under the lock */
	TransactionId top = awaits ? SubTransGetTopmostTransaction(refusal->transaction) :
		InvalidTransactionId;
	MonotonicTime check_by = AT_ONCE;

	queue_lock(entry->line.hash);
	if (pg_atomic_read_u32(&waiter->news) == news_seen)
	{
		bool		stands_aside = state == TURN_ASIDE && entry_state(entry) != TURN_ASIDE;
		bool		is_known = entry->awaited == refusal->transaction &&
			entry_state(entry) != TURN_CALLED;

		entry->awaited = refusal->transaction;
		/*
		 * A transaction may end at any time. A free lease belongs to waiters
		 * who hand on what they know.
		 */
		entry->known_end = refusal->open ? AT_ONCE : monotonic_time(refusal->held_until);
		pg_atomic_write_u32(&entry->state, state);
		if (awaits && !is_known)	/* else two waiters could keep each other awake */
			note_sessions_wakeup(entry->line, top);
		if (stands_aside)
			call_first(entry->line, AT_ONCE);
		check_by = stands_aside ? AT_ONCE : state == TURN_AWAY ? NEVER : next_line_check(entry);
	}
	else if (entry_state(entry) == TURN_CALLED)
		entry->called_at = clock_monotonic();	/* it has looked, and will look again */
	queue_unlock_and_wake(entry->line.hash);
	return check_by;
}

/*
 * If the first waiter of a line was called and has not looked in time, wake the
 * next one. It looks, and takes its turn if the lease is free.
 */
static void
wake_behind_late(Line line)
{
	Entry	   *entry = next_not_passed(NULL, line);
	bool		late = false;

	while (entry != NULL && entry_state(entry) == TURN_CALLED && is_overdue(entry))
	{
		late = true;
		entry = next_not_passed(entry, line);
	}
	if (late && entry != NULL && entry_state(entry) != TURN_AWAY)
	{
		entry->known_end = AT_ONCE;
		queue_note_wakeup(entry);
	}
}

/*
 * Leave one line. A waiter that was first hands on what it knows: when the next
 * one must look. That is at once if this one was called and has not looked
 * since, or is granted something, or wants something else than the next one.
 * An exclusive grant need not be handed on: its commit or rollback wakes the
 * next one.
 */
static void
leave_line(const Waiter *waiter, Entry *entry, bool granted)
{
	const WaiterInfo *info = &waiter->info;
	const WaiterInfo *wants;
	Entry	   *next;
	MonotonicTime free_at = AT_ONCE;

	queue_take_out(entry);
	if (granted && info->mode == MODE_EXCLUSIVE)
		return;
	wake_behind_late(entry->line);
	next = next_not_passed(NULL, entry->line);
	if (next != NULL)
	{
		if (entry_turn(next) < entry_turn(entry) && !TransactionIdIsValid(next->awaited))
			return;				/* a session that it waits for may have passed over it, and
								 * waited for this one */
		wants = &queue_waiter(next->waiter)->info;
		if (!granted && entry_state(entry) != TURN_CALLED && wants->mode == info->mode &&
			wants->permits == info->permits)
			free_at = entry->known_end;
	}
	call_first(entry->line, free_at);
}

/*
 * Leave all lines, with the lease on this resource, or with none if it is NULL.
 * Returns since when the lease was free, as far as the waiter knows, else NEVER.
 */
MonotonicTime
turns_leave(Waiter *waiter, const text *granted)
{
	MonotonicTime free_since = NEVER;

	RACE_POINT("before a waiter leaves");
	for (int i = 0; i < waiter->info.nlines; i++)
	{
		Entry	   *entry = &waiter->entry[i];
		bool		with_lease = granted != NULL && queue_is_entry_for(entry, granted);

		queue_lock(entry->line.hash);
		leave_line(waiter, entry, with_lease);
		if (with_lease)
		{
			if (!mono_equal(entry->known_end, AT_ONCE) && mono_has_come(entry->known_end))
				free_since = entry->known_end;
			if (entry_state(entry) == TURN_CALLED)
				free_since = mono_min(free_since, entry->called_at);
		}
		queue_unlock_and_wake(entry->line.hash);
	}
	pg_atomic_exchange_u64(&waiter->ticket, 0);
	return free_since;
}
