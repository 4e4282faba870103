/*-------------------------------------------------------------------------
 *
 * clock.h
 *		What time it is.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_CLOCK_H
#define LEASE_LOCK_CLOCK_H

#include "datatype/timestamp.h"

extern TimestampTz clock_now(void);
extern TimestampTz readable_time(TimestampTz time);
extern int64 clock_monotonic(void);
extern bool interval_to_usecs(const Interval *interval, int64 *usecs);

#endif							/* LEASE_LOCK_CLOCK_H */
