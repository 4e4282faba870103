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

#include "access/htup_details.h"
#include "access/xlog.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "wait.h"

/* Far from where timestamps end, whatever is added to the clock. */
#define MAX_TTL_YEARS	100000
#define MAX_TTL			((int64) MAX_TTL_YEARS * MONTHS_PER_YEAR * DAYS_PER_MONTH * USECS_PER_DAY)

PG_FUNCTION_INFO_V1(lease_acquire);
PG_FUNCTION_INFO_V1(lease_wait);
PG_FUNCTION_INFO_V1(lease_waiters);
PG_FUNCTION_INFO_V1(lease_release);
PG_FUNCTION_INFO_V1(lease_release_all);
PG_FUNCTION_INFO_V1(lease_renew);
PG_FUNCTION_INFO_V1(lease_token);
PG_FUNCTION_INFO_V1(lease_assert);
PG_FUNCTION_INFO_V1(lease_assert_token);
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

/* Get the time to wait, in microseconds; negative for ever. */
static int64
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
				 errmsg("wait for the lease on \"%s\" is out of range: %s", text_to_cstring(resource),
						DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(wait)))),
				 errhint("Give an interval of zero to %d years, or NULL to wait for as long as it takes.",
						 MAX_TTL_YEARS)));
	return usecs;
}

/* Get the fencing token of a lease from argument number argno. */
static int64
token_arg(FunctionCallInfo fcinfo, int argno, text *resource)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("token of the lease on \"%s\" must not be null", text_to_cstring(resource)),
				 errhint("lease_token() is null when that owner does not hold the lease.")));
	return PG_GETARG_INT64(argno);
}

/*
 * lease_acquire(resource text, ttl interval, owner text [, wait interval]) returns boolean
 */
Datum
lease_acquire(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	int64		ttl = ttl_arg(fcinfo, 1, resource);
	text	   *owner = name_arg(fcinfo, 2, "owner");

	int64		wait = PG_NARGS() > 3 ? wait_arg(fcinfo, 3, resource) : 0;

	require_writable("lease_acquire()");
	PG_RETURN_BOOL(acquire_lease(resource, ttl, owner, wait, NULL));
}

/* End the transaction, and its snapshot, before the procedure goes to sleep. */
static void
commit_before_sleep(void)
{
	SPI_commit();
	require_writable("lease_wait()");	/* so is every transaction of the call */
}

/*
 * lease_wait(resource text, ttl interval, owner text, wait interval, INOUT acquired boolean)
 */
Datum
lease_wait(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	int64		ttl = ttl_arg(fcinfo, 1, resource);
	text	   *owner = name_arg(fcinfo, 2, "owner");
	int64		wait = wait_arg(fcinfo, 3, resource);
	CallContext *call = (CallContext *) fcinfo->context;
	TupleDesc	desc;
	Datum		acquired;
	bool		isnull = false;

	require_writable("lease_wait()");
	if (call == NULL || !IsA(call, CallContext) || call->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
				 errmsg("lease_wait() cannot be called inside a transaction block or a function"),
				 errhint("Call it on its own, or use lease_acquire() with a wait.")));

	get_call_result_type(fcinfo, NULL, &desc);
	BlessTupleDesc(desc);

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	acquired = BoolGetDatum(acquire_lease(resource, ttl, owner, wait, commit_before_sleep));
	SPI_finish();

	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, &acquired, &isnull)));
}

/*
 * lease_waiters() returns setof record
 *
 * Owners are shown like in lease_status: to those who may act for the role.
 */
Datum
lease_waiters(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *blocked = blocked_waiters();
	ListCell   *cell;

	InitMaterializedSRF(fcinfo, 0);
	foreach(cell, blocked)
	{
		BlockedWaiter *b = lfirst(cell);
		const Waiter *waiter = b->waiter;
		bool		knows_owner = has_privs_of_role(GetUserId(), waiter->role);
		Datum		values[9];
		bool		isnull[9] = {false};

		values[0] = PointerGetDatum(cstring_to_text_with_len(waiter->resource, waiter->resource_length));
		values[1] = PointerGetDatum(cstring_to_text_with_len(waiter->owner, waiter->owner_length));
		isnull[1] = !knows_owner;
		values[2] = Int32GetDatum(waiter->pid);
		values[3] = ObjectIdGetDatum(waiter->role);
		values[4] = TimestampTzGetDatum(waiter->since);
		values[5] = Int32GetDatum(b->position);
		values[6] = TimestampTzGetDatum(waiter->deadline);
		values[7] = PointerGetDatum(b->holder_owner);
		isnull[7] = b->holder_owner == NULL || !has_privs_of_role(GetUserId(), b->holder_role);
		values[8] = TransactionIdGetDatum(b->busy_xid);
		isnull[8] = !TransactionIdIsValid(b->busy_xid);
		tuplestore_putvalues(result->setResult, result->setDesc, values, isnull);
	}
	PG_RETURN_NULL();
}

/*
 * lease_release(resource text, owner text [, token bigint]) returns boolean
 */
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
 * lease_renew(resource text, ttl interval, owner text [, token bigint]) returns boolean
 */
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

/*
 * lease_assert(resource text, owner text) returns bigint
 */
Datum
lease_assert(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	Claim		claim = {.owner = name_arg(fcinfo, 1, "owner")};

	require_writable("lease_assert()");
	PG_RETURN_INT64(assert_lease(resource, &claim, ASSERT_AS_CALLER));
}

/*
 * lease_assert(resource text, token bigint) returns bigint
 */
Datum
lease_assert_token(PG_FUNCTION_ARGS)
{
	text	   *resource = name_arg(fcinfo, 0, "resource");
	int64		token = token_arg(fcinfo, 1, resource);
	Claim		claim = {.token = &token};

	require_writable("lease_assert()");
	PG_RETURN_INT64(assert_lease(resource, &claim, ASSERT_AS_CALLER));
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
