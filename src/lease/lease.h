/*-------------------------------------------------------------------------
 *
 * lease.h
 *		What a holder, or an administrator, can do to a lease.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_LEASE_H
#define LEASE_LOCK_LEASE_H

#include "rules/rules.h"
#include "store/store.h"

/* action.c: the shape of every action on a lease that is committed */
typedef struct LeaseAction
{
	/* Given by the caller. */
	const text *resource;
	Claim		claim;			/* the lease that is meant; not for ACTION_BREAK */
	OwnAction	kind;
	bool		even_expired;	/* the lease need not be held */
	bool		gives_token;	/* the lease gets a new token */

	/* Given by the caller, for some actions. */
	int64		ttl;
	Datum		payload;
	text	   *new_owner;
	bool		all_holds;		/* release it at once, however often it was acquired */

	/* Set before the action writes. */
	LeaseStore *store;
	LeaseRows	rows;			/* of the resource */
	const LeaseRow *row;		/* the lease that is meant */
	bool		held;			/* it has not expired */
	TimestampTz now;			/* read under the resource lock, before the rows */

	/* Set by the write, for some actions. */
	int64		token;
	Oid			role;
} LeaseAction;

/* Write the action, under the resource lock; false if it does not apply to the lease. */
typedef bool (*LeaseWrite) (LeaseAction *action);

extern bool act_on_lease(LeaseAction *action, LeaseWrite write);
extern int64 act_on_all_leases(LeaseAction *action, LeaseWrite write);

/* holder.c: the actions */
extern bool release_lease(const text *resource, const Claim *claim);
extern int64 release_all_leases(const text *owner);
extern bool renew_lease(const text *resource, int64 ttl, const Claim *claim);
extern bool renew_leases(text **resources, int nresources, int64 ttl, const text *owner);
extern int64 renew_all_leases(int64 ttl, const text *owner);
extern bool set_payload(const text *resource, const text *owner, Datum payload);
extern bool transfer_lease(const text *resource, const text *owner, text *new_owner, int64 *token);
extern bool downgrade_lease(const text *resource, const text *owner, int64 *token);
extern bool break_leases(const text *resource);

/* drop.c: what is lost when the lock table is dropped */
extern void drop_init(void);

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

#endif							/* LEASE_LOCK_LEASE_H */
