/*-------------------------------------------------------------------------
 *
 * api_monitor.c
 *		The functions that views and graphs use.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "api/api.h"
#include "monitor/monitor.h"
#include "rules/rules.h"
#include "store/store.h"
#include "wait/wait.h"

PG_FUNCTION_INFO_V1(lease_clock_difference);
PG_FUNCTION_INFO_V1(lease_stats);
PG_FUNCTION_INFO_V1(lease_printable);
PG_FUNCTION_INFO_V1(lease_waiters);
PG_FUNCTION_INFO_V1(lease_contended);
PG_FUNCTION_INFO_V1(lease_session_ended);

/* The upper bounds of the histogram of hand-offs; the last bucket has none. */
static Datum
handoff_bounds(void)
{
	Datum		bounds[HANDOFF_BOUNDS];

	for (int i = 0; i < HANDOFF_BOUNDS; i++)
		bounds[i] = usecs_to_interval((int64) FIRST_HANDOFF_BOUND << i);
	return PointerGetDatum(construct_array(bounds, HANDOFF_BOUNDS, INTERVALOID,
										   sizeof(Interval), false, TYPALIGN_DOUBLE));
}

static Datum
handoff_counts(const StatsValues *stats)
{
	Datum		counts[HANDOFF_BOUNDS + 1];

	for (int i = 0; i <= HANDOFF_BOUNDS; i++)
		counts[i] = Int64GetDatum(stats->counters[STATS_HANDOFF_BUCKETS + i]);
	return PointerGetDatum(construct_array(counts, HANDOFF_BOUNDS + 1, INT8OID,
										   sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/* The value of a counter, or of a counted time. */
static Datum
counter_value(const StatsValues *stats, StatsCounter counter)
{
	int64		value = stats->counters[counter];

	switch (counter)
	{
		case STATS_WAIT_TIME:
		case STATS_LONGEST_WAIT:
		case STATS_HANDOFF_TIME:
			return usecs_to_interval(value);
		case STATS_SINCE:
			return TimestampTzGetDatum(clock_wall_time(value));
		default:
			return Int64GetDatum(value);
	}
}

/*
 * lease_stats() returns record
 *
 * Without shared memory, NULL in every column.
 */
Datum
lease_stats(PG_FUNCTION_ARGS)
{
	static const StatsCounter shown[] = {
		STATS_GRANTED, STATS_REFUSED, STATS_TAKEOVERS, STATS_RENEWALS, STATS_RELEASES, STATS_BREAKS,
		STATS_WAITS, STATS_WAIT_TIMEOUTS, STATS_DEADLOCKS, STATS_WAIT_TIME, STATS_LONGEST_WAIT,
		STATS_HANDOFFS, STATS_HANDOFF_TIME, STATS_HANDOFF_BUCKETS, STATS_PURGED, STATS_SINCE
	};
	StatsValues stats;
	TupleDesc	desc;
	Datum		values[lengthof(shown) + 2];
	bool		isnull[lengthof(shown) + 2] = {false};
	int			n = 0;

	if (!stats_read(&stats))
		PG_RETURN_NULL();
	get_call_result_type(fcinfo, NULL, &desc);

	values[n++] = ObjectIdGetDatum(stats.database);
	for (size_t i = 0; i < lengthof(shown); i++)
	{
		if (shown[i] != STATS_HANDOFF_BUCKETS)
			values[n++] = counter_value(&stats, shown[i]);
		else
		{
			values[n++] = handoff_bounds();
			values[n++] = handoff_counts(&stats);
		}
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, isnull)));
}

/* lease_printable(name text) returns text */
Datum
lease_printable(PG_FUNCTION_ARGS)
{
	text	   *name = PG_GETARG_TEXT_PP(0);
	StringInfoData shown;

	initStringInfo(&shown);
	append_printable(&shown, VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name), "\\");
	PG_RETURN_TEXT_P(cstring_to_text_with_len(shown.data, shown.len));
}

/* lease_clock_difference() returns interval */
Datum
lease_clock_difference(PG_FUNCTION_ARGS)
{
	PG_RETURN_DATUM(usecs_to_interval(clock_difference()));
}

static ArrayType *
array_from_pids(const List *pids)
{
	Datum	   *elements = palloc(Max(list_length(pids), 1) * sizeof(Datum));
	ListCell   *cell;

	foreach(cell, pids)
		elements[foreach_current_index(cell)] = Int32GetDatum(lfirst_int(cell));
	return construct_array(elements, list_length(pids), INT4OID, sizeof(int32), true, TYPALIGN_INT);
}

static void
put_waiter(ReturnSetInfo *result, const ShownWaiter *waiter)
{
	Datum		values[12];
	bool		isnull[12] = {false};

	values[0] = PointerGetDatum(waiter->resource);
	isnull[0] = waiter->resource == NULL;
	values[1] = PointerGetDatum(waiter->owner);
	isnull[1] = !may_see_owner(waiter->role);
	values[2] = Int32GetDatum(waiter->pid);
	values[3] = ObjectIdGetDatum(waiter->role);
	values[4] = TimestampTzGetDatum(clock_wall_time(waiter->since));
	values[5] = Int32GetDatum(waiter->position);
	isnull[5] = waiter->resource == NULL;
	values[6] = TimestampTzGetDatum(clock_wall_time(waiter->deadline));
	values[7] = waiter->lease == NULL ? (Datum) 0 : PointerGetDatum(waiter->lease->owner);
	isnull[7] = waiter->lease == NULL || !may_see_owner(waiter->lease->role);
	values[8] = TransactionIdGetDatum(waiter->transaction);
	isnull[8] = !TransactionIdIsValid(waiter->transaction);
	values[9] = CStringGetTextDatum(mode_name(waiter->mode));
	values[10] = Int32GetDatum(waiter->permits);
	isnull[10] = waiter->mode != MODE_PERMIT;
	values[11] = PointerGetDatum(array_from_pids(waiter->pids));
	tuplestore_putvalues(result->setResult, result->setDesc, values, isnull);
}

/*
 * lease_waiters() returns setof record
 *
 * As in lease_status, an owner is shown only to roles that may see it.
 */
Datum
lease_waiters(PG_FUNCTION_ARGS)
{
	LeaseStore *store = store_open(AccessShareLock);
	ListCell   *cell;

	InitMaterializedSRF(fcinfo, 0);
	foreach(cell, wait_show(store))
		put_waiter((ReturnSetInfo *) fcinfo->resultinfo, lfirst(cell));
	store_close(store);
	PG_RETURN_NULL();
}

/*
 * lease_contended(resource text) returns boolean
 *
 * NULL without a queue.
 */
Datum
lease_contended(PG_FUNCTION_ARGS)
{
	text	   *resource = resource_arg(fcinfo, 0);

	if (!attach_shared_area())
		PG_RETURN_NULL();
	PG_RETURN_BOOL(wait_is_contended(resource));
}

/* lease_session_ended(session_number bigint) returns boolean */
Datum
lease_session_ended(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(session_state(PG_GETARG_INT64(0)) == SESSION_ENDED);
}
