/*-------------------------------------------------------------------------
 *
 * watches.c
 *		The table of watches, and what a backend knows of it.
 *
 * Each backend keeps the watches in memory. A change to the table sends an
 * invalidation to all backends. While there are no watches, an event costs two
 * comparisons.
 *
 * The functions check privileges, so the table is written directly. It is read
 * without an MVCC snapshot, which would register the read with SERIALIZABLE.
 * So no lease call fails because another session adds a watch.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_am.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "monitor/monitor.h"
#include "store/store.h"

enum
{
	Anum_prefix = 1,
	Anum_channel,
	Anum_events,
	Anum_creator
};

/* Watches in a memory context of their own. */
typedef struct Watches
{
	MemoryContext context;
	List	   *list;			/* of Watch */
	uint32		events;			/* of all of them */
	uint64		version;		/* table_version when they were read */
} Watches;

static Watches known = {NULL, NIL, 0, 0};
static Oid	table_oid = InvalidOid;
static uint64 table_version = 1;	/* counts invalidations */

static void
forget_watches(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == table_oid)
		table_version++;
}

void
watches_init(void)
{
	CacheRegisterRelcacheCallback(forget_watches, (Datum) 0);
}

/* Find the table; invalid if there is none. */
static Oid
watch_table(void)
{
	Oid			extension = get_extension_oid("lease_lock", true);

	return OidIsValid(extension) ?
		get_relname_relid("lease_watch", get_extension_schema(extension)) : InvalidOid;
}

/*
 * Is the table as this version made it, but for columns of a later version? Its
 * owner can alter it. Only a plain index can be maintained without an executor.
 */
static bool
is_as_created(Relation table)
{
	static const Oid types[] = {TEXTOID, TEXTOID, TEXTARRAYOID, OIDOID};
	TupleDesc	desc = RelationGetDescr(table);

	if (table->rd_rel->relkind != RELKIND_RELATION || table->rd_rel->relam != HEAP_TABLE_AM_OID ||
		desc->natts < Anum_creator)
		return false;
	for (int i = 0; i < Anum_creator; i++)
		if (TupleDescAttr(desc, i)->atttypid != types[i])
			return false;
	return list_length(RelationGetIndexList(table)) == 1 &&
		OidIsValid(RelationGetPrimaryKeyIndex_compat(table, false));
}

/* The events in the array, as a set; those of a later version are left out. */
static uint32
events_from_array(ArrayType *array)
{
	uint32		events = 0;
	Datum	   *names;
	bool	   *isnull;
	int			count;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &names, &isnull, &count);
	for (int i = 0; i < count; i++)
		events |= isnull[i] ? 0 : EVENT_BIT(event_by_name(TextDatumGetCString(names[i])));
	return events & ALL_EVENTS;
}

static ArrayType *
array_from_events(uint32 events)
{
	Datum		names[NUM_EVENTS];
	int			count = 0;

	for (int event = 0; event < NUM_EVENTS; event++)
		if ((events & EVENT_BIT(event)) != 0)
			names[count++] = CStringGetTextDatum(event_name(event));
	return construct_array(names, count, TEXTOID, -1, false, TYPALIGN_INT);
}

/*
 * A row with NULL, or with a channel that NOTIFY does not allow, is no watch.
 * Only the table's owner can write such a row.
 */
static void
add_from_row(Watches *watches, TupleTableSlot *row)
{
	Watch	   *watch;
	MemoryContext caller_context;
	int			length;

	slot_getallattrs(row);
	for (int i = 0; i < Anum_creator; i++)
		if (row->tts_isnull[i])
			return;
	length = VARSIZE_ANY_EXHDR(DatumGetTextPP(row->tts_values[Anum_channel - 1]));
	if (length == 0 || length >= NAMEDATALEN)
		return;

	watch = MemoryContextAlloc(watches->context, sizeof(Watch));
	watch->events = events_from_array(DatumGetArrayTypeP(row->tts_values[Anum_events - 1]));
	watch->creator = DatumGetObjectId(row->tts_values[Anum_creator - 1]);

	caller_context = MemoryContextSwitchTo(watches->context);
	watch->prefix = DatumGetTextPCopy(row->tts_values[Anum_prefix - 1]);
	watch->channel = TextDatumGetCString(row->tts_values[Anum_channel - 1]);
	watches->list = lappend(watches->list, watch);
	watches->events |= watch->events;
	MemoryContextSwitchTo(caller_context);
}

static Watches
read_watches(Relation table)
{
	TupleTableSlot *slot = table_slot_create(table, NULL);
	TableScanDesc scan = table_beginscan_compat(table, SnapshotSelf, 0, NULL, SO_NONE);
	Watches		read = {
		.context = AllocSetContextCreate(CurrentMemoryContext, "lease watches",
										 ALLOCSET_DEFAULT_SIZES)
	};

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
		add_from_row(&read, slot);
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextSetParent(read.context, TopMemoryContext);
	return read;
}

/*
 * Read the table again. If it is locked, keep the watches that are known,
 * since an event must not wait for the lock. The same if it was altered, since
 * the lease is written all the same.
 */
static void
load_watches(void)
{
	uint64		version = table_version;
	Relation	table;
	Watches		read;

	table_oid = watch_table();
	if (!OidIsValid(table_oid) || !ConditionalLockRelationOid(table_oid, AccessShareLock))
		return;
	table = try_table_open(table_oid, NoLock);
	if (table == NULL)
	{
		UnlockRelationOid(table_oid, AccessShareLock);
		return;
	}
	if (!is_as_created(table))
	{
		known.version = version;
		ereport(LOG_SERVER_ONLY,	/* a resource is locked */
				(errmsg("lease_lock does not read its table of watches \"%s\", which was altered",
						RelationGetRelationName(table)),
				 errhint("Undo the change.")));
		table_close(table, AccessShareLock);
		return;
	}
	read = read_watches(table);
	table_close(table, AccessShareLock);

	if (known.context != NULL)
		MemoryContextDelete(known.context);
	known = read;
	known.version = version;
}

/* Does any watch include this event? */
bool
event_is_watched(LeaseEvent event)
{
	if (known.version != table_version)
		load_watches();
	return (known.events & EVENT_BIT(event)) != 0;
}

/*
 * List the watches of this event of a resource. They are good until the next
 * call of event_is_watched().
 */
List *
watches_of(LeaseEvent event, const text *resource)
{
	List	   *found = NIL;
	ListCell   *cell;

	foreach(cell, known.list)
	{
		Watch	   *watch = lfirst(cell);
		int			length = VARSIZE_ANY_EXHDR(watch->prefix);

		if ((watch->events & EVENT_BIT(event)) != 0 &&
			length <= (int) VARSIZE_ANY_EXHDR(resource) &&
			memcmp(VARDATA_ANY(watch->prefix), VARDATA_ANY(resource), length) == 0)
			found = lappend(found, watch);
	}
	return found;
}

/* Fail because of a column that must not be NULL, and that this version does not know. */
pg_noreturn static void
refuse_later_version(Relation table)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
			 errmsg("table of watches \"%s\" is that of a later version of the extension",
					RelationGetRelationName(table)),
			 errhint("Connect again, or restart the server if it preloads the library.")));
}

/*
 * Replace the row of a watch, or insert it if there is none. Columns of a later
 * version of the extension stay as they are; in a new row they are NULL.
 */
static void
write_watch(Relation table, HeapTuple former, text *prefix, text *channel, uint32 events)
{
	TupleDesc	desc = RelationGetDescr(table);
	Datum	   *values = palloc0(desc->natts * sizeof(Datum));
	bool	   *isnull = palloc(desc->natts * sizeof(bool));

	memset(isnull, true, desc->natts * sizeof(bool));
	if (former != NULL)
		heap_deform_tuple(former, desc, values, isnull);
	values[Anum_prefix - 1] = PointerGetDatum(prefix);
	values[Anum_channel - 1] = PointerGetDatum(channel);
	values[Anum_events - 1] = PointerGetDatum(array_from_events(events));
	values[Anum_creator - 1] = ObjectIdGetDatum(GetUserId());
	memset(isnull, false, Anum_creator * sizeof(bool));
	for (int i = Anum_creator; i < desc->natts; i++)
	{
		isnull[i] |= TupleDescAttr(desc, i)->attisdropped;
		if (isnull[i] && TupleDescAttr(desc, i)->attnotnull)
			refuse_later_version(table);
	}
	if (former != NULL)
		CatalogTupleUpdate(table, &former->t_self, heap_form_tuple(desc, values, isnull));
	else
		CatalogTupleInsert(table, heap_form_tuple(desc, values, isnull));
}

/*
 * Let a watch have these events, or remove it if there are none. Returns
 * whether there was one with this prefix and channel.
 */
bool
set_watch(text *prefix, text *channel, uint32 events)
{
	Relation	table = table_open(extension_relation("lease_watch", false), ShareRowExclusiveLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	former;

	if (!is_as_created(table))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("table of watches \"%s\" was altered", RelationGetRelationName(table)),
				 errhint("Undo the change.")));
	ScanKeyInit(&keys[0], Anum_prefix, BTEqualStrategyNumber, F_TEXTEQ, PointerGetDatum(prefix));
	ScanKeyInit(&keys[1], Anum_channel, BTEqualStrategyNumber, F_TEXTEQ, PointerGetDatum(channel));
	scan = systable_beginscan(table, RelationGetPrimaryKeyIndex_compat(table, false), true, NULL,
							  lengthof(keys), keys);
	former = systable_getnext(scan);
	if (events != 0)
		write_watch(table, former, prefix, channel, events);
	else if (former != NULL)
		CatalogTupleDelete(table, &former->t_self);
	systable_endscan(scan);

	/* Make all backends read the table again. */
	CacheInvalidateRelcache(table);
	CommandCounterIncrement();
	table_close(table, NoLock);
	return HeapTupleIsValid(former);
}
