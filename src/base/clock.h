/*-------------------------------------------------------------------------
 *
 * clock.h
 *		Lease time, wall time, and the monotonic clock of waits.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_CLOCK_H
#define LEASE_LOCK_CLOCK_H

#include "datatype/timestamp.h"

/* Define the setting lease_lock.clock; in the postmaster, fix where lease time starts. */
extern void clock_init(void);

/* Return lease time: what leases are dated by. */
extern TimestampTz clock_now(void);

/*
 * Turn a lease time into what the wall clock says, or will say, at that moment.
 * From the year 10000 on that is infinity: many clients cannot read such a year.
 */
extern TimestampTz clock_wall_time(TimestampTz lease_time);

/* How far the wall clock is ahead of lease time, in microseconds. */
extern int64 clock_difference(void);

/* Write to the log that the wall clock was stepped, once for each step. */
extern void clock_report_step(void);

/* Return microseconds since an arbitrary moment, by a clock that nobody can set. */
extern int64 clock_monotonic(void);

#endif							/* LEASE_LOCK_CLOCK_H */
