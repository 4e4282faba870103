/*-------------------------------------------------------------------------
 *
 * events.h
 *		What happens to leases: counted and logged.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_EVENTS_H
#define LEASE_LOCK_EVENTS_H

#include "base/types.h"

typedef enum LeaseEvent
{
	EVENT_GRANTED,
	EVENT_TAKEN_OVER,			/* granted, after another owner's lease expired */
	EVENT_RENEWED,
	EVENT_RELEASED,
	EVENT_TRANSFERRED,
	EVENT_DOWNGRADED,
	EVENT_BROKEN,
	EVENT_EXPIRED,				/* sent by the purge worker */
	EVENT_WANTED,				/* a session begins to wait */
	NUM_EVENTS,
	EVENT_NONE = NUM_EVENTS
} LeaseEvent;

extern void events_init(void);	/* at load time */

/* As notices name them. */
extern const char *event_name(LeaseEvent event);
extern LeaseEvent event_by_name(const char *name);	/* EVENT_NONE: unknown */

extern bool event_is_default(LeaseEvent event); /* of a watch that names no events */

/*
 * Count and log what happened to a lease: as it is now, or as it was when it was
 * released or broken. former is the lease that it replaces, if there is one.
 */
extern void note_event(LeaseEvent event, const Lease *lease, const Lease *former);

#endif							/* LEASE_LOCK_EVENTS_H */
