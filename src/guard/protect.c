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
 * lease. The TRUNCATE trigger is created on each partition as well, because
 * statement triggers are not inherited.
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
#include "nodes/makefuncs.h"
#include "nodes/value.h"
#include "parser/parse_func.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/varlena.h"

#include "base/compat.h"
#include "lease_lock.h"
#include "guard/template.h"

PG_FUNCTION_INFO_V1(lease_protect);
PG_FUNCTION_INFO_V1(lease_unprotect);

/* These names sort after all names that begin with a letter. */
#define ROW_TRIGGER			"~lease_guard"
#define TRUNCATE_TRIGGER	"~lease_guard_truncate"

/* Operations on a protected table, as a set. */
enum
{
	GUARD_INSERT = 1 << 0,
	GUARD_UPDATE = 1 << 1,
	GUARD_DELETE = 1 << 2
};

static int
parse_operations(const text *list)
{
	List	   *names;
	ListCell   *cell;
	int			operations = 0;
	bool		valid = SplitIdentifierString(text_to_cstring(list), ',', &names);

	foreach(cell, names)
	{
		const char *name = lfirst(cell);

		if (strcmp(name, "insert") == 0)
			operations |= GUARD_INSERT;
		else if (strcmp(name, "update") == 0)
			operations |= GUARD_UPDATE;
		else if (strcmp(name, "delete") == 0)
			operations |= GUARD_DELETE;
		else
			valid = false;
	}

	if (!valid || operations == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("operations to protect a table against are not valid: \"%s\"", text_to_cstring(list)),
				 errhint("Name one or more of insert, update and delete, separated by commas.")));
	return operations;
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
				 errhint("Protect the table behind it. A foreign table can be written elsewhere.")));
	if (IsCatalogRelation(table) ||
		(RelationGetNamespace(table) == lease_schema && strcmp(name, "lease_lock") == 0))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot protect \"%s\": it is a system catalog or the lock table itself", name)));
	if (kind == RELKIND_RELATION && list_length(inheritors) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot protect \"%s\": tables inherit from it", name),
				 errdetail("Triggers of a table do not fire for rows of tables that inherit from it."),
				 errhint("Use partitions, or protect tables that nothing inherits from.")));

	foreach(cell, inheritors)
		if (get_rel_relkind(lfirst_oid(cell)) == RELKIND_FOREIGN_TABLE)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot protect \"%s\": its partition \"%s\" is a foreign table",
							name, get_rel_name(lfirst_oid(cell)))));
}

static char *
qualified_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)), get_rel_name(relid));
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
create_row_trigger(Oid table, const char *function, const char *template, int operations)
{
	const char *separator = "";
	StringInfoData sql;

	initStringInfo(&sql);
	appendStringInfoString(&sql, "CREATE TRIGGER \"" ROW_TRIGGER "\" BEFORE ");
	for (int operation = GUARD_INSERT; operation <= GUARD_DELETE; operation <<= 1)
	{
		if ((operations & operation) == 0)
			continue;
		appendStringInfo(&sql, "%s%s", separator,
						 operation == GUARD_INSERT ? "INSERT" :
						 operation == GUARD_UPDATE ? "UPDATE" : "DELETE");
		separator = " OR ";
	}
	appendStringInfo(&sql, " ON %s FOR EACH ROW EXECUTE FUNCTION %s(%s)",
					 qualified_name(table), function, quote_literal_cstr(template));
	run_utility(sql.data);
}

static void
create_truncate_trigger(Oid table, const char *function, const char *template)
{
	run_utility(psprintf("CREATE TRIGGER \"" TRUNCATE_TRIGGER "\" BEFORE TRUNCATE ON %s "
						 "FOR EACH STATEMENT EXECUTE FUNCTION %s(%s)",
						 qualified_name(table), function, quote_literal_cstr(template)));
}

static void
drop_trigger(Oid table, const char *name)
{
	run_utility(psprintf("DROP TRIGGER %s ON %s", quote_identifier(name), qualified_name(table)));
}

/* Names of a table's triggers that call the function, for this kind of event. */
static List *
triggers_of(Relation table, Oid function, int16 event)
{
	List	   *names = NIL;

	for (int i = 0; table->trigdesc != NULL && i < table->trigdesc->numtriggers; i++)
	{
		const Trigger *trigger = &table->trigdesc->triggers[i];

		if (trigger->tgfoid == function && (trigger->tgtype & event) != 0)
			names = lappend(names, pstrdup(trigger->tgname));
	}
	return names;
}

#define ROW_EVENTS	(TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE)

/* Get the trigger function in the schema of the extension. */
static Oid
guard_function(Oid schema)
{
	List	   *name = list_make2(makeString(get_namespace_name(schema)), makeString("lease_guard"));

	return LookupFuncName(name, 0, NULL, false);
}

static char *
text_arg(FunctionCallInfo fcinfo, int argno, const char *what)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", what)));
	return text_to_cstring(PG_GETARG_TEXT_PP(argno));
}

static Oid
table_arg(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("table to protect must not be null")));
	return PG_GETARG_OID(argno);
}

/*
 * lease_protect("table" regclass, resource_template text, operations text) returns void
 */
Datum
lease_protect(PG_FUNCTION_ARGS)
{
	Oid			relid = table_arg(fcinfo, 0);
	char	   *template = text_arg(fcinfo, 1, "template of the leases of a table");
	int			operations = parse_operations(cstring_to_text(text_arg(fcinfo, 2, "operations to protect a table against")));
	Oid			schema = get_func_namespace(fcinfo->flinfo->fn_oid);
	Oid			guard = guard_function(schema);
	const char *function = quote_qualified_identifier(get_namespace_name(schema), get_func_name(guard));
	Relation	table = open_own_table(relid);
	List	   *inheritors = find_all_inheritors(relid, ShareRowExclusiveLock, NULL);
	ListCell   *cell;

	check_protectable(table, schema, inheritors);
	template_for_table(template, table);
	if (triggers_of(table, guard, ROW_EVENTS | TRIGGER_TYPE_TRUNCATE) != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("table \"%s\" is already protected", RelationGetRelationName(table)),
				 errhint("Call lease_unprotect() first to protect it in another way.")));

	SPI_connect();
	create_row_trigger(relid, function, template, operations);
	if ((operations & GUARD_DELETE) != 0)
		foreach(cell, inheritors)
			create_truncate_trigger(lfirst_oid(cell), function, template);
	SPI_finish();

	table_close(table, NoLock);
	PG_RETURN_VOID();
}

/*
 * lease_unprotect("table" regclass) returns boolean
 */
Datum
lease_unprotect(PG_FUNCTION_ARGS)
{
	Oid			relid = table_arg(fcinfo, 0);
	Oid			guard = guard_function(get_func_namespace(fcinfo->flinfo->fn_oid));
	Relation	table = open_own_table(relid);
	List	   *rows = triggers_of(table, guard, ROW_EVENTS);
	List	   *inheritors = find_all_inheritors(relid, ShareRowExclusiveLock, NULL);
	bool		was_protected = rows != NIL;
	ListCell   *cell;
	ListCell   *name;

	SPI_connect();
	foreach(name, rows)
		drop_trigger(relid, lfirst(name));
	foreach(cell, inheritors)
	{
		Relation	inheritor = table_open(lfirst_oid(cell), NoLock);
		List	   *truncates = triggers_of(inheritor, guard, TRIGGER_TYPE_TRUNCATE);

		table_close(inheritor, NoLock);
		was_protected |= truncates != NIL;
		foreach(name, truncates)
			drop_trigger(lfirst_oid(cell), lfirst(name));
	}
	SPI_finish();

	table_close(table, NoLock);
	PG_RETURN_BOOL(was_protected);
}
