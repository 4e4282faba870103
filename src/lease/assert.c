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

/* Say who has the lease that was claimed, as far as the caller may know. */
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
	if (may_act(lease))
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

/* End an assertion. */
static void
refuse_assertion(LeaseStore *store, const text *resource, const Claim *claim)
{
	const Lease *lease = find_culprit(store, resource, claim);
	TimestampTz now = clock_now();
	char	   *name = text_to_cstring(resource);

	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 claim->owner == NULL ?
			 errmsg("lease on \"%s\" with token " INT64_FORMAT " is not held", name, *claim->token) :
			 claim->token == NULL ?
			 errmsg("lease on \"%s\" is not held by owner \"%s\"", name, text_to_cstring(claim->owner)) :
			 errmsg("lease on \"%s\" is not held by owner \"%s\" with token " INT64_FORMAT,
					name, text_to_cstring(claim->owner), *claim->token),
			 errdetail_internal("%s", lease ? describe_holder(lease, claim, now) : "Nobody holds it."),
			 errhint("Acquire it with lease_acquire() and do the work again from the start: "
					 "what it is about may have changed.")));
}

/*
 * May the current transaction rely on a lease that the role acquired? A
 * cascade of a foreign key runs as the owner of the table and a function may
 * run as its definer: there the role that the session acts as counts, too.
 */
static bool
may_rely(const Lease *lease, AssertRole role)
{
	return may_act(lease) ||
		(role == ASSERT_AS_SESSION && has_privs_of_role(GetOuterUserId(), lease->holder));
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
assert_lease(const text *resource, const Claim *claim, AssertRole role)
{
	const Lease *pinned = pin_find(resource, claim);
	LeaseStore *store;
	int64		token;

	if (pinned != NULL)
	{
		if (!may_rely(pinned, role))
			require_holder_privileges(pinned);
		return pinned->token;
	}

	store = store_open(RowShareLock);
	for (;;)
	{
		RowLockResult locked;

		CHECK_FOR_INTERRUPTS();

		if (!fetch_claimed_lease(store, resource, claim) || !is_held(&store->lease, clock_now()))
			refuse_assertion(store, resource, claim);
		if (!may_rely(&store->lease, role))
			require_holder_privileges(&store->lease);

		locked = store_lock_row(store, LockTupleKeyShare, LockWaitBlock);
		if (locked == ROW_GONE)
			continue;			/* there may be another row */

		if (!is_claimed(&store->lease, claim) || !is_held(&store->lease, clock_now()))
			refuse_assertion(store, resource, claim);
		if (!may_rely(&store->lease, role))
			require_holder_privileges(&store->lease);
		break;
	}

	token = store->lease.token;
	pin_remember(&store->lease);
	store_close(store);
	return token;
}
