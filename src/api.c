/*-------------------------------------------------------------------------
 *
 * api.c
 *		The functions that SQL calls: arguments in, checks, results out.
 *
 * None is STRICT: a NULL is an error of the caller, who would otherwise take
 * a silent NULL for "not granted" or, worse, not look.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"

/* Bytes in the name of a resource or owner; fits an index entry many times. */
#define MAX_NAME_LENGTH	1024

/* Far from where timestamps end, whatever is added to the clock. */
#define MAX_TTL_YEARS	100000
#define MAX_TTL			((int64) MAX_TTL_YEARS * MONTHS_PER_YEAR * DAYS_PER_MONTH * USECS_PER_DAY)

PG_FUNCTION_INFO_V1(lease_acquire);
PG_FUNCTION_INFO_V1(lease_release);
PG_FUNCTION_INFO_V1(lease_release_all);
PG_FUNCTION_INFO_V1(lease_renew);
PG_FUNCTION_INFO_V1(lease_token);
PG_FUNCTION_INFO_V1(lease_purge);

/* Refuse to write where nothing can be written. */
static void
require_writable(const char *function)
{
	PreventCommandIfReadOnly(function);
	PreventCommandDuringRecovery(function);
}

/* Get the name of a resource or an owner from argument number argno. */
static text *
name_arg(FunctionCallInfo fcinfo, int argno, const char *what)
{
	text	   *name;
	int			length;

	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s of a lease must not be null", what),
				 errhint("Name it with a text of 1 to %d bytes.", MAX_NAME_LENGTH)));

	name = PG_GETARG_TEXT_PP(argno);
	length = VARSIZE_ANY_EXHDR(name);

	if (length == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s of a lease must not be empty", what),
				 errhint("Name it with a text of 1 to %d bytes.", MAX_NAME_LENGTH)));
	if (length > MAX_NAME_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s of a lease must not be longer than %d bytes", what, MAX_NAME_LENGTH),
				 errdetail("It has %d bytes.", length),
				 errhint("Name it with a digest, for example encode(sha256(convert_to(name, 'UTF8')), 'hex').")));
	return name;
}

/* Get the time to live, in microseconds, from argument number argno. */
static int64
ttl_arg(FunctionCallInfo fcinfo, int argno, text *resource)
{
	Interval   *ttl;
	int64		usecs;

	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("ttl of the lease on \"%s\" must not be null", text_to_cstring(resource)),
				 errhint("A lease that is to last for long takes a long ttl and is released by hand.")));

	ttl = PG_GETARG_INTERVAL_P(argno);
	if (!interval_to_usecs(ttl, &usecs) || usecs <= 0 || usecs > MAX_TTL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl of the lease on \"%s\" is out of range: %s", text_to_cstring(resource),
						DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(ttl)))),
				 errhint("Give an interval of more than zero and at most %d years.", MAX_TTL_YEARS)));
	return usecs;
}

/*
 * lease_acquire(resource text, ttl interval, owner text) returns boolean
 */
Datum
lease_acquire(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	int64		ttl = ttl_arg(fcinfo, 1, resource);
	text	   *owner = name_arg(fcinfo, 2, "owner");

	require_writable("lease_acquire()");
	PG_RETURN_BOOL(grant_lease(resource, ttl, owner));
}

/*
 * lease_release(resource text, owner text) returns boolean
 */
Datum
lease_release(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	text	   *owner = name_arg(fcinfo, 1, "owner");

	require_writable("lease_release()");
	PG_RETURN_BOOL(release_lease(resource, owner));
}

/*
 * lease_release_all(owner text) returns bigint
 */
Datum
lease_release_all(PG_FUNCTION_ARGS)
{
	text	   *owner = name_arg(fcinfo, 0, "owner");

	require_writable("lease_release_all()");
	PG_RETURN_INT64(release_all_leases(owner));
}

/*
 * lease_renew(resource text, ttl interval, owner text) returns boolean
 */
Datum
lease_renew(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	int64		ttl = ttl_arg(fcinfo, 1, resource);
	text	   *owner = name_arg(fcinfo, 2, "owner");

	require_writable("lease_renew()");
	PG_RETURN_BOOL(renew_lease(resource, ttl, owner));
}

/*
 * lease_token(resource text, owner text) returns bigint
 *
 * Only reads, so it answers in a read-only transaction and on a standby too.
 */
Datum
lease_token(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	text	   *owner = name_arg(fcinfo, 1, "owner");
	int64		token;

	if (!held_token(resource, owner, &token))
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/*
 * lease_purge() returns bigint
 */
Datum
lease_purge(PG_FUNCTION_ARGS)
{
	require_writable("lease_purge()");
	PG_RETURN_INT64(purge_leases());
}
