/*-------------------------------------------------------------------------
 *
 * The table of watches.
 *
 * The functions check privileges, so the table is written directly. It is read
 * without an MVCC snapshot, which would register the read with SERIALIZABLE.
 * So no lease call fails because another session adds a watch.
 *
 * The creator is stored by name.
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
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "monitor/watches.h"

enum
{
	Anum_prefix = 1,
	Anum_channel,
	Anum_events,
	Anum_creator,
	Natts_lease_watch = Anum_creator
};

/* Find the table; invalid if there is none. */
Oid
watch_table(void)
{
	Oid			extension = get_extension_oid("lease_lock", true);

	return OidIsValid(extension) ? get_relname_relid("lease_watch", get_extension_schema(extension)) : InvalidOid;
}

static uint32
events_from_array(ArrayType *array)
{
	uint32		events = 0;
	Datum	   *names;
	bool	   *isnull;
	int			count;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &names, &isnull, &count);
	for (int i = 0; i < count; i++)
	{
		char	   *name = isnull[i] ? "" : TextDatumGetCString(names[i]);

		for (int event = 0; event < NUM_EVENTS; event++)
			if (strcmp(name, event_name(event)) == 0)
				events |= EVENT_BIT(event);
	}
	return events;
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

static Watch
watch_from_row(TupleTableSlot *row, MemoryContext context)
{
	Watch		watch;
	text	   *prefix;

	slot_getallattrs(row);
	prefix = DatumGetTextPP(row->tts_values[Anum_prefix - 1]);
	watch.prefix = MemoryContextStrdup(context, text_to_cstring(prefix));
	watch.length = VARSIZE_ANY_EXHDR(prefix);
	watch.channel = MemoryContextStrdup(context, TextDatumGetCString(row->tts_values[Anum_channel - 1]));
	watch.events = events_from_array(DatumGetArrayTypeP(row->tts_values[Anum_events - 1]));
	watch.creator = get_role_oid(NameStr(*DatumGetName(row->tts_values[Anum_creator - 1])), true);
	return watch;
}

/*
 * Read all watches, into the current memory context; false if the table is
 * locked. Every backend keeps the result, so nothing else is left there.
 */
bool
read_watches(Oid relid, Watch **watches, int *count)
{
	MemoryContext context = CurrentMemoryContext;
	MemoryContext row_context;
	int			space = 16;
	Relation	table;
	TupleTableSlot *slot;
	TableScanDesc scan;

	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return false;
	table = try_table_open(relid, NoLock);
	if (table == NULL)
	{
		UnlockRelationOid(relid, AccessShareLock);
		return false;
	}

	*watches = palloc(space * sizeof(Watch));
	*count = 0;
	row_context = AllocSetContextCreate(context, "lease watch", ALLOCSET_SMALL_SIZES);
	slot = table_slot_create(table, NULL);
	scan = table_beginscan(table, SnapshotSelf, 0, NULL, SO_NONE);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		if (*count == space)
			*watches = repalloc_huge(*watches, (space *= 2) * sizeof(Watch));
		MemoryContextSwitchTo(row_context);
		(*watches)[(*count)++] = watch_from_row(slot, context);
		MemoryContextSwitchTo(context);
		MemoryContextReset(row_context);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextDelete(row_context);
	table_close(table, AccessShareLock);
	return true;
}

/* Find the row of a watch; returns a copy, or NULL. */
static HeapTuple
find_watch(Relation table, text *prefix, text *channel)
{
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	row;

	ScanKeyInit(&keys[0], Anum_prefix, BTEqualStrategyNumber, F_TEXTEQ, PointerGetDatum(prefix));
	ScanKeyInit(&keys[1], Anum_channel, BTEqualStrategyNumber, F_TEXTEQ, PointerGetDatum(channel));
	scan = systable_beginscan(table, RelationGetPrimaryKeyIndex(table, false), true, NULL, lengthof(keys), keys);
	row = systable_getnext(scan);
	if (HeapTupleIsValid(row))
		row = heap_copytuple(row);
	systable_endscan(scan);
	return row;
}

/* Make all backends read the table again. */
static void
publish(Relation table)
{
	CacheInvalidateRelcache(table);
	CommandCounterIncrement();
	table_close(table, NoLock);
}

/* Add a watch, or replace the one with the same prefix and channel. */
void
add_watch(text *prefix, text *channel, uint32 events)
{
	Relation	table = table_open(watch_table(), ShareRowExclusiveLock);
	HeapTuple	former = find_watch(table, prefix, channel);
	Datum		values[Natts_lease_watch];
	bool		isnull[Natts_lease_watch] = {false};
	NameData	creator;
	HeapTuple	row;

	namestrcpy(&creator, GetUserNameFromId(GetUserId(), false));
	values[Anum_prefix - 1] = PointerGetDatum(prefix);
	values[Anum_channel - 1] = PointerGetDatum(channel);
	values[Anum_events - 1] = PointerGetDatum(array_from_events(events));
	values[Anum_creator - 1] = NameGetDatum(&creator);
	row = heap_form_tuple(RelationGetDescr(table), values, isnull);
	if (former != NULL)
		CatalogTupleUpdate(table, &former->t_self, row);
	else
		CatalogTupleInsert(table, row);
	publish(table);
}

/* Remove a watch; false if there is none. */
bool
remove_watch(text *prefix, text *channel)
{
	Relation	table = table_open(watch_table(), ShareRowExclusiveLock);
	HeapTuple	former = find_watch(table, prefix, channel);

	if (former != NULL)
		CatalogTupleDelete(table, &former->t_self);
	publish(table);
	return former != NULL;
}
