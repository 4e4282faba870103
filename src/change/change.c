/*-------------------------------------------------------------------------
 *
 * change.c
 *		The only way to write a lease.
 *
 * Much must follow when a lease is written: the transaction must not trust
 * what it remembers of the lease, waiters must hear of it, the commit may have
 * to wait for the disk, and the change is counted, logged and sent to those
 * who watch it. All of that is done here, so that no caller can forget it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "change/change.h"
#include "monitor/monitor.h"
#include "rules/rules.h"
#include "wait/wait.h"

/* What follows a change. */
static const struct
{
	void		(*note_durable) (void); /* NULL: a crash that loses the change does no harm */
	LeaseEvent	event;			/* that others are told */
	bool		concerns_waiters;
}			follows[] = {
	[CHANGE_GRANT] = {durable_write, EVENT_GRANTED, true},
	[CHANGE_COUNT_UP] = {durable_write, EVENT_GRANTED, true},
	[CHANGE_RENEW] = {durable_write, EVENT_RENEWED, true},
	[CHANGE_PAYLOAD] = {durable_write, EVENT_NONE, false},
	[CHANGE_TRANSFER] = {durable_write, EVENT_TRANSFERRED, true},
	[CHANGE_DOWNGRADE] = {durable_write, EVENT_DOWNGRADED, true},
	[CHANGE_RELEASE] = {durable_release, EVENT_RELEASED, true},
	[CHANGE_KEEP] = {durable_write, EVENT_RELEASED, true},
	[CHANGE_COUNT_DOWN] = {durable_release, EVENT_NONE, false},
	[CHANGE_BREAK] = {NULL, EVENT_BROKEN, true},
	[CHANGE_REPLACE] = {NULL, EVENT_NONE, false},
};

/*
 * The time from which a waiter may find room because of the change. A new
 * shared lease or permit leaves room for the next waiter at once.
 */
static TimestampTz
room_from(const Lease *new, LeaseChange change)
{
	if (new->mode != MODE_EXCLUSIVE && (change == CHANGE_GRANT || change == CHANGE_DOWNGRADE))
		return DT_NOBEGIN;
	return free_from(new);
}

/* Have the change counted, logged and sent. former is the lease that it ends or follows. */
static void
note_change(const Lease *new, LeaseChange change, const Lease *former)
{
	LeaseEvent	event = follows[change].event;
	const Lease *lease = new != NULL && new->owner != NULL ? new : former;

	if (event == EVENT_NONE)
		return;
	if (change == CHANGE_GRANT && former != NULL)
		event = EVENT_TAKEN_OVER;
	note_event(event, lease, lease == new ? former : NULL);
	tell_watchers(event, lease);
}

/*
 * Write a lease, and do all that must follow. old is the row that it is
 * written to; NULL if the lease slot has none. new is NULL to delete the row.
 * former is the lease that the change ends or follows, if there is one, for
 * the notices and the log. The caller holds the resource lock, and has looked at the
 * row since.
 *
 * Waiters are noted before the write. If the write fails, its rollback wakes
 * them, which does no harm.
 */
bool
try_change_lease(LeaseStore *store, const LeaseRow *old, const Lease *new, LeaseChange change,
				 const Lease *former)
{
	forget_assertions();
	if (follows[change].concerns_waiters)
		wait_note_change(new->resource, room_from(new, change));
	if (!store_try_write(store, old, new))
		return false;

	if (follows[change].note_durable != NULL)
		follows[change].note_durable();
	if (change == CHANGE_GRANT)
		stats_note_grant();
	note_change(new, change, former);
	return true;
}

void
change_lease(LeaseStore *store, const LeaseRow *old, const Lease *new, LeaseChange change,
			 const Lease *former)
{
	if (!try_change_lease(store, old, new, change, former))
		store_refuse_written_by_hand(store);
}
