/*-------------------------------------------------------------------------
 *
 * look.c
 *		Reading the rows of a resource as they are now.
 *
 * A look uses a dirty snapshot. It shows committed rows, and the changes of
 * open transactions. It writes nothing and waits for nobody. It also registers
 * no read with SERIALIZABLE, which would make transactions fail because of
 * leases that they did not get.
 *
 * Scans go backward. Index entries with equal keys are in the order of the
 * versions' positions in the table, so the newest version mostly comes first. So
 * a look does not become slower while an old snapshot keeps vacuum from
 * removing dead versions.
 *
 * The transactions that lock a row are read from its header, as in the
 * pgrowlocks module. An attempt to lock the row would write to it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/relscan.h"
#include "access/subtrans.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lock.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "rules/rules.h"
#include "store/columns.h"

/* Number of dead index entries after which a new search for the next lease slot is cheaper. */
#define MAX_DEAD_ENTRIES	8

/*
 * Note a running transaction that locks the row, or one that has replaced it
 * unless it was rolled back.
 */
static void
note_locker(LeaseRow *row, TransactionId xid, MultiXactStatus status)
{
	if (TransactionIdIsCurrentTransactionId(xid))
	{
		row->locked_here |= !ISUPDATE_from_mxstatus(status);
		return;
	}
	if (ISUPDATE_from_mxstatus(status))
	{
		/*
		 * A dirty snapshot does not tell who replaced a version whose inserter
		 * is open. They may have committed since.
		 */
		if (TransactionIdIsInProgress(xid) || TransactionIdDidCommit(xid))
			row->changed_by = xid;
		return;
	}
	if (!TransactionIdIsInProgress(xid))
		return;
	if (!TransactionIdIsValid(row->locked_by) || row->lock_mode < (LockTupleMode) status)
	{
		row->locked_by = xid;
		row->lock_mode = (LockTupleMode) status;	/* the two enums agree for row locks */
	}
}

/* The kind of lock, or change, of the only transaction in the header. */
static MultiXactStatus
single_status(HeapTupleHeader header)
{
	uint16		infomask = header->t_infomask;

	if (!HEAP_XMAX_IS_LOCKED_ONLY(infomask))
		return MultiXactStatusUpdate;
	if (HEAP_XMAX_IS_KEYSHR_LOCKED(infomask))
		return MultiXactStatusForKeyShare;
	if (HEAP_XMAX_IS_SHR_LOCKED(infomask))
		return MultiXactStatusForShare;
	return (header->t_infomask2 & HEAP_KEYS_UPDATED) != 0 ?
		MultiXactStatusForUpdate : MultiXactStatusForNoKeyUpdate;
}

/* Read from the header which transactions lock or change the row. */
static void
read_lockers(LeaseRow *row)
{
	HeapTupleHeader header = row->tuple->t_data;
	MultiXactMember only = {HeapTupleHeaderGetRawXmax(header), single_status(header)};
	MultiXactMember *members = &only;
	int			nmembers = 1;

	if ((header->t_infomask & HEAP_XMAX_INVALID) != 0)
		return;
	if ((header->t_infomask & HEAP_XMAX_IS_MULTI) != 0)
		nmembers = GetMultiXactIdMembers(only.xid, &members, false,
										 HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask));
	for (int i = 0; i < nmembers; i++)
		note_locker(row, members[i].xid, members[i].status);
}

/*
 * Copy the version that a scan found. The header is consistent only while the
 * buffer is locked, and may have changed since the visibility check.
 */
static void
read_row(LeaseStore *store, const SnapshotData *dirty, LeaseRow *row)
{
	BufferHeapTupleTableSlot *slot = (BufferHeapTupleTableSlot *) store->slot;
	Datum		values[MaxHeapAttributeNumber];
	bool		isnull[MaxHeapAttributeNumber];

	if (TransactionIdIsValid(dirty->xmin))
		RACE_POINT("before an open version is read");
	LockBuffer(slot->buffer, BUFFER_LOCK_SHARE);
	row->tuple = heap_copytuple(slot->base.tuple);
	LockBuffer(slot->buffer, BUFFER_LOCK_UNLOCK);

	row->inserted_by = dirty->xmin;
	row->changed_by = InvalidTransactionId;	/* the header tells: see note_locker() */
	row->locked_by = InvalidTransactionId;
	row->lock_mode = LockTupleKeyShare;
	row->locked_here = false;
	row->written_here =
		TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(row->tuple->t_data));
	read_lockers(row);
	heap_deform_tuple(row->tuple, RelationGetDescr(store->table), values, isnull);
	lease_from_columns(&row->lease, values, isnull);
}

static void
clear_rows(LeaseRows *rows)
{
	rows->count = 0;
	rows->space = 2;			/* enough for most looks */
	rows->row = palloc(rows->space * sizeof(LeaseRow));
}

static LeaseRow *
add_row(LeaseRows *rows)
{
	if (rows->count == rows->space)
		rows->row = repalloc_huge(rows->row, (rows->space *= 4) * sizeof(LeaseRow));
	return &rows->row[rows->count++];
}

/* Begin to scan the rows of a resource, in lease slots below a number. */
static IndexScanDesc
begin_scan(LeaseStore *store, Snapshot snapshot, const text *resource, int below)
{
	int			nkeys = below > MAX_SLOT ? 1 : 2;
	IndexScanDesc scan = index_beginscan_compat(store->table, store->primary_key, snapshot, NULL,
												nkeys, 0, SO_NONE);
	ScanKeyData keys[2];

	ScanKeyEntryInitialize(&keys[0], 0, 1, BTEqualStrategyNumber, TEXTOID,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(resource));
	if (nkeys > 1)
		ScanKeyEntryInitialize(&keys[1], 0, 2, BTLessEqualStrategyNumber, INT2OID,
							   InvalidOid, F_INT2LE, Int16GetDatum(below - 1));
	index_rescan(scan, keys, nkeys, NULL, 0);
	return scan;
}

/*
 * Go to the next version that the snapshot shows. All current versions of the
 * lease slots from *done on have been found. So a long run of dead entries
 * consists of older versions of these slots. Then the scan begins again below
 * *done, once for each row that was found.
 */
static bool
next_version(LeaseStore *store, IndexScanDesc *scan, const text *resource, int *done)
{
	int			dead = 0;

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();

		if (!(*scan)->xs_heap_continue)
		{
			if (dead > MAX_DEAD_ENTRIES && *done <= MAX_SLOT)
			{
				Snapshot	snapshot = (*scan)->xs_snapshot;

				index_endscan(*scan);
				*scan = begin_scan(store, snapshot, resource, *done);
				*done = MAX_SLOT + 1;
			}
			if (index_getnext_tid(*scan, BackwardScanDirection) == NULL)
				return false;
		}
		if (index_fetch_heap(*scan, store->slot))
			return true;
		dead++;
	}
}

static uint64
transactions_ended(void)
{
	pg_memory_barrier();
	return TransamVariables->xactCompletionCount;
}

/*
 * Scan the rows of a resource.
 *
 * The scan ends at the first version in slot 0 that no transaction is
 * changing: there is no other current version of that slot, and there are no
 * lower slots. So a look at an exclusive lease reads one row.
 */
static void
scan_rows(LeaseStore *store, const text *resource, LeaseRows *rows)
{
	int			done = MAX_SLOT + 1;
	SnapshotData dirty;
	IndexScanDesc scan;

	InitDirtySnapshot(dirty);
	scan = begin_scan(store, &dirty, resource, done);
	while (done > EXCLUSIVE_SLOT && next_version(store, &scan, resource, &done))
	{
		LeaseRow   *row = add_row(rows);

		read_row(store, &dirty, row);
		done = is_open(row) ? MAX_SLOT + 1 : row->lease.slot;	/* else it would find an open
																 * slot twice */
		RACE_POINT("in a look");
	}
	index_endscan(scan);
	ExecClearTuple(store->slot);
}

/*
 * If the transaction that wrote or replaces a version has ended, clear it.
 * Returns true if the version is not current because of how it ended.
 */
static bool
settle(TransactionId *xid, bool current_if_committed, bool *settled)
{
	bool		committed;

	if (!TransactionIdIsValid(*xid) || TransactionIdIsInProgress(*xid))
		return false;
	committed = TransactionIdDidCommit(*xid);
	*xid = InvalidTransactionId;
	*settled = true;
	return committed != current_if_committed;
}

/*
 * Ask once for each transaction whether it has ended since the look, and drop
 * the versions that are no longer current. Returns false if none has ended.
 */
static bool
settle_ended(LeaseRows *rows)
{
	bool		settled = false;
	int			kept = 0;

	for (int i = 0; i < rows->count; i++)
	{
		LeaseRow   *row = &rows->row[i];
		bool		replaced = settle(&row->changed_by, false, &settled);
		bool		undone = settle(&row->inserted_by, true, &settled);

		if (!replaced && !undone)
			rows->row[kept++] = *row;
		RACE_POINT("while rows are settled");
	}
	rows->count = kept;
	return settled;
}

/*
 * Take into account how transactions ended during the look; returns whether any
 * has. Others, or their savepoints, may end right now. So all are asked until
 * none has ended: then the rows are as they were when the last round began,
 * since each transaction that is left was running then, and all others had
 * ended. Each round but the last settles a transaction that the look has met.
 */
static bool
settle_rows(LeaseRows *rows)
{
	bool		settled = false;

	while (settle_ended(rows))
		settled = true;
	return settled;
}

/*
 * Look at all rows of a resource. Unless the caller holds the resource lock,
 * rows may be missing, and those that are there may be from different moments.
 * grant/grant.c explains why that is enough to refuse.
 */
void
store_look(LeaseStore *store, const text *resource, LeaseRows *rows)
{
	uint64		ended = transactions_ended();
	bool		settled;

	clear_rows(rows);
	scan_rows(store, resource, rows);
	settled = settle_rows(rows);

	/* One row that nobody was changing was current when it was read. */
	rows->same_moment = (rows->count == 1 && !settled) || ended == transactions_ended();
	RACE_POINT("after a look");
}

/*
 * Look at the rows of a resource that are committed, or written by this
 * transaction, all at the same moment. This needs no lock, so it also works on
 * a standby. It registers no read with SERIALIZABLE, because the scan itself
 * gets no MVCC snapshot. It has to visit all dead versions.
 */
void
store_look_committed(LeaseStore *store, const text *resource, LeaseRows *rows)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SnapshotData none = {0};
	IndexScanDesc scan = begin_scan(store, SnapshotAny, resource, MAX_SLOT + 1);

	clear_rows(rows);
	while (index_getnext_slot(scan, BackwardScanDirection, store->slot))
	{
		CHECK_FOR_INTERRUPTS();
		if (table_tuple_satisfies_snapshot(store->table, store->slot, snapshot))
			read_row(store, &none, add_row(rows));
	}
	index_endscan(scan);
	ExecClearTuple(store->slot);
	UnregisterSnapshot(snapshot);
	rows->same_moment = true;
}

/* Look at one row again by its TID; false if it no longer exists. */
bool
store_look_again(LeaseStore *store, const ItemPointerData *tid, LeaseRow *row)
{
	ItemPointerData copy = *tid;
	SnapshotData dirty;
	bool		found;

	InitDirtySnapshot(dirty);
	found = table_tuple_fetch_row_version(store->table, &copy, &dirty, store->slot);
	if (found)
		read_row(store, &dirty, row);
	ExecClearTuple(store->slot);
	return found;
}

/*
 * Look at the row that this session wrote last, if it is one of this resource,
 * and if no other transaction is changing it; otherwise returns false. Most
 * leases are released by the session that acquired them last, and acquired by
 * it again. This needs neither the index nor the versions before. It tells
 * nothing about the other rows of the resource.
 */
bool
store_look_at_last_written(LeaseStore *store, const text *resource, LeaseRows *rows)
{
	if (last_written.resource != hash_text(resource, 0))
		return false;

	last_written.resource = 0;	/* until the next write: a request that is refused reads more the
								 * next time */
	clear_rows(rows);
	if (ItemPointerGetBlockNumber(&last_written.tid) >= RelationGetNumberOfBlocks(store->table) ||
		!store_look_again(store, &last_written.tid, rows->row) ||
		is_open(rows->row) || !same_text(rows->row->lease.resource, resource))
		return false;
	rows->count = 1;
	rows->same_moment = true;
	return true;
}

/*
 * Wait for the end of a transaction that a look found, as a wait for a row
 * does: visible in pg_locks, limited by lock_timeout, and part of the server's
 * deadlock detection. The caller must not hold the resource lock.
 *
 * A released savepoint ends with the one around it. XactLockTableWait() would
 * wait for the end of the whole transaction then, and miss a rollback to that
 * one: there is a call that writes inside of a savepoint of its own.
 */
void
store_wait_for(TransactionId transaction)
{
	TransactionId level = transaction;
	LOCKTAG		tag;

	do
	{
		SET_LOCKTAG_TRANSACTION(tag, level);
		LockAcquire(&tag, ShareLock, false, false);
		LockRelease(&tag, ShareLock, false);
	} while (TransactionIdIsInProgress(transaction) &&
			 TransactionIdIsValid(level = SubTransGetParent(level)));
}
