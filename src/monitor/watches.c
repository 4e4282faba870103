/*-------------------------------------------------------------------------
 *
 * watches.c
 *		The table of watches, and what a backend knows of it.
 *
 * Each backend keeps the watches in memory. A change to the table sends an
 * invalidation to all backends. While there are no watches, an event only tests
 * two flags.
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
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "monitor/monitor.h"

enum
{
	Anum_prefix = 1,
	Anum_channel,
	Anum_events,
	Anum_creator,
	Natts_lease_watch = Anum_creator
};

/* Watches in a memory context of their own. */
typedef struct Watches
{
	MemoryContext context;
	Watch	   *watch;
	int			count;
	int			space;
	uint32		events;			/* of all of them */
} Watches;

static Watches known = {NULL, NULL, 0, 0, 0};
static bool loaded = false;
static Oid	table_oid = InvalidOid;
static uint64 invalidations = 0;

static void
forget_watches(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == table_oid)
	{
		invalidations++;
		loaded = false;
	}
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

	return OidIsValid(extension) ? get_relname_relid("lease_watch", get_extension_schema(extension)) : InvalidOid;
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

static void
add_from_row(Watches *watches, TupleTableSlot *row)
{
	Watch	   *watch;
	text	   *prefix;

	if (watches->count == watches->space)
		watches->watch = repalloc_huge(watches->watch, (watches->space *= 2) * sizeof(Watch));
	watch = &watches->watch[watches->count++];
	slot_getallattrs(row);
	prefix = DatumGetTextPP(row->tts_values[Anum_prefix - 1]);
	watch->prefix = MemoryContextStrdup(watches->context, text_to_cstring(prefix));
	watch->length = VARSIZE_ANY_EXHDR(prefix);
	watch->channel = MemoryContextStrdup(watches->context, TextDatumGetCString(row->tts_values[Anum_channel - 1]));
	watch->events = events_from_array(DatumGetArrayTypeP(row->tts_values[Anum_events - 1]));
	watch->creator = get_role_oid(NameStr(*DatumGetName(row->tts_values[Anum_creator - 1])), true);
	watches->events |= watch->events;
}

/* Read all watches. Every backend keeps the result, so nothing else is left in its context. */
static Watches
read_watches(Relation table)
{
	MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext, "lease watch", ALLOCSET_SMALL_SIZES);
	MemoryContext caller_context = CurrentMemoryContext;
	TupleTableSlot *slot = table_slot_create(table, NULL);
	TableScanDesc scan = table_beginscan(table, SnapshotSelf, 0, NULL, SO_NONE);
	Watches		read = {.space = 16};

	read.context = AllocSetContextCreate(TopMemoryContext, "lease watches", ALLOCSET_DEFAULT_SIZES);
	read.watch = MemoryContextAlloc(read.context, read.space * sizeof(Watch));
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		MemoryContextSwitchTo(row_context);
		add_from_row(&read, slot);
		MemoryContextSwitchTo(caller_context);
		MemoryContextReset(row_context);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextDelete(row_context);
	return read;
}

/*
 * Read the table again. If it is locked, keep the watches that are known,
 * since an event must not wait for the lock.
 */
static void
load_watches(void)
{
	uint64		before = invalidations;
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
	read = read_watches(table);
	table_close(table, AccessShareLock);

	if (known.context != NULL)
		MemoryContextDelete(known.context);
	known = read;
	loaded = before == invalidations;
}

/* Does any watch include this event? */
bool
event_is_watched(LeaseEvent event)
{
	if (!loaded)
		load_watches();
	return (known.events & EVENT_BIT(event)) != 0;
}

/* Find the next watch of this event of a resource; NULL if there is none. At first, the one before is NULL. */
const Watch *
next_watch(const Watch *before, LeaseEvent event, const text *resource)
{
	for (const Watch *watch = before != NULL ? before + 1 : known.watch; watch < known.watch + known.count; watch++)
		if ((watch->events & EVENT_BIT(event)) != 0 &&
			watch->length <= (int) VARSIZE_ANY_EXHDR(resource) &&
			memcmp(watch->prefix, VARDATA_ANY(resource), watch->length) == 0)
			return watch;
	return NULL;
}

/*
 * Let a watch have these events, or remove it if there are none. Returns
 * whether there was one with this prefix and channel.
 */
bool
set_watch(text *prefix, text *channel, uint32 events)
{
	Relation	table = table_open(watch_table(), ShareRowExclusiveLock);
	Datum		values[Natts_lease_watch];
	bool		isnull[Natts_lease_watch] = {false};
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	former;
	NameData	creator;

	ScanKeyInit(&keys[0], Anum_prefix, BTEqualStrategyNumber, F_TEXTEQ, PointerGetDatum(prefix));
	ScanKeyInit(&keys[1], Anum_channel, BTEqualStrategyNumber, F_TEXTEQ, PointerGetDatum(channel));
	scan = systable_beginscan(table, RelationGetPrimaryKeyIndex(table, false), true, NULL, lengthof(keys), keys);
	former = systable_getnext(scan);
	if (HeapTupleIsValid(former))
		CatalogTupleDelete(table, &former->t_self);
	systable_endscan(scan);

	if (events != 0)
	{
		namestrcpy(&creator, GetUserNameFromId(GetUserId(), false));
		values[Anum_prefix - 1] = PointerGetDatum(prefix);
		values[Anum_channel - 1] = PointerGetDatum(channel);
		values[Anum_events - 1] = PointerGetDatum(array_from_events(events));
		values[Anum_creator - 1] = NameGetDatum(&creator);
		CatalogTupleInsert(table, heap_form_tuple(RelationGetDescr(table), values, isnull));
	}

	/* Make all backends read the table again. */
	CacheInvalidateRelcache(table);
	CommandCounterIncrement();
	table_close(table, NoLock);
	return HeapTupleIsValid(former);
}
