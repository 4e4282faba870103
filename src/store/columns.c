/*-------------------------------------------------------------------------
 *
 * columns.c
 *		How a lease is stored in the columns of a row.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/rel.h"

#include "store/columns.h"

/* NOLINTNEXTLINE(bugprone-sizeof-expression): of a pointer, too */
#define FIELD(name)		offsetof(Lease, name), sizeof(((Lease *) NULL)->name)
#define NOT_NULL		true, 0
#define NULL_IS(value)	false, value

const LeaseColumn lease_columns[NUM_COLUMNS] = {
	{TEXTOID, FIELD(resource), NOT_NULL, false},
	{INT2OID, FIELD(slot), NOT_NULL, false},
	{TEXTOID, FIELD(owner), NULL_IS(0), false},
	{TIMESTAMPTZOID, FIELD(expires_at), NOT_NULL, true},
	{INT8OID, FIELD(token), NOT_NULL, false},
	{TIMESTAMPTZOID, FIELD(granted_at), NOT_NULL, false},
	{XID8OID, FIELD(xid), NOT_NULL, false},
	{OIDOID, FIELD(role), NOT_NULL, false},
	{CHAROID, FIELD(mode), NOT_NULL, false},
	{INT4OID, FIELD(holds), NOT_NULL, true},
	{TIMESTAMPTZOID, FIELD(hold_until), NULL_IS(DT_NOBEGIN), true},
	{TEXTOID, FIELD(kept_for), NULL_IS(0), false},
	{INT4OID, FIELD(session_pid), NULL_IS(0), false},
	{INT8OID, FIELD(session_number), NULL_IS(0), false},
	{JSONBOID, FIELD(payload), NULL_IS(0), true},
};

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

		set_field(lease, column, isnull[i] ? column->null :
				  column->size < 8 ? (int64) values[i] : DatumGetInt64(values[i]));
	}
	lease->session = lease->owner == NULL ? SESSION_NONE : session_state(lease->session_number);
}

/* Build a row to write. */
TupleTableSlot *
row_from_lease(LeaseStore *store, const Lease *lease)
{
	TupleTableSlot *row = MakeSingleTupleTableSlot(RelationGetDescr(store->table), &TTSOpsVirtual);

	for (int i = 0; i < NUM_COLUMNS; i++)
	{
		const LeaseColumn *column = &lease_columns[i];
		int64		value = get_field(lease, column);

		row->tts_isnull[i] = !column->not_null && value == column->null;
		row->tts_values[i] = column->size < 8 ? (Datum) value : Int64GetDatum(value);
	}
	for (int i = NUM_COLUMNS; i < row->tts_tupleDescriptor->natts; i++)
		row->tts_isnull[i] = true;	/* a dropped column */

	return ExecStoreVirtualTuple(row);
}
