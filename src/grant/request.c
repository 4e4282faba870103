/*-------------------------------------------------------------------------
 *
 * request.c
 *		Acquiring leases: trying, waiting, any of several, all of several.
 *
 * What is in the way says where to wait: behind an open transaction in the
 * server's lock manager, where deadlocks are seen, and behind a lease in the
 * queue. Either way the end of it is another try: see wait.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
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

/* Wait for the first lease that can be had. */
static GrantOutcome
wait_in_turn(LeaseRequest *request, text **resources, int nresources, int64 wait, void (*before_sleep) (void))
{
	MemoryContext caller_context = CurrentMemoryContext;
	MemoryContext look_context;
	GrantOutcome outcome;

	/* A wait may be long; what a look needs must not add up. */
	look_context = AllocSetContextCreate(caller_context, "lease wait", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(look_context);

	wait_begin(resources, nresources, request, wait, before_sleep);
	PG_TRY();
	{
		do
		{
			MemoryContextReset(look_context);
			EnsurePortalSnapshotExists();	/* before_sleep() may have dropped it */
			outcome = try_any(request, resources, nresources);
		} while (outcome.result != GRANTED && wait_for(&outcome));
	}
	PG_CATCH();
	{
		wait_end(NULL);
		PG_RE_THROW();
	}
	PG_END_TRY();
	wait_end(outcome.result == GRANTED ? request->resource : NULL);
	outcome.waited = true;
	if (outcome.result != GRANTED)
		stats_count(STATS_WAIT_TIMEOUTS);

	MemoryContextSwitchTo(caller_context);
	if (outcome.blocked_by != NULL)
		outcome.blocked_by = (text *) PG_DETOAST_DATUM_COPY(PointerGetDatum(outcome.blocked_by));
	MemoryContextDelete(look_context);
	return outcome;
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
	GrantOutcome outcome;

	/* Behind others there is nothing to be had without a wait. */
	if (wait == 0 || !wait_is_likely(resources, nresources))
	{
		outcome = try_any(request, resources, nresources);
		if (outcome.result == GRANTED)
			return outcome;
	}
	if (wait == 0)
	{
		stats_count(STATS_REFUSED);
		return outcome;
	}
	return wait_in_turn(request, resources, nresources, wait, before_sleep);
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
