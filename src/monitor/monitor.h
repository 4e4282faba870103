/*-------------------------------------------------------------------------
 *
 * monitor.h
 *		What happens to leases: counted, logged, and sent to those who watch.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_MONITOR_H
#define LEASE_LOCK_MONITOR_H

#include "nodes/pg_list.h"

#include "store/store.h"

/* events.c: what happens to leases, counted and logged */
typedef enum LeaseEvent
{
	EVENT_GRANTED,
	EVENT_TAKEN_OVER,			/* granted, over a lease that expired or whose session ended */
	EVENT_RENEWED,
	EVENT_RELEASED,
	EVENT_TRANSFERRED,
	EVENT_DOWNGRADED,
	EVENT_BROKEN,
	EVENT_EXPIRED,				/* sent by the purge worker */
	NUM_EVENTS,
	EVENT_NONE = NUM_EVENTS
} LeaseEvent;

extern void events_init(void);

extern const char *event_name(LeaseEvent event);
extern LeaseEvent event_by_name(const char *name);	/* EVENT_NONE: unknown */
extern bool event_is_default(LeaseEvent event); /* of a watch that names no events */

/*
 * Count and log what happened to a lease: as it is now, or as it was when it was
 * released or broken. former is the lease that it replaces, if there is one.
 */
extern void note_event(LeaseEvent event, const Lease *lease, const Lease *former);

/* stats.c: counters of statistics */

/*
 * The histogram of hand-offs. Bucket i counts those that took up to 2^i times
 * the first bound; the last bucket counts all longer ones.
 */
#define HANDOFF_BOUNDS			20
#define FIRST_HANDOFF_BOUND		16	/* microseconds; the last is 8.4 s */

/* The counters. Times are in microseconds. */
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

/* The counters of a database, as they were read. */
typedef struct StatsValues
{
	Oid			database;		/* invalid: of several */
	uint64		counters[NUM_STATS_COUNTERS];
} StatsValues;

extern void stats_init(void);
extern void stats_count(StatsCounter counter);
extern void stats_add(StatsCounter counter, uint64 amount);
extern void stats_wait_ended(int64 usecs);
extern void stats_handed_off(int64 usecs);
extern bool stats_read(StatsValues *values);	/* false: nothing is counted */
extern void stats_reset(void);

/*
 * For the purge launcher: databases in which leases were granted since the
 * last call; InvalidOid: any may be.
 */
extern void stats_note_grant(void);
extern List *stats_take_granted(void);

extern bool stats_note_hint(void);

/* index_hint.c: the log names the index that would make calls quicker */
extern void hint_at_owner_index(const LeaseStore *store, const StoreScan *scan);

#define EVENT_BIT(event)	(1U << (event))
#define ALL_EVENTS			(EVENT_BIT(NUM_EVENTS) - 1)

/* watches.c: the table of watches */
typedef struct Watch
{
	text	   *prefix;
	char	   *channel;
	uint32		events;			/* EVENT_BIT of each */
	Oid			creator;
} Watch;

extern void watches_init(void);
extern bool event_is_watched(LeaseEvent event);
extern List *watches_of(LeaseEvent event, const text *resource);
extern bool set_watch(text *prefix, text *channel, uint32 events);

/* notices.c: collecting and sending notices */
extern void notices_init(void);

/* Notify the watches of the resource when the transaction commits. */
extern void tell_watchers(LeaseEvent event, const Lease *lease);

#endif							/* LEASE_LOCK_MONITOR_H */
