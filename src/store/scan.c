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
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store/columns.h"

struct StoreScan
{
	TupleTableSlot *slot;
	TableScanDesc scan;
	Snapshot	snapshot;		/* taken when the scan begins */
	ScanRows	rows;
	StoreFilter wanted;
	const void *arg;
};

/*
 * Begin to read the rows that the filter wants, in a range of blocks. The scan
 * itself gets no MVCC snapshot, since that would register the read with
 * SERIALIZABLE.
 */
StoreScan *
store_scan_blocks(LeaseStore *store, BlockNumber first, BlockNumber last,
				  ScanRows rows, StoreFilter wanted, const void *arg)
{
	StoreScan  *scan = palloc(sizeof(StoreScan));
	ItemPointerData from;
	ItemPointerData to;

	ItemPointerSet(&from, first, 0);
	ItemPointerSet(&to, last, PG_UINT16_MAX);
	*scan = (StoreScan) {
		.slot = table_slot_create(store->table, NULL),
		.snapshot = RegisterSnapshot(GetLatestSnapshot()),
		.rows = rows,
		.wanted = wanted,
		.arg = arg
	};
	RACE_POINT("when a scan begins");
	/* This fixes the last block. A row that moved to a later one since the snapshot is found where it was. */
	scan->scan = table_beginscan_tidrange(store->table, SnapshotAny, &from, &to, SO_NONE);
	return scan;
}

/* Begin to read the rows of the whole table that the filter wants. */
StoreScan *
store_scan(LeaseStore *store, ScanRows rows, StoreFilter wanted, const void *arg)
{
	return store_scan_blocks(store, 0, MaxBlockNumber, rows, wanted, arg);
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
 * Read the next row, in no particular order; false if there are no more. The
 * lease is valid until the next call.
 */
bool
store_next(StoreScan *scan, Lease *lease, ItemPointerData *tid)
{
	TupleTableSlot *slot = scan->slot;

	while (table_scan_getnextslot_tidrange(scan->scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();

		slot_getallattrs(slot);
		lease_from_columns(lease, slot->tts_values, slot->tts_isnull);
		if ((scan->wanted == NULL || scan->wanted(lease, scan->arg)) &&
			(table_tuple_satisfies_snapshot(scan->scan->rs_rd, slot, scan->snapshot) ||
			 (scan->rows == SCAN_POSSIBLE && granted_meanwhile(scan, lease))))
		{
			*tid = slot->tts_tid;
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
