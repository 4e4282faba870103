/*-------------------------------------------------------------------------
 *
 * Watches: channels that are notified of events of leases.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_WATCHES_H
#define LEASE_LOCK_WATCHES_H

#include "nodes/pg_list.h"

#include "monitor/events.h"

#define EVENT_BIT(event)	(1U << (event))

/* watches.c: collecting and sending notices */
extern void watches_init(void);
extern List *find_notices(LeaseEvent event, const Lease *lease);
extern bool event_is_watched(LeaseEvent event);

/* Notify the watches of the resource when the transaction commits. */
extern void tell_watchers(LeaseEvent event, const Lease *lease);

/* watch_table.c: the table of watches */
typedef struct Watch
{
	char	   *prefix;
	int			length;			/* of the prefix */
	char	   *channel;
	uint32		events;			/* EVENT_BIT of each */
	Oid			creator;		/* invalid if that role was dropped */
} Watch;

extern Oid	watch_table(void);
extern bool read_watches(Oid relid, Watch **watches, int *count);
extern void add_watch(text *prefix, text *channel, uint32 events);
extern bool remove_watch(text *prefix, text *channel);

/* announce.c: sending notices at once, without a commit */
typedef struct Notice
{
	char	   *channel;
	char	   *payload;
	int			nest_level;		/* of the transaction that it belongs to */
} Notice;

extern void announce_init(void);	/* at load time */
extern void announce_wanted(const LeaseRequest *request, text **resources, int nresources, bool commits);
extern void announce_end(void);

#endif							/* LEASE_LOCK_WATCHES_H */
