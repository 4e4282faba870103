/*-------------------------------------------------------------------------
 *
 * hold.h
 *		What a holder, or an administrator, can do to a lease.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_HOLD_H
#define LEASE_LOCK_HOLD_H

#include "nodes/bitmapset.h"

#include "rules/rules.h"
#include "store/store.h"

/* action.c: actions on a lease that is committed, or on all leases of a resource */
typedef enum LeaseVerb
{
	LEASE_RELEASE,
	LEASE_RENEW,
	LEASE_RESTART,				/* renew it although it may have expired: this transaction was granted it */
	LEASE_SET_PAYLOAD,
	LEASE_TRANSFER,				/* hand it over, with a new token */
	LEASE_DOWNGRADE,			/* make an exclusive lease shared, with a new token */
	LEASE_BREAK					/* free the resource, whoever holds it */
} LeaseVerb;

typedef struct LeaseAction
{
	/* Given by the caller, the last four for some actions. */
	LeaseVerb	verb;
	const text *resource;
	Claim		claim;			/* the lease that is meant; not for LEASE_BREAK */
	text	  **resources;		/* instead of resource, for renew_each(); all sessions use the same order */
	int			nresources;
	int64		ttl;
	int64		grace;			/* of LEASE_BREAK */
	Datum		payload;
	text	   *new_owner;

	/* Set before the action writes. */
	bool		of_all;			/* all leases of the owner: released at once, however often acquired */
	LeaseStore *store;
	LeaseRows	rows;			/* of the resource */
	const LeaseRow *row;		/* the lease that is meant */
	bool		held;			/* it has not expired */
	TimestampTz now;			/* read under the resource lock, before the rows */
	Bitmapset  *ending;			/* lease slots whose ending lock it holds */

	/* Set by the write, for some actions. */
	int64		token;			/* the new one */
	Oid			counted_role;	/* the new owner has one more lease of this role */
} LeaseAction;

/*
 * Find the lease that is meant, and act on it. Returns false, with nothing
 * written, if there is no such lease. A break and a release may find a lease
 * that has expired.
 */
extern bool act_on_lease(LeaseAction *action);
extern int64 act_on_all_leases(LeaseAction *action);
extern bool renew_each(void *arg);

/* assert.c: leases that a transaction relies on */

/* Roles that rely on a lease, and what errors may show them. */
typedef struct Asserter
{
	Oid			role;			/* must have the privileges of the role that acquired the lease, */
	Oid			other_role;		/* unless this role has them; invalid: no other role */
	bool		exclusive;		/* shared leases and permits do not suffice */
	const char *row_of;			/* table that errors name instead of the resource; NULL: none */
} Asserter;

extern int64 assert_lease(const text *resource, const Claim *claim, const Asserter *asserter);
extern char *asserted_name(const text *resource, const Asserter *asserter);
extern bool held_token(const text *resource, const text *owner, int64 *token);

#endif							/* LEASE_LOCK_HOLD_H */
