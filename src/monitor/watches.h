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
#define ALL_EVENTS			(EVENT_BIT(NUM_EVENTS) - 1)

/* watches.c: the table of watches */
typedef struct Watch
{
	char	   *prefix;
	int			length;			/* of the prefix */
	char	   *channel;
	uint32		events;			/* EVENT_BIT of each */
	Oid			creator;		/* invalid if that role was dropped */
} Watch;

extern void watches_init(void);
extern bool event_is_watched(LeaseEvent event);
extern const Watch *next_watch(const Watch *before, LeaseEvent event, const text *resource);
extern bool set_watch(text *prefix, text *channel, uint32 events);

/* notices.c: collecting and sending notices */
typedef struct Notice
{
	char	   *channel;
	char	   *payload;
	TransactionId xid;			/* of the (sub)transaction that it belongs to; invalid: it has none */
} Notice;

extern void notices_init(void);
extern List *find_notices(LeaseEvent event, const Lease *lease);

/* Notify the watches of the resource when the transaction commits. */
extern void tell_watchers(LeaseEvent event, const Lease *lease);

/* announce.c: sending notices at once, without a commit */
extern void announce_init(void);	/* at load time */
extern void announce_wanted(const LeaseRequest *request, text **resources, int nresources, bool commits);
extern void announce_end(void);

#endif							/* LEASE_LOCK_WATCHES_H */
