/*-------------------------------------------------------------------------
 *
 * api_monitor.c
 *		The functions that views, graphs and the install script use.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/printable.h"
#include "monitor/stats.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(lease_clock_difference);
PG_FUNCTION_INFO_V1(lease_new_era);
PG_FUNCTION_INFO_V1(lease_stats);
PG_FUNCTION_INFO_V1(lease_stats_reset);
PG_FUNCTION_INFO_V1(lease_printable);

static Datum
usecs_to_interval(int64 usecs)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = usecs;
	return IntervalPGetDatum(interval);
}

/* The upper bounds of the histogram's buckets; the last bucket has none. */
static Datum
handoff_bounds(void)
{
	Datum		bounds[HANDOFF_BOUNDS];

	for (int i = 0; i < HANDOFF_BOUNDS; i++)
		bounds[i] = usecs_to_interval(HANDOFF_BOUND(i));
	return PointerGetDatum(construct_array(bounds, HANDOFF_BOUNDS, INTERVALOID,
										   sizeof(Interval), false, TYPALIGN_DOUBLE));
}

static Datum
handoff_counts(const StatsTotals *totals)
{
	Datum		counts[HANDOFF_BOUNDS + 1];

	for (int i = 0; i <= HANDOFF_BOUNDS; i++)
		counts[i] = Int64GetDatum(totals->handoffs[i]);
	return PointerGetDatum(construct_array(counts, HANDOFF_BOUNDS + 1, INT8OID,
										   sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/* The scope of the counters, as the view shows it. */
static const char *
scope_name(StatsScope scope)
{
	switch (scope)
	{
		case STATS_DATABASE:
			return "database";
		case STATS_OVERFLOW:
			return "overflow";
		case STATS_NONE:
			break;
	}
	return "none";
}

/*
 * lease_stats() returns record
 *
 * Without shared memory all columns except the scope are NULL.
 */
Datum
lease_stats(PG_FUNCTION_ARGS)
{
	enum
	{
		SCOPE, GRANTED, REFUSED, TAKEOVERS, RENEWALS, RELEASES, BREAKS, WAITS, WAIT_TIMEOUTS, DEADLOCKS,
		WAIT_TIME, LONGEST_WAIT, HANDOFFS, HANDOFF_TIME, BOUNDS, COUNTS, PURGED, SINCE, NCOLUMNS
	};
	static const struct
	{
		int			column;
		StatsCounter counter;
	}			counts[] = {
		{GRANTED, STATS_GRANTED},
		{REFUSED, STATS_REFUSED},
		{TAKEOVERS, STATS_TAKEOVERS},
		{RENEWALS, STATS_RENEWALS},
		{RELEASES, STATS_RELEASES},
		{BREAKS, STATS_BREAKS},
		{WAITS, STATS_WAITS},
		{WAIT_TIMEOUTS, STATS_WAIT_TIMEOUTS},
		{DEADLOCKS, STATS_DEADLOCKS},
		{HANDOFFS, STATS_HANDOFFS},
		{PURGED, STATS_PURGED}
	};
	StatsTotals totals = stats_read();
	Datum		values[NCOLUMNS] = {0};
	bool		isnull[NCOLUMNS];
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE || desc->natts != NCOLUMNS)
		elog(ERROR, "lease_stats() is not declared as this library expects");

	memset(isnull, totals.scope == STATS_NONE, sizeof(isnull));
	values[SCOPE] = CStringGetTextDatum(scope_name(totals.scope));
	isnull[SCOPE] = false;
	for (size_t i = 0; i < lengthof(counts); i++)
		values[counts[i].column] = Int64GetDatum(totals.counters[counts[i].counter]);
	values[WAIT_TIME] = usecs_to_interval(totals.counters[STATS_WAIT_TIME]);
	values[LONGEST_WAIT] = usecs_to_interval(totals.longest_wait);
	values[HANDOFF_TIME] = usecs_to_interval(totals.counters[STATS_HANDOFF_TIME]);
	values[BOUNDS] = handoff_bounds();
	values[COUNTS] = handoff_counts(&totals);
	values[SINCE] = TimestampTzGetDatum(clock_wall_time(totals.since));

	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, isnull)));
}

/*
 * lease_stats_reset()
 */
Datum
lease_stats_reset(PG_FUNCTION_ARGS)
{
	stats_reset();
	PG_RETURN_VOID();
}

/*
 * lease_printable(name text) returns text
 */
Datum
lease_printable(PG_FUNCTION_ARGS)
{
	text	   *name = PG_GETARG_TEXT_PP(0);
	StringInfoData shown;

	initStringInfo(&shown);
	append_printable(&shown, VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name), "\\");
	PG_RETURN_TEXT_P(cstring_to_text_with_len(shown.data, shown.len));
}

/*
 * lease_clock_difference() returns interval
 */
Datum
lease_clock_difference(PG_FUNCTION_ARGS)
{
	PG_RETURN_DATUM(usecs_to_interval(clock_difference()));
}

/*
 * lease_new_era()
 *
 * The sequences are those in the schema of the function.
 */
Datum
lease_new_era(PG_FUNCTION_ARGS)
{
	PreventCommandIfReadOnly("lease_new_era()");
	era_begin(get_func_namespace(fcinfo->flinfo->fn_oid));
	PG_RETURN_VOID();
}
