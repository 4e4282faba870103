/*-------------------------------------------------------------------------
 *
 * release.c
 *		Releasing leases.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "base/assertion_cache.h"
#include "base/clock.h"
#include "base/compat.h"
#include "grant/durability.h"
#include "lease/lease.h"
#include "monitor/events.h"
#include "wait/wait.h"

/* Write a tombstone. With min_hold, it may be free only later. */
static void
end_lease(LeaseStore *store, const LeaseRow *row, TimestampTz now)
{
	Lease		lease = row->lease;

	note_release(&row->lease);
	make_tombstone(&lease, Max(now, lease.hold_until));
	forget_assertions(&lease);
	wait_note_change(lease.resource, lease.expires_at);
	store_update(store, row, &lease);
}

static void
count_down(LeaseStore *store, const LeaseRow *row)
{
	Lease		lease = row->lease;

	lease.holds--;
	store_update(store, row, &lease);
}

typedef enum ReleaseDepth
{
	RELEASE_ONE_HOLD,			/* of several that the owner acquired */
	RELEASE_ALL_HOLDS
} ReleaseDepth;

static bool
release(LeaseStore *store, const text *resource, const Claim *claim, ReleaseDepth depth)
{
	LeaseRows	rows;
	TimestampTz now;
	const LeaseRow *row = begin_action(store, resource, claim, ACTION_END, &rows, &now);

	if (row == NULL)
		return false;
	if (depth == RELEASE_ONE_HOLD && row->lease.holds > 1 && is_held(&row->lease, now))
		count_down(store, row);
	else
		end_lease(store, row, now);
	unlock_resource(resource);
	return true;
}

/*
 * Release the lease that the claim means, even if it has expired, unless it
 * was taken over. Returns false if there is no such lease. A lease that was
 * acquired several times must be released as many times.
 */
bool
release_lease(const text *resource, const Claim *claim)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	bool		released;

	durable_release_begins();
	released = release(store, resource, claim, RELEASE_ONE_HOLD);
	if (released)
		durable_release();
	store_close(store);
	return released;
}

/*
 * Release all leases of this owner; returns their number.
 *
 * Skips leases of roles that the caller may not act for, because another role
 * may happen to use the same owner name.
 *
 * Reads the whole table. With an index on the owner, the updates of every
 * grant and release would no longer be HOT.
 */
int64
release_all_leases(const text *owner)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	List	   *own_leases = find_own_leases(store, owner);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "lease release", ALLOCSET_SMALL_SIZES);
	MemoryContext caller_context = MemoryContextSwitchTo(context);
	int64		released = 0;
	ListCell   *cell;

	durable_release_begins();
	foreach(cell, own_leases)
	{
		const OwnLease *own = lfirst(cell);
		Claim		claim = {.owner = owner, .token = &own->token};

		if (release(store, own->resource, &claim, RELEASE_ALL_HOLDS))
			released++;
		MemoryContextReset(context);
	}

	if (released > 0)
		durable_release();

	MemoryContextSwitchTo(caller_context);
	MemoryContextDelete(context);
	store_close(store);
	return released;
}
