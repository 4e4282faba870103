/*-------------------------------------------------------------------------
 *
 * arguments.c
 *		Arguments of the functions that SQL calls: fetched and checked.
 *
 * No function is STRICT. A NULL is an error, because a caller would take a
 * NULL result for "not granted".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/api.h"
#include "base/clock.h"
#include "base/compat.h"
#include "base/names.h"
#include "base/printable.h"
#include "base/sessions.h"
#include "change/change.h"
#include "grant/grant.h"
#include "rules/rules.h"

/* Maximum number of names in an array. */
#define MAX_RESOURCES	10000

/* Fail in a read-only transaction, in a parallel worker and during recovery. */
void
require_writable(const char *function)
{
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
	PreventCommandDuringRecovery(function);
}

pg_noreturn static void
refuse_null(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s of a lease must not be null", what),
			 errhint("Give a name of 1 to %d bytes.", MAX_NAME_LENGTH)));
}

/* Check the name of a resource or an owner. */
static text *
check_name(text *name, const char *what)
{
	int			length = VARSIZE_ANY_EXHDR(name);

	if (length == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s of a lease must not be empty", what),
				 errhint("Give a name of 1 to %d bytes.", MAX_NAME_LENGTH)));
	if (length > MAX_NAME_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s of a lease must not be longer than %d bytes", what, MAX_NAME_LENGTH),
				 errdetail("It has %d bytes.", length),
				 errhint("Use a digest as the name, for example encode(sha256(convert_to(name, 'UTF8')), 'hex').")));
	return name;
}

/* Get the name of a resource or an owner from argument number argno. */
text *
name_arg(FunctionCallInfo fcinfo, int argno, const char *what)
{
	if (PG_ARGISNULL(argno))
		refuse_null(what);
	return check_name(PG_GETARG_TEXT_PP(argno), what);
}

/* Get the time to live, in microseconds, from argument number argno. */
int64
ttl_arg(FunctionCallInfo fcinfo, int argno, text *resource)
{
	Interval   *ttl;
	int64		usecs;

	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("ttl of %s must not be null", which_lease(resource)),
				 errhint("For a lease that lasts until it is released, give a long ttl. "
						 "For one that ends with the session, call lease_request() with session => true.")));

	ttl = PG_GETARG_INTERVAL_P(argno);
	if (!interval_to_usecs(ttl, &usecs) || usecs <= 0 || usecs > MAX_TTL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl of %s is out of range: %s", which_lease(resource),
						DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(ttl)))),
				 errhint("Give an interval of more than zero and at most %d years.", MAX_TTL_YEARS)));
	require_ttl_allowed(resource, "ttl", usecs);
	return usecs;
}

/* Get the time to wait, in microseconds; negative: without limit. */
int64
wait_arg(FunctionCallInfo fcinfo, int argno, text *resource)
{
	Interval   *wait;
	int64		usecs;

	if (PG_ARGISNULL(argno))
		return -1;

	wait = PG_GETARG_INTERVAL_P(argno);
	if (!interval_to_usecs(wait, &usecs) || usecs < 0 || usecs > MAX_TTL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("wait for the lease on \"%s\" is out of range: %s", printable(resource),
						DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(wait)))),
				 errhint("Give an interval of zero to %d years, or NULL to wait without limit.",
						 MAX_TTL_YEARS)));
	return usecs;
}

/* Get the fencing token of a lease from argument number argno. */
int64
token_arg(FunctionCallInfo fcinfo, int argno, text *resource)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("token of the lease on \"%s\" must not be null", printable(resource)),
				 errhint("lease_token() returns null if that owner does not hold the lease.")));
	return PG_GETARG_INT64(argno);
}

/* Get the number of permits from argument number argno. */
int
permits_arg(FunctionCallInfo fcinfo, int argno, text *resource)
{
	int			permits = PG_ARGISNULL(argno) ? 0 : PG_GETARG_INT32(argno);

	if (PG_ARGISNULL(argno) || permits < 1 || permits > MAX_SLOT)
		ereport(ERROR,
				(errcode(PG_ARGISNULL(argno) ? ERRCODE_NULL_VALUE_NOT_ALLOWED : ERRCODE_INVALID_PARAMETER_VALUE),
				 PG_ARGISNULL(argno) ?
				 errmsg("number of permits for \"%s\" must not be null", printable(resource)) :
				 errmsg("number of permits for \"%s\" is out of range: %d", printable(resource), permits),
				 errhint("Give the number of owners that may have a permit at a time: 1 to %d.", MAX_SLOT)));
	return permits;
}

/* For qsort: in the order of their bytes. */
static int
compare_names(const void *a, const void *b)
{
	return compare_texts(*(text *const *) a, *(text *const *) b);
}

/* Get an array of resources, each named once, from argument number argno. */
Resources
resources_arg(FunctionCallInfo fcinfo, int argno)
{
	Resources	resources;
	ArrayType  *array = PG_ARGISNULL(argno) ? NULL : PG_GETARG_ARRAYTYPE_P(argno);
	Datum	   *elements;
	bool	   *isnull;

	if (array == NULL || ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(array == NULL ? ERRCODE_NULL_VALUE_NOT_ALLOWED : ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 array == NULL ? errmsg("resources must not be null") : errmsg("resources must be an array of one dimension"),
				 errhint("Give an array of 1 to %d names.", MAX_RESOURCES)));

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT,
					  &elements, &isnull, &resources.number);
	if (resources.number < 1 || resources.number > MAX_RESOURCES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("number of resources is out of range: %d", resources.number),
				 errhint("Give an array of 1 to %d names.", MAX_RESOURCES)));

	resources.given = palloc(resources.number * sizeof(text *));
	resources.sorted = palloc(resources.number * sizeof(text *));
	for (int i = 0; i < resources.number; i++)
	{
		if (isnull[i])
			refuse_null("resource");
		resources.given[i] = resources.sorted[i] = check_name(DatumGetTextPP(elements[i]), "resource");
	}

	qsort(resources.sorted, resources.number, sizeof(text *), compare_names);
	for (int i = 1; i < resources.number; i++)
		if (compare_names(&resources.sorted[i - 1], &resources.sorted[i]) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("resource \"%s\" is named twice", printable(resources.sorted[i])),
					 errhint("Name each resource once.")));
	return resources;
}

/* The options of a request, in the order of the arguments. */
typedef enum RequestOption
{
	OPTION_MODE,
	OPTION_PERMITS,
	OPTION_IF_OWN,
	OPTION_MIN_HOLD,
	OPTION_LOCK_DELAY,
	OPTION_PAYLOAD,
	OPTION_SESSION
} RequestOption;

/* Get a mode from argument number argno. */
static LeaseMode
mode_arg(FunctionCallInfo fcinfo, int argno, text *resource)
{
	static const LeaseMode modes[] = {MODE_EXCLUSIVE, MODE_SHARED, MODE_PERMIT};
	char	   *mode = PG_ARGISNULL(argno) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(argno));

	for (size_t i = 0; mode != NULL && i < lengthof(modes); i++)
		if (strcmp(mode, mode_name(modes[i])) == 0)
			return modes[i];
	ereport(ERROR,
			(errcode(mode == NULL ? ERRCODE_NULL_VALUE_NOT_ALLOWED : ERRCODE_INVALID_PARAMETER_VALUE),
			 mode == NULL ?
			 errmsg("mode of the lease on \"%s\" must not be null", printable(resource)) :
			 errmsg("mode of the lease on \"%s\" is unknown: \"%s\"", printable(resource), printable_string(mode)),
			 errhint("The modes are exclusive, shared and permit.")));
}

/* Get the mode and the number of permits. */
static void
mode_args(FunctionCallInfo fcinfo, int argno, LeaseRequest *request)
{
	int			permits = argno + OPTION_PERMITS;

	request->mode = mode_arg(fcinfo, argno + OPTION_MODE, request->resource);
	if (request->mode == MODE_PERMIT)
		request->permits = permits_arg(fcinfo, permits, request->resource);
	else if (!PG_ARGISNULL(permits))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("number of permits for \"%s\" can be given only with mode permit",
						printable(request->resource)),
				 errhint("Leave it out, or use mode permit.")));
	else if (request->mode == MODE_SHARED)
		request->permits = MAX_SLOT;
}

/* Get an interval that may be left out, in microseconds, from argument number argno. */
static int64
span_arg(FunctionCallInfo fcinfo, int argno, const char *what, int64 max, text *resource)
{
	int64		usecs;

	if (PG_ARGISNULL(argno))
		return NOT_GIVEN;
	if (!interval_to_usecs(PG_GETARG_INTERVAL_P(argno), &usecs) || usecs < 0 || usecs > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s of the lease on \"%s\" is out of range: %s", what, printable(resource),
						DatumGetCString(DirectFunctionCall1(interval_out, PG_GETARG_DATUM(argno)))),
				 max < MAX_TTL ?
				 errhint("Give an interval between zero and the ttl of the lease.") :
				 errhint("Give an interval of zero to %d years.", MAX_TTL_YEARS)));
	return usecs;
}

/* Get what to do if the owner already has the lease, from argument number argno. */
static IfOwn
if_own_arg(FunctionCallInfo fcinfo, int argno, text *resource)
{
	char	   *if_own = PG_ARGISNULL(argno) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(argno));

	if (if_own != NULL && strcmp(if_own, "refuse") == 0)
		return IF_OWN_REFUSE;
	if (if_own != NULL && strcmp(if_own, "renew") == 0)
		return IF_OWN_RENEW;
	if (if_own != NULL && strcmp(if_own, "count") == 0)
		return IF_OWN_COUNT;
	ereport(ERROR,
			(errcode(if_own == NULL ? ERRCODE_NULL_VALUE_NOT_ALLOWED : ERRCODE_INVALID_PARAMETER_VALUE),
			 if_own == NULL ?
			 errmsg("if_own for the lease on \"%s\" must not be null", printable(resource)) :
			 errmsg("if_own for the lease on \"%s\" is unknown: \"%s\"", printable(resource), printable_string(if_own)),
			 errhint("Give refuse, renew or count.")));
}

/*
 * Get the ttl and the option session from arguments ttl_argno and
 * session_argno. A lease that ends with its session needs no ttl.
 */
static void
session_args(FunctionCallInfo fcinfo, int ttl_argno, int session_argno, LeaseRequest *request)
{
	if (PG_ARGISNULL(session_argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("session for the lease on \"%s\" must not be null", printable(request->resource)),
				 errhint("Give true or false.")));
	request->session = PG_GETARG_BOOL(session_argno);
	if (request->session)
		require_session_numbers();
	if (request->session && PG_ARGISNULL(ttl_argno))
	{
		request->ttl = NO_TTL;
		require_ttl_allowed(request->resource, "ttl", request->ttl);
	}
	else
		request->ttl = ttl_arg(fcinfo, ttl_argno, request->resource);
}

/*
 * Get the ttl from argument ttl_argno, and the options of a request from the
 * arguments from argno on.
 */
void
request_options(FunctionCallInfo fcinfo, int ttl_argno, int argno, LeaseRequest *request)
{
	session_args(fcinfo, ttl_argno, argno + OPTION_SESSION, request);
	mode_args(fcinfo, argno, request);
	request->if_own = if_own_arg(fcinfo, argno + OPTION_IF_OWN, request->resource);
	request->min_hold = span_arg(fcinfo, argno + OPTION_MIN_HOLD, "min_hold", Min(request->ttl, MAX_TTL), request->resource);
	request->lock_delay = span_arg(fcinfo, argno + OPTION_LOCK_DELAY, "lock_delay", MAX_TTL, request->resource);
	require_ttl_allowed(request->resource, "lock_delay", request->lock_delay);
	if (request->session && request->lock_delay > 0)
		refuse_delay_after_session(request->resource);
	request->payload = PG_ARGISNULL(argno + OPTION_PAYLOAD) ? (Datum) 0 :
		PointerGetDatum(PG_DETOAST_DATUM(PG_GETARG_DATUM(argno + OPTION_PAYLOAD)));
}
