/*-------------------------------------------------------------------------
 *
 * columns.c
 *		How a lease is stored in the columns of a row.
 *
 * During an update of the extension, sessions that have the library of another
 * version use the same table. So columns are found by their names. A column of
 * a later version is kept as it is by each write; in a new row it is NULL. If
 * it must not be NULL, that version cannot work beside this one. A column that
 * an earlier version lacks counts as NULL.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "utils/rel.h"

#include "store/columns.h"

/* NOLINTNEXTLINE(bugprone-sizeof-expression): of a pointer, too */
#define FIELD(name)		offsetof(Lease, name), sizeof(((Lease *) NULL)->name)
#define NOT_NULL		true, 0
#define NULL_IS(value)	false, value

const LeaseColumn lease_columns[NUM_COLUMNS] = {
	{"resource", TEXTOID, FIELD(resource), NOT_NULL, false},
	{"slot", INT2OID, FIELD(slot), NOT_NULL, false},
	{"owner", TEXTOID, FIELD(owner), NULL_IS(0), false},
	{"expires_at", TIMESTAMPTZOID, FIELD(expires_at), NOT_NULL, true},
	{"token", INT8OID, FIELD(token), NOT_NULL, false},
	{"granted_at", TIMESTAMPTZOID, FIELD(granted_at), NOT_NULL, false},
	{"xid", XID8OID, FIELD(xid), NOT_NULL, false},
	{"role", OIDOID, FIELD(role), NOT_NULL, false},
	{"mode", CHAROID, FIELD(mode), NOT_NULL, false},
	{"holds", INT4OID, FIELD(holds), NOT_NULL, true},
	{"hold_until", TIMESTAMPTZOID, FIELD(hold_until), NULL_IS(DT_NOBEGIN), true},
	{"kept_for", TEXTOID, FIELD(kept_for), NULL_IS(0), false},
	{"session_pid", INT4OID, FIELD(session_pid), NULL_IS(0), false},
	{"session_number", INT8OID, FIELD(session_number), NULL_IS(0), false},
	{"payload", JSONBOID, FIELD(payload), NULL_IS(0), true},
};

/*
 * Number of each column in the table; invalid if it has none. Columns 1 and 2
 * are the primary key.
 */
static AttrNumber attnums[NUM_COLUMNS];

/* Is the column as this version made it? */
static bool
is_as_created(const LeaseColumn *column, Form_pg_attribute attribute)
{
	return attribute->atttypid == column->type && attribute->attnotnull == column->not_null &&
		(attribute->attstorage == TYPSTORAGE_PLAIN || attribute->atttypid == JSONBOID);
}

/* The number of a column that this version knows; NUM_COLUMNS if it knows none of that name. */
static int
known_column(const char *name)
{
	int			column = 0;

	while (column < NUM_COLUMNS && strcmp(lease_columns[column].name, name) != 0)
		column++;
	return column;
}

/* Find the columns in the table, from now on. */
ColumnsFound
find_columns(TupleDesc desc)
{
	int			oldest = 0;
	bool		later = false;

	memset(attnums, 0, sizeof(attnums));
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);
		int			column = known_column(NameStr(attribute->attname));

		if (attribute->attisdropped)
			continue;
		if (column == NUM_COLUMNS)
		{
			if (attribute->attgenerated != '\0')
				return COLUMNS_ALTERED;
			later |= attribute->attnotnull;
			continue;
		}
		if (!is_as_created(&lease_columns[column], attribute))
			return COLUMNS_ALTERED;
		attnums[column] = i + 1;
		oldest += column < OLDEST_COLUMNS;
	}
	if (oldest < OLDEST_COLUMNS || attnums[0] != Anum_resource || attnums[1] != Anum_slot)
		return COLUMNS_ALTERED;
	return later ? COLUMNS_OF_LATER_VERSION : COLUMNS_GOOD;
}

/* The number of a column in the table; invalid if an earlier version made the table. */
AttrNumber
column_attnum(int column)
{
	return attnums[column];
}

static int64
get_field(const Lease *lease, const LeaseColumn *column)
{
	const char *field = (const char *) lease + column->offset;

	return column->size == 4 ? *(const int32 *) field : *(const int64 *) field;
}

static void
set_field(Lease *lease, const LeaseColumn *column, int64 value)
{
	char	   *field = (char *) lease + column->offset;

	if (column->size == 4)
		*(int32 *) field = (int32) value;
	else
		*(int64 *) field = value;
}

/* Read the columns of a row. The lease points into the values. */
void
lease_from_columns(Lease *lease, const Datum *values, const bool *isnull)
{
	for (int i = 0; i < NUM_COLUMNS; i++)
	{
		const LeaseColumn *column = &lease_columns[i];
		int			attno = attnums[i] - 1;

		set_field(lease, column, attno < 0 || isnull[attno] ? column->null :
				  column->size < 8 ? (int64) values[attno] : DatumGetInt64(values[attno]));
	}
	lease->session = lease->owner == NULL ? SESSION_NONE : session_state(lease->session_number);
}

/*
 * Begin a row with the columns that this version does not know, as they are in
 * the row that it replaces.
 */
static void
keep_unknown_columns(TupleTableSlot *row, HeapTuple old)
{
	TupleDesc	desc = row->tts_tupleDescriptor;

	if (old != NULL && desc->natts > NUM_COLUMNS)
		heap_deform_tuple(old, desc, row->tts_values, row->tts_isnull);
	for (int i = 0; i < desc->natts; i++)
		if (old == NULL || TupleDescAttr(desc, i)->attisdropped)
			row->tts_isnull[i] = true;
}

/* Build a row to write. old is the row that it replaces, or NULL. */
TupleTableSlot *
row_from_lease(LeaseStore *store, const Lease *lease, HeapTuple old)
{
	TupleTableSlot *row = MakeSingleTupleTableSlot(RelationGetDescr(store->table), &TTSOpsVirtual);

	keep_unknown_columns(row, old);
	for (int i = 0; i < NUM_COLUMNS; i++)
	{
		const LeaseColumn *column = &lease_columns[i];
		int64		value = get_field(lease, column);
		bool		isnull = !column->not_null && value == column->null;
		int			attno = attnums[i] - 1;

		if (attno >= 0)
		{
			row->tts_isnull[attno] = isnull;
			row->tts_values[attno] = column->size < 8 ? (Datum) value : Int64GetDatum(value);
		}
		else if (!isnull)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("lock table \"%s\" has no column \"%s\"",
							RelationGetRelationName(store->table), column->name),
					 errdetail("It was made by an earlier version of the extension."),
					 errhint("Run ALTER EXTENSION lease_lock UPDATE in this database.")));
	}
	return ExecStoreVirtualTuple(row);
}
