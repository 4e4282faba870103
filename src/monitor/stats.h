/*-------------------------------------------------------------------------
 *
 * Counters of lease statistics.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_STATS_H
#define LEASE_LOCK_STATS_H

#include "datatype/timestamp.h"

typedef enum StatsCounter
{
	STATS_GRANTED,
	STATS_REFUSED,				/* without a wait; a wait without success counts as a timeout */
	STATS_TAKEOVERS,			/* these grants are in STATS_GRANTED, too */
	STATS_RENEWALS,
	STATS_RELEASES,
	STATS_BREAKS,
	STATS_WAITS,
	STATS_WAIT_TIMEOUTS,
	STATS_DEADLOCKS,
	STATS_WAIT_TIME,			/* microseconds, of waits that ended */
	STATS_HANDOFFS,
	STATS_HANDOFF_TIME,			/* microseconds */
	STATS_PURGED,
	NUM_STATS_COUNTERS,
	STATS_NO_COUNTER = NUM_STATS_COUNTERS
} StatsCounter;

/*
 * The histogram of hand-offs. Bucket i counts those that took up to 2^i times
 * the first bound; the last bucket counts all longer ones.
 */
#define HANDOFF_BOUNDS			20
#define FIRST_HANDOFF_BOUND		16	/* microseconds; the last is 8.4 s */
#define HANDOFF_BOUND(i)		((int64) FIRST_HANDOFF_BOUND << (i))

typedef enum StatsScope
{
	STATS_NONE,					/* no shared memory */
	STATS_DATABASE,				/* of this database */
	STATS_OVERFLOW				/* of all databases without an entry of their own */
} StatsScope;

typedef struct StatsTotals
{
	StatsScope	scope;
	TimestampTz since;
	uint64		counters[NUM_STATS_COUNTERS];
	uint64		longest_wait;	/* microseconds */
	uint64		handoffs[HANDOFF_BOUNDS + 1];
} StatsTotals;

extern void stats_init(void);
extern void stats_count(StatsCounter counter);
extern void stats_add(StatsCounter counter, uint64 amount);
extern void stats_wait_ended(int64 usecs);
extern void stats_handed_off(int64 usecs);
extern StatsTotals stats_read(void);
extern void stats_reset(void);

#endif							/* LEASE_LOCK_STATS_H */
