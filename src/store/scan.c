/*-------------------------------------------------------------------------
 *
 * scan.c
 *		Reading the rows of many resources, or of the whole table.
 *
 * A scan finds candidates. Before the caller changes a row, it locks the
 * resource and looks at the row again.
 *
 * The rows of one owner are read through an index, if there is one. It only
 * finds versions, as reading the table does; which of them count is decided in
 * the same way.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store/columns.h"

struct StoreScan
{
	Relation	table;
	TupleTableSlot *slot;
	TableScanDesc blocks;		/* of a range of blocks */
	Relation	index;			/* on the owner; NULL: the blocks are read */
	IndexScanDesc entries;		/* of the current search */
	SnapshotData versions;		/* that the index shows */
	const text *owner;
	OwnerSearch search;
	OwnerSearch last_search;
	Snapshot	snapshot;		/* taken when the scan begins */
	ScanRows	rows;
	StoreFilter wanted;
	const void *arg;
};

/*
 * Begin to read versions. The scan itself gets no MVCC snapshot, since that
 * would register the read with SERIALIZABLE.
 */
static StoreScan *
begin_scan(LeaseStore *store, ScanRows rows, StoreFilter wanted, const void *arg)
{
	StoreScan  *scan = palloc(sizeof(StoreScan));

	*scan = (StoreScan) {
		.table = store->table,
		.slot = table_slot_create(store->table, NULL),
		.snapshot = RegisterSnapshot(GetLatestSnapshot()),
		.rows = rows,
		.wanted = wanted,
		.arg = arg
	};
	RACE_POINT("when a scan begins");
	return scan;
}

/* Begin to read the rows that the filter wants, in a range of blocks. */
StoreScan *
store_scan_blocks(LeaseStore *store, BlockNumber first, BlockNumber last,
				  ScanRows rows, StoreFilter wanted, const void *arg)
{
	StoreScan  *scan = begin_scan(store, rows, wanted, arg);
	ItemPointerData from;
	ItemPointerData to;

	ItemPointerSet(&from, first, 0);
	ItemPointerSet(&to, last, PG_UINT16_MAX);
	/* This fixes the last block. A row that has moved to a later one is found where it was. */
	scan->blocks = table_beginscan_tidrange_compat(store->table, SnapshotAny, &from, &to, SO_NONE);
	return scan;
}

/* Begin to read the rows of the whole table that the filter wants. */
StoreScan *
store_scan(LeaseStore *store, ScanRows rows, StoreFilter wanted, const void *arg)
{
	return store_scan_blocks(store, 0, MaxBlockNumber, rows, wanted, arg);
}

/* Begin the next search in the index. */
static void
begin_search(StoreScan *scan, OwnerSearch search)
{
	ScanKeyData keys[MAX_OWNER_KEYS];
	int			nkeys = owner_search_keys(keys, scan->owner, search);

	if (scan->entries != NULL)
		index_endscan(scan->entries);
	scan->search = search;
	scan->entries = index_beginscan_compat(scan->table, scan->index, &scan->versions, NULL, nkeys,
										   0, SO_NONE);
	index_rescan(scan->entries, keys, nkeys, NULL, 0);
}

/*
 * Begin to read the rows of an owner. The index shows the versions that some
 * snapshot may still need, and forgets all others.
 *
 * It has each version that the filter can want: a transaction that counts has
 * written its entries when it has ended or, if it is open, before its session
 * begins to scan. Our snapshot keeps them, and the scan keeps its place among
 * them, since it does not use an MVCC snapshot.
 */
static StoreScan *
scan_owner(LeaseStore *store, const text *owner, OwnerSearch last,
		   ScanRows rows, StoreFilter wanted, const void *arg)
{
	Relation	index = open_owner_index(store->table, owner, last);
	StoreScan  *scan;

	if (index == NULL)
		return store_scan(store, rows, wanted, arg);

	scan = begin_scan(store, rows, wanted, arg);
	scan->index = index;
	scan->owner = owner;
	scan->last_search = last;
	InitNonVacuumableSnapshot(scan->versions, GlobalVisTestFor(store->table));
	begin_search(scan, SEARCH_OWNED);
	return scan;
}

/* Begin to read the rows of an owner that the filter wants. */
StoreScan *
store_scan_owned(LeaseStore *store, const text *owner,
				 ScanRows rows, StoreFilter wanted, const void *arg)
{
	return scan_owner(store, owner, SEARCH_OWNED, rows, wanted, arg);
}

/* The same with those that are kept for the owner. */
StoreScan *
store_scan_owned_or_kept(LeaseStore *store, const text *owner,
						 ScanRows rows, StoreFilter wanted, const void *arg)
{
	return scan_owner(store, owner, SEARCH_KEPT, rows, wanted, arg);
}

bool
store_reads_index(const StoreScan *scan)
{
	return scan->index != NULL;
}

/* Go to the next version. */
static bool
next_version(StoreScan *scan)
{
	CHECK_FOR_INTERRUPTS();
	if (scan->index == NULL)
		return table_scan_getnextslot_tidrange(scan->blocks, ForwardScanDirection, scan->slot);
	while (!index_getnext_slot(scan->entries, ForwardScanDirection, scan->slot))
	{
		if (scan->search == scan->last_search)
			return false;
		begin_search(scan, scan->search + 1);
	}
	return true;
}

/*
 * Was the version written by another transaction that was open when the scan
 * began, and has not been rolled back since? It may be a grant, or it may hold
 * or keep for longer a lease whose time is over in the version before it.
 */
static bool
written_meanwhile(const StoreScan *scan)
{
	HeapTuple	version = ExecFetchSlotHeapTuple(scan->slot, false, NULL);
	TransactionId writer = HeapTupleHeaderGetXmin(version->t_data);

	return TransactionIdIsNormal(writer) &&
		!TransactionIdIsCurrentTransactionId(writer) &&
		XidInMVCCSnapshot(writer, scan->snapshot) &&
		(TransactionIdIsInProgress(writer) || TransactionIdDidCommit(writer));
}

/*
 * Read the next row, in no particular order; false if there are no more. The
 * lease is valid until the next call.
 */
bool
store_next(StoreScan *scan, Lease *lease, ItemPointerData *tid)
{
	TupleTableSlot *slot = scan->slot;

	while (next_version(scan))
	{
		slot_getallattrs(slot);
		lease_from_columns(lease, slot->tts_values, slot->tts_isnull);
		if ((scan->wanted == NULL || scan->wanted(lease, scan->arg)) &&
			(table_tuple_satisfies_snapshot(scan->table, slot, scan->snapshot) ||
			 (scan->rows == SCAN_POSSIBLE && written_meanwhile(scan))))
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
	if (scan->index != NULL)
	{
		index_endscan(scan->entries);
		index_close(scan->index, AccessShareLock);
	}
	else
		table_endscan(scan->blocks);
	UnregisterSnapshot(scan->snapshot);
	pfree(scan);
}
