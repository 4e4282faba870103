/*-------------------------------------------------------------------------
 *
 * monotonic.h
 *		Times of the monotonic clock, which waits are measured by.
 *
 * Nobody can set that clock. Its times begin at an arbitrary moment, and mean
 * nothing to the wall clock or to lease time. So a time of it is a struct: the
 * compiler refuses to mix it with the others, or with a span of time.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_MONOTONIC_H
#define LEASE_LOCK_MONOTONIC_H

#include "model/types.h"

typedef struct MonotonicTime
{
	int64		usecs;
} MonotonicTime;

/* Before all times that the clock shows, and after them. */
#define AT_ONCE			((MonotonicTime) {0})
#define NEVER			((MonotonicTime) {PG_INT64_MAX})

extern MonotonicTime clock_monotonic(void);

static inline bool
mono_equal(MonotonicTime a, MonotonicTime b)
{
	return a.usecs == b.usecs;
}

static inline MonotonicTime
mono_min(MonotonicTime a, MonotonicTime b)
{
	return a.usecs < b.usecs ? a : b;
}

static inline MonotonicTime
mono_max(MonotonicTime a, MonotonicTime b)
{
	return a.usecs > b.usecs ? a : b;
}

/* The microseconds between two times; negative if the second one is earlier. */
static inline int64
mono_between(MonotonicTime from, MonotonicTime to)
{
	return to.usecs - from.usecs;
}

/* The time that is a span of microseconds after another one. */
static inline MonotonicTime
mono_add(MonotonicTime time, int64 span)
{
	return span == FOREVER ? NEVER : (MonotonicTime) {time.usecs + span};
}

static inline MonotonicTime
mono_from_now(int64 span)
{
	return mono_add(clock_monotonic(), span);
}

static inline int64
mono_since(MonotonicTime time)
{
	return mono_between(time, clock_monotonic());
}

static inline bool
mono_has_come(MonotonicTime time)
{
	return mono_since(time) >= 0;
}

/* The microseconds from now until a time: none if it has come, FOREVER if it never comes. */
static inline int64
mono_until(MonotonicTime time)
{
	return mono_equal(time, NEVER) ? FOREVER : Max(-mono_since(time), 0);
}

#endif							/* LEASE_LOCK_MONOTONIC_H */
