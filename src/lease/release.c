/*-------------------------------------------------------------------------
 *
 * release.c
 *		Releasing leases.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "base/compat.h"
#include "change/change.h"
#include "change/durability.h"
#include "lease/lease.h"

typedef enum ReleaseDepth
{
	RELEASE_ONE_HOLD,			/* of several that the owner acquired */
	RELEASE_ALL_HOLDS
} ReleaseDepth;

static bool
release(const text *resource, const Claim *claim, ReleaseDepth depth)
{
	LeaseAction action = {.resource = resource, .claim = *claim, .kind = ACTION_END};

	durable_release_begins();
	begin_action(&action);
	if (action.row != NULL)
	{
		Lease		lease = action.row->lease;

		if (depth == RELEASE_ONE_HOLD && lease.holds > 1 && action.held)
		{
			lease.holds--;
			change_lease(action.store, action.row, &lease, CHANGE_COUNT_DOWN, NULL);
		}
		else
		{
			make_tombstone(&lease, Max(action.now, lease.hold_until));	/* min_hold may keep it */
			change_lease(action.store, action.row, &lease, CHANGE_RELEASE, &action.row->lease);
		}
	}
	end_action(&action);
	return action.row != NULL;
}

/*
 * Release the lease that the claim means, even if it has expired, unless it
 * was taken over. Returns false if there is no such lease. A lease that was
 * acquired several times must be released as many times.
 */
bool
release_lease(const text *resource, const Claim *claim)
{
	return release(resource, claim, RELEASE_ONE_HOLD);
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
	List	   *own_leases = find_own_leases(owner);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "lease release", ALLOCSET_SMALL_SIZES);
	MemoryContext caller_context = MemoryContextSwitchTo(context);
	int64		released = 0;
	ListCell   *cell;

	foreach(cell, own_leases)
	{
		const OwnLease *own = lfirst(cell);
		Claim		claim = {.owner = owner, .token = &own->token};

		if (release(own->resource, &claim, RELEASE_ALL_HOLDS))
			released++;
		MemoryContextReset(context);
	}

	MemoryContextSwitchTo(caller_context);
	MemoryContextDelete(context);
	return released;
}
