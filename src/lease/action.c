/*-------------------------------------------------------------------------
 *
 * action.c
 *		What a release, a renewal and a transfer have in common.
 *
 * They act on a lease that is committed. If another transaction is changing
 * that lease, or relies on it, they wait for that transaction, so
 * that their answer is final. Who waits does not hold the resource lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/privileges.h"
#include "lease/lease.h"

/*
 * Find the lease that the claim means and lock its resource; NULL, without
 * the lock, when there is none. The rows are as they are under that lock, and
 * the time is from before they were read.
 */
const LeaseRow *
begin_action(LeaseStore *store, const text *resource, const Claim *claim, OwnAction action,
			 LeaseRows *rows, TimestampTz *now)
{
	for (;;)
	{
		ClaimedLease claimed;

		CHECK_FOR_INTERRUPTS();

		lock_resource(resource);
		*now = clock_now();
		store_look(store, resource, rows);
		claimed = find_claimed(rows, claim, action, *now);
		if (claimed.row != NULL)
			require_holder_privileges(&claimed.row->lease);
		if (claimed.row != NULL && !TransactionIdIsValid(claimed.transaction))
			return claimed.row;

		unlock_resource(resource);
		if (claimed.row == NULL)
			return NULL;
		store_wait_for(claimed.transaction);
	}
}
