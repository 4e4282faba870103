/*-------------------------------------------------------------------------
 *
 * change.h
 *		The only way to write a lease.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_CHANGE_H
#define LEASE_LOCK_CHANGE_H

#include "store/store.h"

/* change.c: what is done to a lease */
typedef enum LeaseChange
{
	CHANGE_GRANT,
	CHANGE_COUNT_UP,			/* granted once more to the owner that holds it */
	CHANGE_RENEW,
	CHANGE_PAYLOAD,
	CHANGE_TRANSFER,
	CHANGE_DOWNGRADE,			/* the shared lease that replaces an exclusive one */
	CHANGE_RELEASE,
	CHANGE_KEEP,				/* released, and kept for longer than the lease would have lasted */
	CHANGE_COUNT_DOWN,			/* released once, of several times */
	CHANGE_BREAK,
	CHANGE_REPLACE				/* end it, because another row now has what replaces it */
} LeaseChange;

/*
 * False, with nothing written, if another session locked or wrote the row by
 * hand since the look.
 */
extern bool try_change_lease(LeaseStore *store, const LeaseRow *old, const Lease *new,
							 LeaseChange change, const Lease *former);

/* The same for a caller that cannot look again: that is an error. */
extern void change_lease(LeaseStore *store, const LeaseRow *old, const Lease *new,
						 LeaseChange change, const Lease *former);

/* durability.c: what a commit waits for when its transaction changed leases */
extern void durability_init(void);
extern void durable_action_begins(void);	/* before the action looks for its lease */
extern void durable_write(void);	/* a grant, renewal or transfer was written */
extern void durable_release(void);	/* a release was written, completely */

/* quota.c: limits of a session */
extern void quota_init(void);
extern bool is_above_max_ttl(int64 usecs);
extern void require_lease_allowed(LeaseStore *store, const text *resource, const text *owner,
								  Oid role);

#endif							/* LEASE_LOCK_CHANGE_H */
