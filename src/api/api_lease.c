/*-------------------------------------------------------------------------
 *
 * api_lease.c
 *		More functions for holders of leases.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/api.h"
#include "base/compat.h"
#include "lease/lease.h"
#include "store/session_lock.h"

PG_FUNCTION_INFO_V1(lease_renew_several);
PG_FUNCTION_INFO_V1(lease_renew_all);
PG_FUNCTION_INFO_V1(lease_downgrade);
PG_FUNCTION_INFO_V1(lease_set_payload);
PG_FUNCTION_INFO_V1(lease_session_ended);

/*
 * lease_renew(resources text[], ttl interval, owner text) returns boolean
 */
Datum
lease_renew_several(PG_FUNCTION_ARGS)
{
	Resources	resources = resources_arg(fcinfo, 0);
	int64		ttl = ttl_arg(fcinfo, 1, resources.given[0]);
	text	   *owner = name_arg(fcinfo, 2, "owner");

	require_writable("lease_renew()");
	PG_RETURN_BOOL(renew_leases(resources.sorted, resources.number, ttl, owner));
}

/*
 * lease_renew_all(ttl interval, owner text) returns bigint
 */
Datum
lease_renew_all(PG_FUNCTION_ARGS)
{
	int64		ttl = ttl_arg(fcinfo, 0, NULL);
	text	   *owner = name_arg(fcinfo, 1, "owner");

	require_writable("lease_renew_all()");
	PG_RETURN_INT64(renew_all_leases(ttl, owner));
}

/*
 * lease_downgrade(resource text, owner text) returns bigint
 */
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

/*
 * lease_set_payload(resource text, owner text, payload jsonb) returns boolean
 */
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
 * lease_session_ended(token bigint) returns boolean
 */
Datum
lease_session_ended(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(session_of_token(PG_GETARG_INT64(0)) == SESSION_ENDED);
}
