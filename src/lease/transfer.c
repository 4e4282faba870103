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

#include "base/assertion_cache.h"
#include "base/compat.h"
#include "grant/durability.h"
#include "grant/quota.h"
#include "lease/lease.h"
#include "monitor/events.h"
#include "wait/wait.h"

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
					 errmsg("new owner already has a lease on \"%s\"", text_to_cstring(row->lease.resource)),
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
				 errmsg("lease on \"%s\" cannot be transferred", text_to_cstring(lease->resource)),
				 errdetail("It ends with the session that acquired it."),
				 errhint("Release it, or acquire it without session => true.")));
}

static void
write_transfer(LeaseStore *store, const LeaseRow *row, text *new_owner, int64 token, TimestampTz now)
{
	Lease		lease = row->lease;

	lease.owner = new_owner;
	lease.token = token;
	lease.granted_at = now;
	lease.xid = GetTopFullTransactionId();
	lease.holds = 1;
	note_transfer(&lease, &row->lease);
	forget_assertions(&lease);
	wait_note_change(lease.resource, free_from(&lease));
	store_update(store, row, &lease);
	durable_write();
}

/*
 * Hand a held lease over, with a new token; false if the owner does not hold
 * it. The role that acquired it, its mode and its end stay the same.
 */
bool
transfer_lease(text *resource, const text *owner, text *new_owner, int64 *token)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	Claim		claim = {.owner = owner};
	LeaseRows	rows;
	LeaseRows	all;
	TimestampTz now;
	const LeaseRow *row;
	bool		held;
	bool		to_another = !same_text(owner, new_owner);

	store_prepare_token(store);
	row = begin_action(store, resource, &claim, ACTION_END, &rows, &now);
	held = row != NULL && is_held(&row->lease, now);
	if (held)
	{
		store_look(store, resource, &all);
		require_no_session(&row->lease);
		if (to_another)
			require_no_other_lease(&all, new_owner, now);
		*token = store_next_token(store, last_token(&all));
		write_transfer(store, row, new_owner, *token, now);
	}
	if (row != NULL)
		unlock_resource(resource);
	if (held && to_another)
		require_lease_allowed(resource, new_owner);
	store_close(store);
	return held;
}
