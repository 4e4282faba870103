/*-------------------------------------------------------------------------
 *
 * renew.c
 *		Renewing leases.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "base/compat.h"
#include "base/subxact.h"
#include "change/change.h"
#include "lease/lease.h"

/*
 * Extend a held lease to at least ttl from now; false if it is not held. Does
 * not wait for transactions that only rely on the lease, so that heartbeats
 * continue during a long transaction of the same owner.
 */
bool
renew_lease(const text *resource, int64 ttl, const Claim *claim)
{
	LeaseAction action = {.resource = resource, .claim = *claim, .kind = ACTION_PROLONG};

	begin_action(&action);
	if (action.held)
	{
		Lease		lease = action.row->lease;

		lease.expires_at = Max(lease.expires_at, action.now + ttl);
		change_lease(action.store, action.row, &lease, CHANGE_RENEW, NULL);
	}
	end_action(&action);
	return action.held;
}

/* Several leases of an owner that are renewed together. */
typedef struct RenewAll
{
	text	  **resources;
	int			nresources;
	int64		ttl;
	Claim		claim;
	bool		renewed;
} RenewAll;

/* SubtransactionWork: renew one after the other, until one is not held. */
static bool
renew_each(void *arg)
{
	RenewAll   *all = arg;

	all->renewed = true;
	for (int i = 0; i < all->nresources && all->renewed; i++)
		all->renewed = renew_lease(all->resources[i], all->ttl, &all->claim);
	return all->renewed;
}

/*
 * Extend the leases of an owner on all of these resources. If one of them is
 * not held, extends none and returns false. The resources are sorted, so that
 * two such calls cannot deadlock with each other.
 */
bool
renew_leases(text **resources, int nresources, int64 ttl, const text *owner)
{
	RenewAll	all = {
		.resources = resources,
		.nresources = nresources,
		.ttl = ttl,
		.claim = {.owner = owner}
	};
	ErrorData  *error = run_subtransaction(renew_each, &all);

	if (error != NULL)
		ReThrowError(error);
	return all.renewed;
}

/*
 * Extend every lease that this owner holds; returns their number. Reads the
 * whole table, and skips the leases that release_all_leases() skips.
 */
int64
renew_all_leases(int64 ttl, const text *owner)
{
	List	   *own_leases = find_own_leases(owner);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "lease renewal", ALLOCSET_SMALL_SIZES);
	MemoryContext caller_context = MemoryContextSwitchTo(context);
	int64		renewed = 0;
	ListCell   *cell;

	foreach(cell, own_leases)
	{
		const OwnLease *own = lfirst(cell);
		Claim		claim = {.owner = owner, .token = &own->token};

		if (renew_lease(own->resource, ttl, &claim))
			renewed++;
		MemoryContextReset(context);
	}

	MemoryContextSwitchTo(caller_context);
	MemoryContextDelete(context);
	return renewed;
}
