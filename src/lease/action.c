/*-------------------------------------------------------------------------
 *
 * action.c
 *		What a release, a renewal and a transfer have in common.
 *
 * They act on a lease that is committed. If another transaction is changing
 * that lease, or relies on it, they wait for that transaction, so that their
 * answer is final. They do not hold the resource lock while they wait.
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
 * Read the rows that are needed to find the lease that the claim means. If the
 * row that this session wrote last is a held lease that the claim means, no
 * other row can matter.
 */
static ClaimedLease
look_for_claimed(LeaseStore *store, const text *resource, const Claim *claim, OwnAction action,
				 LeaseRows *rows, TimestampTz now)
{
	if (!store_peek(store, resource, rows) || find_held(rows, claim, now) == NULL)
		store_look(store, resource, rows);
	return find_claimed(rows, claim, action, now);
}

/*
 * Find the lease that the claim means, and lock its resource. Returns NULL,
 * without the lock, if there is no such lease. The row was read under the
 * lock, and the time just before that. The other rows of the resource may be
 * missing in *rows.
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
		claimed = look_for_claimed(store, resource, claim, action, rows, *now);
		if (claimed.row != NULL)
			require_role_privileges(&claimed.row->lease);
		if (claimed.row != NULL && !TransactionIdIsValid(claimed.transaction))
			return claimed.row;

		unlock_resource(resource);
		if (claimed.row == NULL)
			return NULL;
		store_wait_for(claimed.transaction);
	}
}
