/*-------------------------------------------------------------------------
 *
 * hold.h
 *		What a holder, or an administrator, can do to a lease.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_HOLD_H
#define LEASE_LOCK_HOLD_H

#include "rules/rules.h"
#include "store/store.h"

/* action.c: actions on a lease that is committed, or on all leases of a resource */
typedef enum LeaseVerb
{
	LEASE_RELEASE,
	LEASE_RENEW,
	LEASE_RESTART,				/* renew it although it may have expired: this transaction was
								 * granted it */
	LEASE_SET_PAYLOAD,
	LEASE_TRANSFER,				/* hand it over, with a new token */
	LEASE_DOWNGRADE,			/* make an exclusive lease shared, with a new token */
	LEASE_BREAK					/* free the resource, whoever holds it */
} LeaseVerb;

/* What to do, and to which lease. The last four are for some actions. */
typedef struct LeaseAction
{
	LeaseVerb	verb;
	const text *resource;
	Claim		claim;			/* the lease that is meant; not for LEASE_BREAK */
	bool		of_all;			/* leases of the owner: each is released at once, however often
								 * acquired */
	int64		ttl;
	int64		grace;			/* of LEASE_BREAK */
	Datum		payload;
	text	   *new_owner;
} LeaseAction;

typedef struct ActionResult
{
	bool		done;			/* false, with nothing written: there is no such lease */
	int64		token;			/* the new one, of a transfer or downgrade */
} ActionResult;

/*
 * Find the lease that is meant, and act on it. A break, a release and a
 * restart may find a lease that has expired.
 */
extern ActionResult act_on_lease(const LeaseAction *asked);
extern int64 act_on_all_leases(const LeaseAction *action);

/* Renewals of an owner's leases on several resources, for renew_each() */
typedef struct SeveralRenewals
{
	LeaseAction action;			/* without a resource */
	text	  **resources;		/* all sessions use the same order */
	int			nresources;
} SeveralRenewals;

extern bool renew_each(void *renewals);

/* overtaken.c: a limit for calls that wait for one transaction after another */
typedef struct Overtakers
{
	TransactionId last;			/* a top-level transaction */
	int			count;
} Overtakers;

extern void wait_unless_overtaken(Overtakers *overtakers, TransactionId transaction,
								  const char *name);

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
