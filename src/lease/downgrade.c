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

#include "base/assertion_cache.h"
#include "base/clock.h"
#include "base/compat.h"
#include "grant/durability.h"
#include "lease/lease.h"
#include "monitor/events.h"
#include "wait/wait.h"

static int64
write_downgrade(LeaseStore *store, const LeaseRows *rows, const LeaseRow *row, TimestampTz now)
{
	const LeaseRow *seat = free_seat(rows, now);
	Lease		exclusive = row->lease;
	Lease		shared = row->lease;

	shared.mode = MODE_SHARED;
	shared.slot = seat ? seat->lease.slot : unused_slot(rows);
	shared.token = store_next_token(store, last_token(rows));
	shared.granted_at = now;
	shared.xid = GetTopFullTransactionId();

	make_tombstone(&exclusive, now);
	forget_assertions(&exclusive);
	note_downgrade(&shared, &row->lease);
	wait_note_change(shared.resource, DT_NOBEGIN);
	store_update(store, row, &exclusive);
	if (seat != NULL)
		store_update(store, seat, &shared);
	else
		store_insert(store, &shared);
	durable_write();
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
	LeaseStore *store = store_open(RowExclusiveLock);
	Claim		claim = {.owner = owner};
	LeaseRows	rows;
	LeaseRows	all;
	TimestampTz now;
	const LeaseRow *row;
	bool		held;

	store_prepare_token(store);
	row = begin_action(store, resource, &claim, ACTION_END, &rows, &now);
	held = row != NULL && row->lease.mode == MODE_EXCLUSIVE && is_held(&row->lease, now);
	if (held)
	{
		store_look(store, resource, &all);
		*token = write_downgrade(store, &all, row, now);
	}
	if (row != NULL)
		unlock_resource(resource);
	store_close(store);
	return held;
}
