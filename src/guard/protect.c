/*-------------------------------------------------------------------------
 *
 * protect.c
 *		Setting up tables that refuse writes without a lease.
 *
 * A protected table has two triggers and no other state that could get out of
 * step. The triggers are dumped, renamed and dropped with the table.
 *
 * The row trigger fires last of its kind, because triggers fire in the order
 * of their names. So other triggers can still change the columns that name the
 * lease. The server copies it to partitions, and drops the copy when a
 * partition is detached. The TRUNCATE trigger is created on each partition,
 * because statement triggers are not inherited. It stays when a partition is
 * detached, but has an effect only beside a row trigger.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "catalog/catalog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "parser/parse_func.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/varlena.h"

#include "guard/guard.h"

PG_FUNCTION_INFO_V1(lease_protect);
PG_FUNCTION_INFO_V1(lease_unprotect);

/* These names sort after all names that begin with a letter. */
#define ROW_TRIGGER			"~lease_guard"
#define TRUNCATE_TRIGGER	"~lease_guard_truncate"

#define OPERATIONS_HINT		"Name one or more of insert, update and delete, separated by commas."

/* Each of them may be named several times. */
#define MAX_OPERATIONS_LENGTH 1000

/* Turn a list of operations into the events of a trigger. */
static char *
trigger_events(const text *list)
{
	static const char *const operations[] = {"insert", "update", "delete"};
	StringInfoData events;
	List	   *names = NIL;
	ListCell   *cell;
	bool		valid = VARSIZE_ANY_EXHDR(list) <= MAX_OPERATIONS_LENGTH &&
		SplitIdentifierString(text_to_cstring(list), ',', &names);

	initStringInfo(&events);
	for (int i = 0; i < (int) lengthof(operations); i++)
	{
		int			before = list_length(names);

		foreach(cell, names)
			if (strcmp(lfirst(cell), operations[i]) == 0)
				names = foreach_delete_current(names, cell);
		if (list_length(names) < before)
			appendStringInfo(&events, "%s%s", events.len > 0 ? " OR " : "", operations[i]);
	}

	if (!valid || names != NIL || events.len == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("operations to protect a table against are not valid: \"%s\"",
						printable(list)),
				 errhint("%s", OPERATIONS_HINT)));
	return events.data;
}

static void
require_ownership(Oid relid)
{
	const char *name = get_rel_name(relid);

	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table with OID %u does not exist", relid)));
	if (!object_ownercheck(RelationRelationId, relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(get_rel_relkind(relid)), name);
}

/*
 * Open a table that the caller wants to protect or unprotect. A role that does
 * not own the table must not lock it, not even for a moment.
 */
static Relation
open_own_table(Oid relid)
{
	Relation	table;

	require_ownership(relid);
	table = relation_open(relid, ShareRowExclusiveLock);
	require_ownership(relid);
	return table;
}

/* Refuse a table that a trigger cannot protect. */
static void
check_protectable(Relation table, Oid lease_schema, List *inheritors)
{
	const char *name = RelationGetRelationName(table);
	char		kind = table->rd_rel->relkind;
	ListCell   *cell;

	if (kind != RELKIND_RELATION && kind != RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("cannot protect \"%s\": it is not a table", name),
				 errhint("Protect the table behind it. A foreign table can be written "
						 "elsewhere.")));
	if (IsCatalogRelation(table) ||
		(RelationGetNamespace(table) == lease_schema && strcmp(name, "lease_lock") == 0))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot protect \"%s\": it is a system catalog or the lock table itself",
						name)));
	if (kind == RELKIND_RELATION && list_length(inheritors) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot protect \"%s\": tables inherit from it", name),
				 errdetail("Triggers of a table do not fire for rows of tables that inherit from "
						   "it."),
				 errhint("Use partitions, or protect tables that nothing inherits from.")));

	foreach(cell, inheritors)
		if (get_rel_relkind(lfirst_oid(cell)) == RELKIND_FOREIGN_TABLE)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot protect \"%s\": its partition \"%s\" is a foreign table",
							name, get_rel_name(lfirst_oid(cell))),
					 errhint("Detach it, or protect the other partitions one by one.")));
}

static char *
qualified_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
									  get_rel_name(relid));
}

/* Run a DDL statement. */
static void
run_utility(const char *statement)
{
	int			result = SPI_execute(statement, false, 0);

	if (result != SPI_OK_UTILITY)
		elog(ERROR, "SPI_execute failed: %s", SPI_result_code_string(result));
}

static void
create_trigger(const char *name, const char *events, Oid table, const char *level, const char *call)
{
	run_utility(psprintf("CREATE TRIGGER \"%s\" BEFORE %s ON %s FOR EACH %s EXECUTE FUNCTION %s",
						 name, events, qualified_name(table), level, call));
}

/* Names of a table's triggers that call the function: row triggers, or those for TRUNCATE. */
List *
triggers_of(Oid relid, Oid function, bool for_rows)
{
	Relation	table = table_open(relid, NoLock);
	List	   *names = NIL;

	for (int i = 0; table->trigdesc != NULL && i < table->trigdesc->numtriggers; i++)
	{
		const Trigger *trigger = &table->trigdesc->triggers[i];

		if (trigger->tgfoid == function && TRIGGER_FOR_ROW(trigger->tgtype) == for_rows)
			names = lappend(names, pstrdup(trigger->tgname));
	}
	table_close(table, NoLock);
	return names;
}

/* Drop these triggers; false if there are none. */
static bool
drop_triggers(Oid relid, Oid function, bool for_rows)
{
	List	   *names = triggers_of(relid, function, for_rows);
	ListCell   *cell;

	foreach(cell, names)
		run_utility(psprintf("DROP TRIGGER %s ON %s", quote_identifier(lfirst(cell)),
							 qualified_name(relid)));
	return names != NIL;
}

/*
 * Refuse a table if it, or a partition of it, is protected already. The server
 * copies row triggers to partitions, so the two would have the same name.
 */
static void
check_unprotected(Oid table, List *inheritors, Oid guard)
{
	ListCell   *cell;

	foreach(cell, inheritors)
	{
		Oid			relid = lfirst_oid(cell);

		if (triggers_of(relid, guard, true) == NIL)
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 relid == table ?
				 errmsg("table \"%s\" is already protected", get_rel_name(table)) :
				 errmsg("cannot protect \"%s\": its partition \"%s\" is already protected",
						get_rel_name(table), get_rel_name(relid)),
				 relid != table ?
				 errhint("Call lease_unprotect() for the partition first.") :
				 get_rel_relispartition(table) ?
				 errhint("Call lease_unprotect() first, for the table that it is a partition of if "
						 "that one is protected.") :
				 errhint("Call lease_unprotect() first to protect it in another way.")));
	}
}

/* Get the trigger function in the schema of the extension. */
static Oid
guard_function(Oid schema)
{
	List	   *name = list_make2(makeString(get_namespace_name(schema)),
								  makeString("lease_guard"));

	return LookupFuncName(name, 0, NULL, false);
}

static void
require_value(FunctionCallInfo fcinfo, int argno, const char *what, const char *hint)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", what),
				 errhint("%s", hint)));
}

/*
 * lease_protect("table" regclass, resource_template text, operations text,
 * exclusive boolean) returns void
 */
Datum
lease_protect(PG_FUNCTION_ARGS)
{
	Oid			schema = get_func_namespace(fcinfo->flinfo->fn_oid);
	Oid			guard = guard_function(schema);
	Oid			relid;
	const char *template;
	const char *events;
	const char *call;
	Relation	table;
	List	   *inheritors;
	ListCell   *cell;

	require_value(fcinfo, 0, "table to protect", "Give the name of a table.");
	require_value(fcinfo, 1, "template of the leases of a table", TEMPLATE_HINT);
	require_value(fcinfo, 2, "operations to protect a table against", OPERATIONS_HINT);
	require_value(fcinfo, 3, "exclusive", "Give true or false.");
	relid = PG_GETARG_OID(0);
	template = text_to_cstring(PG_GETARG_TEXT_PP(1));
	events = trigger_events(PG_GETARG_TEXT_PP(2));

	table = open_own_table(relid);
	inheritors = find_all_inheritors(relid, ShareRowExclusiveLock, NULL);
	check_protectable(table, schema, inheritors);
	template_for_table(template, table);
	check_unprotected(relid, inheritors, guard);

	call = psprintf("%s(%s%s)",
					quote_qualified_identifier(get_namespace_name(schema), get_func_name(guard)),
					quote_literal_cstr(template), PG_GETARG_BOOL(3) ? ", 'exclusive'" : "");
	SPI_connect();
	create_trigger(ROW_TRIGGER, events, relid, "ROW", call);
	foreach(cell, inheritors)
	{
		/* A partition that was detached from a protected table still has its TRUNCATE trigger. */
		drop_triggers(lfirst_oid(cell), guard, false);
		if (strstr(events, "delete") != NULL)
			create_trigger(TRUNCATE_TRIGGER, "TRUNCATE", lfirst_oid(cell), "STATEMENT", call);
	}
	SPI_finish();

	table_close(table, NoLock);
	PG_RETURN_VOID();
}

/*
 * lease_unprotect("table" regclass) returns boolean
 *
 * With the row triggers of a partitioned table the server drops the copies in
 * its partitions. A table that has a row trigger then is protected on its own,
 * and keeps its TRUNCATE trigger.
 */
Datum
lease_unprotect(PG_FUNCTION_ARGS)
{
	Oid			guard = guard_function(get_func_namespace(fcinfo->flinfo->fn_oid));
	Oid			relid;
	Relation	table;
	List	   *inheritors;
	ListCell   *cell;
	bool		was_protected;

	require_value(fcinfo, 0, "table to unprotect", "Give the name of a table.");
	relid = PG_GETARG_OID(0);
	table = open_own_table(relid);
	inheritors = table->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ?
		find_all_inheritors(relid, ShareRowExclusiveLock, NULL) : list_make1_oid(relid);

	SPI_connect();
	was_protected = drop_triggers(relid, guard, true);
	foreach(cell, inheritors)
		if (triggers_of(lfirst_oid(cell), guard, true) == NIL)
			drop_triggers(lfirst_oid(cell), guard, false);
	SPI_finish();

	table_close(table, NoLock);
	PG_RETURN_BOOL(was_protected);
}
