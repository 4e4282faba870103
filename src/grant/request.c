/*-------------------------------------------------------------------------
 *
 * request.c
 *		Acquiring leases: trying, waiting, any of several, all of several.
 *
 * A request that may wait tries, waits and tries again, in turn with others.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "miscadmin.h"
#include "tcop/pquery.h"
#include "utils/memutils.h"

#include "grant/grant.h"
#include "hold/hold.h"
#include "monitor/monitor.h"
#include "purge/purge.h"
#include "rules/rules.h"
#include "wait/wait.h"

/*
 * Grant the first lease that is free now, in the given order, and close the
 * store. Never waits. Without a store, the lock table is locked by another session.
 */
static GrantOutcome
try_any(LeaseStore *store, const LeaseRequest *request, text **resources, int nresources)
{
	LeaseRequest one = *request;
	GrantOutcome outcome = {.granted = false};
	Refusal		any = {.held_until = DT_NOEND}; /* no single holder or transaction blocks the
												 * request */
	PurgePatience patience = {0};	/* shared by all resources */

	if (store == NULL)
		return (GrantOutcome) {
			.reason = REASON_OPEN,
			.resource = nresources == 1 ? resources[0] : NULL,
			.refusal = {.held_until = DT_NOEND, .open = true}
		};
	for (int i = 0; i < nresources && !outcome.granted; i++)
	{
		one.resource = resources[i];
		do
			outcome = try_grant(store, &one);
		while (TransactionIdIsValid(outcome.refusal.brief) &&
			   wait_for_purge(outcome.refusal.brief, &patience));
		outcome.resource = resources[i];
		if (!outcome.granted)
			wait_note_refusal(i, &outcome.refusal);
		any.held_until = Min(any.held_until, outcome.refusal.held_until);
		any.open |= outcome.refusal.open;
	}
	store_close(store);

	if (nresources > 1 && !outcome.granted)
		outcome = (GrantOutcome) {.refusal = any};
	return outcome;
}

/*
 * End the transaction, and its snapshot, before the session sleeps. The end of
 * the transaction also ends SET LOCAL ROLE. The lease would then go to another
 * role than the one that asked for it, but only if the call had to wait. So
 * that is an error.
 */
static void
commit_before_sleep(Oid role)
{
	wait_begin_commit();
	SPI_commit();
	wait_end_commit();
	PreventCommandIfReadOnly("lease_wait()");	/* each transaction of the call */
	PreventCommandDuringRecovery("lease_wait()");
	if (GetUserId() != role)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
				 errmsg("role changed while lease_wait() was waiting"),
				 errdetail("lease_wait() commits before it waits, which ends SET LOCAL ROLE."),
				 errhint("Use SET ROLE.")));
}

/* Wait until one of the leases can be granted. */
static GrantOutcome
wait_in_turn(const LeaseRequest *request, text **resources, int nresources, int64 wait,
			 WaitKind kind)
{
	Oid			role = GetUserId();
	MemoryContext caller_context = CurrentMemoryContext;
	MemoryContext look_context;
	const text *volatile granted = NULL;
	GrantOutcome outcome;

	/* A wait may be long: free the memory of each try. */
	look_context = AllocSetContextCreate(caller_context, "lease wait", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(look_context);

	wait_begin(resources, nresources, request, wait);
	PG_TRY();
	{
		RACE_POINT("after a waiter joined");
		while (!(outcome = try_any(wait_open_store(), request, resources, nresources)).granted &&
			   wait_may_go_on())
		{
			if (kind == WAIT_BETWEEN_TRANSACTIONS)
				commit_before_sleep(role);
			wait_sleep(&outcome.refusal);
			EnsurePortalSnapshotExists();	/* the commit dropped it */
			wait_prepare_look();
			MemoryContextReset(look_context);
		}
		if (outcome.granted)
			granted = outcome.resource;
	}
	PG_FINALLY();
	{
		wait_end(granted);
	}
	PG_END_TRY();
	outcome.waited = true;
	if (!outcome.granted)
		stats_count(STATS_WAIT_TIMEOUTS);

	MemoryContextSwitchTo(caller_context);
	if (outcome.refusal.blocked_by != NULL)
		outcome.refusal.blocked_by =
			(text *) PG_DETOAST_DATUM_COPY(PointerGetDatum(outcome.refusal.blocked_by));
	MemoryContextDelete(look_context);
	return outcome;
}

/*
 * Grant the first lease that becomes free. Waits for at most the given number
 * of microseconds, or without limit if that is FOREVER.
 */
GrantOutcome
acquire_any(const LeaseRequest *request, text **resources, int nresources, int64 wait,
			WaitKind kind)
{
	GrantOutcome outcome = {.granted = false};
	LeaseStore *store = NULL;

	/* If others wait already, go straight to the queue; also if the table is locked. */
	if (wait == 0)
		store = store_open(RowExclusiveLock);
	else if (!wait_look_for_others(resources, nresources))
		store = store_open_unless_locked(RowExclusiveLock);

	if (store != NULL)
		outcome = try_any(store, request, resources, nresources);
	if (outcome.granted)
		return outcome;
	if (wait == 0)
	{
		stats_count(STATS_REFUSED);
		return outcome;
	}
	return wait_in_turn(request, resources, nresources, wait, kind);
}

/* Several leases that are granted together. */
typedef struct AllGrant
{
	const LeaseRequest *request;
	text	  **resources;		/* sorted: all sessions use the same order */
	int			nresources;
	int64		wait;
} AllGrant;

/*
 * SubtransactionWork: acquire the leases one after the other. The ttl of all of
 * them begins when the last one is granted: those that were granted before a
 * wait are renewed after it.
 */
static bool
take_all(void *arg)
{
	AllGrant   *all = arg;
	MonotonicTime deadline = mono_from_now(all->wait);
	int			nstale = 0;		/* number of leases that were granted before the last wait */

	for (int i = 0; i < all->nresources; i++)
	{
		GrantOutcome outcome = acquire_any(all->request, &all->resources[i], 1,
										   mono_until(deadline), WAIT_INSIDE_TRANSACTION);

		if (!outcome.granted)
			return false;
		if (outcome.waited)
			nstale = i;
	}

	return renew_each(&(SeveralRenewals) {
		.action = {.verb = LEASE_RESTART, .claim = {.owner = all->request->owner},
				   .ttl = all->request->ttl},
		.resources = all->resources,
		.nresources = nstale
	});
}

/* Does a look show that one of the leases cannot be granted without waiting? */
static bool
one_is_taken(const LeaseRequest *request, text **resources, int nresources)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	bool		taken = false;

	for (int i = 0; i < nresources && !taken; i++)
	{
		LeaseRows	rows;
		Decision	decision;

		store_look(store, resources[i], &rows);
		decision = decide(&rows, request, clock_now());
		taken = decision.refused && rows.same_moment && !TransactionIdIsValid(purge_met(&rows));
	}
	store_close(store);
	return taken;
}

/*
 * Grant exclusive leases on all of these resources, or on none. The resources
 * are sorted, so that two such calls cannot deadlock with each other.
 */
bool
acquire_all(const LeaseRequest *request, text **resources, int nresources, int64 wait)
{
	AllGrant	all = {request, resources, nresources, wait};

	if (wait == 0 && one_is_taken(request, resources, nresources))
	{
		stats_count(STATS_REFUSED);
		return false;
	}

	return run_subtransaction(take_all, &all, NULL);
}
