/*-------------------------------------------------------------------------
 *
 * clock.c
 *		The one place that says what time it is.
 *
 * Leases are dated by the wall clock of the server, read at the moment that
 * it matters: now() is the start of the transaction, which may be long ago.
 * Sleeps and deadlines go by a clock that nobody can set.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/int.h"
#include "portability/instr_time.h"
#include "utils/datetime.h"
#include "utils/timestamp.h"

#include "base/clock.h"

TimestampTz
clock_now(void)
{
	return GetCurrentTimestamp();
}

/* Many clients cannot read a year of five digits. To them, such a time never comes. */
TimestampTz
readable_time(TimestampTz time)
{
	return time >= (date2j(10000, 1, 1) - POSTGRES_EPOCH_JDATE) * USECS_PER_DAY ? DT_NOEND : time;
}

/* Microseconds since some time; nobody can set this clock. */
int64
clock_monotonic(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return INSTR_TIME_GET_MICROSEC(now);
}

/*
 * Turn an interval into microseconds; false when it has too many of them.
 *
 * A lease is a span of time, not a date: a month counts 30 days and a day
 * 24 hours, whatever the calendar and the time zone say.
 */
bool
interval_to_usecs(const Interval *interval, int64 *usecs)
{
	int64		days = (int64) interval->month * DAYS_PER_MONTH + interval->day;

	return !pg_mul_s64_overflow(days, USECS_PER_DAY, usecs) &&
		!pg_add_s64_overflow(*usecs, interval->time, usecs);
}
