/*-------------------------------------------------------------------------
 *
 * table.c
 *		Opening the lock table.
 *
 * Only the files of this folder access the table. They use the table and index
 * access methods, not SQL, because SQL would wait for open transactions, and
 * would see what the caller's snapshot shows instead of what is committed now.
 *
 * Nothing in this folder evaluates anything that a user defines, except index
 * expressions and predicates when it writes a row. A purge only deletes rows,
 * so it evaluates nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "catalog/pg_am.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_extension.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "rewrite/rowsecurity.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store/columns.h"

/*
 * Objects of the extension; invalid until looked up, and after any change to
 * them. The OID of the sequence is set only after the table passed its checks.
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

/*
 * Get the OID of a relation of the extension. With missing_ok, the OID is
 * invalid if there is no extension.
 */
Oid
extension_relation(const char *name, bool missing_ok)
{
	Oid			relid = InvalidOid;

	/* Twice, because the extension may be dropped, or moved, between the two lookups. */
	for (int i = 0; i < 2 && !OidIsValid(relid); i++)
	{
		Oid			extension;

		AcceptInvalidationMessages();
		InvalidateCatalogSnapshot();
		extension = get_extension_oid("lease_lock", true);
		if (OidIsValid(extension))
			relid = get_relname_relid(name, get_extension_schema(extension));
		else if (missing_ok)
			return InvalidOid;
	}
	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s\" of extension \"lease_lock\" does not exist", name),
				 errhint("Run CREATE EXTENSION lease_lock in this database.")));
	return relid;
}

pg_noreturn static void
refuse_altered(Relation table)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
			 errmsg("columns, primary key or persistence of lock table \"%s\" were altered",
					RelationGetRelationName(table)),
			 errhint("Undo the change, and keep further data about leases in another table.")));
}

/* Refuse a table whose rows would be misread, or could not be written. */
static void
check_columns(Relation table)
{
	ColumnsFound found = find_columns(RelationGetDescr(table));

	if (found == COLUMNS_OF_LATER_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("lock table \"%s\" is that of a later version of the extension",
						RelationGetRelationName(table)),
				 errdetail("It has a column that must not be null, and that this version of the "
						   "library does not know."),
				 errhint("If the extension was updated, connect again, or restart the server if it "
						 "preloads the library. "
						 "Otherwise drop the column.")));
	if (found == COLUMNS_ALTERED ||
		table->rd_rel->relkind != RELKIND_RELATION ||
		table->rd_rel->relam != HEAP_TABLE_AM_OID ||
		table->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		refuse_altered(table);
}

/*
 * Refuse a lock table that was altered so that the code below would misread
 * it, or silently skip a trigger or constraint.
 */
static void
check_table(Relation table)
{
	TupleDesc	desc = RelationGetDescr(table);

	check_columns(table);
	if (table->trigdesc != NULL || table->rd_rules != NULL ||
		(table->rd_rsdesc != NULL && table->rd_rsdesc->policies != NIL) ||
		(desc->constr != NULL && desc->constr->num_check > 0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("lock table \"%s\" has a trigger, a rule, a policy or a check constraint",
						RelationGetRelationName(table)),
				 errdetail("The lease functions write to the table directly, and would ignore it."),
				 errhint("Drop it. A foreign key that references the lock table has triggers, "
						 "too.")));
}

/* Refuse an index that cannot be maintained under a resource lock. */
static void
check_index(Relation table, Relation index)
{
	if (index->rd_index->indisexclusion)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("lock table \"%s\" has an exclusion constraint",
						RelationGetRelationName(table)),
				 errdetail("Its check may wait for other transactions."),
				 errhint("Drop it, or replace it with a unique index.")));
	/* If it is interrupted, it begins anew until the interrupt has been processed. */
	if (index->rd_rel->relam == SPGIST_AM_OID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("lock table \"%s\" has an SP-GiST index", RelationGetRelationName(table)),
				 errdetail("An insertion into it would not end if it is interrupted."),
				 errhint("Drop it, or replace it with an index of another type.")));
}

/*
 * Refuse indexes that would make writes wait for other transactions, or never
 * end. A unique index on a column that renewals change would make them conflict
 * with assertions.
 */
static void
check_indexes(Relation table)
{
	Bitmapset  *keys = RelationGetIndexAttrBitmap(table, INDEX_ATTR_BITMAP_KEY);
	List	   *indexes = RelationGetIndexList(table);
	ListCell   *cell;

	for (int i = 0; i < NUM_COLUMNS; i++)
		if (lease_columns[i].renewed &&
			bms_is_member(column_attnum(i) - FirstLowInvalidHeapAttributeNumber, keys))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
					 errmsg("lock table \"%s\" has a unique index on column \"%s\"",
							RelationGetRelationName(table),
							lease_columns[i].name),
					 errdetail("A renewal changes that column, and would wait for transactions "
							   "that rely on the lease."),
					 errhint("Drop the index.")));

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		check_index(table, index);
		index_close(index, AccessShareLock);
	}
}

/* Open the primary key, which all looks use, if it is as the extension created it. */
static Relation
open_primary_key(Relation table, LOCKMODE lockmode)
{
	Oid			relid = RelationGetPrimaryKeyIndex_compat(table, false);
	Relation	index = OidIsValid(relid) ? index_open(relid, lockmode) : NULL;
	Form_pg_index form = index != NULL ? index->rd_index : NULL;

	if (form == NULL || !form->indimmediate || form->indnatts != 2 ||
		form->indkey.values[0] != Anum_resource || form->indkey.values[1] != Anum_slot ||
		index->rd_indcollation[0] != C_COLLATION_OID)
		refuse_altered(table);
	return index;
}

/* Make a store for the lock table, which is open and locked. */
static LeaseStore *
make_store(Relation table, LOCKMODE lockmode)
{
	LeaseStore *store = palloc0(sizeof(LeaseStore));
	Oid			relid = RelationGetRelid(table);

	store->token_sequence = relid == table_oid ? sequence_oid : InvalidOid;
	if (!OidIsValid(store->token_sequence))
	{
		/* From here on, an invalidation clears this, and the next call checks again. */
		table_oid = relid;
		check_table(table);
		check_indexes(table);
		store->token_sequence = extension_relation("lease_token_seq", false);
		sequence_oid = table_oid == relid ? store->token_sequence : InvalidOid;
	}

	store->table = table;
	store->primary_key = open_primary_key(table, lockmode);
	store->lockmode = lockmode;
	store->slot = table_slot_create(store->table, NULL);
	return store;
}

/*
 * The relations that a write opens, except the table and its primary key:
 * indexes of users, the table of large payloads.
 */
static List *
written_relations(LeaseStore *store)
{
	List	   *relations = RelationGetIndexList(store->table);
	Oid			payloads = store->table->rd_rel->reltoastrelid;

	relations = list_delete_oid(relations, RelationGetRelid(store->primary_key));
	return OidIsValid(payloads) ? lappend_oid(relations, payloads) : relations;
}

/*
 * Lock all relations that a write opens. The caller does this before it locks a
 * resource, since another session may alter or maintain one of them.
 */
void
store_prepare_write(LeaseStore *store)
{
	ListCell   *cell;

	if (store->written_relations != NIL)
		return;
	store->written_relations = written_relations(store);
	foreach(cell, store->written_relations)
		LockRelationOid(lfirst_oid(cell), RowExclusiveLock);
}

/* The same for deletions, which only open the table of large payloads; false if it is locked. */
static bool
try_prepare_delete(LeaseStore *store)
{
	Oid			payloads = store->table->rd_rel->reltoastrelid;

	if (!OidIsValid(payloads))
		return true;
	if (!ConditionalLockRelationOid(payloads, RowExclusiveLock))
		return false;
	store->written_relations = list_make1_oid(payloads);
	return true;
}

/* The OID of the lock table, unless it is dropped just now. */
Oid
store_relid(void)
{
	return OidIsValid(table_oid) ? table_oid : extension_relation("lease_lock", false);
}

/*
 * Lock the lock table for writing. Does nothing but wait in the lock manager:
 * the caller may end that with an error, and catch it.
 */
void
store_lock_table(Oid relid)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	LockAcquire(&tag, RowExclusiveLock, false, false);
}

/*
 * Open the lock table. If it is dropped and created again before we have its
 * lock, this opens the new one. The caller runs inside a statement, with an
 * active snapshot.
 */
LeaseStore *
store_open(LOCKMODE lockmode)
{
	Relation	table;

	while ((table = try_table_open(store_relid(), lockmode)) == NULL)
		table_oid = InvalidOid; /* dropped meanwhile; there may be a new one */
	return make_store(table, lockmode);
}

/*
 * Open a table without waiting for its lock, or that of its primary key; NULL if one
 * is locked, or if a DROP of the table was committed just now. (Other indexes are
 * locked after a change of the table, to be checked.)
 */
static LeaseStore *
try_open(Oid relid, LOCKMODE lockmode)
{
	LeaseStore *store = NULL;
	Relation	table;
	Oid			key;

	if (!ConditionalLockRelationOid(relid, lockmode))
		return NULL;
	table = try_table_open(relid, NoLock);
	key = table != NULL ? RelationGetPrimaryKeyIndex_compat(table, false) : InvalidOid;
	/* REINDEX of the key alone conflicts with no reader of the table */
	if (table != NULL && (!OidIsValid(key) || ConditionalLockRelationOid(key, lockmode)))
	{
		store = make_store(table, lockmode);
		UnlockRelationOid(key, lockmode);	/* it is locked once more */
	}
	else if (table != NULL)
		table_close(table, NoLock);
	if (store == NULL)
		UnlockRelationOid(relid, lockmode);
	return store;
}

/* Like store_open(), but NULL if another session alters or maintains the table. */
LeaseStore *
store_open_unless_locked(LOCKMODE lockmode)
{
	return try_open(store_relid(), lockmode);
}

/*
 * Is there an extension whose creation is not committed yet? It may have leases
 * already, and nobody would tell the purge of them when it is committed.
 */
static bool
is_being_created(void)
{
	Relation	catalog = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SnapshotData dirty;
	SysScanDesc scan;
	bool		found;

	InitDirtySnapshot(dirty);
	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum("lease_lock"));
	scan = systable_beginscan(catalog, ExtensionNameIndexId, true, &dirty, 1, &key);
	found = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return found;
}

/*
 * Like store_open(), but do not wait for a lock, and do not fail if there is
 * no extension. Then there is no store. With RowExclusiveLock, the caller may
 * delete rows.
 */
StoreOpening
store_open_if_free(LOCKMODE lockmode, LeaseStore **store)
{
	Oid			relid = extension_relation("lease_lock", true);

	if (!OidIsValid(relid))
		return is_being_created() ? STORE_LOCKED : STORE_ABSENT;
	*store = try_open(relid, lockmode);
	if (*store == NULL)
		return STORE_LOCKED;
	if (lockmode < RowExclusiveLock || try_prepare_delete(*store))
		return STORE_OPEN;
	store_close(*store);
	return STORE_LOCKED;
}

/*
 * Close the table. If rows were written, it stays locked until the transaction
 * ends, as any table does.
 */
void
store_close(LeaseStore *store)
{
	LOCKMODE	unlock = store->written ? NoLock : store->lockmode;
	ListCell   *cell;

	if (!store->written)
		foreach(cell, store->written_relations)
			UnlockRelationOid(lfirst_oid(cell), RowExclusiveLock);
	list_free(store->written_relations);
	ExecDropSingleTupleTableSlot(store->slot);
	index_close(store->primary_key, unlock);
	table_close(store->table, unlock);
	pfree(store);
}
