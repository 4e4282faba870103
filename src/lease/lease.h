/*-------------------------------------------------------------------------
 *
 * lease.h
 *		What a holder, or an administrator, can do to a lease.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_LEASE_H
#define LEASE_LOCK_LEASE_H

#include "nodes/pg_list.h"

#include "rules/rules.h"
#include "store/store.h"

/* action.c: what all actions on an owner's lease begin and end with */
typedef struct LeaseAction
{
	/* Given by the caller. */
	const text *resource;
	Claim		claim;
	OwnAction	kind;
	bool		gives_token;	/* the lease gets a new token */

	/* Set by begin_action(). */
	LeaseStore *store;
	LeaseRows	rows;			/* of the resource */
	const LeaseRow *row;		/* the lease that the claim means; NULL: there is none */
	bool		held;			/* there is one, and it has not expired */
	TimestampTz now;			/* read under the resource lock, before the rows */
} LeaseAction;

extern void begin_action(LeaseAction *action);
extern void end_action(LeaseAction *action);

/* release.c */
extern bool release_lease(const text *resource, const Claim *claim);
extern int64 release_all_leases(const text *owner);

/* own.c: all leases of an owner */
typedef struct OwnLease
{
	text	   *resource;
	int64		token;
} OwnLease;

extern List *find_own_leases(const text *owner);

/* renew.c */
extern bool renew_lease(const text *resource, int64 ttl, const Claim *claim);
extern bool renew_leases(text **resources, int nresources, int64 ttl, const text *owner);
extern int64 renew_all_leases(int64 ttl, const text *owner);

/* downgrade.c */
extern bool downgrade_lease(const text *resource, const text *owner, int64 *token);

/* payload.c */
extern bool set_payload(const text *resource, const text *owner, Datum payload);

/* transfer.c */
extern bool transfer_lease(const text *resource, const text *owner, text *new_owner, int64 *token);

/* break.c */
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
