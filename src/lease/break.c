/*-------------------------------------------------------------------------
 *
 * break.c
 *		Breaking all leases on a resource, whatever their owners.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/clock.h"
#include "base/compat.h"
#include "change/change.h"
#include "lease/lease.h"

/* End every lease on the resource, which is locked; returns whether there was one. */
static bool
end_all(LeaseStore *store, const LeaseRows *rows, TimestampTz now)
{
	bool		broken = false;

	for (int i = 0; i < rows->count; i++)
	{
		const LeaseRow *row = &rows->row[i];
		Lease		lease = row->lease;

		if (is_open(row) || is_free(&lease, now))
			continue;
		make_tombstone(&lease, now);
		change_lease(store, row, &lease, CHANGE_BREAK, &row->lease);
		broken = true;
	}
	return broken;
}

/*
 * Free the resource; false if it was free already. Waits for open transactions
 * that change a lease on it, or rely on one.
 */
bool
break_leases(const text *resource)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	bool		broken = false;
	TransactionId transaction;

	do
	{
		LeaseRows	rows;
		TimestampTz now;

		CHECK_FOR_INTERRUPTS();

		lock_resource(resource);
		now = clock_now();
		store_look(store, resource, &rows);
		transaction = break_waits_for(&rows, now);
		if (!TransactionIdIsValid(transaction))
			broken = end_all(store, &rows, now);
		unlock_resource(resource);
		if (TransactionIdIsValid(transaction))
			store_wait_for(transaction);
	} while (TransactionIdIsValid(transaction));

	store_close(store);
	return broken;
}
