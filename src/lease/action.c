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
 * other row can matter, unless the lease gets a new token.
 */
static ClaimedLease
look_for_claimed(LeaseAction *action)
{
	if (action->gives_token || !store_peek(action->store, action->resource, &action->rows) ||
		find_held(&action->rows, &action->claim, action->now) == NULL)
		store_look(action->store, action->resource, &action->rows);
	return find_claimed(&action->rows, &action->claim, action->kind, action->now);
}

/*
 * Find the lease that the claim means. If there is one, this locks the
 * resource and reads the rows under the lock. The other rows of the resource
 * may be missing, unless the lease gets a new token. The caller must call
 * end_action().
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
		claimed = look_for_claimed(action);
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
	action->held = action->row != NULL && is_held(&action->row->lease, action->now);
}

void
end_action(LeaseAction *action)
{
	if (action->row != NULL)
		unlock_resource(action->resource);
	store_close(action->store);
}
