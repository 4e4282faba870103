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

#include "base/compat.h"
#include "purge/purge.h"
#include "monitor/stats.h"
#include "wait/wait.h"

/*
 * Was it only the purge worker that was in the way? Then it has waited for a
 * moment: nobody has the lease, and nobody is to be refused because of it.
 */
static bool
purge_was_in_the_way(LeaseStore *store, const LeaseRequest *request, const GrantOutcome *outcome,
					 PurgePatience *patience)
{
	BusyRow		busy = outcome->busy;

	if (outcome->result != REFUSED_BUSY)
		return false;
	if (!TransactionIdIsValid(busy.xid) &&
		store_probe(store, request->resource, outcome->locked_slot) == PROBE_BUSY)
		busy = store->busy;
	return TransactionIdIsValid(busy.xid) && purge_is_brief(busy.xid, patience);
}

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
		while (purge_was_in_the_way(store, request, &outcome, &patience));
		held_until = Min(held_until, outcome.held_until);
		open |= outcome.open || outcome.result == REFUSED_BUSY;
	}
	store_close(store);

	/* Of several, nobody in particular is in the way. */
	if (nresources > 1 && outcome.result != GRANTED)
		return (GrantOutcome) {.result = REFUSED_HELD, .held_until = held_until, .open = open};
	return outcome;
}

/*
 * Wait in the lock manager for whoever has what was in the way. No table lock
 * or snapshot of ours is held on to while a transaction changes the lease.
 */
static void
wait_for_transaction(const LeaseRequest *request, const GrantOutcome *outcome)
{
	bool		needs_snapshot = !ActiveSnapshotSet();
	LeaseStore *store;

	if (TransactionIdIsValid(outcome->busy.xid))
	{
		store_wait(outcome->busy);
		return;
	}
	if (outcome->name_in_use)
	{
		wait_for_name(request);
		return;
	}

	if (needs_snapshot)
		PushActiveSnapshot(GetTransactionSnapshot());
	store = store_open(RowExclusiveLock);
	if (store_fetch(store, request->resource, outcome->locked_slot) &&
		(!is_held(&store->lease, clock_now()) || is_owner(&store->lease, request->owner)))
		store_lock_row(store, outcome->lock_mode, LockWaitBlock);
	store_close(store);
	if (needs_snapshot)
		PopActiveSnapshot();
}

/* What a transaction has that is in the way. */
typedef struct Obstacle
{
	const LeaseRequest *request;
	const GrantOutcome *outcome;
} Obstacle;

/* SubtransactionWork */
static bool
wait_for_obstacle(void *arg)
{
	Obstacle   *obstacle = arg;

	LockTimeout = wait_lock_limit();
	wait_for_transaction(obstacle->request, obstacle->outcome);

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
wait_for_transaction_in_time(const LeaseRequest *request, const GrantOutcome *outcome)
{
	Obstacle	obstacle = {request, outcome};
	int			lock_timeout = LockTimeout;
	ErrorData  *error;

	wait_begin_lock();
	error = run_subtransaction(wait_for_obstacle, &obstacle);
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
				wait_for_transaction_in_time(request, &outcome);
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
	Lease		lease;

	if (!store_fetch(store, request->resource, GATE_SLOT))
		elog(ERROR, "lost a lease of the own transaction");

	lease = store->lease;
	lease.granted_at = clock_now();
	lease.expires_at = lease.granted_at + request->ttl;
	store_update(store, &lease);
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

/* Does a glance show that one of them cannot be had without waiting? */
static bool
one_is_taken(text **resources, int nresources)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	TimestampTz now = clock_now();
	bool		taken = false;

	for (int i = 0; i < nresources && !taken; i++)
	{
		ProbeResult found = store_probe(store, resources[i], GATE_SLOT);

		CHECK_FOR_INTERRUPTS();
		taken = (found == PROBE_BUSY && !purge_has(store->busy.xid)) || (found == PROBE_FOUND && !is_free(&store->lease, now));
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

	if (wait == 0 && one_is_taken(resources, nresources))
	{
		stats_count(STATS_REFUSED);
		return false;
	}

	error = run_subtransaction(take_all, &all);
	if (error != NULL)
		ReThrowError(error);
	return all.granted;
}
