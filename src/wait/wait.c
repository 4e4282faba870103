/*-------------------------------------------------------------------------
 *
 * wait.c
 *		Waiting for leases: the wait of this session.
 *
 * Behind a committed lease there is no transaction to wait for in the lock
 * manager: whoever took it may be gone. Such waiters stand in a queue in shared
 * memory (queue.c) and come in turn (turns.c). Behind an open transaction a
 * waiter waits in the lock manager (lockwait.c), and keeps its place.
 *
 * A waiter sleeps until something may have changed for it, then tries
 * again. What the try met says how long it may sleep; the queue never says who
 * holds a lease. So a wake-up too many costs a look, no more. What comes with no
 * wake-up at all, like an UPDATE of the lock table by hand, is found by looking
 * again, first after deadlock_timeout and then ever more rarely.
 *
 * Without shared memory everybody looks again every lease_lock.poll_interval, in no
 * order.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/guc.h"

#include "base/clock.h"
#include "base/compat.h"
#include "monitor/stats.h"
#include "wait/turns.h"

/* The longest a sleeper goes without looking again, wake-up or not. */
#define LONGEST_SLEEP	(30 * USECS_PER_SEC)

/*
 * How often to look again when no wake-up tells of everything: some of several
 * resources are had by open transactions, or there are more of them than lines
 * to stand in.
 */
#define OPEN_INTERVAL	USECS_PER_SEC

static int	poll_interval = 100;

/* The wait of this session. Times are of the monotonic clock. */
static struct
{
	bool		active;
	Waiter	   *waiter;			/* NULL: this server has no queue */
	bool		in_all_lines;	/* of its resources */
	const LeaseRequest *request;
	void		(*before_sleep) (void);
	int64		begun_at;
	int64		deadline;
	int64		lock_deadline;	/* of lock_timeout */
	int64		next_check;		/* when to look without a wake-up */
	int64		check_interval;
	int64		known_end;		/* of the lease seen in the last look; 0: unknown */
	uint32		news_seen;		/* before the last look */
}			my_wait;

void
wait_init(void)
{
	DefineCustomIntVariable("lease_lock.poll_interval",
							"Time between two looks at a lease when there is no wait queue.",
							"There is none before PostgreSQL 17 unless the library is preloaded.",
							&poll_interval,
							100, 1, INT_MAX,
							PGC_USERSET,
							GUC_UNIT_MS,
							NULL, NULL, NULL);
	queue_init();
	turns_init();
}

static void
leave_at_exit(int code, Datum arg)
{
	wait_end(NULL);
}

/*
 * Does somebody wait for one of these already? Then a caller that is ready to
 * wait saves the try that it would make before.
 */
bool
wait_is_likely(text **resources, int nresources)
{
	if (!queue_attach())
		return false;
	for (int i = 0; i < nresources; i++)
		if (queue_may_have(queue_hash(resources[i])))
			return true;
	return false;
}

/* About to look: what wakes us from now on must not let us sleep. */
static void
begin_look(void)
{
	turn_was_refused = false;
	if (my_wait.waiter != NULL)
	{
		pg_atomic_exchange_u64(&my_wait.waiter->alarm, NO_ALARM);
		my_wait.news_seen = pg_atomic_read_u32(&my_wait.waiter->news);
		pg_memory_barrier();
	}
}

static void
join_queue(text **resources, int nresources, int64 timeout)
{
	static bool leaves_at_exit = false;
	const LeaseRequest *request = my_wait.request;
	WaiterInfo *info = palloc0(sizeof(WaiterInfo));

	if (!leaves_at_exit)
	{
		before_shmem_exit(leave_at_exit, (Datum) 0);
		leaves_at_exit = true;
	}

	info->pid = MyProcPid;
	info->database = MyDatabaseId;
	info->role = GetUserId();
	info->since = clock_now();
	info->deadline = timeout < 0 ? DT_NOEND : info->since + timeout;
	info->mode = request->mode;
	info->permits = request->permits;
	info->owner_hash = hash_text(request->owner, 0);
	info->owner_length = VARSIZE_ANY_EXHDR(request->owner);
	memcpy(info->owner, VARDATA_ANY(request->owner), info->owner_length);
	info->nresources = nresources;
	if (nresources == 1)
	{
		info->hash = queue_hash(resources[0]);
		info->resource_length = VARSIZE_ANY_EXHDR(resources[0]);
		memcpy(info->resource, VARDATA_ANY(resources[0]), info->resource_length);
	}
	my_wait.waiter = queue_join(resources, nresources, info);
	my_wait.in_all_lines = queue_nlines(my_wait.waiter) == nresources;
	pfree(info);
}

/*
 * Begin to wait for any of these resources: for at most timeout microseconds,
 * or for ever when it is negative. before_sleep, if given, is called each time
 * that the session is going to wait. Must be followed by wait_end(), also on error.
 */
void
wait_begin(text **resources, int nresources, const LeaseRequest *request,
		   int64 timeout, void (*before_sleep) (void))
{
	bool		has_queue = queue_attach();
	int64		now = clock_monotonic();

	if (my_wait.active)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("this session is already waiting for a lease")));

	memset(&my_wait, 0, sizeof(my_wait));
	my_wait.request = request;
	my_wait.before_sleep = before_sleep;
	my_wait.begun_at = now;
	my_wait.deadline = timeout < 0 ? PG_INT64_MAX : now + timeout;
	my_wait.lock_deadline = LockTimeout > 0 ? now + LockTimeout * INT64CONST(1000) : PG_INT64_MAX;
	my_wait.check_interval = DeadlockTimeout * INT64CONST(1000);
	my_wait.next_check = now + my_wait.check_interval;
	my_wait.in_all_lines = true;
	if (has_queue)
	{
		stats_count(STATS_WAITS);
		join_queue(resources, nresources, timeout);
	}
	my_wait.active = true;
	begin_look();
}

/* Has the whole wait been longer than lock_timeout allows? */
static void
check_lock_timeout(void)
{
	if (clock_monotonic() >= my_wait.lock_deadline)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("canceling statement due to lock timeout")));
}

/*
 * Is it time to look whether the wait can ever end? Ever more rarely, and when
 * another waiter says so.
 */
static bool
is_time_to_check(void)
{
	bool		is_time = my_wait.waiter != NULL && pg_atomic_exchange_u32(&my_wait.waiter->suspect, 0) != 0;

	if (clock_monotonic() >= my_wait.next_check)
	{
		my_wait.check_interval = Min(my_wait.check_interval * 2, LONGEST_SLEEP);
		my_wait.next_check = clock_monotonic() + my_wait.check_interval;
		is_time = true;
	}
	return is_time;
}

/* Sleep until then, with news, or when somebody in front does not come. */
static void
sleep_in_queue(int64 until)
{
	pg_atomic_exchange_u64(&my_wait.waiter->alarm, (uint64) until);
	if (turns_were_refused(my_wait.waiter, my_wait.news_seen))
		return;

	for (;;)
	{
		bool		watches = turns_keeps_watch(my_wait.waiter);
		int64		now = clock_monotonic();

		if (now >= until || (watches && turns_are_overdue(my_wait.waiter)))
			return;
		sleep_until(watches ? Min(until, now + turns_handoff_timeout() * INT64CONST(1000)) : until);
		if (pg_atomic_read_u32(&my_wait.waiter->news) != my_wait.news_seen)
			return;
	}
}

/*
 * Sleep until then, or with news, while others come first. They do not have
 * to be told of what was changed before this waiter stood aside, so it looks once more.
 */
static void
sleep_aside(int64 until)
{
	if (turns_stand_aside(my_wait.waiter))
		return;
	while (pg_atomic_read_u32(&my_wait.waiter->news) == my_wait.news_seen && clock_monotonic() < until)
		sleep_until(until);
}

/* Sleep until it is worth to look again: when what refused us ends, or earlier. */
static void
sleep_behind_lease(const GrantOutcome *refusal)
{
	int64		now = clock_monotonic();
	int64		until = Min(Min(my_wait.deadline, my_wait.lock_deadline), my_wait.next_check);

	Assert(refusal->held_until != DT_NOBEGIN);
	my_wait.known_end = refusal->held_until == DT_NOEND ? 0 : now + (refusal->held_until - clock_now());
	if (my_wait.known_end != 0)
		until = Min(until, my_wait.known_end);
	if (refusal->open || !my_wait.in_all_lines)
		until = Min(until, now + OPEN_INTERVAL);

	if (my_wait.waiter == NULL)
		sleep_until(Min(until, now + poll_interval * INT64CONST(1000)));
	else if (refusal->own_lease)
		sleep_aside(until);
	else
		sleep_in_queue(until);
}

static void
wait_in_lock_manager(void *transaction)
{
	store_wait_for(*(const TransactionId *) transaction);
}

/* Our time was over in the moment when the transaction ended. */
static void
release_transaction_lock(TransactionId xid)
{
	LOCKTAG		tag;

	SET_LOCKTAG_TRANSACTION(tag, xid);
	if (TransactionIdIsValid(xid) && LockHeldByMe(&tag, ShareLock, false))
		LockRelease(&tag, ShareLock, false);
}

/*
 * Wait in the lock manager, until the transaction in the way has ended. Now and
 * then it is time to look for a deadlock that only we can see, but never before
 * the server has looked for those that it sees.
 */
static void
wait_behind_transaction(const GrantOutcome *refusal)
{
	TransactionId transaction = refusal->transaction;
	int64		check = Max(my_wait.next_check, clock_monotonic() + DeadlockTimeout * INT64CONST(2000));

	my_wait.known_end = 0;			/* may be changed by whom we wait for */
	if (my_wait.waiter != NULL)
	{
		if (refusal->own_lease)
			turns_stand_aside(my_wait.waiter);
		turns_go_away(my_wait.waiter, transaction);
	}
	if (!lock_wait_until(Min(Min(my_wait.deadline, my_wait.lock_deadline), check), wait_in_lock_manager, &transaction))
		release_transaction_lock(transaction);
	if (my_wait.waiter != NULL)
		turns_come_back(my_wait.waiter);

	check_client();
}

/*
 * Wait for what refused a try to go away; false when the time is over. A
 * refusal for want of a turn that was not refused means that the lease was lost in
 * that moment: look again.
 */
bool
wait_for(const GrantOutcome *refusal)
{
	Assert(my_wait.active && refusal->result != GRANTED);

	CHECK_FOR_INTERRUPTS();
	if (clock_monotonic() >= my_wait.deadline)
		return false;
	check_lock_timeout();

	if (is_time_to_check() && my_wait.waiter != NULL)
		check_deadlock(refusal);

	if (refusal->result != REFUSED_QUEUE || turn_was_refused || my_wait.waiter == NULL)
	{
		if (my_wait.before_sleep != NULL)
			my_wait.before_sleep();
		if (refusal->result == REFUSED_BUSY)
			wait_behind_transaction(refusal);
		else
			sleep_behind_lease(refusal);
		check_lock_timeout();
	}
	begin_look();
	return true;
}

/*
 * When did the lease that was just granted become free? When its release called
 * us, or when it expired; 0 when it is not known.
 */
static int64
free_since(int64 called_at, int64 now)
{
	int64		expired_at = my_wait.known_end <= now ? my_wait.known_end : 0;

	if (called_at == 0 || expired_at == 0)
		return Max(called_at, expired_at);
	return Min(called_at, expired_at);
}

/* End the wait: with the lease on this resource, or with none. */
void
wait_end(const text *granted)
{
	int64		now = clock_monotonic();
	Waiter	   *waiter = my_wait.waiter;
	Departure	departure = {.granted = granted != NULL, .known_end = my_wait.known_end};
	int64		since;

	my_wait.active = false;
	if (waiter == NULL)
		return;

	departure.shares = my_wait.request->mode != MODE_EXCLUSIVE;
	if (granted != NULL)
		departure.hash = queue_hash(granted);
	since = turns_leave(waiter, &departure);
	my_wait.waiter = NULL;

	stats_wait_ended(now - my_wait.begun_at);
	since = granted != NULL ? free_since(since, now) : 0;
	if (since != 0)
		stats_handed_off(now - since);
}
