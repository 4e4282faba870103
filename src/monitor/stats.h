/*-------------------------------------------------------------------------
 *
 * Counters of lease statistics.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_STATS_H
#define LEASE_LOCK_STATS_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"

/*
 * The histogram of hand-offs. Bucket i counts those that took up to 2^i times
 * the first bound; the last bucket counts all longer ones.
 */
#define HANDOFF_BOUNDS			20
#define FIRST_HANDOFF_BOUND		16	/* microseconds; the last is 8.4 s */
#define HANDOFF_BOUND(i)		((int64) FIRST_HANDOFF_BOUND << (i))

/* The counters, in the order of the view's columns. Times are in microseconds. */
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
	STATS_WAIT_TIME,			/* of waits that ended */
	STATS_LONGEST_WAIT,
	STATS_HANDOFFS,
	STATS_HANDOFF_TIME,
	STATS_PURGED,
	STATS_SINCE,				/* lease time */
	STATS_HANDOFF_BUCKETS,		/* the first bucket of the histogram */
	NUM_STATS_COUNTERS = STATS_HANDOFF_BUCKETS + HANDOFF_BOUNDS + 1,
	STATS_NO_COUNTER = NUM_STATS_COUNTERS
} StatsCounter;

typedef struct StatsTotals
{
	const char *scope;			/* "none" if there is no shared memory */
	uint64		counters[NUM_STATS_COUNTERS];
} StatsTotals;

extern void stats_init(void);
extern void stats_count(StatsCounter counter);
extern void stats_add(StatsCounter counter, uint64 amount);
extern void stats_wait_ended(int64 usecs);
extern void stats_handed_off(int64 usecs);
extern StatsTotals stats_read(void);
extern void stats_reset(void);

/* For the purge launcher: databases in which leases were granted since the last call; InvalidOid: any may be. */
extern void stats_note_grant(void);
extern List *stats_take_granted(void);

#endif							/* LEASE_LOCK_STATS_H */
