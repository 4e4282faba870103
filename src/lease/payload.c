/*-------------------------------------------------------------------------
 *
 * payload.c
 *		The payload of a lease.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/compat.h"
#include "change/change.h"
#include "lease/lease.h"

/*
 * Replace or remove the payload of a held lease; false if the lease is not
 * held. Like a renewal, this does not wait for transactions that only rely on
 * the lease.
 */
bool
set_payload(const text *resource, const text *owner, Datum payload)
{
	LeaseAction action = {.resource = resource, .claim = {.owner = owner}, .kind = ACTION_PROLONG};

	begin_action(&action);
	if (action.held)
	{
		Lease		lease = action.row->lease;

		lease.payload = payload;
		change_lease(action.store, action.row, &lease, CHANGE_PAYLOAD, NULL);
	}
	end_action(&action);
	return action.held;
}
