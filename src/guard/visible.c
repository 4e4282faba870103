/*-------------------------------------------------------------------------
 *
 * visible.c
 *		Which values of a row errors may show.
 *
 * A role can write rows that it cannot read: with UPDATE on one column, with
 * DELETE on a table whose foreign key cascades, or behind row security. The
 * server leaves the values of such rows out of its errors, and so do the
 * triggers.
 *
 * The current role is not always the role that gets the error. A cascade runs
 * as the owner of the table, and a function may run as its definer. So the
 * role that the session acts as needs the privilege as well.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/partition.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/rls.h"

#include "guard/guard.h"

/* May the role read the column in all rows of the table? */
static bool
may_read(Oid role, Oid table, const char *column)
{
	if (check_enable_rls(table, role, true) == RLS_ENABLED)
		return false;
	return pg_class_aclcheck(table, role, ACL_SELECT) == ACLCHECK_OK ||
		pg_attribute_aclcheck(table, get_attnum(table, column), role, ACL_SELECT) == ACLCHECK_OK;
}

/*
 * May the roles that get an error read the column in all rows? The rows of a
 * partition can also be read through its ancestors.
 */
bool
column_is_visible(Relation table, AttrNumber column)
{
	const char *name = NameStr(TupleDescAttr(RelationGetDescr(table), column - 1)->attname);
	Oid			relid = RelationGetRelid(table);
	List	   *tables = list_make1_oid(relid);
	bool		current = false;
	bool		session = false;
	ListCell   *cell;

	if (table->rd_rel->relispartition)
		tables = list_concat(tables, get_partition_ancestors(relid));
	foreach(cell, tables)
	{
		current = current || may_read(GetUserId(), lfirst_oid(cell), name);
		session = session || may_read(GetOuterUserId(), lfirst_oid(cell), name);
	}
	return current && session;
}
