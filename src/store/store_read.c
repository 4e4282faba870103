/*-------------------------------------------------------------------------
 *
 * store_read.c
 *		Finding rows of the lock table.
 *
 * store_probe() looks with a dirty snapshot, which also shows what open
 * transactions are doing. Such a scan can pass by a row: it leaves behind a
 * place where the new version is about to appear, and reaches the old one
 * when it has been replaced. Absent is therefore only a guess of the probe.
 * An insert finds out, because the unique index has the last word. Who takes
 * absence for an answer has to ask store_fetch(), which judges every version
 * by one snapshot taken before the scan.
 *
 * Neither hands an MVCC snapshot to the scan, which would register the read
 * with SERIALIZABLE and fail transactions over locks that they did not get.
 *
 * Scans go backward. Equal keys stand in the order of their place in the
 * table, so that the newest version, usually the last, comes first. While an
 * old snapshot keeps vacuum away from the others, the cost stays the same.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/itup.h"
#include "access/relscan.h"
#include "access/sysattr.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "store/store.h"

/* Where this session wrote a row last. */
static struct
{
	Oid			table;
	uint64		key;			/* hash of resource and slot */
	ItemPointerData tid;
}			last_written;

/* Which slots a scan looks at. */
static void
set_scan_keys(IndexScanDesc scan, const text *resource, StrategyNumber strategy, RegProcedure compare, int16 slot)
{
	ScanKeyData keys[2];

	ScanKeyEntryInitialize(&keys[0], 0, 1, BTEqualStrategyNumber, TEXTOID,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(resource));
	ScanKeyEntryInitialize(&keys[1], 0, 2, strategy, INT2OID,
						   InvalidOid, compare, Int16GetDatum(slot));
	index_rescan(scan, keys, 2, NULL, 0);
}

/* Start to look for the versions of one row. */
IndexScanDesc
store_begin_slot_scan(LeaseStore *store, Snapshot snapshot, const text *resource, int16 slot)
{
	IndexScanDesc scan = index_beginscan(store->table, store->primary_key, snapshot, NULL, 2, 0, SO_NONE);

	set_scan_keys(scan, resource, BTEqualStrategyNumber, F_INT2EQ, slot);
	return scan;
}

/* Start to look for the versions of all rows of a resource, the highest slot first. */
IndexScanDesc
store_begin_resource_scan(LeaseStore *store, Snapshot snapshot, const text *resource)
{
	IndexScanDesc scan = index_beginscan(store->table, store->primary_key, snapshot, NULL, 2, 0, SO_NONE);

	set_scan_keys(scan, resource, BTGreaterEqualStrategyNumber, F_INT2GE, GATE_SLOT);
	return scan;
}

/* Whose uncommitted change did a dirty snapshot just meet? No xid: nobody's. */
static BusyRow
met_by(const SnapshotData *dirty)
{
	return (BusyRow) {
		.xid = TransactionIdIsValid(dirty->xmin) ? dirty->xmin : dirty->xmax,
		.speculative_token = dirty->speculativeToken
	};
}

/* What does a dirty snapshot, which shows the row that the store stands on, say of it? */
static ProbeResult
probed(LeaseStore *store, const SnapshotData *dirty)
{
	store->busy = met_by(dirty);
	return TransactionIdIsValid(store->busy.xid) ? PROBE_BUSY : PROBE_FOUND;
}

/* Read the next row of a scan with a dirty snapshot. */
static ProbeResult
probe_next(LeaseStore *store, IndexScanDesc scan, const SnapshotData *dirty)
{
	if (!index_getnext_slot(scan, BackwardScanDirection, store->row))
		return PROBE_ABSENT;

	store_read_row(store);
	return probed(store, dirty);
}

/* Remember where a row was written; see probe_last_written(). */
void
store_remember_row(LeaseStore *store, const Lease *lease, const ItemPointerData *tid)
{
	last_written.table = RelationGetRelid(store->table);
	last_written.key = hash_text(lease->resource, lease->slot);
	last_written.tid = *tid;
}

/*
 * Look for a row where this session wrote it last, if it did, without the
 * index: who releases a lease has mostly acquired it. What is there now may
 * be another row; then, or if there is none, tells nothing, and the store
 * stands on no row.
 */
static ProbeResult
probe_last_written(LeaseStore *store, const text *resource, int16 slot)
{
	SnapshotData dirty;

	if (last_written.table != RelationGetRelid(store->table) ||
		last_written.key != hash_text(resource, slot) ||
		ItemPointerGetBlockNumber(&last_written.tid) >= RelationGetNumberOfBlocks(store->table))
		return PROBE_ABSENT;

	InitDirtySnapshot(dirty);
	if (table_tuple_fetch_row_version(store->table, &last_written.tid, &dirty, store->row))
	{
		store_read_row(store);
		if (store->lease.slot == slot && same_text(store->lease.resource, resource))
			return probed(store, &dirty);
	}
	ExecClearTuple(store->row);
	return PROBE_ABSENT;
}

/* Look for a row, and at what open transactions do to it. Writes nothing. */
ProbeResult
store_probe(LeaseStore *store, const text *resource, int16 slot)
{
	SnapshotData dirty;
	IndexScanDesc scan;
	ProbeResult result = probe_last_written(store, resource, slot);

	if (result != PROBE_ABSENT)
		return result;

	InitDirtySnapshot(dirty);
	scan = store_begin_slot_scan(store, &dirty, resource, slot);
	result = probe_next(store, scan, &dirty);
	index_endscan(scan);
	return result;
}

/*
 * Look for the gate. Also tells in has_slots whether there are rows of other
 * slots. That costs nothing when there are none: they come first.
 */
ProbeResult
store_probe_gate(LeaseStore *store, const text *resource)
{
	SnapshotData dirty;
	IndexScanDesc scan;
	ProbeResult result;

	store->transactions_ended = TransamVariables->xactCompletionCount;
	pg_read_barrier();

	InitDirtySnapshot(dirty);
	scan = store_begin_resource_scan(store, &dirty, resource);
	result = probe_next(store, scan, &dirty);
	store->has_slots = result != PROBE_ABSENT && store->lease.slot != GATE_SLOT;
	if (store->has_slots)
	{
		set_scan_keys(scan, resource, BTEqualStrategyNumber, F_INT2EQ, GATE_SLOT);
		result = probe_next(store, scan, &dirty);
	}
	index_endscan(scan);
	return result;
}

/* Did our own transaction write the row that the store stands on? */
bool
store_row_is_ours(LeaseStore *store)
{
	bool		isnull;
	Datum		xmin = slot_getsysattr(store->row, MinTransactionIdAttributeNumber, &isnull);

	return TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
}

/*
 * Is has_slots still true, now that the gate is locked? Who takes a slot has
 * the gate locked until its transaction ends; if none has ended since
 * the look, nobody can have come and gone in between. A gate that we
 * inserted is passed without a lock, and tells nothing.
 */
bool
store_slots_unchanged(LeaseStore *store)
{
	pg_read_barrier();
	return store->transactions_ended == TransamVariables->xactCompletionCount && !store_row_is_ours(store);
}

/* Get a place for rows to look at, so that the store need not leave its own. */
static TupleTableSlot *
glance_slot(LeaseStore *store)
{
	if (store->glance == NULL)
		store->glance = table_slot_create(store->table, NULL);
	return store->glance;
}

/* Does this snapshot show a row of another slot than the gate? */
static bool
shows_slots(LeaseStore *store, Snapshot snapshot, const text *resource)
{
	TupleTableSlot *row = glance_slot(store);
	IndexScanDesc scan = store_begin_resource_scan(store, snapshot, resource);
	bool		used = false;
	bool		isnull;

	if (index_getnext_slot(scan, BackwardScanDirection, row))
		used = DatumGetInt16(slot_getattr(row, Anum_slot, &isnull)) != GATE_SLOT;
	ExecClearTuple(row);
	index_endscan(scan);
	return used;
}

/*
 * Is there a row of another slot than the gate, as far as a glance can tell?
 * The store stays where it stands.
 */
bool
store_has_slots(LeaseStore *store, const text *resource)
{
	SnapshotData dirty;

	InitDirtySnapshot(dirty);
	return shows_slots(store, &dirty, resource);
}

/*
 * Is there one, or was there? What is being replaced can hide from a dirty
 * snapshot, but not from this look: no version that was there since the
 * statement began has been removed. The store stays where it stands.
 */
bool
store_used_slots(LeaseStore *store, const text *resource)
{
	return shows_slots(store, SnapshotAny, resource);
}

/*
 * Is the gate only being inserted, with nobody in it, by a transaction that has
 * not touched it since? Not even locked it: that comes before everything
 * else that it may do with it. Asks for all versions, since a savepoint may
 * bring back any of them. The store stays where it stands.
 */
bool
store_gate_is_new(LeaseStore *store, const text *resource)
{
	TupleTableSlot *row = glance_slot(store);
	SnapshotData dirty;
	IndexScanDesc scan;
	bool		is_new = true;

	InitDirtySnapshot(dirty);
	scan = store_begin_slot_scan(store, &dirty, resource, GATE_SLOT);
	while (is_new && index_getnext_slot(scan, BackwardScanDirection, row))
	{
		bool		no_owner;
		bool		isnull;
		Datum		xmax = slot_getsysattr(row, MaxTransactionIdAttributeNumber, &isnull);

		slot_getattr(row, Anum_owner, &no_owner);
		is_new = TransactionIdIsValid(dirty.xmin) && no_owner &&
			!TransactionIdIsValid(DatumGetTransactionId(xmax));
	}
	ExecClearTuple(row);
	index_endscan(scan);
	return is_new;
}

/*
 * Who replaced or deleted this version of a row, committing it since our snapshot
 * was taken. It was an open change then, and what it made of the row may be
 * behind us; so it counts as one.
 */
static BusyRow
replaced_by(TupleTableSlot *row)
{
	HeapTuple	version = ExecFetchSlotHeapTuple(row, false, NULL);

	return (BusyRow) {.xid = HeapTupleHeaderGetUpdateXid(version->t_data)};
}

/* Older versions of a slot to step over, before it is cheaper to look for the next slot. */
#define MAX_STEPS	8

/*
 * Show the slots from last down to first that a scan comes to. Returns whether it
 * came to a row above them, also one that is not there any more.
 */
static bool
visit_slots(LeaseStore *store, IndexScanDesc scan, const text *resource, int first, int last,
			SlotVisitor visit, void *arg)
{
	Snapshot	latest = GetLatestSnapshot();
	SnapshotData dirty;
	bool		rows_above = false;
	int			done = MAX_SLOT + 1;	/* of this slot we have seen the committed version */
	int			steps = 0;

	InitDirtySnapshot(dirty);
	while (index_getnext_slot(scan, BackwardScanDirection, store->row))
	{
		BusyRow		busy = {0};
		bool		committed;

		CHECK_FOR_INTERRUPTS();
		store_read_row(store);
		if (store->lease.slot < first)
			break;

		if (store->lease.slot > last)
		{
			rows_above = true;
			set_scan_keys(scan, resource, BTLessEqualStrategyNumber, F_INT2LE, last);
			continue;
		}
		if (store->lease.slot == done)
		{
			if (++steps > MAX_STEPS)
			{
				set_scan_keys(scan, resource, BTLessStrategyNumber, F_INT2LT, done);
				steps = 0;
			}
			continue;
		}
		committed = table_tuple_satisfies_snapshot(store->table, store->row, latest);
		if (table_tuple_satisfies_snapshot(store->table, store->row, &dirty))
			busy = met_by(&dirty);
		else if (committed)
			busy = replaced_by(store->row);
		else
			continue;
		if (committed || !TransactionIdIsValid(busy.xid))
		{
			done = store->lease.slot;
			steps = 0;
		}
		if (!visit(&store->lease, TransactionIdIsValid(busy.xid) ? &busy : NULL, arg))
			break;
	}
	index_endscan(scan);
	return rows_above;
}

/*
 * Show every slot but the gate, the highest first. All that was committed when
 * the visit began is shown; what open transactions are doing is shown as well, unless
 * it begins behind us. What is committed meanwhile is shown as still open.
 * A slot that is being changed may be shown twice. The visitor must not use
 * the store. The same goes for the other visits.
 */
void
store_visit_slots(LeaseStore *store, const text *resource, SlotVisitor visit, void *arg)
{
	visit_slots(store, store_begin_resource_scan(store, SnapshotAny, resource), resource,
				GATE_SLOT + 1, MAX_SLOT, visit, arg);
}

/* Show only slots from last down to first. */
void
store_visit_slot_range(LeaseStore *store, const text *resource, int first, int last,
					   SlotVisitor visit, void *arg)
{
	IndexScanDesc scan = index_beginscan(store->table, store->primary_key, SnapshotAny, NULL, 2, 0, SO_NONE);

	set_scan_keys(scan, resource, BTLessEqualStrategyNumber, F_INT2LE, last);
	visit_slots(store, scan, resource, first, last, visit, arg);
}

/*
 * Show only the near slots. Returns whether there may be others: false
 * means that none was committed when the visit began.
 */
bool
store_visit_near_slots(LeaseStore *store, const text *resource, SlotVisitor visit, void *arg)
{
	return visit_slots(store, store_begin_resource_scan(store, SnapshotAny, resource), resource,
					   GATE_SLOT + 1, NEAR_SLOTS, visit, arg);
}

/* Which far slots of an owner a scan of the index looks at. */
static void
set_owner_scan_keys(IndexScanDesc scan, const text *resource, const text *owner, int last)
{
	ScanKeyData keys[3];

	ScanKeyEntryInitialize(&keys[0], 0, 1, BTEqualStrategyNumber, TEXTOID,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(resource));
	ScanKeyEntryInitialize(&keys[1], 0, 2, BTEqualStrategyNumber, TEXTOID,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(owner));
	ScanKeyEntryInitialize(&keys[2], 0, 3, BTLessEqualStrategyNumber, INT2OID,
						   InvalidOid, F_INT2LE, Int16GetDatum(last));
	index_rescan(scan, keys, 3, NULL, 0);
}

/*
 * Show the far slots that may have a lease of the owner, or that it was the last
 * to have. The index names slots that it left long ago as well, for as long as an
 * old snapshot keeps vacuum away; so only the slot is taken from there, once,
 * and then shown as it is now.
 */
void
store_visit_far_slots_of(LeaseStore *store, const text *resource, const text *owner, SlotVisitor visit, void *arg)
{
	Relation	index = store_owner_index(store);
	IndexScanDesc scan;
	int			last = MAX_SLOT + 1;	/* slot that was shown */
	int			steps = 0;

	if (index == NULL)
	{
		store_visit_slot_range(store, resource, NEAR_SLOTS + 1, MAX_SLOT, visit, arg);
		return;
	}

	scan = index_beginscan(store->table, index, SnapshotAny, NULL, 3, 0, SO_NONE);
	scan->xs_want_itup = true;
	set_owner_scan_keys(scan, resource, owner, MAX_SLOT);
	while (index_getnext_tid(scan, BackwardScanDirection) != NULL)
	{
		bool		isnull;
		int			slot = DatumGetInt16(index_getattr(scan->xs_itup, 3, scan->xs_itupdesc, &isnull));

		CHECK_FOR_INTERRUPTS();
		if (slot == last)
		{
			if (++steps > MAX_STEPS)
			{
				set_owner_scan_keys(scan, resource, owner, last - 1);
				steps = 0;
			}
			continue;
		}
		last = slot;
		steps = 0;
		store_visit_slot_range(store, resource, slot, slot, visit, arg);
	}
	index_endscan(scan);
}

/*
 * Wait for the transaction whose change a probe met, like any other waiter
 * for a row: visible in pg_locks, bound by lock_timeout.
 */
void
store_wait(BusyRow busy)
{
	if (busy.speculative_token != 0)
		SpeculativeInsertionWait(busy.xid, busy.speculative_token);
	else
		XactLockTableWait(busy.xid, NULL, NULL, XLTW_None);
}

/*
 * Stand on a row as it is committed now, or as the own transaction left it;
 * false when there is none. Writes nothing and waits for nobody.
 */
bool
store_fetch(LeaseStore *store, const text *resource, int16 slot)
{
	Snapshot	latest = GetLatestSnapshot();
	IndexScanDesc scan = store_begin_slot_scan(store, SnapshotAny, resource, slot);
	bool		found = false;

	while (!found && index_getnext_slot(scan, BackwardScanDirection, store->row))
		found = table_tuple_satisfies_snapshot(store->table, store->row, latest);
	if (found)
		store_read_row(store);

	index_endscan(scan);
	return found;
}

/* Have store_next() look only at so many blocks of the table. */
void
store_scan_blocks(LeaseStore *store, BlockNumber first, BlockNumber count)
{
	ItemPointerData from;
	ItemPointerData to;

	ItemPointerSet(&from, first, 0);
	ItemPointerSet(&to, first + (count - 1), PG_UINT16_MAX);
	store->scan_snapshot = RegisterSnapshot(GetLatestSnapshot());
	store->scan = table_beginscan_tidrange(store->table, SnapshotAny, &from, &to, SO_NONE);
	store->scans_range = true;
}

static bool
next_row(LeaseStore *store)
{
	return store->scans_range ?
		table_scan_getnextslot_tidrange(store->scan, ForwardScanDirection, store->row) :
		table_scan_getnextslot(store->scan, ForwardScanDirection, store->row);
}

/* Begin to read the whole table, unless that has begun. */
static void
begin_table_scan(LeaseStore *store)
{
	if (store->scan == NULL)
	{
		store->scan_snapshot = RegisterSnapshot(GetLatestSnapshot());
		store->scan = table_beginscan(store->table, SnapshotAny, 0, NULL, SO_NONE);
	}
}

/*
 * Go on to the next row, in no order, that is committed now (when the scan
 * begins) and wanted; false when there are no more. Rows that are written
 * meanwhile are not met again.
 */
bool
store_next(LeaseStore *store, StoreFilter wanted, const void *arg)
{
	begin_table_scan(store);

	while (next_row(store))
	{
		CHECK_FOR_INTERRUPTS();
		store_read_row(store);
		if (wanted(&store->lease, arg) &&
			table_tuple_satisfies_snapshot(store->table, store->row, store->scan_snapshot))
			return true;
	}
	return false;
}

/*
 * Was the row granted by another transaction that was open when the scan
 * began, and not undone since? Such a grant is so young that the version
 * cannot be frozen: what is known of its transaction is still there.
 */
static bool
granted_meanwhile(LeaseStore *store)
{
	uint64		next = U64FromFullTransactionId(ReadNextFullTransactionId());
	TransactionId granted_by = XidFromFullTransactionId(store->lease.xid);
	TransactionId written_by;
	bool		isnull;

	if (next - U64FromFullTransactionId(store->lease.xid) > PG_INT32_MAX ||
		TransactionIdIsCurrentTransactionId(granted_by) ||
		!XidInMVCCSnapshot(granted_by, store->scan_snapshot))
		return false;

	written_by = DatumGetTransactionId(slot_getsysattr(store->row, MinTransactionIdAttributeNumber, &isnull));
	return TransactionIdIsInProgress(written_by) || TransactionIdDidCommit(written_by);
}

/*
 * Like store_next(), but also meets what is not committed and may yet be, or
 * has been since the scan began. Several versions of a row may be met. None
 * is missed that another transaction granted before the scan began.
 */
bool
store_next_possible(LeaseStore *store, StoreFilter wanted, const void *arg)
{
	begin_table_scan(store);

	while (table_scan_getnextslot(store->scan, ForwardScanDirection, store->row))
	{
		CHECK_FOR_INTERRUPTS();
		store_read_row(store);
		if (wanted(&store->lease, arg) &&
			(table_tuple_satisfies_snapshot(store->table, store->row, store->scan_snapshot) ||
			 granted_meanwhile(store)))
			return true;
	}
	return false;
}
