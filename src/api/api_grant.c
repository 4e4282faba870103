/*-------------------------------------------------------------------------
 *
 * api_grant.c
 *		The functions that acquire a lease.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/api.h"
#include "base/clock.h"
#include "base/compat.h"
#include "base/privileges.h"
#include "grant/grant.h"

PG_FUNCTION_INFO_V1(lease_acquire);
PG_FUNCTION_INFO_V1(lease_acquire_shared);
PG_FUNCTION_INFO_V1(lease_acquire_permit);
PG_FUNCTION_INFO_V1(lease_acquire_all);
PG_FUNCTION_INFO_V1(lease_acquire_any);
PG_FUNCTION_INFO_V1(lease_request);

/* Request a lease. Returns only whether it was granted. */
static Datum
acquire(LeaseRequest *request, int64 wait)
{
	PG_RETURN_BOOL(acquire_any(request, &request->resource, 1, wait, WAIT_INSIDE_TRANSACTION).result == GRANTED);
}

/*
 * lease_acquire(resource text, ttl interval, owner text [, wait interval]) returns boolean
 */
Datum
lease_acquire(PG_FUNCTION_ARGS)
{
	LeaseRequest request = {.mode = MODE_EXCLUSIVE};

	request.resource = name_arg(fcinfo, 0, "resource");
	request.ttl = ttl_arg(fcinfo, 1, request.resource);
	request.owner = name_arg(fcinfo, 2, "owner");
	require_writable("lease_acquire()");
	return acquire(&request, PG_NARGS() > 3 ? wait_arg(fcinfo, 3, request.resource) : 0);
}

/*
 * lease_acquire_shared(resource text, ttl interval, owner text [, wait interval]) returns boolean
 */
Datum
lease_acquire_shared(PG_FUNCTION_ARGS)
{
	LeaseRequest request = {.mode = MODE_SHARED, .permits = MAX_SLOT};

	request.resource = name_arg(fcinfo, 0, "resource");
	request.ttl = ttl_arg(fcinfo, 1, request.resource);
	request.owner = name_arg(fcinfo, 2, "owner");
	require_writable("lease_acquire_shared()");
	return acquire(&request, PG_NARGS() > 3 ? wait_arg(fcinfo, 3, request.resource) : 0);
}

/*
 * lease_acquire_permit(resource text, permits integer, ttl interval, owner text [, wait interval]) returns boolean
 */
Datum
lease_acquire_permit(PG_FUNCTION_ARGS)
{
	LeaseRequest request = {.mode = MODE_PERMIT};

	request.resource = name_arg(fcinfo, 0, "resource");
	request.permits = permits_arg(fcinfo, 1, request.resource);
	request.ttl = ttl_arg(fcinfo, 2, request.resource);
	request.owner = name_arg(fcinfo, 3, "owner");
	require_writable("lease_acquire_permit()");
	return acquire(&request, PG_NARGS() > 4 ? wait_arg(fcinfo, 4, request.resource) : 0);
}

/*
 * lease_acquire_all(resources text[], ttl interval, owner text [, wait interval]) returns boolean
 */
Datum
lease_acquire_all(PG_FUNCTION_ARGS)
{
	Resources	resources = resources_arg(fcinfo, 0);
	LeaseRequest request = {.mode = MODE_EXCLUSIVE};
	int64		wait = PG_NARGS() > 3 ? wait_arg(fcinfo, 3, resources.given[0]) : 0;

	request.ttl = ttl_arg(fcinfo, 1, resources.given[0]);
	request.owner = name_arg(fcinfo, 2, "owner");
	require_writable("lease_acquire_all()");
	PG_RETURN_BOOL(acquire_all(&request, resources.sorted, resources.number, wait));
}

/*
 * lease_acquire_any(resources text[], ttl interval, owner text [, wait interval]) returns text
 */
Datum
lease_acquire_any(PG_FUNCTION_ARGS)
{
	Resources	resources = resources_arg(fcinfo, 0);
	LeaseRequest request = {.mode = MODE_EXCLUSIVE};
	int64		wait = PG_NARGS() > 3 ? wait_arg(fcinfo, 3, resources.given[0]) : 0;
	GrantOutcome outcome;

	request.ttl = ttl_arg(fcinfo, 1, resources.given[0]);
	request.owner = name_arg(fcinfo, 2, "owner");
	require_writable("lease_acquire_any()");
	outcome = acquire_any(&request, resources.given, resources.number, wait, WAIT_INSIDE_TRANSACTION);
	if (outcome.result != GRANTED)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(outcome.resource);
}

static Datum
usecs_to_interval(int64 usecs)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = Max(usecs, 0);
	return IntervalPGetDatum(interval);
}

/*
 * The time from the beginning of the call to the grant, or to the refusal. A
 * client adds it to the time when it sent the request, and must not get a time
 * after the grant. So what the call did after the grant does not count. The
 * order of the two clock readings matters: if the process is stopped between
 * them, the result is too small.
 */
static int64
time_waited(const GrantOutcome *outcome, int64 begun)
{
	int64		elapsed = clock_monotonic() - begun;

	return outcome->result == GRANTED ? elapsed - (clock_now() - outcome->granted_at) : elapsed;
}

static const char *
reason_name(GrantReason reason)
{
	switch (reason)
	{
		case REASON_NONE:
			return NULL;
		case REASON_HELD:
			return "held";
		case REASON_OPEN:
			return "open";
		case REASON_QUEUE:
			return "queue";
		case REASON_OWN:
			return "own";
		case REASON_FAILOVER:
			return "failover";
		case REASON_RENEWED:
			return "renewed";
		case REASON_COUNTED:
			return "counted";
	}
	return NULL;
}

/*
 * lease_request(resource text, ttl interval, owner text, wait interval, mode text, permits integer,
 *				 if_own text, min_hold interval, lock_delay interval, payload jsonb, session boolean)
 * returns record
 */
Datum
lease_request(PG_FUNCTION_ARGS)
{
	LeaseRequest request = {.explain = true};
	GrantOutcome outcome;
	int64		begun = clock_monotonic();
	int64		wait;
	const char *reason;
	TupleDesc	desc;
	Datum		values[7];
	bool		isnull[7] = {false};

	request.resource = name_arg(fcinfo, 0, "resource");
	request.owner = name_arg(fcinfo, 2, "owner");
	wait = wait_arg(fcinfo, 3, request.resource);
	request_options(fcinfo, 1, 4, &request);
	get_call_result_type(fcinfo, NULL, &desc);

	require_writable("lease_request()");
	outcome = acquire_any(&request, &request.resource, 1, wait, WAIT_INSIDE_TRANSACTION);

	values[0] = BoolGetDatum(outcome.result == GRANTED);
	values[1] = Int64GetDatum(outcome.token);
	values[2] = TimestampTzGetDatum(readable_time(clock_wall_time(outcome.expires_at)));
	isnull[1] = isnull[2] = outcome.result != GRANTED;
	values[3] = usecs_to_interval(time_waited(&outcome, begun));
	values[4] = PointerGetDatum(outcome.blocked_by);
	isnull[4] = outcome.blocked_by == NULL || !may_see_owner(outcome.blocked_role);
	isnull[5] = outcome.result != REFUSED_HELD || outcome.held_until == DT_NOEND;
	if (!isnull[5])
		values[5] = usecs_to_interval(outcome.held_until - clock_now());
	reason = reason_name(outcome.reason);
	isnull[6] = reason == NULL;
	if (!isnull[6])
		values[6] = CStringGetTextDatum(reason);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, isnull)));
}
