/*-------------------------------------------------------------------------
 *
 * downgrade.c
 *		From an exclusive lease to a shared one, without letting go.
 *
 * The shared lease is written to a lease slot of its own, and the exclusive one
 * becomes a tombstone, under one hold of the resource lock. So readers may
 * join, and no writer gets in between.
 *
 * The shared lease has a new token. So a fenced service can tell a late
 * request under the exclusive lease from one under the shared lease.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/builtins.h"

#include "base/clock.h"
#include "base/compat.h"
#include "change/change.h"
#include "lease/lease.h"

/* Write the shared lease to a lease slot of its own. The exclusive lease becomes a tombstone. */
static int64
write_downgrade(const LeaseAction *action)
{
	const LeaseRow *seat = free_seat(&action->rows, action->now);
	Lease		exclusive = action->row->lease;
	Lease		shared = action->row->lease;

	shared.mode = MODE_SHARED;
	shared.slot = seat ? seat->lease.slot : unused_slot(&action->rows);
	shared.token = store_next_token(action->store, last_token(&action->rows));
	shared.granted_at = action->now;
	shared.xid = GetTopFullTransactionId();

	make_tombstone(&exclusive, action->now);
	change_lease(action->store, action->row, &exclusive, CHANGE_REPLACE, NULL);
	change_lease(action->store, seat, &shared, CHANGE_DOWNGRADE, &action->row->lease);
	return shared.token;
}

/*
 * Turn a held exclusive lease into a shared one; false if the owner does not
 * hold it exclusively. Everything else about the lease stays. Waits for
 * transactions that rely on the exclusive lease.
 */
bool
downgrade_lease(const text *resource, const text *owner, int64 *token)
{
	LeaseAction action = {
		.resource = resource,
		.claim = {.owner = owner},
		.kind = ACTION_END,
		.gives_token = true
	};
	bool		downgraded;

	begin_action(&action);
	downgraded = action.held && action.row->lease.mode == MODE_EXCLUSIVE;
	if (downgraded)
		*token = write_downgrade(&action);
	end_action(&action);
	return downgraded;
}
