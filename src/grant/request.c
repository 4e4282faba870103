/*-------------------------------------------------------------------------
 *
 * acquire.c
 *		Acquiring leases: trying, waiting, any of several, all of several.
 *
 * What is in the way says where to wait: behind an open transaction in the
 * server's lock manager, where deadlocks are seen, and behind a lease in the
 * queue of wait.c. Either way the end of it is another try.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "tcop/pquery.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/subxact.h"
#include "grant/grant.h"
#include "purge/purge.h"
#include "monitor/stats.h"
#include "monitor/watches.h"
#include "rules/rules.h"
#include "wait/wait.h"

/*
 * Grant the first lease that can be had now, in the order given; the request
 * then names it. Never waits.
 */
static GrantOutcome
try_any(LeaseRequest *request, text **resources, int nresources)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	GrantOutcome outcome = (GrantOutcome) {.result = REFUSED_QUEUE, .held_until = DT_NOEND};
	TimestampTz held_until = DT_NOEND;
	bool		open = false;
	PurgePatience patience = {0};	/* with all of them together */

	for (int i = 0; i < nresources && outcome.result != GRANTED; i++)
	{
		request->resource = resources[i];
		do
			outcome = try_grant(store, request);
		while (outcome.result == REFUSED_BUSY && purge_is_brief(outcome.transaction, &patience));
		held_until = Min(held_until, outcome.held_until);
		open |= outcome.open || outcome.result == REFUSED_BUSY;
	}
	store_close(store);

	/* Of several, nobody in particular is in the way. */
	if (nresources > 1 && outcome.result != GRANTED)
		return (GrantOutcome) {.result = REFUSED_HELD, .held_until = held_until, .open = open};
	return outcome;
}

/* SubtransactionWork */
static bool
wait_for_obstacle(void *arg)
{
	TransactionId *transaction = arg;

	LockTimeout = wait_lock_limit();
	store_wait_for(*transaction);

	/* Time that ran out in the moment when the wait ended is told here, not later. */
	CHECK_FOR_INTERRUPTS();
	return false;
}

/*
 * The same, but for no longer than it is worth. The server's lock_timeout does
 * it, in a subtransaction of which nothing remains, neither the error nor the
 * row lock.
 */
static void
wait_for_transaction_in_time(TransactionId transaction)
{
	int			lock_timeout = LockTimeout;
	ErrorData  *error;

	wait_begin_lock();
	error = run_subtransaction(wait_for_obstacle, &transaction);
	LockTimeout = lock_timeout;
	wait_end_lock();

	if (error != NULL && error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(error);
}

/*
 * Grant the first lease that can be had, waiting for all of them for at most so
 * many microseconds, or for as long as it takes when that is negative. The
 * request then names it. Calls before_sleep, if given, each time that it is
 * going to wait.
 */
GrantOutcome
acquire_any(LeaseRequest *request, text **resources, int nresources, int64 wait, void (*before_sleep) (void))
{
	GrantOutcome outcome = try_any(request, resources, nresources);
	MemoryContext caller_context = CurrentMemoryContext;
	MemoryContext look_context;

	if (outcome.result == GRANTED)
		return outcome;
	if (wait == 0)
	{
		stats_count(STATS_REFUSED);
		return outcome;
	}

	/* A wait may be long; what a look needs must not add up. */
	look_context = AllocSetContextCreate(caller_context, "lease wait", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(look_context);

	announce_wanted(request, resources, nresources, before_sleep != NULL);
	wait_join(resources, nresources, request, wait);
	PG_TRY();
	{
		for (;;)
		{
			MemoryContextReset(look_context);
			EnsurePortalSnapshotExists();	/* before_sleep() may have dropped it */
			wait_begin_look();
			outcome = try_any(request, resources, nresources);
			if (outcome.result == GRANTED || wait_remaining() == 0)
				break;

			if (wait_is_long())
				check_deadlock();

			wait_stand_aside(outcome.own_lease);
			if (before_sleep != NULL)
				before_sleep();
			if (outcome.result == REFUSED_BUSY)
				wait_for_transaction_in_time(outcome.transaction);
			else
				wait_sleep(&outcome);
			wait_check_lock_timeout();
		}
	}
	PG_CATCH();
	{
		wait_leave(false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	wait_leave(outcome.result == GRANTED);
	announce_end();
	outcome.waited = true;
	if (outcome.result != GRANTED)
		stats_count(STATS_WAIT_TIMEOUTS);

	MemoryContextSwitchTo(caller_context);
	if (outcome.blocked_by != NULL)
		outcome.blocked_by = (text *) PG_DETOAST_DATUM_COPY(PointerGetDatum(outcome.blocked_by));
	MemoryContextDelete(look_context);
	return outcome;
}

/* Several leases that are granted together. */
typedef struct AllGrant
{
	LeaseRequest *request;
	text	  **resources;		/* in the order in which everybody takes them */
	int			nresources;
	int64		wait;
	bool		granted;
} AllGrant;

/* Let an exclusive lease that we have just been granted begin now. */
static void
restart_lease(LeaseStore *store, const LeaseRequest *request)
{
	Claim		claim = {.owner = request->owner};
	LeaseRows	rows;
	ClaimedLease claimed;
	Lease		lease;

	lock_resource(request->resource);
	store_look(store, request->resource, &rows);
	claimed = find_claimed(&rows, &claim, ACTION_PROLONG, clock_now());
	if (claimed.row == NULL)
		elog(ERROR, "lost a lease of the own transaction");
	lease = claimed.row->lease;
	lease.granted_at = clock_now();
	lease.expires_at = lease.granted_at + request->ttl;
	store_update(store, claimed.row, &lease);
	unlock_resource(request->resource);
}

/* SubtransactionWork: take one after the other. */
static bool
take_all(void *arg)
{
	AllGrant   *all = arg;
	int64		deadline = all->wait > 0 ? clock_monotonic() + all->wait : 0;
	int			nstale = 0;		/* so many have lost time while we waited */
	LeaseStore *store;

	for (int i = 0; i < all->nresources; i++)
	{
		int64		wait = all->wait > 0 ? Max(deadline - clock_monotonic(), 0) : all->wait;

		GrantOutcome outcome = acquire_any(all->request, &all->resources[i], 1, wait, NULL);

		if (outcome.result != GRANTED)
			return false;
		if (outcome.waited)
			nstale = i;
	}

	store = store_open(RowExclusiveLock);
	for (int i = 0; i < nstale; i++)
	{
		all->request->resource = all->resources[i];
		restart_lease(store, all->request);
	}
	store_close(store);
	all->granted = true;
	return true;
}

/* Does a look show that one of them cannot be had without waiting? */
static bool
one_is_taken(LeaseRequest *request, text **resources, int nresources)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	bool		taken = false;

	for (int i = 0; i < nresources && !taken; i++)
	{
		LeaseRows	rows;
		Decision	decision;

		store_look(store, resources[i], &rows);
		decision = decide(&rows, request, clock_now());
		taken = decision.verdict == VERDICT_REFUSE && rows.same_moment && !purge_has(decision.transaction);
	}
	store_close(store);
	return taken;
}

/*
 * Grant exclusive leases on all of these resources, or on none. They are
 * sorted, so that two who want some of the same wait for each other only
 * one way.
 */
bool
acquire_all(LeaseRequest *request, text **resources, int nresources, int64 wait)
{
	AllGrant	all = {request, resources, nresources, wait, false};
	ErrorData  *error;

	if (wait == 0 && one_is_taken(request, resources, nresources))
	{
		stats_count(STATS_REFUSED);
		return false;
	}

	error = run_subtransaction(take_all, &all);
	if (error != NULL)
		ReThrowError(error);
	return all.granted;
}
