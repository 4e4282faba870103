/*-------------------------------------------------------------------------
 *
 * privileges.c
 *		Which role may act on a lease, and what errors may show.
 *
 * The owner's name alone is not enough to act on a lease: the role also needs
 * the privileges of the role that acquired it.
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
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/rls.h"

#include "server/server.h"

/* Does the current role have the privileges of the role that acquired the lease? */
bool
may_act(const Lease *lease)
{
	return has_privs_of_role(GetUserId(), lease->role);
}

/*
 * May a role see the owners of leases that another role acquired? Roles that
 * may see the activity of others in pg_stat_activity may do so, too.
 */
bool
role_sees_owner(Oid viewer, Oid role)
{
	return has_privs_of_role(viewer, role) ||
		has_privs_of_role(viewer, ROLE_PG_READ_ALL_STATS);
}

bool
may_see_owner(Oid role)
{
	return role_sees_owner(GetUserId(), role);
}

/* May an error of the current role show the owners of leases that another role acquired? */
bool
error_may_show_owner(Oid role)
{
	return may_see_owner(role) && role_sees_owner(GetOuterUserId(), role);
}

/* Fail because the current role lacks the privileges of the role that acquired the lease. */
void
refuse_permission(const Lease *lease)
{
	const char *role = GetUserNameFromId(lease->role, true);

	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for lease on \"%s\"", printable(lease->resource)),
			 role ? errdetail("It was acquired by role \"%s\".", role) :
			 errdetail("It was acquired by a role that was dropped."),
			 role ? errhint("Act as a role that has the privileges of that role.") :
			 errhint("Wait until it expires, or ask a superuser to release it.")));
}

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

/* The name of a role; a dropped role is shown as in the view lease_status. */
char *
role_name(Oid role)
{
	char	   *name = GetUserNameFromId(role, true);

	return name != NULL ? name : psprintf("unknown (OID=%u)", role);
}
