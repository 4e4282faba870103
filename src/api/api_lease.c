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
#include "hold/hold.h"

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

/*
 * Get the owner of the lease that is meant from argument number argno, and its
 * token, which goes to *token, from the next one, if the function has that.
 */
static Claim
claim_args(FunctionCallInfo fcinfo, int argno, const text *resource, int64 *token)
{
	Claim		claim = {.owner = owner_arg(fcinfo, argno)};

	if (PG_NARGS() > argno + 1)
	{
		*token = token_arg(fcinfo, argno + 1, resource);
		claim.token = token;
	}
	return claim;
}

/* lease_release(resource text, owner text [, token bigint]) returns boolean */
Datum
lease_release(PG_FUNCTION_ARGS)
{
	LeaseAction action = {.verb = LEASE_RELEASE, .resource = resource_arg(fcinfo, 0)};
	int64		token;

	action.claim = claim_args(fcinfo, 1, action.resource, &token);
	require_writable("lease_release()");
	PG_RETURN_BOOL(act_on_lease(&action).done);
}

/* lease_release_all(owner text) returns bigint */
Datum
lease_release_all(PG_FUNCTION_ARGS)
{
	LeaseAction action = {.verb = LEASE_RELEASE, .claim = {.owner = owner_arg(fcinfo, 0)}};

	require_writable("lease_release_all()");
	PG_RETURN_INT64(act_on_all_leases(&action));
}

/* lease_renew(resource text, ttl interval, owner text [, token bigint]) returns boolean */
Datum
lease_renew(PG_FUNCTION_ARGS)
{
	LeaseAction action = {.verb = LEASE_RENEW, .resource = resource_arg(fcinfo, 0)};
	int64		token;

	action.ttl = ttl_arg(fcinfo, 1, action.resource);
	action.claim = claim_args(fcinfo, 2, action.resource, &token);
	require_writable("lease_renew()");
	PG_RETURN_BOOL(act_on_lease(&action).done);
}

/* lease_renew_several(resources text[], ttl interval, owner text) returns boolean */
Datum
lease_renew_several(PG_FUNCTION_ARGS)
{
	Resources	resources = resources_arg(fcinfo, 0);
	SeveralRenewals renewals = {.action = {.verb = LEASE_RENEW}, .resources = resources.sorted,
								.nresources = resources.number};

	renewals.action.ttl = ttl_arg(fcinfo, 1, resources.given[0]);
	renewals.action.claim.owner = owner_arg(fcinfo, 2);
	require_writable("lease_renew_several()");
	PG_RETURN_BOOL(run_subtransaction(renew_each, &renewals, NULL));
}

/* lease_renew_all(ttl interval, owner text) returns bigint */
Datum
lease_renew_all(PG_FUNCTION_ARGS)
{
	LeaseAction action = {.verb = LEASE_RENEW, .ttl = ttl_arg(fcinfo, 0, NULL)};

	action.claim.owner = owner_arg(fcinfo, 1);
	require_writable("lease_renew_all()");
	PG_RETURN_INT64(act_on_all_leases(&action));
}

/* lease_assert(resource text, owner text) returns bigint */
Datum
lease_assert(PG_FUNCTION_ARGS)
{
	text	   *resource = resource_arg(fcinfo, 0);
	Claim		claim = {.owner = owner_arg(fcinfo, 1)};

	require_writable("lease_assert()");
	PG_RETURN_INT64(assert_lease(resource, &claim, &(Asserter) {.role = GetUserId()}));
}

/* lease_assert_token(resource text, token bigint) returns bigint */
Datum
lease_assert_token(PG_FUNCTION_ARGS)
{
	text	   *resource = resource_arg(fcinfo, 0);
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
	text	   *resource = resource_arg(fcinfo, 0);
	text	   *owner = owner_arg(fcinfo, 1);
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
	LeaseAction action = {.verb = LEASE_TRANSFER, .resource = resource_arg(fcinfo, 0)};
	ActionResult result;

	action.claim.owner = owner_arg(fcinfo, 1);
	action.new_owner = new_owner_arg(fcinfo, 2);
	require_writable("lease_transfer()");
	result = act_on_lease(&action);
	if (!result.done)
		PG_RETURN_NULL();
	PG_RETURN_INT64(result.token);
}

/* lease_downgrade(resource text, owner text) returns bigint */
Datum
lease_downgrade(PG_FUNCTION_ARGS)
{
	LeaseAction action = {.verb = LEASE_DOWNGRADE, .resource = resource_arg(fcinfo, 0)};
	ActionResult result;

	action.claim.owner = owner_arg(fcinfo, 1);
	require_writable("lease_downgrade()");
	result = act_on_lease(&action);
	if (!result.done)
		PG_RETURN_NULL();
	PG_RETURN_INT64(result.token);
}

/* lease_set_payload(resource text, owner text, payload jsonb) returns boolean */
Datum
lease_set_payload(PG_FUNCTION_ARGS)
{
	LeaseAction action = {.verb = LEASE_SET_PAYLOAD, .resource = resource_arg(fcinfo, 0)};

	action.claim.owner = owner_arg(fcinfo, 1);
	action.payload = payload_arg(fcinfo, 2);
	require_writable("lease_set_payload()");
	PG_RETURN_BOOL(act_on_lease(&action).done);
}

/*
 * lease_break(resource text, grace interval) returns boolean
 *
 * For administrators: needs neither the name of the owner nor the privileges
 * of the role that acquired the lease.
 */
Datum
lease_break(PG_FUNCTION_ARGS)
{
	LeaseAction action = {.verb = LEASE_BREAK, .resource = resource_arg(fcinfo, 0)};

	action.grace = grace_arg(fcinfo, 1, action.resource);
	require_writable("lease_break()");
	PG_RETURN_BOOL(act_on_lease(&action).done);
}
