/*-------------------------------------------------------------------------
 *
 * scan.c
 *		Reading the rows of many resources, or of the whole table.
 *
 * A scan finds candidates. Before the caller changes a row, it locks the
 * resource and looks at the row again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "store/columns.h"

struct StoreScan
{
	Relation	table;
	TupleTableSlot *slot;
	TableScanDesc scan;
	Snapshot	snapshot;		/* taken when the scan begins */
	bool		some_blocks;	/* not the whole table */
	StoreFilter wanted;
	const void *arg;
};

static StoreScan *
begin_scan(LeaseStore *store, StoreFilter wanted, const void *arg)
{
	StoreScan  *scan = palloc0(sizeof(StoreScan));

	scan->table = store->table;
	scan->slot = table_slot_create(store->table, NULL);
	scan->wanted = wanted;
	scan->arg = arg;
	scan->snapshot = RegisterSnapshot(GetLatestSnapshot());
	return scan;
}

/*
 * Begin to read the rows that the filter wants. The scan itself gets no MVCC
 * snapshot, since that would register the read with SERIALIZABLE.
 */
StoreScan *
store_scan(LeaseStore *store, StoreFilter wanted, const void *arg)
{
	StoreScan  *scan = begin_scan(store, wanted, arg);

	scan->scan = table_beginscan(store->table, SnapshotAny, 0, NULL, SO_NONE);
	return scan;
}

/* Like store_scan(), for a range of blocks. */
StoreScan *
store_scan_blocks(LeaseStore *store, BlockNumber first, BlockNumber count, StoreFilter wanted, const void *arg)
{
	StoreScan  *scan = begin_scan(store, wanted, arg);
	ItemPointerData from;
	ItemPointerData to;

	ItemPointerSet(&from, first, 0);
	ItemPointerSet(&to, first + (count - 1), PG_UINT16_MAX);
	scan->scan = table_beginscan_tidrange(store->table, SnapshotAny, &from, &to, SO_NONE);
	scan->some_blocks = true;
	return scan;
}

/*
 * Go to the next version that the filter wants, dead or alive. The lease is
 * valid until the next call.
 */
static bool
next_version(StoreScan *scan, Lease *lease)
{
	TupleTableSlot *slot = scan->slot;

	while (scan->some_blocks ?
		   table_scan_getnextslot_tidrange(scan->scan, ForwardScanDirection, slot) :
		   table_scan_getnextslot(scan->scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		slot_getallattrs(slot);
		lease_from_columns(lease, slot->tts_values, slot->tts_isnull);
		if (scan->wanted(lease, scan->arg))
			return true;
	}
	return false;
}

/*
 * Read the next row, in no particular order, that was committed when the scan
 * began; false if there are no more. The lease is valid until the next call.
 */
bool
store_next(StoreScan *scan, Lease *lease, ItemPointerData *tid)
{
	while (next_version(scan, lease))
	{
		if (table_tuple_satisfies_snapshot(scan->table, scan->slot, scan->snapshot))
		{
			*tid = scan->slot->tts_tid;
			return true;
		}
	}
	return false;
}

/*
 * Was the version written by a grant of another transaction that was open when
 * the scan began, and has not been rolled back since? Such a grant is so young
 * that the version cannot be frozen, so the status of its transaction is still
 * known.
 */
static bool
granted_meanwhile(const StoreScan *scan, const Lease *lease)
{
	uint64		next = U64FromFullTransactionId(ReadNextFullTransactionId());
	TransactionId granted_by = XidFromFullTransactionId(lease->xid);
	TransactionId written_by;
	bool		isnull;

	if (next - U64FromFullTransactionId(lease->xid) > PG_INT32_MAX ||
		TransactionIdIsCurrentTransactionId(granted_by) ||
		!XidInMVCCSnapshot(granted_by, scan->snapshot))
		return false;

	written_by = DatumGetTransactionId(slot_getsysattr(scan->slot, MinTransactionIdAttributeNumber,
													   &isnull));
	return TransactionIdIsInProgress(written_by) || TransactionIdDidCommit(written_by);
}

/*
 * Like store_next(), but also returns rows that are not committed but may yet
 * be, or that were committed since the scan began. It may return several
 * versions of a row. It returns every row that another transaction granted
 * before the scan began.
 */
bool
store_next_possible(StoreScan *scan, Lease *lease, ItemPointerData *tid)
{
	while (next_version(scan, lease))
	{
		if (table_tuple_satisfies_snapshot(scan->table, scan->slot, scan->snapshot) ||
			granted_meanwhile(scan, lease))
		{
			*tid = scan->slot->tts_tid;
			return true;
		}
	}
	return false;
}

void
store_end_scan(StoreScan *scan)
{
	ExecDropSingleTupleTableSlot(scan->slot);
	table_endscan(scan->scan);
	UnregisterSnapshot(scan->snapshot);
	pfree(scan);
}
