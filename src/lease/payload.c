/*-------------------------------------------------------------------------
 *
 * payload.c
 *		The payload of a lease.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/compat.h"
#include "grant/durability.h"
#include "lease/lease.h"

/*
 * Replace or remove the payload of a held lease; false if the lease is not
 * held. Like a renewal, this does not wait for transactions that only rely on
 * the lease.
 */
bool
set_payload(const text *resource, const text *owner, Datum payload)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	Claim		claim = {.owner = owner};
	LeaseRows	rows;
	TimestampTz now;
	const LeaseRow *row = begin_action(store, resource, &claim, ACTION_PROLONG, &rows, &now);
	bool		held = row != NULL && is_held(&row->lease, now);

	if (held)
	{
		Lease		lease = row->lease;

		lease.payload = payload;
		store_update(store, row, &lease);
		durable_write();
	}
	if (row != NULL)
		unlock_resource(resource);
	store_close(store);
	return held;
}
