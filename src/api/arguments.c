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
#include "common/int.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "api/api.h"
#include "change/change.h"
#include "grant/grant.h"
#include "rules/rules.h"

/* Maximum number of names in an array. */
#define MAX_RESOURCES	10000

/* The maximum of all intervals, for hints. */
#define YEARS			"100000 years"
StaticAssertDecl(MAX_TTL_YEARS == 100000, "hints name the maximum");

/* Fail in a read-only transaction, in a parallel worker and during recovery. */
void
require_writable(const char *function)
{
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
	PreventCommandDuringRecovery(function);
}

/* In ereport(): the code for an argument that is NULL, or else is not valid. */
int
errcode_argument(bool is_null)
{
	return errcode(is_null ? ERRCODE_NULL_VALUE_NOT_ALLOWED : ERRCODE_INVALID_PARAMETER_VALUE);
}

pg_noreturn static void
refuse_null(const char *what, const text *resource, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s %s must not be null", what, which_lease(resource)),
			 errhint("%s", hint)));
}

/* Check the name of a resource or an owner; NULL is none. */
static text *
check_name(text *name, const char *what)
{
	int			length = name != NULL ? VARSIZE_ANY_EXHDR(name) : 0;

	if (length == 0)
		ereport(ERROR,
				(errcode_argument(name == NULL),
				 errmsg("%s of a lease must not be %s", what, name == NULL ? "null" : "empty"),
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
	return check_name(PG_ARGISNULL(argno) ? NULL : PG_GETARG_TEXT_PP(argno), what);
}

/*
 * Get an interval, in microseconds, from argument number argno, which is not
 * NULL. It does not depend on calendar and time zone: a month is 30 days, and
 * a day is 24 hours.
 */
static int64
interval_arg(FunctionCallInfo fcinfo, int argno, const char *what, const text *resource,
			 int64 min, int64 max, const char *hint)
{
	const Interval *interval = PG_GETARG_INTERVAL_P(argno);
	int64		days = (int64) interval->month * DAYS_PER_MONTH + interval->day;
	int64		usecs;

	if (pg_mul_s64_overflow(days, USECS_PER_DAY, &usecs) || pg_add_s64_overflow(usecs, interval->time, &usecs) ||
		usecs < min || usecs > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s %s is out of range: %s", what, which_lease(resource),
						DatumGetCString(DirectFunctionCall1(interval_out, PG_GETARG_DATUM(argno)))),
				 errhint("%s", hint)));
	return usecs;
}

/* In ereport(): the setting that limits a ttl. */
static int
errdetail_max_ttl(void)
{
	return errdetail("Setting \"lease_lock.max_ttl\" is %s.",
					 GetConfigOptionByName("lease_lock.max_ttl", NULL, false));
}

static void
require_ttl_allowed(int64 ttl, const text *resource)
{
	if (is_above_max_ttl(ttl))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl of %s is longer than allowed", which_lease(resource)),
				 errdetail_max_ttl(),
				 errhint("Use a shorter ttl and renew the lease in time, or ask a superuser to raise the setting.")));
}

/* Get the time to live, in microseconds, from argument number argno. */
int64
ttl_arg(FunctionCallInfo fcinfo, int argno, const text *resource)
{
	int64		ttl;

	if (PG_ARGISNULL(argno))
		refuse_null("ttl of", resource,
					"For a lease that lasts until it is released, give a long ttl. "
					"For one that ends with the session, call lease_request() with session => true.");
	ttl = interval_arg(fcinfo, argno, "ttl of", resource, 1, MAX_TTL,
					   "Give an interval of more than zero and at most " YEARS ".");
	require_ttl_allowed(ttl, resource);
	return ttl;
}

/* Get the time to wait, in microseconds; FOREVER: without limit. */
int64
wait_arg(FunctionCallInfo fcinfo, int argno, const text *resource)
{
	return PG_ARGISNULL(argno) ? FOREVER :
		interval_arg(fcinfo, argno, "wait for", resource, 0, MAX_TTL,
					 "Give an interval of zero to " YEARS ", or NULL to wait without limit.");
}

/* Get the time that holders have to stop after a break, in microseconds, from argument number argno. */
int64
grace_arg(FunctionCallInfo fcinfo, int argno, const text *resource)
{
	const char *hint = "Give an interval of zero to " YEARS ".";

	if (PG_ARGISNULL(argno))
		refuse_null("grace for", resource, hint);
	return interval_arg(fcinfo, argno, "grace for", resource, 0, MAX_TTL, hint);
}

/* Get the fencing token of a lease from argument number argno. */
int64
token_arg(FunctionCallInfo fcinfo, int argno, const text *resource)
{
	if (PG_ARGISNULL(argno))
		refuse_null("token of", resource, "lease_token() returns null if that owner does not hold the lease.");
	return PG_GETARG_INT64(argno);
}

/* Get the number of permits from argument number argno. */
int
permits_arg(FunctionCallInfo fcinfo, int argno, const text *resource)
{
	int			permits = PG_ARGISNULL(argno) ? 0 : PG_GETARG_INT32(argno);

	if (permits < 1 || permits > MAX_SLOT)
		ereport(ERROR,
				(errcode_argument(PG_ARGISNULL(argno)),
				 PG_ARGISNULL(argno) ?
				 errmsg("number of permits for \"%s\" must not be null", printable(resource)) :
				 errmsg("number of permits for \"%s\" is out of range: %d", printable(resource), permits),
				 errhint("Give the number of owners that may have a permit at a time: 1 to %d.", MAX_SLOT)));
	return permits;
}

/* Get a payload from argument number argno; 0: none. */
Datum
payload_arg(FunctionCallInfo fcinfo, int argno)
{
	return PG_ARGISNULL(argno) ? (Datum) 0 : PointerGetDatum(PG_DETOAST_DATUM(PG_GETARG_DATUM(argno)));
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

	resources.number = array == NULL ? 0 : ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	if (array == NULL || ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(array == NULL ? ERRCODE_NULL_VALUE_NOT_ALLOWED : ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 array == NULL ? errmsg("resources must not be null") : errmsg("resources must be an array of one dimension"),
				 errhint("Give an array of 1 to %d names.", MAX_RESOURCES)));

	if (resources.number < 1 || resources.number > MAX_RESOURCES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("number of resources is out of range: %d", resources.number),
				 errhint("Give an array of 1 to %d names.", MAX_RESOURCES)));

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elements, &isnull, &resources.number);
	resources.given = palloc(resources.number * sizeof(text *));
	resources.sorted = palloc(resources.number * sizeof(text *));
	for (int i = 0; i < resources.number; i++)
		resources.given[i] = resources.sorted[i] = check_name(isnull[i] ? NULL : DatumGetTextPP(elements[i]), "resource");

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
	OPTION_PAYLOAD,
	OPTION_SESSION
} RequestOption;

/* Get the number of a word in a list, which NULL ends, from argument number argno. */
static int
word_arg(FunctionCallInfo fcinfo, int argno, const char *const *words, const char *what,
		 const text *resource, const char *hint)
{
	char	   *word;
	int			number = 0;

	if (PG_ARGISNULL(argno))
		refuse_null(what, resource, hint);
	word = text_to_cstring(PG_GETARG_TEXT_PP(argno));
	while (words[number] != NULL && strcmp(words[number], word) != 0)
		number++;
	if (words[number] == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s %s is unknown: \"%s\"", what, which_lease(resource), printable_string(word)),
				 errhint("%s", hint)));
	return number;
}

/* Get the mode and the number of permits. */
static void
mode_args(FunctionCallInfo fcinfo, int argno, LeaseRequest *request)
{
	static const LeaseMode modes[] = {MODE_EXCLUSIVE, MODE_SHARED, MODE_PERMIT};
	const char *names[] = {mode_name(modes[0]), mode_name(modes[1]), mode_name(modes[2]), NULL};
	int			permits = argno + OPTION_PERMITS;

	request->mode = modes[word_arg(fcinfo, argno + OPTION_MODE, names, "mode of", request->resource,
								   "The modes are exclusive, shared and permit.")];
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

/* Get min_hold, in microseconds, from argument number argno. */
static int64
min_hold_arg(FunctionCallInfo fcinfo, int argno, const text *resource)
{
	int64		min_hold;

	if (PG_ARGISNULL(argno))
		return NOT_GIVEN;
	min_hold = interval_arg(fcinfo, argno, "min_hold of", resource, 0, MAX_TTL,
							"Give an interval of zero to " YEARS ".");
	if (is_above_max_ttl(min_hold))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("min_hold of %s is longer than allowed", which_lease(resource)),
				 errdetail_max_ttl(),
				 errhint("Use a shorter one, or ask a superuser to raise the setting.")));
	return min_hold;
}

/*
 * Get the ttl and the option session from arguments ttl_argno and
 * session_argno. A lease that ends with its session needs no ttl.
 */
static void
session_args(FunctionCallInfo fcinfo, int ttl_argno, int session_argno, LeaseRequest *request)
{
	if (PG_ARGISNULL(session_argno))
		refuse_null("session for", request->resource, "Give true or false.");
	request->session = PG_GETARG_BOOL(session_argno);
	if (request->session)
		require_session_numbers();
	if (request->session && PG_ARGISNULL(ttl_argno))
	{
		request->ttl = FOREVER;
		require_ttl_allowed(request->ttl, request->resource);
	}
	else
		request->ttl = ttl_arg(fcinfo, ttl_argno, request->resource);
}

/*
 * Get a request: resource, ttl, owner and wait from the first arguments, and
 * the options from the arguments from argno on. Returns the time to wait.
 */
int64
request_args(FunctionCallInfo fcinfo, int argno, LeaseRequest *request)
{
	static const char *const if_own_names[] = {
		[IF_OWN_REFUSE] = "refuse", [IF_OWN_RENEW] = "renew", [IF_OWN_COUNT] = "count", NULL
	};
	text	   *resource = request->resource = name_arg(fcinfo, 0, "resource");
	int64		wait;

	request->owner = name_arg(fcinfo, 2, "owner");
	wait = wait_arg(fcinfo, 3, resource);
	session_args(fcinfo, 1, argno + OPTION_SESSION, request);
	mode_args(fcinfo, argno, request);
	request->if_own = word_arg(fcinfo, argno + OPTION_IF_OWN, if_own_names, "if_own for", resource,
							   "Give refuse, renew or count.");
	request->min_hold = min_hold_arg(fcinfo, argno + OPTION_MIN_HOLD, resource);
	request->payload = payload_arg(fcinfo, argno + OPTION_PAYLOAD);
	return wait;
}
