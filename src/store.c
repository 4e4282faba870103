/*-------------------------------------------------------------------------
 *
 * store.c
 *		The only file that touches the lock table.
 *
 * It goes through the table access method, not through SQL, for three things
 * that SQL cannot do: look without writing anything, not wait, and see what
 * is committed now instead of what the caller's snapshot shows.
 *
 * Finding a row
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
 * Writing a row
 *
 * A released lease stays as a row without owner, to be updated in place the
 * next time: a table whose rows come and go collects dead index entries that
 * every look-up has to pass. The primary key never changes in an update,
 * so its new entries, if any, skip the search for duplicates, which would
 * visit all older versions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "lease_lock.h"

enum
{
	Anum_resource = 1,
	Anum_slot,
	Anum_owner,
	Anum_token,
	Anum_granted_at,
	Anum_expires_at,
	Anum_holder,
	Anum_xid,
	Anum_mode,
	Anum_holds,
	Anum_lock_delay,
	Anum_hold_until,
	Anum_payload,
	Natts_lease_lock = Anum_payload
};

static const Oid column_types[Natts_lease_lock] = {
	TEXTOID, INT2OID, TEXTOID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID, OIDOID, XID8OID,
	CHAROID, INT4OID, INT8OID, TIMESTAMPTZOID, JSONBOID
};

/*
 * Objects of the extension; invalid until looked up, and after any change.
 * The sequence is known only when the table was found in order.
 */
static Oid	table_oid = InvalidOid;
static Oid	sequence_oid = InvalidOid;

static void
forget_objects(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == table_oid || relid == sequence_oid)
		table_oid = sequence_oid = InvalidOid;
}

void
store_init(void)
{
	CacheRegisterRelcacheCallback(forget_objects, (Datum) 0);
}

/* Get the OID of a relation of the extension. */
static Oid
extension_relation(const char *name)
{
	Oid			extension = get_extension_oid("lease_lock", true);
	Oid			relid = InvalidOid;

	if (OidIsValid(extension))
		relid = get_relname_relid(name, get_extension_schema(extension));
	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s\" of extension \"lease_lock\" does not exist", name),
				 errhint("Run CREATE EXTENSION lease_lock in this database.")));
	return relid;
}

static void
refuse_altered(Relation table)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("columns, primary key or persistence of lock table \"%s\" were altered",
					RelationGetRelationName(table)),
			 errhint("Undo it, and keep more about a lease in a table of your own. If the extension was updated, connect again, or restart the server if it preloads the library.")));
}

/*
 * Refuse a lock table that was altered in a way that the code below would
 * misread, or silently pass over.
 */
static void
check_table(Relation table)
{
	TupleDesc	desc = RelationGetDescr(table);

	if (table->rd_rel->relkind != RELKIND_RELATION ||
		table->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT ||
		desc->natts < Natts_lease_lock)
		refuse_altered(table);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(desc, i);

		if (i < Natts_lease_lock ?
			column->atttypid != column_types[i] ||
			(column->attstorage != TYPSTORAGE_PLAIN && i != Anum_payload - 1) :
			!column->attisdropped)
			refuse_altered(table);
	}

	if (table->trigdesc != NULL || table->rd_rules != NULL || table->rd_rel->relrowsecurity ||
		(desc->constr != NULL && desc->constr->num_check > 0))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lock table \"%s\" has a trigger, a rule, row security or a check constraint",
						RelationGetRelationName(table)),
				 errdetail("The lease functions write the table directly and would pass it over."),
				 errhint("Drop it. A foreign key to the lock table has triggers, too.")));
}

/*
 * Does the index say that a row is the only one of its resource and slot?
 * There are several of that kind while one is rebuilt concurrently.
 */
static bool
is_key_index(Relation index)
{
	Form_pg_index form = index->rd_index;

	return form->indisunique && form->indimmediate && form->indnkeyatts == 2 &&
		form->indkey.values[0] == Anum_resource && form->indkey.values[1] == Anum_slot &&
		index->rd_indcollation[0] == C_COLLATION_OID &&
		heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL);
}

/* Open the index that finds the rows. */
static Relation
open_primary_key(Relation table, LOCKMODE lockmode)
{
	Oid			relid = RelationGetPrimaryKeyIndex(table, false);
	Relation	index = OidIsValid(relid) ? index_open(relid, lockmode) : NULL;

	if (index == NULL || !is_key_index(index))
		refuse_altered(table);
	return index;
}

/* Make a store of the lock table, which is open and locked. */
static LeaseStore *
make_store(Relation table, LOCKMODE lockmode)
{
	LeaseStore *store = palloc0(sizeof(LeaseStore));
	Oid			relid = RelationGetRelid(table);

	store->table = table;
	if (relid != table_oid || !OidIsValid(sequence_oid))
	{
		/* From here on news of a change clears it; then look again next time. */
		table_oid = relid;
		check_table(store->table);
		store->token_sequence = extension_relation("lease_token_seq");
		sequence_oid = table_oid == relid ? store->token_sequence : InvalidOid;
	}
	else
		store->token_sequence = sequence_oid;

	store->primary_key = open_primary_key(store->table, lockmode);
	store->lockmode = lockmode;
	store->row = table_slot_create(store->table, NULL);
	return store;
}

/*
 * Open the lock table, whichever it is by the time that we have its lock. The
 * caller runs inside a statement, with its snapshot active.
 */
LeaseStore *
store_open(LOCKMODE lockmode)
{
	Relation	table;

	do
	{
		table = try_table_open(OidIsValid(table_oid) ? table_oid : extension_relation("lease_lock"),
							   lockmode);
		if (table == NULL)
			table_oid = InvalidOid; /* dropped meanwhile; there may be a new one */
	} while (table == NULL);

	return make_store(table, lockmode);
}

/*
 * The same, but wait for nobody, be it that the table is locked or that the
 * extension is not there, or not yet; then there is no store.
 */
StoreOpening
store_open_if_free(LOCKMODE lockmode, LeaseStore **store)
{
	Oid			extension = get_extension_oid("lease_lock", true);
	Oid			relid;
	Relation	table;

	if (!OidIsValid(extension))
		return STORE_ABSENT;

	relid = get_relname_relid("lease_lock", get_extension_schema(extension));
	if (!OidIsValid(relid))
	{
		/* It may have been dropped, or moved, between the two look-ups. */
		AcceptInvalidationMessages();
		InvalidateCatalogSnapshot();
		if (!OidIsValid(get_extension_oid("lease_lock", true)))
			return STORE_ABSENT;
		relid = extension_relation("lease_lock");
	}
	if (!ConditionalLockRelationOid(relid, lockmode))
		return STORE_LOCKED;

	table = try_table_open(relid, NoLock);
	if (table == NULL)
	{
		UnlockRelationOid(relid, lockmode);
		return STORE_LOCKED;	/* until just now, by who dropped it */
	}

	*store = make_store(table, lockmode);
	return STORE_OPEN;
}

/*
 * Close it. What was written keeps the table locked until the transaction
 * ends, as for any table; who was refused is in nobody's way.
 */
void
store_close(LeaseStore *store)
{
	LOCKMODE	unlock = store->written ? NoLock : store->lockmode;

	if (store->scan != NULL)
	{
		table_endscan(store->scan);
		UnregisterSnapshot(store->scan_snapshot);
	}
	ExecDropSingleTupleTableSlot(store->row);
	if (store->glance != NULL)
		ExecDropSingleTupleTableSlot(store->glance);
	index_close(store->primary_key, unlock);
	table_close(store->table, unlock);
	pfree(store);
}

/* Stand on no row any more. */
void
store_forget_row(LeaseStore *store)
{
	ExecClearTuple(store->row);
}

/* Read the row that the store stands on. */
static void
read_row(LeaseStore *store)
{
	TupleTableSlot *row = store->row;
	Lease	   *lease = &store->lease;

	slot_getallattrs(row);
	lease->resource = DatumGetTextPP(row->tts_values[Anum_resource - 1]);
	lease->slot = DatumGetInt16(row->tts_values[Anum_slot - 1]);
	lease->owner = row->tts_isnull[Anum_owner - 1] ? NULL :
		DatumGetTextPP(row->tts_values[Anum_owner - 1]);
	lease->token = DatumGetInt64(row->tts_values[Anum_token - 1]);
	lease->granted_at = DatumGetTimestampTz(row->tts_values[Anum_granted_at - 1]);
	lease->expires_at = DatumGetTimestampTz(row->tts_values[Anum_expires_at - 1]);
	lease->holder = DatumGetObjectId(row->tts_values[Anum_holder - 1]);
	lease->xid = DatumGetFullTransactionId(row->tts_values[Anum_xid - 1]);
	lease->mode = DatumGetChar(row->tts_values[Anum_mode - 1]);
	lease->holds = DatumGetInt32(row->tts_values[Anum_holds - 1]);
	lease->lock_delay = DatumGetInt64(row->tts_values[Anum_lock_delay - 1]);
	lease->hold_until = row->tts_isnull[Anum_hold_until - 1] ? DT_NOBEGIN :
		DatumGetTimestampTz(row->tts_values[Anum_hold_until - 1]);
	lease->payload = row->tts_isnull[Anum_payload - 1] ? (Datum) 0 : row->tts_values[Anum_payload - 1];
}

/* Make a row to write. */
static TupleTableSlot *
form_row(LeaseStore *store, const Lease *lease)
{
	TupleTableSlot *row = MakeSingleTupleTableSlot(RelationGetDescr(store->table), &TTSOpsVirtual);

	row->tts_values[Anum_resource - 1] = PointerGetDatum(lease->resource);
	row->tts_values[Anum_slot - 1] = Int16GetDatum(lease->slot);
	row->tts_values[Anum_owner - 1] = PointerGetDatum(lease->owner);
	row->tts_values[Anum_token - 1] = Int64GetDatum(lease->token);
	row->tts_values[Anum_granted_at - 1] = TimestampTzGetDatum(lease->granted_at);
	row->tts_values[Anum_expires_at - 1] = TimestampTzGetDatum(lease->expires_at);
	row->tts_values[Anum_holder - 1] = ObjectIdGetDatum(lease->holder);
	row->tts_values[Anum_xid - 1] = FullTransactionIdGetDatum(lease->xid);
	row->tts_values[Anum_mode - 1] = CharGetDatum(lease->mode);
	row->tts_values[Anum_holds - 1] = Int32GetDatum(lease->holds);
	row->tts_values[Anum_lock_delay - 1] = Int64GetDatum(lease->lock_delay);
	row->tts_values[Anum_hold_until - 1] = TimestampTzGetDatum(lease->hold_until);
	row->tts_values[Anum_payload - 1] = lease->payload;

	memset(row->tts_isnull, false, Natts_lease_lock * sizeof(bool));
	row->tts_isnull[Anum_owner - 1] = lease->owner == NULL;
	row->tts_isnull[Anum_hold_until - 1] = lease->hold_until == DT_NOBEGIN;
	row->tts_isnull[Anum_payload - 1] = lease->payload == (Datum) 0;
	for (int i = Natts_lease_lock; i < row->tts_tupleDescriptor->natts; i++)
		row->tts_isnull[i] = true;	/* a column that came and went */

	return ExecStoreVirtualTuple(row);
}

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
static IndexScanDesc
begin_key_scan(LeaseStore *store, Snapshot snapshot, const text *resource, int16 slot)
{
	IndexScanDesc scan = index_beginscan(store->table, store->primary_key, snapshot, NULL, 2, 0, SO_NONE);

	set_scan_keys(scan, resource, BTEqualStrategyNumber, F_INT2EQ, slot);
	return scan;
}

/* Start to look for the versions of all rows of a resource, the highest slot first. */
static IndexScanDesc
begin_resource_scan(LeaseStore *store, Snapshot snapshot, const text *resource)
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

/* Read the next row of a scan with a dirty snapshot. */
static ProbeResult
probe_next(LeaseStore *store, IndexScanDesc scan, const SnapshotData *dirty)
{
	if (!index_getnext_slot(scan, BackwardScanDirection, store->row))
		return PROBE_ABSENT;

	read_row(store);
	store->busy = met_by(dirty);
	return TransactionIdIsValid(store->busy.xid) ? PROBE_BUSY : PROBE_FOUND;
}

/* Look for a row, and at what open transactions do to it. Writes nothing. */
ProbeResult
store_probe(LeaseStore *store, const text *resource, int16 slot)
{
	SnapshotData dirty;
	IndexScanDesc scan;
	ProbeResult result;

	InitDirtySnapshot(dirty);
	scan = begin_key_scan(store, &dirty, resource, slot);
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
	scan = begin_resource_scan(store, &dirty, resource);
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
	IndexScanDesc scan = begin_resource_scan(store, snapshot, resource);
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
	scan = begin_key_scan(store, &dirty, resource, GATE_SLOT);
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

/* Older versions of a slot to step over, before it is cheaper to look for the next slot. */
#define MAX_STEPS	8

/*
 * Show every slot but the gate, the highest first. All that was committed when
 * the visit began is shown, or what was committed to the same slot since; what
 * open transactions are doing is shown as well, unless it begins behind us.
 * A slot that is being changed may be shown twice. The visitor must not use
 * the store.
 */
void
store_visit_slots(LeaseStore *store, const text *resource, SlotVisitor visit, void *arg)
{
	Snapshot	latest = GetLatestSnapshot();
	SnapshotData dirty;
	IndexScanDesc scan = begin_resource_scan(store, SnapshotAny, resource);
	int			done = MAX_SLOT + 1;	/* of this slot we have seen the committed version */
	int			steps = 0;

	InitDirtySnapshot(dirty);
	while (index_getnext_slot(scan, BackwardScanDirection, store->row))
	{
		BusyRow		busy = {0};
		bool		committed;

		CHECK_FOR_INTERRUPTS();
		read_row(store);
		if (store->lease.slot == GATE_SLOT)
			break;

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
		else if (!committed)
			continue;
		if (committed || !TransactionIdIsValid(busy.xid))
		{
			done = store->lease.slot;
			steps = 0;
		}
		visit(&store->lease, TransactionIdIsValid(busy.xid) ? &busy : NULL, arg);
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
	IndexScanDesc scan = begin_key_scan(store, SnapshotAny, resource, slot);
	bool		found = false;

	while (!found && index_getnext_slot(scan, BackwardScanDirection, store->row))
		found = table_tuple_satisfies_snapshot(store->table, store->row, latest);
	if (found)
		read_row(store);

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
		read_row(store);
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
		read_row(store);
		if (wanted(&store->lease, arg) &&
			(table_tuple_satisfies_snapshot(store->table, store->row, store->scan_snapshot) ||
			 granted_meanwhile(store)))
			return true;
	}
	return false;
}

/*
 * Lock the row that the store stands on. With LockWaitBlock, waits for others
 * and goes on to the newest version; with LockWaitSkip, does neither.
 *
 * FOR KEY SHARE does not wait for an open update, and then stands on the
 * version before it. The new one has to be locked as well: only its lockers
 * count when it is committed.
 */
RowLockResult
store_lock_row(LeaseStore *store, LockTupleMode mode, LockWaitPolicy policy)
{
	ItemPointerData tid = store->row->tts_tid;
	uint8		flags = 0;
	TM_FailureData failure;
	TM_Result	result;

	if (policy == LockWaitBlock)
		flags |= TUPLE_LOCK_FLAG_FIND_LAST_VERSION;
	if (mode == LockTupleKeyShare)
		flags |= TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS;

	result = table_tuple_lock(store->table, &tid, GetActiveSnapshot(), store->row,
							  GetCurrentCommandId(false), mode, policy, flags, &failure);
	switch (result)
	{
		case TM_Ok:
			store->written = true;	/* a row lock is */
			read_row(store);
			return ROW_LOCKED;
		case TM_WouldBlock:
			return ROW_BUSY;
		case TM_Updated:
		case TM_Deleted:
			return ROW_GONE;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
					 errmsg("lock table \"%s\" is being changed by the same command",
							RelationGetRelationName(store->table)),
					 errhint("Call the lease function in a statement of its own.")));
	}
	pg_unreachable();
}

/* Get the next fencing token; it is used up even when the transaction fails. */
int64
store_next_token(LeaseStore *store)
{
	return nextval_internal(store->token_sequence, false);
}

/* Show what was written to the next call, be it in the same statement. */
static void
finish_write(LeaseStore *store)
{
	store->written = true;
	CommandCounterIncrement();
}

/* The next token is not above that of the row: it would not fence anything. */
void
store_refuse_token(LeaseStore *store)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("token sequence of the lock table \"%s\" was set back",
					RelationGetRelationName(store->table)),
			 errdetail("Token " INT64_FORMAT " was granted before.", store->lease.token),
			 errhint("Set the sequence above every token that was granted, with setval().")));
}

/* The executor's means to write index entries. */
typedef struct IndexWriter
{
	EState	   *estate;
	ResultRelInfo *target;
} IndexWriter;

static IndexWriter
open_indexes(LeaseStore *store)
{
	IndexWriter writer;
	MemoryContext context;

	writer.estate = CreateExecutorState();
	context = MemoryContextSwitchTo(writer.estate->es_query_cxt);
	writer.target = makeNode(ResultRelInfo);
	InitResultRelInfo(writer.target, store->table, 0, NULL, 0);
	ExecOpenIndices(writer.target, false);
	MemoryContextSwitchTo(context);
	return writer;
}

static void
close_indexes(IndexWriter *writer)
{
	ExecCloseIndices(writer->target);
	FreeExecutorState(writer->estate);
}

/*
 * Was the resource granted to somebody else with a higher token, and all of
 * it removed again, between our token and our row? For an exclusive lease
 * it does not matter which slot that was. What was there since the
 * statement began is dead by now but cannot have been vacuumed away.
 *
 * Looks at all slots, and so finds out by the way whether there are others.
 */
static bool
overtaken(LeaseStore *store, const Lease *lease, ItemPointer own_row)
{
	IndexScanDesc scan = begin_resource_scan(store, SnapshotAny, lease->resource);
	bool		found = false;

	store->has_slots = false;
	while (!found && index_getnext_slot(scan, BackwardScanDirection, store->row))
	{
		read_row(store);
		if (store->lease.slot != GATE_SLOT)
			store->has_slots = true;
		if (store->lease.slot == lease->slot || (lease->slot == GATE_SLOT && lease->owner != NULL))
			found = !ItemPointerEquals(&store->row->tts_tid, own_row) &&
				store->lease.token > lease->token;
	}
	index_endscan(scan);

	/* Then the next token is above that one, or something is wrong. */
	if (found && store_next_token(store) <= store->lease.token)
		store_refuse_token(store);
	return found;
}

/*
 * Insert a row; false when another transaction came first, or may have.
 *
 * The row goes in speculatively: if the unique index then finds another one,
 * or the caller's check says so, it is taken back, without waiting to see what
 * becomes of the other.
 */
bool
store_insert(LeaseStore *store, const Lease *lease, InsertCheck check, void *arg)
{
	TupleTableSlot *row = form_row(store, lease);
	IndexWriter writer = open_indexes(store);
	List	   *arbiters = NIL;
	TransactionId xid = GetCurrentTransactionId();
	uint32		speculative_token = SpeculativeInsertionLockAcquire(xid);
	bool		conflict = false;

	for (int i = 0; i < writer.target->ri_NumIndices; i++)
		if (is_key_index(writer.target->ri_IndexRelationDescs[i]))
			arbiters = lappend_oid(arbiters, RelationGetRelid(writer.target->ri_IndexRelationDescs[i]));

	table_tuple_insert_speculative(store->table, row, GetCurrentCommandId(true), 0, NULL,
								   speculative_token);
	ExecInsertIndexTuples(writer.target, writer.estate, EIIT_NO_DUPE_ERROR, row, arbiters, &conflict);
	if (!conflict)
		conflict = overtaken(store, lease, &row->tts_tid) || check(store, arg);
	table_tuple_complete_speculative(store->table, row, speculative_token, !conflict);
	SpeculativeInsertionLockRelease(xid);

	close_indexes(&writer);
	ExecDropSingleTupleTableSlot(row);
	finish_write(store);
	return !conflict;
}

/* Write the index entries of a new version that needs some. */
static void
insert_index_entries(LeaseStore *store, TupleTableSlot *row, TU_UpdateIndexes which)
{
	IndexWriter writer = open_indexes(store);
	RelationPtr all = writer.target->ri_IndexRelationDescs;
	RelationPtr others = palloc(writer.target->ri_NumIndices * sizeof(Relation));
	Datum		key[2] = {row->tts_values[Anum_resource - 1], row->tts_values[Anum_slot - 1]};
	bool		isnull[2] = {false, false};

	for (int i = 0; i < writer.target->ri_NumIndices; i++)
	{
		IndexInfo  *info = writer.target->ri_IndexRelationInfo[i];

		others[i] = is_key_index(all[i]) ? NULL : all[i];
		if (others[i] == NULL && which == TU_All && info->ii_ReadyForInserts)
			index_insert(all[i], key, isnull, &row->tts_tid, store->table, UNIQUE_CHECK_NO, true, info);
	}

	/* The executor passes over an index that is not there. */
	writer.target->ri_IndexRelationDescs = others;
	ExecInsertIndexTuples(writer.target, writer.estate,
						  EIIT_IS_UPDATE | (which == TU_All ? 0 : EIIT_ONLY_SUMMARIZING),
						  row, NIL, NULL);
	writer.target->ri_IndexRelationDescs = all;
	pfree(others);
	close_indexes(&writer);
}

/*
 * Replace the row that the store stands on and has locked. The key stays as
 * it is to the byte, header included, or the update would not be in place.
 */
void
store_update(LeaseStore *store, const Lease *lease)
{
	TupleTableSlot *row = form_row(store, lease);
	TM_FailureData failure;
	LockTupleMode lockmode;
	TU_UpdateIndexes which;
	TM_Result	result;

	row->tts_values[Anum_resource - 1] = store->row->tts_values[Anum_resource - 1];

	result = table_tuple_update(store->table, &store->row->tts_tid, row, GetCurrentCommandId(true), 0,
								GetActiveSnapshot(), InvalidSnapshot, true,
								&failure, &lockmode, &which);
	if (result != TM_Ok)
		elog(ERROR, "could not update a locked row of the lock table: %d", (int) result);

	if (which != TU_None)
		insert_index_entries(store, row, which);

	ExecDropSingleTupleTableSlot(row);
	finish_write(store);
}

static TM_Result
delete_row(LeaseStore *store, LockWaitPolicy policy)
{
	TM_FailureData failure;

	return table_tuple_delete(store->table, &store->row->tts_tid, GetCurrentCommandId(true), 0,
							  GetActiveSnapshot(), InvalidSnapshot, policy == LockWaitBlock, &failure);
}

/*
 * Delete the row that the store stands on, unless somebody else has it or it
 * changed meanwhile; then false. A row that nobody has is deleted without the
 * detour of a row lock, which would be written to the log, too.
 */
bool
store_delete_if_free(LeaseStore *store)
{
	if (delete_row(store, LockWaitSkip) != TM_Ok)
	{
		TM_Result	result;

		/* Perhaps only the own transaction has locked it. */
		if (store_lock_row(store, LockTupleExclusive, LockWaitSkip) != ROW_LOCKED)
			return false;
		result = delete_row(store, LockWaitBlock);
		if (result != TM_Ok)
			elog(ERROR, "could not delete a locked row of the lock table: %d", (int) result);
	}

	finish_write(store);
	return true;
}
