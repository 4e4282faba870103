/*-------------------------------------------------------------------------
 *
 * arguments.c
 *		Arguments of the functions that SQL calls: fetched and checked.
 *
 * No function that acts on a lease is STRICT. A NULL is an error, because a
 * caller would take a NULL result for "not granted".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/int.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "api/api.h"
#include "change/change.h"
#include "rules/rules.h"

/* Maximum number of names in an array. */
#define MAX_RESOURCES	10000

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

/* What is wrong with a name. */
typedef struct NameMessages
{
	const char *null;
	const char *empty;
	const char *too_long;
} NameMessages;

static const NameMessages resource_messages = {
	gettext_noop("resource of a lease must not be null"),
	gettext_noop("resource of a lease must not be empty"),
	gettext_noop("resource of a lease must not be longer than %d bytes")
};

static const NameMessages owner_messages = {
	gettext_noop("owner of a lease must not be null"),
	gettext_noop("owner of a lease must not be empty"),
	gettext_noop("owner of a lease must not be longer than %d bytes")
};

static const NameMessages new_owner_messages = {
	gettext_noop("new owner of a lease must not be null"),
	gettext_noop("new owner of a lease must not be empty"),
	gettext_noop("new owner of a lease must not be longer than %d bytes")
};

/* Check the name of a resource or an owner; NULL is none. */
static text *
check_name(text *name, const NameMessages *messages)
{
	int			length = name != NULL ? VARSIZE_ANY_EXHDR(name) : 0;

	if (length == 0)
		ereport(ERROR,
				(errcode_argument(name == NULL),
				 errmsg_internal("%s", _(name == NULL ? messages->null : messages->empty)),
				 errhint("Give a name of 1 to %d bytes.", MAX_NAME_LENGTH)));
	if (length > MAX_NAME_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg(messages->too_long, MAX_NAME_LENGTH),
				 errdetail("It has %d bytes.", length),
				 errhint("Use a digest as the name, for example encode(sha256(convert_to(name, "
						 "'UTF8')), 'hex').")));
	return name;
}

static text *
name_arg(FunctionCallInfo fcinfo, int argno, const NameMessages *messages)
{
	return check_name(PG_ARGISNULL(argno) ? NULL : PG_GETARG_TEXT_PP(argno), messages);
}

/* Get the name of a resource from argument number argno. */
text *
resource_arg(FunctionCallInfo fcinfo, int argno)
{
	return name_arg(fcinfo, argno, &resource_messages);
}

text *
owner_arg(FunctionCallInfo fcinfo, int argno)
{
	return name_arg(fcinfo, argno, &owner_messages);
}

text *
new_owner_arg(FunctionCallInfo fcinfo, int argno)
{
	return name_arg(fcinfo, argno, &new_owner_messages);
}

/*
 * Get an interval, in microseconds, from argument number argno, which is not
 * NULL; false if it is shorter than min, or longer than the longest ttl. It does
 * not depend on calendar and time zone: a month is 30 days, and a day is 24
 * hours.
 */
static bool
interval_arg(FunctionCallInfo fcinfo, int argno, int64 min, int64 *usecs)
{
	const Interval *interval = PG_GETARG_INTERVAL_P(argno);
	int64		days = (int64) interval->month * DAYS_PER_MONTH + interval->day;

	return !pg_mul_s64_overflow(days, USECS_PER_DAY, usecs) &&
		!pg_add_s64_overflow(*usecs, interval->time, usecs) &&
		*usecs >= min && *usecs <= MAX_TTL;
}

/* An interval for a message. */
static char *
shown_interval(FunctionCallInfo fcinfo, int argno)
{
	return DatumGetCString(DirectFunctionCall1(interval_out, PG_GETARG_DATUM(argno)));
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
				 resource == NULL ?
				 errmsg("ttl of leases is longer than allowed") :
				 errmsg("ttl of the lease on \"%s\" is longer than allowed", printable(resource)),
				 errdetail_max_ttl(),
				 errhint("Use a shorter ttl and renew the lease in time, or ask a superuser to "
						 "raise the setting.")));
}

/*
 * Get the time to live, in microseconds, from argument number argno. Without a
 * resource, it is that of all leases of an owner.
 */
int64
ttl_arg(FunctionCallInfo fcinfo, int argno, const text *resource)
{
	int64		ttl;

	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 resource == NULL ?
				 errmsg("ttl of leases must not be null") :
				 errmsg("ttl of the lease on \"%s\" must not be null", printable(resource)),
				 errhint("For a lease that lasts until it is released, give a long ttl. "
						 "For one that ends with the session, "
						 "call lease_request() with session => true.")));
	if (!interval_arg(fcinfo, argno, 1, &ttl))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 resource == NULL ?
				 errmsg("ttl of leases is out of range: %s", shown_interval(fcinfo, argno)) :
				 errmsg("ttl of the lease on \"%s\" is out of range: %s",
						printable(resource), shown_interval(fcinfo, argno)),
				 errhint("Give an interval of more than zero and at most 100000 years.")));
	require_ttl_allowed(ttl, resource);
	return ttl;
}

/* Get the time to wait, in microseconds; FOREVER: without limit. */
int64
wait_arg(FunctionCallInfo fcinfo, int argno, const text *resource)
{
	int64		wait;

	if (PG_ARGISNULL(argno))
		return FOREVER;
	if (!interval_arg(fcinfo, argno, 0, &wait))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("wait for the lease on \"%s\" is out of range: %s",
						printable(resource), shown_interval(fcinfo, argno)),
				 errhint("Give an interval of zero to 100000 years, or NULL to wait without "
						 "limit.")));
	return wait;
}

/*
 * Get the time that holders have to stop after a break, in microseconds, from
 * argument number argno.
 */
int64
grace_arg(FunctionCallInfo fcinfo, int argno, const text *resource)
{
	bool		is_null = PG_ARGISNULL(argno);
	int64		grace = 0;

	if (is_null || !interval_arg(fcinfo, argno, 0, &grace))
		ereport(ERROR,
				(errcode_argument(is_null),
				 is_null ?
				 errmsg("grace for the lease on \"%s\" must not be null", printable(resource)) :
				 errmsg("grace for the lease on \"%s\" is out of range: %s",
						printable(resource), shown_interval(fcinfo, argno)),
				 errhint("Give an interval of zero to 100000 years.")));
	return grace;
}

/* Get the fencing token of a lease from argument number argno. */
int64
token_arg(FunctionCallInfo fcinfo, int argno, const text *resource)
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
permits_arg(FunctionCallInfo fcinfo, int argno, const text *resource)
{
	int			permits = PG_ARGISNULL(argno) ? 0 : PG_GETARG_INT32(argno);

	if (permits < 1 || permits > MAX_SLOT)
		ereport(ERROR,
				(errcode_argument(PG_ARGISNULL(argno)),
				 PG_ARGISNULL(argno) ?
				 errmsg("number of permits for \"%s\" must not be null", printable(resource)) :
				 errmsg("number of permits for \"%s\" is out of range: %d", printable(resource),
						permits),
				 errhint("Give the number of owners that may have a permit at a time: 1 to %d.",
						 MAX_SLOT)));
	return permits;
}

/* Get a payload from argument number argno; 0: none. */
Datum
payload_arg(FunctionCallInfo fcinfo, int argno)
{
	return PG_ARGISNULL(argno) ? (Datum) 0 :
		PointerGetDatum(PG_DETOAST_DATUM(PG_GETARG_DATUM(argno)));
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
				(errcode(array == NULL ? ERRCODE_NULL_VALUE_NOT_ALLOWED :
						 ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 array == NULL ? errmsg("resources must not be null") :
				 errmsg("resources must be an array of one dimension"),
				 errhint("Give an array of 1 to %d names.", MAX_RESOURCES)));

	if (resources.number < 1 || resources.number > MAX_RESOURCES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("number of resources is out of range: %d", resources.number),
				 errhint("Give an array of 1 to %d names.", MAX_RESOURCES)));

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elements, &isnull,
					  &resources.number);
	resources.given = palloc(resources.number * sizeof(text *));
	resources.sorted = palloc(resources.number * sizeof(text *));
	for (int i = 0; i < resources.number; i++)
		resources.given[i] = resources.sorted[i] =
			check_name(isnull[i] ? NULL : DatumGetTextPP(elements[i]), &resource_messages);

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

/*
 * The number of an argument that is a word of a list, which NULL ends; -1 if
 * it is no word of it.
 */
static int
word_arg(FunctionCallInfo fcinfo, int argno, const char *const *words)
{
	char	   *word = PG_ARGISNULL(argno) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(argno));

	for (int i = 0; word != NULL && words[i] != NULL; i++)
		if (strcmp(words[i], word) == 0)
			return i;
	return -1;
}

/* A word for a message, if it is not NULL. */
static char *
shown_word(FunctionCallInfo fcinfo, int argno)
{
	return printable(PG_GETARG_TEXT_PP(argno));
}

static LeaseMode
mode_arg(FunctionCallInfo fcinfo, int argno, const text *resource)
{
	static const LeaseMode modes[] = {MODE_EXCLUSIVE, MODE_SHARED, MODE_PERMIT};
	const char *names[] = {mode_name(modes[0]), mode_name(modes[1]), mode_name(modes[2]), NULL};
	int			number = word_arg(fcinfo, argno, names);

	if (number >= 0)
		return modes[number];
	ereport(ERROR,
			(errcode_argument(PG_ARGISNULL(argno)),
			 PG_ARGISNULL(argno) ?
			 errmsg("mode of the lease on \"%s\" must not be null", printable(resource)) :
			 errmsg("mode of the lease on \"%s\" is unknown: \"%s\"",
					printable(resource), shown_word(fcinfo, argno)),
			 errhint("The modes are exclusive, shared and permit.")));
}

static IfOwn
if_own_arg(FunctionCallInfo fcinfo, int argno, const text *resource)
{
	static const char *const names[] = {
		[IF_OWN_REFUSE] = "refuse", [IF_OWN_RENEW] = "renew", [IF_OWN_COUNT] = "count", NULL
	};
	int			number = word_arg(fcinfo, argno, names);

	if (number < 0)
		ereport(ERROR,
				(errcode_argument(PG_ARGISNULL(argno)),
				 PG_ARGISNULL(argno) ?
				 errmsg("if_own for the lease on \"%s\" must not be null", printable(resource)) :
				 errmsg("if_own for the lease on \"%s\" is unknown: \"%s\"",
						printable(resource), shown_word(fcinfo, argno)),
				 errhint("Give refuse, renew or count.")));
	return (IfOwn) number;
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

/* Get min_hold, in microseconds, from argument number argno. */
static int64
min_hold_arg(FunctionCallInfo fcinfo, int argno, const text *resource)
{
	int64		min_hold;

	if (PG_ARGISNULL(argno))
		return NOT_GIVEN;
	if (!interval_arg(fcinfo, argno, 0, &min_hold))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("min_hold of the lease on \"%s\" is out of range: %s",
						printable(resource), shown_interval(fcinfo, argno)),
				 errhint("Give an interval of zero to 100000 years.")));
	if (is_above_max_ttl(min_hold))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("min_hold of the lease on \"%s\" is longer than allowed",
						printable(resource)),
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
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("session for the lease on \"%s\" must not be null",
						printable(request->resource)),
				 errhint("Give true or false.")));
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
	text	   *resource = request->resource = resource_arg(fcinfo, 0);
	int64		wait;

	request->owner = owner_arg(fcinfo, 2);
	wait = wait_arg(fcinfo, 3, resource);
	session_args(fcinfo, 1, argno + OPTION_SESSION, request);
	mode_args(fcinfo, argno, request);
	request->if_own = if_own_arg(fcinfo, argno + OPTION_IF_OWN, resource);
	request->min_hold = min_hold_arg(fcinfo, argno + OPTION_MIN_HOLD, resource);
	request->payload = payload_arg(fcinfo, argno + OPTION_PAYLOAD);
	return wait;
}
