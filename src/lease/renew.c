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
#include "grant/durability.h"
#include "lease/lease.h"
#include "monitor/events.h"
#include "wait/wait.h"

/*
 * Extend a held lease to at least ttl from now; false if it is not held. Does
 * not wait for transactions that only rely on the lease, so that heartbeats
 * continue during a long transaction of the same owner.
 */
bool
renew_lease(const text *resource, int64 ttl, const Claim *claim)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	LeaseRows	rows;
	TimestampTz now;
	const LeaseRow *row = begin_action(store, resource, claim, ACTION_PROLONG, &rows, &now);
	bool		renewed = row != NULL && is_held(&row->lease, now);

	if (renewed)
	{
		Lease		lease = row->lease;

		lease.expires_at = Max(lease.expires_at, now + ttl);
		wait_note_change(resource, free_from(&lease));
		store_update(store, row, &lease);
		note_renewal(&lease);
		durable_write();
	}
	if (row != NULL)
		unlock_resource(resource);
	store_close(store);
	return renewed;
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
	LeaseStore *store = store_open(RowExclusiveLock);
	List	   *own_leases = find_own_leases(store, owner);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "lease renewal", ALLOCSET_SMALL_SIZES);
	MemoryContext caller_context = MemoryContextSwitchTo(context);
	int64		renewed = 0;
	ListCell   *cell;

	store_close(store);
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
