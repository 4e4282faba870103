/*-------------------------------------------------------------------------
 *
 * store.h
 *		What the store files know of each other, and nobody else.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_STORE_H
#define LEASE_LOCK_STORE_H

#include "access/genam.h"

#include "lease_lock.h"

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
	Anum_holder,
	Anum_mode,
	Anum_holds,
	Anum_lock_delay,
	Anum_hold_until,
	Anum_payload,
	Anum_last_owner,
	Natts_lease_lock = Anum_last_owner
};

/* store.c */
extern bool store_is_key_index(Relation index);
extern Relation store_owner_index(LeaseStore *store);
extern void store_read_row(LeaseStore *store);
extern TupleTableSlot *store_form_row(LeaseStore *store, const Lease *lease);

/* store_read.c */
extern void store_remember_row(LeaseStore *store, const Lease *lease, const ItemPointerData *tid);
extern IndexScanDesc store_begin_slot_scan(LeaseStore *store, Snapshot snapshot, const text *resource, int16 slot);
extern IndexScanDesc store_begin_resource_scan(LeaseStore *store, Snapshot snapshot, const text *resource);

#endif							/* LEASE_LOCK_STORE_H */
