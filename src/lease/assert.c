/*-------------------------------------------------------------------------
 *
 * assert.c
 *		Leases that a transaction relies on until it ends.
 *
 * The transaction locks the row of its lease FOR KEY SHARE, and then looks
 * whether the lease is still held. Whatever ends or moves a lease takes the row
 * exclusively, so from then on it has to wait for the transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "lease_lock.h"

/*
 * Say who has the lease that was claimed, as far as the caller may know. In a
 * function that runs as its definer, the error still goes to the session.
 */
static char *
describe_holder(const Lease *lease, const Claim *claim, TimestampTz now)
{
	double		seconds = fabs((double) (lease->expires_at - now)) / USECS_PER_SEC;

	if (lease->owner == NULL)
		return pstrdup("Nobody holds it.");
	if (!is_held(lease, now))
		return is_claimed(lease, claim) ?
			psprintf("It expired %.3f seconds ago.", seconds) :
			psprintf("Nobody holds it: the lease of another one expired %.3f seconds ago.", seconds);
	if (claim->owner != NULL && is_owner(lease, claim->owner))
		return psprintf("That owner holds it with token " INT64_FORMAT " for another %.3f seconds.",
						lease->token, seconds);
	if (may_act(lease) && has_privs_of_role(GetOuterUserId(), lease->holder))
		return psprintf("Owner \"%s\" holds it with token " INT64_FORMAT " for another %.3f seconds.",
						text_to_cstring(lease->owner), lease->token, seconds);
	return psprintf("Another owner holds it for another %.3f seconds.", seconds);
}

/* Find a lease that tells why the one that was claimed is not held; NULL when none does. */
static const Lease *
find_culprit(LeaseStore *store, const text *resource, const Claim *claim)
{
	List	   *leases;

	if (fetch_claimed_lease(store, resource, claim))
		return &store->lease;
	leases = current_leases(store, resource);
	if (leases != NIL)
		return linitial(leases);
	return store_fetch(store, resource, GATE_SLOT) ? &store->lease : NULL;
}

/* What errors call the resource. */
char *
asserted_name(const text *resource, const Asserter *asserter)
{
	if (asserter->row_of != NULL)
		return psprintf("a row of table \"%s\"", asserter->row_of);
	return psprintf("\"%s\"", text_to_cstring(resource));
}

/*
 * End an assertion. Where the resource is not told, nothing is told of its
 * lease either: the times and tokens in lease_status would tell which it is.
 */
static void
refuse_assertion(LeaseStore *store, const text *resource, const Claim *claim, const Asserter *asserter)
{
	const Lease *lease = find_culprit(store, resource, claim);
	TimestampTz now = clock_now();
	char	   *name = asserted_name(resource, asserter);

	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 claim->owner == NULL ?
			 errmsg("lease on %s with token " INT64_FORMAT " is not held", name, *claim->token) :
			 claim->token == NULL ?
			 errmsg("lease on %s is not held by owner \"%s\"", name, text_to_cstring(claim->owner)) :
			 errmsg("lease on %s is not held by owner \"%s\" with token " INT64_FORMAT,
					name, text_to_cstring(claim->owner), *claim->token),
			 asserter->row_of != NULL ? 0 :
			 errdetail_internal("%s", lease ? describe_holder(lease, claim, now) : "Nobody holds it."),
			 errhint("Acquire it with lease_acquire() and do the work again from the start: "
					 "what it is about may have changed.")));
}

/* Refuse a lease that the roles which count may not act on. */
static void
require_reliance(const Lease *lease, const Asserter *asserter)
{
	if (has_privs_of_role(asserter->role, lease->holder) ||
		(OidIsValid(asserter->other_role) && has_privs_of_role(asserter->other_role, lease->holder)))
		return;

	if (asserter->row_of == NULL)
		refuse_permission(lease);
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for lease on %s", asserted_name(lease->resource, asserter)),
			 errhint("Act as a role that has the privileges of the role that acquired it.")));
}

/*
 * Make sure that the lease is held by the one who is meant, and pin it: until
 * the transaction ends nobody can take it away, even when its time runs out.
 * Returns the token. Waits for an open transaction that is ending or moving the
 * lease, but not for a renewal.
 *
 * The version that is judged may be older than that of an open renewal. That is
 * the right one, since the renewal may be rolled back, and it only errs on the
 * safe side; the row lock goes to both.
 */
int64
assert_lease(const text *resource, const Claim *claim, const Asserter *asserter)
{
	const Lease *pinned = pin_find(resource, claim);
	LeaseStore *store;
	int64		token;

	if (pinned != NULL)
	{
		require_reliance(pinned, asserter);
		return pinned->token;
	}

	store = store_open(RowShareLock);
	for (;;)
	{
		RowLockResult locked;

		CHECK_FOR_INTERRUPTS();

		if (!fetch_claimed_lease(store, resource, claim) || !is_held(&store->lease, clock_now()))
			refuse_assertion(store, resource, claim, asserter);
		require_reliance(&store->lease, asserter);

		locked = store_lock_row(store, LockTupleKeyShare, LockWaitBlock);
		if (locked == ROW_GONE)
			continue;			/* there may be another row */

		if (!is_claimed(&store->lease, claim) || !is_held(&store->lease, clock_now()))
			refuse_assertion(store, resource, claim, asserter);
		require_reliance(&store->lease, asserter);
		break;
	}

	token = store->lease.token;
	pin_remember(&store->lease);
	store_close(store);
	return token;
}
