/*-------------------------------------------------------------------------
 *
 * lease.c
 *		The rules: given what is stored and what is asked, what happens.
 *
 * The store says what is committed now, plus what the own transaction did,
 * whatever snapshot the caller has. Every rule reads the clock after the last
 * thing it may have waited for, so that a lease is never judged, or dated, by
 * a time from before the wait.
 *
 * Strength of the row locks: a transaction that relies on its lease until it
 * ends (a pin) holds the row FOR KEY SHARE. Whatever ends or moves a lease
 * takes the row exclusively, so that it cannot pass a pin. A renewal
 * takes the weaker lock that passes: a heartbeat must go on beside a long
 * transaction of the same owner.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "tcop/pquery.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "wait.h"

static bool durable = true;
static int	purge_after = 60;

void
lease_init(void)
{
	DefineCustomBoolVariable("lease_lock.durable",
							 "Makes granted and renewed leases survive a crash, whatever synchronous_commit says.",
							 NULL,
							 &durable,
							 true,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("lease_lock.purge_after",
							"Time that released and expired leases are kept before lease_purge() removes them.",
							NULL,
							&purge_after,
							60, 0, INT_MAX,
							PGC_USERSET,
							GUC_UNIT_S,
							NULL, NULL, NULL);
}

static bool
is_owner(const Lease *lease, const text *owner)
{
	return lease->owner != NULL &&
		VARSIZE_ANY_EXHDR(lease->owner) == VARSIZE_ANY_EXHDR(owner) &&
		memcmp(VARDATA_ANY(lease->owner), VARDATA_ANY(owner), VARSIZE_ANY_EXHDR(owner)) == 0;
}

/* Was the lease, when it was last granted, granted to the one who is meant? */
static bool
is_claimed(const Lease *lease, const Claim *claim)
{
	return lease->owner != NULL &&
		(claim->owner == NULL || is_owner(lease, claim->owner)) &&
		(claim->token == NULL || lease->token == *claim->token);
}

static bool
is_held(const Lease *lease, TimestampTz now)
{
	return lease->owner != NULL && lease->expires_at > now;
}

/* May the current role act for the role that acquired the lease? */
static bool
may_act(const Lease *lease)
{
	return has_privs_of_role(GetUserId(), lease->holder);
}

/* The owner's name alone is not enough to act on somebody else's lease. */
static void
require_holder_privileges(const Lease *lease)
{
	const char *holder;

	if (may_act(lease))
		return;

	holder = GetUserNameFromId(lease->holder, true);
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for lease on \"%s\"", text_to_cstring(lease->resource)),
			 holder ? errdetail("It was acquired by role \"%s\".", holder) :
			 errdetail("It was acquired by a role that was dropped."),
			 holder ? errhint("Act as a role that has the privileges of that role.") :
			 errhint("Wait until it expires, or ask a superuser to release it.")));
}

/*
 * A lease that is lost in a crash after its holder was told has two owners.
 * The opposite does no harm: a lost release keeps a lease until it expires.
 */
static void
make_durable(void)
{
	if (durable)
		ForceSyncCommit();
}

typedef enum GrantResult
{
	GRANTED,
	REFUSED_HELD,				/* by somebody, until a time */
	REFUSED_BUSY,				/* an open transaction has it */
	REFUSED_QUEUE				/* free, but others have waited for longer */
} GrantResult;

typedef struct GrantOutcome
{
	GrantResult result;
	TimestampTz held_until;		/* DT_NOEND unless REFUSED_HELD */
} GrantOutcome;

/* What it takes to grant a lease anew: a pin on one that was released protects nothing. */
static LockTupleMode
grant_lock(const Lease *lease)
{
	return lease->owner == NULL ? LockTupleNoKeyExclusive : LockTupleExclusive;
}

/*
 * Grant the lease unless somebody holds it. Never waits: what an open
 * transaction is changing counts as held.
 */
static GrantOutcome
try_grant(text *resource, int64 ttl, text *owner)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	GrantOutcome outcome = {REFUSED_BUSY, DT_NOEND};
	Lease		lease = {
		.resource = resource,
		.slot = EXCLUSIVE_SLOT,
		.owner = owner,
		.holder = GetUserId()
	};

	for (;;)
	{
		ProbeResult found = store_probe(store, resource, EXCLUSIVE_SLOT);

		CHECK_FOR_INTERRUPTS();

		if (found == PROBE_BUSY)
			break;
		if (found == PROBE_FOUND && is_held(&store->lease, clock_now()))
		{
			outcome = (GrantOutcome) {REFUSED_HELD, store->lease.expires_at};
			break;
		}
		if (!wait_is_my_turn(resource))
		{
			outcome.result = REFUSED_QUEUE;
			break;
		}

		if (found == PROBE_FOUND)
		{
			RowLockResult locked = store_lock_row(store, grant_lock(&store->lease), LockWaitSkip);

			if (locked == ROW_BUSY)
				break;
			if (locked == ROW_GONE)
				continue;
		}

		lease.xid = GetTopFullTransactionId();
		lease.token = store_next_token(store);
		if (found == PROBE_FOUND && lease.token <= store->lease.token)
			store_refuse_token(store);
		lease.granted_at = clock_now();
		lease.expires_at = lease.granted_at + ttl;

		if (found == PROBE_FOUND)
			store_update(store, &lease);
		else if (!store_insert(store, &lease))
			continue;

		pin_forget(resource);
		wait_note_change(resource, lease.expires_at);
		make_durable();
		outcome.result = GRANTED;
		break;
	}

	store_close(store);
	return outcome;
}

/*
 * Wait in the lock manager for the open transaction that has the lease. When
 * it has changed the lease, no table lock or snapshot of ours is held on to.
 */
static void
wait_for_transaction(text *resource)
{
	bool		needs_snapshot = !ActiveSnapshotSet();
	LeaseStore *store;
	ProbeResult found;
	BusyRow		busy;

	if (needs_snapshot)
		PushActiveSnapshot(GetTransactionSnapshot());

	store = store_open(RowExclusiveLock);
	found = store_probe(store, resource, EXCLUSIVE_SLOT);
	busy = store->busy;
	if (found == PROBE_FOUND && !is_held(&store->lease, clock_now()))
		store_lock_row(store, grant_lock(&store->lease), LockWaitBlock);
	store_close(store);

	if (needs_snapshot)
		PopActiveSnapshot();

	if (found == PROBE_BUSY)
		store_wait(busy);
}

/*
 * The same, but for no longer than it is worth. The server's lock_timeout does
 * it, in a subtransaction of which nothing remains, neither the error nor the
 * row lock.
 */
static void
wait_for_transaction_in_time(text *resource)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int			lock_timeout = LockTimeout;
	ErrorData  *volatile error = NULL;

	wait_begin_lock();
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		LockTimeout = wait_lock_limit();
		wait_for_transaction(resource);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	LockTimeout = lock_timeout;
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	wait_end_lock();

	if (error != NULL && error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(error);
}

/*
 * Grant the lease, waiting for it for at most so many microseconds, or for as
 * long as it takes when that is negative. Calls before_sleep, if given, each
 * time that it is going to wait.
 */
bool
acquire_lease(text *resource, int64 ttl, text *owner, int64 wait, void (*before_sleep) (void))
{
	GrantOutcome outcome = try_grant(resource, ttl, owner);
	MemoryContext caller_context = CurrentMemoryContext;
	MemoryContext look_context;

	if (outcome.result == GRANTED || wait == 0)
		return outcome.result == GRANTED;

	/* A wait may be long; what a look needs must not add up. */
	look_context = AllocSetContextCreate(caller_context, "lease wait", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(look_context);

	wait_join(resource, owner, wait);
	PG_TRY();
	{
		for (;;)
		{
			MemoryContextReset(look_context);
			EnsurePortalSnapshotExists();	/* before_sleep() may have dropped it */
			wait_begin_look();
			outcome = try_grant(resource, ttl, owner);
			if (outcome.result == GRANTED || wait_remaining() == 0)
				break;

			if (wait_is_long())
				check_deadlock();

			if (before_sleep != NULL)
				before_sleep();
			if (outcome.result == REFUSED_BUSY)
				wait_for_transaction_in_time(resource);
			else
				wait_sleep(outcome.held_until);
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

	MemoryContextSwitchTo(caller_context);
	MemoryContextDelete(look_context);
	return outcome.result == GRANTED;
}

/* Turn the locked row into a tombstone. */
static void
end_lease(LeaseStore *store)
{
	Lease		lease = store->lease;

	lease.owner = NULL;
	lease.expires_at = Min(lease.expires_at, clock_now());
	pin_forget(lease.resource);
	wait_note_change(lease.resource, lease.expires_at);
	store_update(store, &lease);
}

/*
 * Stand on the row of a lease that the one who is meant took and has not
 * released, with the row locked; false when there is none. Waits for whoever
 * has the row.
 */
static bool
find_own_lease(LeaseStore *store, text *resource, const Claim *claim, LockTupleMode mode)
{
	if (!store_fetch(store, resource, EXCLUSIVE_SLOT) || !is_claimed(&store->lease, claim))
		return false;
	require_holder_privileges(&store->lease);

	if (store_lock_row(store, mode, LockWaitBlock) != ROW_LOCKED || !is_claimed(&store->lease, claim))
		return false;
	require_holder_privileges(&store->lease);	/* of whoever took it meanwhile */

	return true;
}

/*
 * Release the lease if the one who is meant was the last to take it, also when
 * its time ran out since. Waits for an open transaction that is changing it.
 */
bool
release_lease(text *resource, const Claim *claim)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	bool		released = find_own_lease(store, resource, claim, LockTupleExclusive);

	if (released)
		end_lease(store);

	store_close(store);
	return released;
}

/* StoreFilter: rows of the owner that arg points to. */
static bool
belongs_to(const Lease *lease, const void *arg)
{
	return is_owner(lease, arg);
}

/*
 * Release everything that this owner took; returns how many leases.
 *
 * Leases of roles that the caller may not act for are passed over: another
 * role that happens to use the same owner name must not spoil the rest.
 *
 * Reads the whole table. An index on the owner would make every grant and
 * release of every lease pay for it, none of them being in place any more.
 */
int64
release_all_leases(const text *owner)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	int64		released = 0;

	while (store_next(store, belongs_to, owner))
	{
		CHECK_FOR_INTERRUPTS();

		if (may_act(&store->lease) &&
			store_lock_row(store, LockTupleExclusive, LockWaitBlock) == ROW_LOCKED &&
			is_owner(&store->lease, owner) && may_act(&store->lease))
		{
			end_lease(store);
			released++;
		}
	}

	store_close(store);
	return released;
}

/*
 * Extend a held lease to at least ttl from now. Waits for an open transaction
 * that is changing it, but not for one that only relies on it.
 */
bool
renew_lease(text *resource, int64 ttl, const Claim *claim)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	bool		renewed = false;

	if (find_own_lease(store, resource, claim, LockTupleNoKeyExclusive))
	{
		TimestampTz now = clock_now();

		if (is_held(&store->lease, now))
		{
			Lease		lease = store->lease;

			lease.expires_at = Max(lease.expires_at, now + ttl);
			wait_note_change(resource, lease.expires_at);
			store_update(store, &lease);
			make_durable();
			renewed = true;
		}
	}

	store_close(store);
	return renewed;
}

/* Say who has the lease that was claimed, as far as the caller may know. */
static char *
describe_holder(const Lease *lease, const Claim *claim, TimestampTz now)
{
	double		seconds = fabs((double) (lease->expires_at - now)) / USECS_PER_SEC;

	if (lease->owner == NULL)
		return pstrdup("Nobody holds it.");
	if (!is_held(lease, now))
		return is_claimed(lease, claim) ?
			psprintf("It expired %.3f seconds ago.", seconds) :
			psprintf("Nobody holds it: the lease of another one expired %.3f seconds ago.", seconds);
	if (claim->owner != NULL && is_owner(lease, claim->owner))
		return psprintf("That owner holds it with token " INT64_FORMAT " for another %.3f seconds.",
						lease->token, seconds);
	if (may_act(lease))
		return psprintf("Owner \"%s\" holds it with token " INT64_FORMAT " for another %.3f seconds.",
						text_to_cstring(lease->owner), lease->token, seconds);
	return psprintf("Another owner holds it for another %.3f seconds.", seconds);
}

/* End an assertion. No lease at all: the resource has no row. */
static void
refuse_assertion(const text *resource, const Claim *claim, const Lease *lease, TimestampTz now)
{
	char	   *name = text_to_cstring(resource);

	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 claim->owner == NULL ?
			 errmsg("lease on \"%s\" with token " INT64_FORMAT " is not held", name, *claim->token) :
			 claim->token == NULL ?
			 errmsg("lease on \"%s\" is not held by owner \"%s\"", name, text_to_cstring(claim->owner)) :
			 errmsg("lease on \"%s\" is not held by owner \"%s\" with token " INT64_FORMAT,
					name, text_to_cstring(claim->owner), *claim->token),
			 errdetail_internal("%s", lease ? describe_holder(lease, claim, now) : "Nobody holds it."),
			 errhint("Acquire it with lease_acquire() and do the work again from the start: "
					 "what it is about may have changed.")));
}

/*
 * May the current transaction rely on a lease that the role acquired? A
 * cascade of a foreign key runs as the owner of the table and a function may
 * run as its definer: there the role that the session acts as counts, too.
 */
static bool
may_rely(const Lease *lease, AssertRole role)
{
	return may_act(lease) ||
		(role == ASSERT_AS_SESSION && has_privs_of_role(GetOuterUserId(), lease->holder));
}

/*
 * Make sure that the lease is held by the one who is meant, and pin it: until
 * the transaction ends nobody can take it away, even when its time runs out.
 * Returns the token. Waits for an open transaction that is ending or moving the
 * lease, but not for a renewal.
 *
 * The version that is judged may be older than that of an open renewal. That is
 * the right one, since the renewal may be rolled back, and it only errs on the
 * safe side; the row lock goes to both.
 */
int64
assert_lease(text *resource, const Claim *claim, AssertRole role)
{
	const Lease *pinned = pin_find(resource);
	LeaseStore *store;
	int64		token;

	if (pinned != NULL && is_claimed(pinned, claim))
	{
		if (!may_rely(pinned, role))
			require_holder_privileges(pinned);
		return pinned->token;
	}

	store = store_open(RowShareLock);
	for (;;)
	{
		TimestampTz now;
		RowLockResult locked;

		CHECK_FOR_INTERRUPTS();

		if (!store_fetch(store, resource, EXCLUSIVE_SLOT))
			refuse_assertion(resource, claim, NULL, 0);

		now = clock_now();
		if (!is_claimed(&store->lease, claim) || !is_held(&store->lease, now))
			refuse_assertion(resource, claim, &store->lease, now);
		if (!may_rely(&store->lease, role))
			require_holder_privileges(&store->lease);

		locked = store_lock_row(store, LockTupleKeyShare, LockWaitBlock);
		if (locked == ROW_GONE)
			continue;			/* there may be another row */

		now = clock_now();
		if (!is_claimed(&store->lease, claim) || !is_held(&store->lease, now))
			refuse_assertion(resource, claim, &store->lease, now);
		if (!may_rely(&store->lease, role))
			require_holder_privileges(&store->lease);
		break;
	}

	token = store->lease.token;
	pin_remember(&store->lease);
	store_close(store);
	return token;
}

/*
 * Stand on the lease that somebody holds on the resource, as far as committed;
 * false when nobody does.
 */
bool
current_holder(LeaseStore *store, const text *resource)
{
	return store_fetch(store, resource, EXCLUSIVE_SLOT) && is_held(&store->lease, clock_now());
}

/* List who waits in this database, and for what. */
List *
blocked_waiters(void)
{
	List	   *waiters = wait_list();
	List	   *blocked = NIL;
	LeaseStore *store = store_open(AccessShareLock);
	ListCell   *cell;

	foreach(cell, waiters)
	{
		Waiter	   *waiter = lfirst(cell);
		text	   *resource = cstring_to_text_with_len(waiter->resource, waiter->resource_length);
		BlockedWaiter *b = palloc0(sizeof(BlockedWaiter));
		ListCell   *other;

		b->waiter = waiter;
		foreach(other, blocked)
		{
			BlockedWaiter *earlier = lfirst(other);

			if (earlier->waiter->hash == waiter->hash)
				b->position = earlier->position;
		}
		b->position++;

		if (store_probe(store, resource, EXCLUSIVE_SLOT) == PROBE_BUSY)
			b->busy_xid = store->busy.xid;
		if (current_holder(store, resource))
		{
			b->holder_owner = (text *) PG_DETOAST_DATUM_COPY(PointerGetDatum(store->lease.owner));
			b->holder_role = store->lease.holder;
		}
		blocked = lappend(blocked, b);
	}
	store_close(store);
	return blocked;
}

/* Get the token of a lease that this owner holds; false when it does not. */
bool
held_token(text *resource, const text *owner, int64 *token)
{
	LeaseStore *store = store_open(AccessShareLock);
	bool		held;

	held = current_holder(store, resource) && is_owner(&store->lease, owner);
	if (held)
		*token = store->lease.token;

	store_close(store);
	return held;
}

/* StoreFilter: what was released or expired before the time arg points to. */
static bool
ended_before(const Lease *lease, const void *arg)
{
	return lease->expires_at <= *(const TimestampTz *) arg;
}

/*
 * Remove what ended at least lease_lock.purge_after ago; returns how many
 * rows. Never waits: what somebody has locked is left for the next time.
 */
int64
purge_leases(void)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	TimestampTz limit = clock_now() - purge_after * USECS_PER_SEC;
	int64		purged = 0;

	while (store_next(store, ended_before, &limit))
	{
		CHECK_FOR_INTERRUPTS();

		if (store_lock_row(store, LockTupleExclusive, LockWaitSkip) == ROW_LOCKED)
		{
			pin_forget(store->lease.resource);
			store_delete(store);
			purged++;
		}
	}

	store_close(store);
	return purged;
}
