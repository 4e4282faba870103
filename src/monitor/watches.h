/*-------------------------------------------------------------------------
 *
 * watches.h
 *		Channels that are notified of what happens to leases.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_WATCHES_H
#define LEASE_LOCK_WATCHES_H

#include "nodes/pg_list.h"

#include "lease_lock.h"

typedef enum LeaseEvent
{
	EVENT_GRANTED,
	EVENT_TAKEN_OVER,			/* granted, after the lease of another one expired */
	EVENT_RENEWED,
	EVENT_RELEASED,
	EVENT_TRANSFERRED,
	EVENT_DOWNGRADED,
	EVENT_BROKEN,
	EVENT_EXPIRED,				/* told by the purge worker */
	EVENT_WANTED,				/* somebody begins to wait */
	NUM_EVENTS
} LeaseEvent;

#define EVENT_BIT(event)	(1U << (event))
#define ALL_EVENTS			(EVENT_BIT(NUM_EVENTS) - 1)

/* What is not told unless it is asked for: heartbeats are many. */
#define DEFAULT_EVENTS		(ALL_EVENTS & ~EVENT_BIT(EVENT_RENEWED))

/* watches.c: who is told, and when */
extern bool watches_possible;	/* false: there are none */

extern void watches_init(void);
extern void queue_notices(LeaseEvent event, const Lease *lease);
extern List *find_notices(LeaseEvent event, const Lease *lease);
extern bool event_is_watched(LeaseEvent event);

/* Tell those who watch the resource, when the transaction commits. */
static inline void
tell_watchers(LeaseEvent event, const Lease *lease)
{
	if (watches_possible)
		queue_notices(event, lease);
}

/* watch_table.c: where the watches are kept */
typedef struct Watch
{
	char	   *prefix;
	int			length;			/* of the prefix */
	char	   *channel;
	uint32		events;			/* EVENT_BIT of each */
	Oid			creator;		/* invalid if that role is gone */
} Watch;

extern const char *event_name(LeaseEvent event);
extern Oid	watch_table(void);
extern bool read_watches(Oid table, Watch **watches, int *count);
extern void add_watch(text *prefix, text *channel, uint32 events);
extern bool remove_watch(text *prefix, text *channel);

/* announce.c: telling at once, without a commit */
typedef struct Notice
{
	char	   *channel;
	char	   *payload;
	int			nest_level;		/* of the transaction to which it belongs */
} Notice;

extern void announce_wanted(const LeaseRequest *request, text **resources, int nresources, bool commits);
extern void announce_end(void);

#endif							/* LEASE_LOCK_WATCHES_H */
