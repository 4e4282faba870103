/*-------------------------------------------------------------------------
 *
 * transfer.c
 *		Handing a lease over to another owner.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/names.h"
#include "base/printable.h"
#include "change/change.h"
#include "change/quota.h"
#include "lease/lease.h"

/* An owner has at most one lease on a resource. */
static void
require_no_other_lease(const LeaseRows *rows, const text *owner, TimestampTz now)
{
	for (int i = 0; i < rows->count; i++)
	{
		const LeaseRow *row = &rows->row[i];

		if (is_owner(&row->lease, owner) && (is_open(row) || is_held(&row->lease, now)))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("new owner already has a lease on \"%s\"", printable(row->lease.resource)),
					 errhint("An owner has at most one lease on a resource.")));
	}
}

/* Otherwise the new owner would lose the lease when a session ends that it does not know. */
static void
require_no_session(const Lease *lease)
{
	if (lease->session_pid != 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("lease on \"%s\" cannot be transferred", printable(lease->resource)),
				 errdetail("It ends with the session that acquired it."),
				 errhint("Release it, or acquire it without session => true.")));
}

static int64
write_transfer(const LeaseAction *action, text *new_owner)
{
	Lease		lease = action->row->lease;

	lease.owner = new_owner;
	lease.token = store_next_token(action->store, last_token(&action->rows));
	lease.granted_at = action->now;
	lease.xid = GetTopFullTransactionId();
	lease.holds = 1;
	change_lease(action->store, action->row, &lease, CHANGE_TRANSFER, &action->row->lease);
	return lease.token;
}

/*
 * Hand a held lease over, with a new token; false if the owner does not hold
 * it. The role that acquired it, its mode and its end stay the same.
 */
bool
transfer_lease(const text *resource, const text *owner, text *new_owner, int64 *token)
{
	LeaseAction action = {
		.resource = resource,
		.claim = {.owner = owner},
		.kind = ACTION_END,
		.gives_token = true
	};
	bool		to_another = !same_text(owner, new_owner);
	Oid			role = InvalidOid;

	begin_action(&action);
	if (action.held)
	{
		role = action.row->lease.role;
		require_no_session(&action.row->lease);
		if (to_another)
			require_no_other_lease(&action.rows, new_owner, action.now);
		*token = write_transfer(&action, new_owner);
	}
	end_action(&action);
	if (action.held && to_another)
		require_lease_allowed(resource, new_owner, role);
	return action.held;
}
