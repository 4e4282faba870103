/*-------------------------------------------------------------------------
 *
 * api_lease.c
 *		The functions that act on leases: release, renew, assert and others.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "api/api.h"
#include "base/compat.h"
#include "base/sessions.h"
#include "lease/lease.h"
#include "purge/purge.h"

PG_FUNCTION_INFO_V1(lease_release);
PG_FUNCTION_INFO_V1(lease_release_all);
PG_FUNCTION_INFO_V1(lease_renew);
PG_FUNCTION_INFO_V1(lease_renew_several);
PG_FUNCTION_INFO_V1(lease_renew_all);
PG_FUNCTION_INFO_V1(lease_assert);
PG_FUNCTION_INFO_V1(lease_assert_token);
PG_FUNCTION_INFO_V1(lease_token);
PG_FUNCTION_INFO_V1(lease_transfer);
PG_FUNCTION_INFO_V1(lease_downgrade);
PG_FUNCTION_INFO_V1(lease_set_payload);
PG_FUNCTION_INFO_V1(lease_break);
PG_FUNCTION_INFO_V1(lease_purge);
PG_FUNCTION_INFO_V1(lease_session_ended);

/* lease_release(resource text, owner text [, token bigint]) returns boolean */
Datum
lease_release(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	Claim		claim = {.owner = name_arg(fcinfo, 1, "owner")};
	int64		token;

	if (PG_NARGS() > 2)
	{
		token = token_arg(fcinfo, 2, resource);
		claim.token = &token;
	}
	require_writable("lease_release()");
	PG_RETURN_BOOL(release_lease(resource, &claim));
}

/* lease_release_all(owner text) returns bigint */
Datum
lease_release_all(PG_FUNCTION_ARGS)
{
	text	   *owner = name_arg(fcinfo, 0, "owner");

	require_writable("lease_release_all()");
	PG_RETURN_INT64(release_all_leases(owner));
}

/* lease_renew(resource text, ttl interval, owner text [, token bigint]) returns boolean */
Datum
lease_renew(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	int64		ttl = ttl_arg(fcinfo, 1, resource);
	Claim		claim = {.owner = name_arg(fcinfo, 2, "owner")};
	int64		token;

	if (PG_NARGS() > 3)
	{
		token = token_arg(fcinfo, 3, resource);
		claim.token = &token;
	}
	require_writable("lease_renew()");
	PG_RETURN_BOOL(renew_lease(resource, ttl, &claim));
}

/* lease_renew_several(resources text[], ttl interval, owner text) returns boolean */
Datum
lease_renew_several(PG_FUNCTION_ARGS)
{
	Resources	resources = resources_arg(fcinfo, 0);
	int64		ttl = ttl_arg(fcinfo, 1, resources.given[0]);
	text	   *owner = name_arg(fcinfo, 2, "owner");

	require_writable("lease_renew_several()");
	PG_RETURN_BOOL(renew_leases(resources.sorted, resources.number, ttl, owner));
}

/* lease_renew_all(ttl interval, owner text) returns bigint */
Datum
lease_renew_all(PG_FUNCTION_ARGS)
{
	int64		ttl = ttl_arg(fcinfo, 0, NULL);
	text	   *owner = name_arg(fcinfo, 1, "owner");

	require_writable("lease_renew_all()");
	PG_RETURN_INT64(renew_all_leases(ttl, owner));
}

/* lease_assert(resource text, owner text) returns bigint */
Datum
lease_assert(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	Claim		claim = {.owner = name_arg(fcinfo, 1, "owner")};

	require_writable("lease_assert()");
	PG_RETURN_INT64(assert_lease(resource, &claim, &(Asserter) {.role = GetUserId()}));
}

/* lease_assert_token(resource text, token bigint) returns bigint */
Datum
lease_assert_token(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	int64		token = token_arg(fcinfo, 1, resource);
	Claim		claim = {.token = &token};

	require_writable("lease_assert_token()");
	PG_RETURN_INT64(assert_lease(resource, &claim, &(Asserter) {.role = GetUserId()}));
}

/*
 * lease_token(resource text, owner text) returns bigint
 *
 * Only reads, so it works in a read-only transaction and on a standby, too.
 */
Datum
lease_token(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	text	   *owner = name_arg(fcinfo, 1, "owner");
	int64		token;

	PreventCommandIfParallelMode("lease_token()");
	if (!held_token(resource, owner, &token))
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/* lease_transfer(resource text, owner text, new_owner text) returns bigint */
Datum
lease_transfer(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	text	   *owner = name_arg(fcinfo, 1, "owner");
	text	   *new_owner = name_arg(fcinfo, 2, "new owner");
	int64		token;

	require_writable("lease_transfer()");
	if (!transfer_lease(resource, owner, new_owner, &token))
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/* lease_downgrade(resource text, owner text) returns bigint */
Datum
lease_downgrade(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	text	   *owner = name_arg(fcinfo, 1, "owner");
	int64		token;

	require_writable("lease_downgrade()");
	if (!downgrade_lease(resource, owner, &token))
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/* lease_set_payload(resource text, owner text, payload jsonb) returns boolean */
Datum
lease_set_payload(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	text	   *owner = name_arg(fcinfo, 1, "owner");
	Datum		payload = PG_ARGISNULL(2) ? (Datum) 0 : PointerGetDatum(PG_DETOAST_DATUM(PG_GETARG_DATUM(2)));

	require_writable("lease_set_payload()");
	PG_RETURN_BOOL(set_payload(resource, owner, payload));
}

/*
 * lease_break(resource text) returns boolean
 *
 * For administrators: needs neither the name of the owner nor the privileges
 * of the role that acquired the lease.
 */
Datum
lease_break(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");

	require_writable("lease_break()");
	PG_RETURN_BOOL(break_leases(resource));
}

/* lease_purge() returns bigint */
Datum
lease_purge(PG_FUNCTION_ARGS)
{
	require_writable("lease_purge()");
	PG_RETURN_INT64(purge_leases());
}

/* lease_session_ended(session_number bigint) returns boolean */
Datum
lease_session_ended(PG_FUNCTION_ARGS)
{
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("number of a session must not be null"),
				 errhint("Give session_number of the lock table.")));
	PG_RETURN_BOOL(session_state(PG_GETARG_INT64(0)) == SESSION_ENDED);
}
