/*-------------------------------------------------------------------------
 *
 * api_grant.c
 *		The functions that acquire a lease.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/api.h"
#include "grant/grant.h"

PG_FUNCTION_INFO_V1(lease_acquire);
PG_FUNCTION_INFO_V1(lease_acquire_shared);
PG_FUNCTION_INFO_V1(lease_acquire_permit);
PG_FUNCTION_INFO_V1(lease_acquire_all);
PG_FUNCTION_INFO_V1(lease_acquire_any);
PG_FUNCTION_INFO_V1(lease_request);
PG_FUNCTION_INFO_V1(lease_wait);

/*
 * Get ttl, owner and, if the function has one more argument, wait, from
 * argument number argno on. Returns the time to wait.
 */
static int64
ttl_owner_wait_args(FunctionCallInfo fcinfo, int argno, LeaseRequest *request, text *resource)
{
	request->ttl = ttl_arg(fcinfo, argno, resource);
	request->owner = owner_arg(fcinfo, argno + 1);
	return PG_NARGS() > argno + 2 ? wait_arg(fcinfo, argno + 2, resource) : 0;
}

/* Acquire the lease on the resource that the first argument names. */
static Datum
acquire(FunctionCallInfo fcinfo, LeaseMode mode, const char *function)
{
	LeaseRequest request = {.mode = mode, .permits = mode == MODE_EXCLUSIVE ? 0 : MAX_SLOT};
	int			argno = 1;
	int64		wait;

	request.resource = resource_arg(fcinfo, 0);
	if (mode == MODE_PERMIT)
		request.permits = permits_arg(fcinfo, argno++, request.resource);
	wait = ttl_owner_wait_args(fcinfo, argno, &request, request.resource);
	require_writable(function);
	PG_RETURN_BOOL(acquire_any(&request, &request.resource, 1, wait,
							   WAIT_INSIDE_TRANSACTION).granted);
}

/* lease_acquire(resource text, ttl interval, owner text [, wait interval]) returns boolean */
Datum
lease_acquire(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, MODE_EXCLUSIVE, "lease_acquire()");
}

/*
 * lease_acquire_shared(resource text, ttl interval, owner text [, wait
 * interval]) returns boolean
 */
Datum
lease_acquire_shared(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, MODE_SHARED, "lease_acquire_shared()");
}

/*
 * lease_acquire_permit(resource text, permits integer, ttl interval, owner
 * text [, wait interval]) returns boolean
 */
Datum
lease_acquire_permit(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, MODE_PERMIT, "lease_acquire_permit()");
}

/*
 * lease_acquire_all(resources text[], ttl interval, owner text [, wait
 * interval]) returns boolean
 */
Datum
lease_acquire_all(PG_FUNCTION_ARGS)
{
	Resources	resources = resources_arg(fcinfo, 0);
	LeaseRequest request = {.mode = MODE_EXCLUSIVE};
	int64		wait = ttl_owner_wait_args(fcinfo, 1, &request, resources.given[0]);

	require_writable("lease_acquire_all()");
	PG_RETURN_BOOL(acquire_all(&request, resources.sorted, resources.number, wait));
}

/* lease_acquire_any(resources text[], ttl interval, owner text [, wait interval]) returns text */
Datum
lease_acquire_any(PG_FUNCTION_ARGS)
{
	Resources	resources = resources_arg(fcinfo, 0);
	LeaseRequest request = {.mode = MODE_EXCLUSIVE};
	int64		wait = ttl_owner_wait_args(fcinfo, 1, &request, resources.given[0]);
	GrantOutcome outcome;

	require_writable("lease_acquire_any()");
	outcome = acquire_any(&request, resources.given, resources.number, wait,
						  WAIT_INSIDE_TRANSACTION);
	if (!outcome.granted)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(outcome.resource);
}

/* Fill the columns that tell of a grant: granted, token, expires_at. */
static void
put_grant(const GrantOutcome *outcome, Datum *values, bool *isnull)
{
	values[0] = BoolGetDatum(outcome->granted);
	values[1] = Int64GetDatum(outcome->grant.token);
	values[2] = TimestampTzGetDatum(clock_wall_time(outcome->grant.expires_at));
	isnull[1] = isnull[2] = !outcome->granted;
}

/*
 * The time from the beginning of the call to the grant, or to the refusal. A
 * client adds it to the time when it sent the request, and must not get a time
 * after the grant. So what the call did after the grant does not count. The
 * order of the two clock readings matters: if the process is stopped between
 * them, the result is too small.
 */
static int64
time_waited(const GrantOutcome *outcome, MonotonicTime begun)
{
	int64		elapsed = mono_since(begun);

	return outcome->granted ? elapsed - (clock_now() - outcome->grant.granted_at) : elapsed;
}

static const char *const reason_names[] = {
	[REASON_NONE] = NULL,
	[REASON_HELD] = "held",
	[REASON_OPEN] = "open",
	[REASON_QUEUE] = "queue",
	[REASON_OWN] = "own",
	[REASON_FAILOVER] = "failover",
	[REASON_RENEWED] = "renewed",
	[REASON_COUNTED] = "counted"
};

/*
 * lease_request(resource text, ttl interval, owner text, wait interval, mode text, permits integer,
 *				 if_own text, min_hold interval, payload jsonb, session boolean)
 * returns record
 */
Datum
lease_request(PG_FUNCTION_ARGS)
{
	LeaseRequest request = {0};
	GrantOutcome outcome;
	const Refusal *refusal = &outcome.refusal;
	MonotonicTime begun = clock_monotonic();
	int64		wait;
	TupleDesc	desc;
	Datum		values[7];
	bool		isnull[7] = {false};

	wait = request_args(fcinfo, 4, &request);
	get_call_result_type(fcinfo, NULL, &desc);

	require_writable("lease_request()");
	outcome = acquire_any(&request, &request.resource, 1, wait, WAIT_INSIDE_TRANSACTION);

	put_grant(&outcome, values, isnull);
	values[3] = usecs_to_interval(Max(time_waited(&outcome, begun), 0));
	values[4] = PointerGetDatum(refusal->blocked_by);
	isnull[4] = refusal->blocked_by == NULL || !may_see_owner(refusal->blocked_role);
	isnull[5] = outcome.granted || refusal->held_until == DT_NOEND;
	if (!isnull[5])
		values[5] = usecs_to_interval(Max(refusal->held_until - clock_now(), 0));
	isnull[6] = outcome.reason == REASON_NONE;
	if (!isnull[6])
		values[6] = CStringGetTextDatum(reason_names[outcome.reason]);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, isnull)));
}

/*
 * lease_wait(resource text, ttl interval, owner text, wait interval, INOUT acquired boolean,
 *			  INOUT token bigint, INOUT expires_at timestamptz, mode text, permits integer,
 *			  if_own text, min_hold interval, payload jsonb, session boolean)
 */
Datum
lease_wait(PG_FUNCTION_ARGS)
{
	LeaseRequest request = {0};
	CallContext *call_context = (CallContext *) fcinfo->context;
	GrantOutcome outcome;
	int64		wait;
	TupleDesc	desc;
	Datum		values[3];
	bool		isnull[3] = {false};

	wait = request_args(fcinfo, 7, &request);
	get_call_result_type(fcinfo, NULL, &desc);
	BlessTupleDesc(desc);		/* now: the commit of a wait ends the snapshot */

	require_writable("lease_wait()");
	if (call_context == NULL || !IsA(call_context, CallContext) || call_context->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
				 errmsg("lease_wait() cannot be called inside a transaction block or a function"),
				 errhint("Call it on its own, or use lease_acquire() with a wait.")));

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	outcome = acquire_any(&request, &request.resource, 1, wait, WAIT_BETWEEN_TRANSACTIONS);
	SPI_finish();

	put_grant(&outcome, values, isnull);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, isnull)));
}
