/*-------------------------------------------------------------------------
 *
 * store.c
 *		The lock table: opening it, and what its rows mean.
 *
 * Only the three store files touch the table. They go through the table access
 * method, not through SQL, for three things that SQL cannot do: look without
 * writing anything, not wait, and see what is committed now instead of what
 * the caller's snapshot shows. store_read.c says how rows are found,
 * store_write.c how they are written.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_am.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "executor/executor.h"
#include "nodes/primnodes.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "base/compat.h"
#include "store/store.h"

static const Oid column_types[Natts_lease_lock] = {
	TEXTOID, INT2OID, TEXTOID, TIMESTAMPTZOID, INT8OID, TIMESTAMPTZOID, XID8OID, OIDOID,
	CHAROID, INT4OID, INT8OID, TIMESTAMPTZOID, JSONBOID, TEXTOID
};

/*
 * Objects of the extension; invalid until looked up, and after any change.
 * The sequence is known only when the table was found in order.
 */
static Oid	table_oid = InvalidOid;
static Oid	sequence_oid = InvalidOid;
static Oid	owner_index_oid = InvalidOid;	/* good as long as sequence_oid is */

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
bool
store_is_key_index(Relation index)
{
	Form_pg_index form = index->rd_index;

	return form->indisunique && form->indimmediate && form->indnkeyatts == 2 &&
		form->indkey.values[0] == Anum_resource && form->indkey.values[1] == Anum_slot &&
		index->rd_indcollation[0] == C_COLLATION_OID &&
		heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL);
}

/* Is that the condition that last_owner is not NULL, and no other? */
static bool
requires_last_owner(List *predicate)
{
	NullTest   *test = list_length(predicate) == 1 && IsA(linitial(predicate), NullTest) ? linitial(predicate) : NULL;

	return test != NULL && test->nulltesttype == IS_NOT_NULL &&
		IsA(test->arg, Var) && ((Var *) test->arg)->varattno == Anum_last_owner;
}

/* Does the index find the far slots that an owner was the last to take? */
static bool
is_owner_index(Relation index)
{
	static const AttrNumber columns[] = {Anum_resource, Anum_last_owner, Anum_slot};
	Form_pg_index form = index->rd_index;

	if (index->rd_rel->relam != BTREE_AM_OID || !form->indisvalid ||
		form->indnkeyatts != lengthof(columns) ||
		index->rd_indcollation[0] != C_COLLATION_OID || index->rd_indcollation[1] != C_COLLATION_OID)
		return false;
	for (int i = 0; i < form->indnkeyatts; i++)
		if (form->indkey.values[i] != columns[i] || index->rd_indoption[i] != 0)
			return false;
	return requires_last_owner(RelationGetIndexPredicate(index));
}

/*
 * Find that index; invalid when somebody dropped it. Then all slots are looked
 * at instead.
 */
static Oid
find_owner_index(Relation table)
{
	List	   *indexes = RelationGetIndexList(table);
	Oid			found = InvalidOid;
	ListCell   *cell;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		if (is_owner_index(index))
			found = RelationGetRelid(index);
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return found;
}

/* Get that index, open; NULL when there is none. */
Relation
store_owner_index(LeaseStore *store)
{
	if (store->owner_index == NULL && OidIsValid(store->owner_index_oid))
		store->owner_index = index_open(store->owner_index_oid, store->lockmode);
	return store->owner_index;
}

/* Open the index that finds the rows. */
static Relation
open_primary_key(Relation table, LOCKMODE lockmode)
{
	Oid			relid = RelationGetPrimaryKeyIndex(table, false);
	Relation	index = OidIsValid(relid) ? index_open(relid, lockmode) : NULL;

	if (index == NULL || !store_is_key_index(index))
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
		store->owner_index_oid = owner_index_oid = find_owner_index(store->table);
		store->token_sequence = extension_relation("lease_token_seq");
		sequence_oid = table_oid == relid ? store->token_sequence : InvalidOid;
	}
	else
	{
		store->token_sequence = sequence_oid;
		store->owner_index_oid = owner_index_oid;
	}

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
	if (store->owner_index != NULL)
		index_close(store->owner_index, unlock);
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

/* Read the row that the store stands on into its Lease. */
void
store_read_row(LeaseStore *store)
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
TupleTableSlot *
store_form_row(LeaseStore *store, const Lease *lease)
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
	row->tts_values[Anum_last_owner - 1] = PointerGetDatum(lease->owner);

	memset(row->tts_isnull, false, Natts_lease_lock * sizeof(bool));
	row->tts_isnull[Anum_owner - 1] = lease->owner == NULL;
	row->tts_isnull[Anum_hold_until - 1] = lease->hold_until == DT_NOBEGIN;
	row->tts_isnull[Anum_payload - 1] = lease->payload == (Datum) 0;
	row->tts_isnull[Anum_last_owner - 1] = lease->owner == NULL || lease->slot <= NEAR_SLOTS;
	for (int i = Natts_lease_lock; i < row->tts_tupleDescriptor->natts; i++)
		row->tts_isnull[i] = true;	/* a column that came and went */

	return ExecStoreVirtualTuple(row);
}
