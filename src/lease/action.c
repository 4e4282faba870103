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
 * Find the lease that the claim means. If there is one, the resource is locked,
 * and the rows were read under the lock. The caller must call end_action().
 */
void
begin_action(LeaseAction *action)
{
	ClaimedLease claimed;

	action->store = store_open(RowExclusiveLock);
	if (action->gives_token)
		store_prepare_token(action->store);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();

		lock_resource(action->resource);
		action->now = clock_now();
		store_look(action->store, action->resource, &action->rows);
		claimed = find_claimed(&action->rows, &action->claim, action->kind, action->now);
		action->row = claimed.row;
		if (claimed.row != NULL)
			require_role_privileges(&claimed.row->lease);
		if (claimed.row != NULL && !TransactionIdIsValid(claimed.transaction))
			break;

		unlock_resource(action->resource);
		if (claimed.row == NULL)
			break;
		store_wait_for(claimed.transaction);
	}
	action->held = claimed.holds;
}

void
end_action(LeaseAction *action)
{
	if (action->row != NULL)
		unlock_resource(action->resource);
	store_close(action->store);
}
