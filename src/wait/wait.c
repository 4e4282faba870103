/*-------------------------------------------------------------------------
 *
 * wait.c
 *		Waiting for leases: the wait of this session.
 *
 * A waiter sleeps until something may have changed for it, and then tries
 * again. The refusal tells how long it may sleep. src/README.md explains where
 * it waits, and wake.c who wakes it.
 *
 * Without shared memory all waiters look again every lease_lock.poll_interval,
 * in no order.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/guc.h"

#include "monitor/monitor.h"
#include "wait/queue.h"

/* Longest time without a look, even without a wake-up. */
#define LONGEST_SLEEP	(30 * USECS_PER_SEC)

/*
 * How often to look again if wake-ups do not cover everything: some of several
 * resources are blocked by open transactions, or there are more resources than
 * lines for one waiter.
 */
#ifndef LEASE_LOCK_RACES
#define OPEN_INTERVAL	USECS_PER_SEC
#else
#define OPEN_INTERVAL	(3600 * USECS_PER_SEC)	/* would hide that a wake-up is lost */
#endif

static int	poll_interval = 100;

/* The wait of this session. */
static struct
{
	bool		active;
	Waiter	   *waiter;			/* NULL: this server has no queue */
	bool		looks;			/* it is trying to get the lease */
	MonotonicTime begun_at;
	MonotonicTime deadline;
	MonotonicTime lock_deadline;	/* of lock_timeout */
	MonotonicTime ends_at;		/* the earlier of both */
	MonotonicTime next_deadlock_check;	/* and next look without a wake-up */
	uint32		news_seen;		/* news counter before the last look */
	MonotonicTime next_line_check;	/* the line may need that look by then */
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
	wake_init();
}

static void
leave_at_exit(int code, Datum arg)
{
	wait_end(NULL);
}

/*
 * Look whether there can be a waiter for one of these resources already. Then a
 * caller that is ready to wait skips its first try outside the queue.
 */
bool
wait_look_for_others(text **resources, int nresources)
{
	bool		any = false;

	for (int i = 0; i < nresources && attach_shared_area() && !any; i++)
		any = queue_may_have(queue_hash(resources[i]));
	return any;
}

/* Was this waiter called for the only lease that it waits for? Then that is probably free. */
bool
wait_is_called(void)
{
	return my_wait.waiter != NULL && my_wait.waiter->info.nresources == 1 &&
		entry_state(&my_wait.waiter->entry[0]) == TURN_CALLED;
}

/*
 * Prepare a look: after a wake-up from now on, the waiter must not sleep. It
 * is not away any more.
 */
static void
begin_look(void)
{
	uint32		away = TURN_AWAY;

	my_wait.looks = true;
	my_wait.next_line_check = NEVER;
	if (my_wait.waiter == NULL)
		return;
	pg_atomic_compare_exchange_u32(&my_wait.waiter->entry[0].state, &away, TURN_QUEUED);
	queue_set_alarm(my_wait.waiter, NEVER);
	my_wait.news_seen = pg_atomic_read_u32(&my_wait.waiter->news);
	pg_memory_barrier();
}

/*
 * Begin to wait for any of these resources, for at most timeout microseconds,
 * or without limit if that is FOREVER.
 */
void
wait_begin(text **resources, int nresources, const LeaseRequest *request, int64 timeout)
{
	static bool leaves_at_exit = false;
	MonotonicTime now = clock_monotonic();

	if (my_wait.active)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("this session is already waiting for a lease"),
				 errhint("Wait for one lease at a time.")));

	memset(&my_wait, 0, sizeof(my_wait));
	my_wait.begun_at = now;
	my_wait.deadline = mono_add(now, timeout);
	my_wait.lock_deadline = mono_add(now,
									 LockTimeout > 0 ? LockTimeout * INT64CONST(1000) : FOREVER);
	my_wait.ends_at = mono_min(my_wait.deadline, my_wait.lock_deadline);
	my_wait.next_deadlock_check = mono_add(now, DeadlockTimeout * INT64CONST(1000));
	RACE_POINT("before a waiter joins");
	if (attach_shared_area())
	{
		stats_count(STATS_WAITS);
		if (!leaves_at_exit)
			before_shmem_exit(leave_at_exit, (Datum) 0);
		leaves_at_exit = true;
		my_wait.waiter = queue_join(resources, nresources, request, timeout);
	}
	my_wait.active = true;
	begin_look();
}

/* Note why the look at one of the resources did not get the lease. */
void
wait_note_refusal(int which, const Refusal *refusal)
{
	Waiter	   *waiter = my_wait.waiter;

	/* A trigger may try a lease when lease_wait() commits before it sleeps. */
	if (waiter == NULL || !my_wait.looks || which >= waiter->info.nlines)
		return;
	RACE_POINT("before a waiter tells its refusal");
	my_wait.next_line_check = mono_min(my_wait.next_line_check,
									   turns_were_refused(waiter, which, refusal,
														  my_wait.news_seen));
}

static void
lock_table_in_manager(void *relid)
{
	store_lock_table(*(Oid *) relid);
}

/*
 * Open the lock table for writing. A waiter does not wait for a session that
 * alters or maintains the table longer than for the lease; NULL if the time is
 * over. Then the lock may have been granted at that moment, and stays until the
 * transaction ends.
 */
LeaseStore *
wait_open_store(void)
{
	LeaseStore *store;
	Oid			relid;

	if (mono_equal(my_wait.ends_at, NEVER))
		return store_open(RowExclusiveLock);
	store = store_open_unless_locked(RowExclusiveLock);
	if (store != NULL)
		return store;
	relid = store_relid();
	if (!lock_wait_until(my_wait.ends_at, lock_table_in_manager, &relid))
		return NULL;
	store = store_open(RowExclusiveLock);
	UnlockRelationOid(relid, RowExclusiveLock);
	return store;
}

static void
lock_in_manager(void *resource)
{
	lock_resource(resource);
}

/*
 * Lock a resource. A waiter does not wait for that lock longer than for the
 * lease: its holder may be stopped. Returns false if the time is over.
 */
bool
wait_lock_resource(const text *resource)
{
	MonotonicTime until = my_wait.active ? my_wait.ends_at : NEVER;

	if (!mono_equal(until, NEVER))
		return try_lock_resource(resource) ||
			lock_wait_until(until, lock_in_manager, unconstify(text *, resource));
	lock_resource(resource);
	return true;
}

/* Fail if the whole wait has been longer than lock_timeout. */
static void
check_lock_timeout(void)
{
	if (mono_has_come(my_wait.lock_deadline))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("canceling statement due to lock timeout")));
}

/*
 * Begin a check for a deadlock if it is time; else returns false. The intervals
 * grow; another waiter can ask for a check at once.
 */
static bool
begin_deadlock_check(void)
{
	bool		is_suspect = pg_atomic_exchange_u32(&my_wait.waiter->suspect, 0) != 0;

	if (!mono_has_come(my_wait.next_deadlock_check))
		return is_suspect;
	my_wait.next_deadlock_check =
		mono_from_now(Min(mono_since(my_wait.begun_at) + DeadlockTimeout * INT64CONST(1000),
						  LONGEST_SLEEP));
	return true;
}

/* Sleep until it makes sense to look again: when the obstacle ends, or earlier. */
static void
sleep_behind_lease(const Refusal *refusal)
{
	Waiter	   *waiter = my_wait.waiter;
	MonotonicTime until = mono_min(my_wait.ends_at, monotonic_time(refusal->held_until));

	Assert(refusal->held_until != DT_NOBEGIN);
	if (waiter == NULL)
	{
		sleep_until(mono_min(until, mono_from_now(poll_interval * INT64CONST(1000))));
		return;
	}

	until = mono_min(until, my_wait.next_deadlock_check);
	if (refusal->open || waiter->info.nlines < waiter->info.nresources)
		until = mono_min(until, mono_from_now(OPEN_INTERVAL));
	queue_set_alarm(waiter, until);
	until = mono_min(until, my_wait.next_line_check); /* such a look is no duty */
	RACE_POINT("before a waiter sleeps");
	while (pg_atomic_read_u32(&waiter->news) == my_wait.news_seen && !mono_has_come(until))
		sleep_until(until);
}

static void
wait_in_lock_manager(void *transaction)
{
	store_wait_for(*(const TransactionId *) transaction);
}

/*
 * Wait in the lock manager until the conflicting transaction has ended, or
 * until it is time to check for a deadlock that the server cannot see. The
 * server always gets to check first. If the lock is granted when the time is
 * over, we keep it. That harms nobody: who held it has ended.
 */
static void
wait_behind_transaction(const Refusal *refusal)
{
	TransactionId transaction = refusal->transaction;
	MonotonicTime check = mono_max(my_wait.next_deadlock_check,
								   mono_from_now(DeadlockTimeout * INT64CONST(2000)));

	RACE_POINT("before a waiter is away");
	lock_wait_until(mono_min(my_wait.ends_at, check), wait_in_lock_manager, &transaction);
	check_client();
}

/* May the wait go on after a refusal? False if the time is over. */
bool
wait_may_go_on(void)
{
	Assert(my_wait.active);

	my_wait.looks = false;
	CHECK_FOR_INTERRUPTS();
	if (mono_has_come(my_wait.deadline))
		return false;
	check_lock_timeout();
	if (my_wait.waiter != NULL && pg_atomic_read_u32(&my_wait.waiter->news) != my_wait.news_seen)
		my_wait.next_line_check = AT_ONCE;
	return true;
}

/*
 * The waiter is about to commit. A commit may wait for a standby, or for a
 * lock. The leases that the waiter asks for do not keep it from its end.
 */
void
wait_begin_commit(void)
{
	if (my_wait.waiter != NULL)
		my_wait.waiter->commits = true;
}

void
wait_end_commit(void)
{
	if (my_wait.waiter != NULL)
		my_wait.waiter->commits = false;
}

/* Wait until the obstacle that refused a try may be gone. */
void
wait_sleep(const Refusal *refusal)
{
	if (mono_equal(my_wait.next_line_check, AT_ONCE))
		CHECK_FOR_INTERRUPTS();
	else if (TransactionIdIsValid(refusal->transaction))
		wait_behind_transaction(refusal);
	else
		sleep_behind_lease(refusal);
	check_lock_timeout();
}

/*
 * Prepare the look after a sleep. Fails if this backend is the victim of a
 * deadlock. That is checked before the look, since a look may call the waiter
 * that we wait for.
 */
void
wait_prepare_look(void)
{
	if (my_wait.waiter != NULL && begin_deadlock_check())
		check_deadlock();
	RACE_POINT("before a waiter comes back");
	begin_look();
}

/* End the wait, with the lease on this resource, or with none if it is NULL. */
void
wait_end(const text *granted)
{
	Waiter	   *waiter = my_wait.waiter;
	MonotonicTime free_since;

	my_wait.active = false;
	if (waiter == NULL)
		return;

	LWLockReleaseAll();			/* after an error, the lock of a line may still be held */
	free_since = turns_leave(waiter, granted);
	my_wait.waiter = NULL;

	stats_wait_ended(mono_since(my_wait.begun_at));
	if (!mono_equal(free_since, NEVER))
		stats_handed_off(mono_since(free_since));
}
