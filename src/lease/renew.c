/*-------------------------------------------------------------------------
 *
 * renew.c
 *		Extending a lease.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/compat.h"
#include "grant/durability.h"
#include "lease/lease.h"
#include "monitor/events.h"
#include "wait/wait.h"

/*
 * Extend a held lease to at least ttl from now; false when it is not held.
 * Does not wait for transactions that only rely on the lease: a heartbeat must go on
 * beside a long transaction of the same owner.
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
