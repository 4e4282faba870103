/*-------------------------------------------------------------------------
 *
 * privileges.c
 *		Which role may act on a lease, and which may see its owner.
 *
 * The owner's name alone is not enough to act on a lease: the role also needs
 * the privileges of the role that acquired it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/printable.h"
#include "base/privileges.h"

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

void
require_role_privileges(const Lease *lease)
{
	if (!may_act(lease))
		refuse_permission(lease);
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
