/*-------------------------------------------------------------------------
 *
 * columns.h
 *		How a lease is stored in a row. For the files of this folder only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_COLUMNS_H
#define LEASE_LOCK_COLUMNS_H

#include "store/store.h"

/* Columns of the lock table. */
enum
{
	Anum_resource = 1,
	Anum_slot,
	Anum_owner,
	Anum_expires_at,
	Anum_token,
	Anum_granted_at,
	Anum_xid,
	Anum_role,
	Anum_mode,
	Anum_holds,
	Anum_lock_delay,
	Anum_hold_until,
	Anum_session_pid,
	Anum_session_number,
	Anum_payload,
	Natts_lease_lock = Anum_payload
};

/* columns.c: between rows and leases */
extern void lease_from_columns(Lease *lease, const Datum *values, const bool *isnull);
extern TupleTableSlot *row_from_lease(LeaseStore *store, const Lease *lease);

/* look.c: remember where a row was written */
extern void store_remember(LeaseStore *store, const Lease *lease, const ItemPointerData *tid);

/* index_entries.c: index entries of a row that was written */
extern bool is_key_index(Relation index);
extern void insert_index_entries(LeaseStore *store, TupleTableSlot *row);
extern void update_index_entries(LeaseStore *store, TupleTableSlot *row, bool only_summarizing);

#endif							/* LEASE_LOCK_COLUMNS_H */
