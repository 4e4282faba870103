/*-------------------------------------------------------------------------
 *
 * version.c
 *		The trigger that keeps the version column of optimistic locking.
 *
 * A client that has read version 5 writes version 6, as object mappers do by
 * themselves. If the row no longer has version 5 by then, the write is based
 * on outdated data and fails with a serialization failure. A client that does
 * not mention the column knows nothing of versions, and the trigger counts up
 * for it.
 *
 * The trigger checks the statement, and not the value, to see whether the
 * column was mentioned. So a write that sets the version that the row already
 * has is stale, too.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "guard/guard.h"

PG_FUNCTION_INFO_V1(lease_version);

typedef struct VersionColumn
{
	int			number;
	Oid			type;
	int64		last;			/* highest value of the type */
	Oid			domain;			/* domain to check; invalid: none */
} VersionColumn;

static VersionColumn
get_column(const TriggerData *call)
{
	const char *name = call->tg_trigger->tgargs[0];
	VersionColumn column = {.number = SPI_fnumber(RelationGetDescr(call->tg_relation), name)};
	Form_pg_attribute attribute;

	if (column.number <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("version column \"%s\" does not exist in table \"%s\"",
						name, RelationGetRelationName(call->tg_relation)),
				 errhint("If the column was renamed, drop and create trigger \"%s\".",
						 call->tg_trigger->tgname)));

	attribute = TupleDescAttr(RelationGetDescr(call->tg_relation), column.number - 1);
	column.type = getBaseType(attribute->atttypid);
	column.last = column.type == INT4OID ? PG_INT32_MAX : PG_INT64_MAX;
	column.domain = attribute->atttypid != column.type ? attribute->atttypid : InvalidOid;
	if ((column.type != INT4OID && column.type != INT8OID) || attribute->attgenerated != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("version column \"%s\" of table \"%s\" must have type integer or bigint, "
						"and not be generated",
						name, RelationGetRelationName(call->tg_relation)),
				 errhint("Change the type of the column, or name another one.")));
	return column;
}

/* Get the version of a row; a row without one has version 0. */
static int64
row_version(const VersionColumn *column, TupleTableSlot *row)
{
	bool		isnull;
	Datum		value = slot_getattr(row, column->number, &isnull);

	if (isnull)
		return 0;
	return column->type == INT4OID ? DatumGetInt32(value) : DatumGetInt64(value);
}

pg_noreturn static void
refuse_stale(const TriggerData *call, const VersionColumn *column, int64 version)
{
	const char *name = call->tg_trigger->tgargs[0];

	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 !column_is_visible(call->tg_relation, column->number) ?
			 errmsg("stale write to table \"%s\": the update sets column \"%s\" to a version other "
					"than the next one",
					RelationGetRelationName(call->tg_relation), name) :
			 errmsg("stale write to table \"%s\": column \"%s\" is at " INT64_FORMAT ", the update sets it to %s",
					RelationGetRelationName(call->tg_relation), name, version,
					slot_attisnull(call->tg_newslot, column->number) ? "null" :
					psprintf(INT64_FORMAT, row_version(column, call->tg_newslot))),
			 errdetail("An update must set it to the version that was read, plus one."),
			 errhint("Read the row again and repeat the change.")));
}

/* lease_version('column') returns trigger */
Datum
lease_version(PG_FUNCTION_ARGS)
{
	TriggerData *call = (TriggerData *) fcinfo->context;
	VersionColumn column;
	int64		version;
	bool		isnull = false;
	Datum		next;
	bool		fires_well = CALLED_AS_TRIGGER(fcinfo) && TRIGGER_FIRED_BEFORE(call->tg_event) &&
		TRIGGER_FIRED_FOR_ROW(call->tg_event) && TRIGGER_FIRED_BY_UPDATE(call->tg_event);

	if (!fires_well || call->tg_trigger->tgnargs != 1)
		refuse_trigger(fcinfo, "lease_version()",
					   fires_well ? "have one argument, the name of a column" :
					   "be BEFORE UPDATE ... FOR EACH ROW",
					   "Use it in CREATE TRIGGER ... BEFORE UPDATE ... FOR EACH ROW.");
	column = get_column(call);
	version = row_version(&column, call->tg_trigslot);
	if (bms_is_member(column.number - FirstLowInvalidHeapAttributeNumber, call->tg_updatedcols))
	{
		if (slot_attisnull(call->tg_newslot, column.number) || version == column.last ||
			row_version(&column, call->tg_newslot) != version + 1)
			refuse_stale(call, &column, version);
		PG_RETURN_POINTER(call->tg_newtuple);
	}

	if (version == column.last)
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("version column \"%s\" of table \"%s\" is out of range",
						call->tg_trigger->tgargs[0], RelationGetRelationName(call->tg_relation)),
				 column_is_visible(call->tg_relation, column.number) ?
				 errdetail("It has reached " INT64_FORMAT ".", version) : 0));

	next = column.type == INT4OID ? Int32GetDatum((int32) (version + 1)) :
		Int64GetDatum(version + 1);
	if (OidIsValid(column.domain))
		domain_check(next, false, column.domain, &fcinfo->flinfo->fn_extra,
					 fcinfo->flinfo->fn_mcxt);
	PG_RETURN_POINTER(heap_modify_tuple_by_cols(call->tg_newtuple,
												RelationGetDescr(call->tg_relation),
												1, &column.number, &next, &isnull));
}
