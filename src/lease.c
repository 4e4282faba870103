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

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "compat.h"
#include "lease_lock.h"

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

/*
 * Grant the lease unless somebody holds it. Never waits: what an open
 * transaction is changing counts as held.
 */
bool
grant_lease(text *resource, int64 ttl, text *owner)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	Lease		lease = {
		.resource = resource,
		.slot = EXCLUSIVE_SLOT,
		.owner = owner,
		.holder = GetUserId()
	};
	bool		granted = false;

	while (!granted)
	{
		ProbeResult found = store_probe(store, resource, EXCLUSIVE_SLOT);

		CHECK_FOR_INTERRUPTS();

		if (found == PROBE_BUSY ||
			(found == PROBE_FOUND && is_held(&store->lease, clock_now())))
			break;

		if (found == PROBE_FOUND)
		{
			/* A pin on a row that was released protects nothing. */
			LockTupleMode mode = store->lease.owner == NULL ?
				LockTupleNoKeyExclusive : LockTupleExclusive;
			RowLockResult locked = store_lock_row(store, mode, LockWaitSkip);

			if (locked == ROW_BUSY)
				break;
			if (locked == ROW_GONE)
				continue;
		}

		lease.xid = GetTopFullTransactionId();
		lease.token = store_next_token(store);
		lease.granted_at = clock_now();
		lease.expires_at = lease.granted_at + ttl;

		if (found == PROBE_FOUND)
		{
			store_update(store, &lease);
			granted = true;
		}
		else
			granted = store_insert(store, &lease);
	}

	if (granted)
		make_durable();
	store_close(store);
	return granted;
}

/* Turn the locked row into a tombstone. */
static void
end_lease(LeaseStore *store)
{
	Lease		lease = store->lease;

	lease.owner = NULL;
	lease.expires_at = Min(lease.expires_at, clock_now());
	store_update(store, &lease);
}

/*
 * Stand on the row of a lease that this owner took and has not released, with
 * the row locked; false when there is none. Waits for whoever has the row.
 */
static bool
find_own_lease(LeaseStore *store, text *resource, const text *owner, LockTupleMode mode)
{
	if (!store_fetch(store, resource, EXCLUSIVE_SLOT) || !is_owner(&store->lease, owner))
		return false;
	require_holder_privileges(&store->lease);

	if (store_lock_row(store, mode, LockWaitBlock) != ROW_LOCKED || !is_owner(&store->lease, owner))
		return false;
	require_holder_privileges(&store->lease);	/* of whoever took it meanwhile */

	return true;
}

/*
 * Release the lease if this owner was the last to take it, also when its time
 * ran out since. Waits for an open transaction that is changing it.
 */
bool
release_lease(text *resource, const text *owner)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	bool		released = find_own_lease(store, resource, owner, LockTupleExclusive);

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
renew_lease(text *resource, int64 ttl, const text *owner)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	bool		renewed = false;

	if (find_own_lease(store, resource, owner, LockTupleNoKeyExclusive))
	{
		TimestampTz now = clock_now();

		if (is_held(&store->lease, now))
		{
			Lease		lease = store->lease;

			lease.expires_at = Max(lease.expires_at, now + ttl);
			store_update(store, &lease);
			make_durable();
			renewed = true;
		}
	}

	store_close(store);
	return renewed;
}

/* Get the token of a lease that this owner holds; false when it does not. */
bool
held_token(text *resource, const text *owner, int64 *token)
{
	LeaseStore *store = store_open(AccessShareLock);
	bool		held;

	held = store_fetch(store, resource, EXCLUSIVE_SLOT) &&
		is_owner(&store->lease, owner) &&
		is_held(&store->lease, clock_now());
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
			store_delete(store);
			purged++;
		}
	}

	store_close(store);
	return purged;
}
