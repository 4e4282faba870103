/*-------------------------------------------------------------------------
 *
 * assert.c
 *		Leases that a transaction relies on until it ends.
 *
 * The transaction locks the row of its lease FOR KEY SHARE, under the resource
 * lock. If another session waits to end the lease, it goes first.
 *
 * Why an assertion holds. It locks the row under the resource lock. A
 * transaction that ends leases looks at the row's header under the same lock,
 * so one of the two comes first. If the assertion is first, the other one
 * finds the row lock and waits. A grant reads the clock after the resource
 * lock and before the look: an assertion that comes later reads a later time,
 * and finds the lease expired if the grant found it expired. While a row is
 * being renewed, a lock FOR KEY SHARE on its old version locks the new one,
 * too. The assertion cache only saves looks.
 *
 * Why an assertion outlives the expiry. The row lock is the assertion: a
 * transaction may rely on a lease that is held, or whose row it has locked
 * itself (still_holds). Whoever takes a lease over or ends it writes its row,
 * and could not do so while the row was locked. So a row with the same owner
 * and token, locked by this transaction, shows a lease that nobody else had.
 * That is also so if
 *
 * - the transaction itself ended or took over the lease, and ROLLBACK TO has
 *   undone that. The old version is back with its lock, since the server keeps
 *   the lock of an outer subtransaction beside the update of an inner one. A
 *   lock that was taken inside the savepoint ends.
 *
 * - the lease was renewed (the new version inherits the lock), or granted to
 *   another owner (the row is a tombstone, or shows that owner).
 *
 * - the row was locked by hand, even after the lease expired: from then on
 *   nobody can take it over, and nobody has before. This is so for permits,
 *   too, if all callers state the same number: if there is no room any more
 *   for an expired permit, a grant has taken over its row.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/acl.h"

#include "hold/hold.h"

/*
 * Describe the holder of the claimed lease, as far as the caller may see it.
 * The error of a function that runs as its definer still goes to the session,
 * so the role of the session must be allowed to see it, too.
 */
static char *
describe_holder(const Lease *lease, const Claim *claim, TimestampTz now)
{
	double		seconds = fabs((double) (lease->expires_at - now)) / USECS_PER_SEC;
	char	   *how_long = lease->expires_at == DT_NOEND ? "until its session ends" :
		psprintf("for another %.3f seconds", seconds);

	if (lease->owner == NULL)
		return pstrdup("Nobody holds it.");
	if (lease->session == SESSION_ENDED)
		return pstrdup("Nobody holds it. Its session has ended.");
	if (!is_held(lease, now))
		return is_claimed(lease, claim) ?
			psprintf("It expired %.3f seconds ago.", seconds) :
			psprintf("Nobody holds it. The lease of another owner expired %.3f seconds ago.",
					 seconds);
	if (claim->owner != NULL && is_owner(lease, claim->owner))
		return psprintf("That owner holds it with token " INT64_FORMAT " %s.",
						lease->token, how_long);
	if (error_may_show_owner(lease->role))
		return psprintf("Owner \"%s\" holds it with token " INT64_FORMAT " %s.",
						printable(lease->owner), lease->token, how_long);
	return psprintf("Another owner holds it %s.", how_long);
}

/* Find a lease that explains why the claimed one is not held; NULL if there is none. */
static const LeaseRow *
find_culprit(const LeaseRows *rows, const Claim *claim, TimestampTz now)
{
	const LeaseRow *culprit = find_claimed(rows, claim, ACTION_RELY, now).row;

	/* The exclusive slot comes last. */
	for (int i = 0; i < rows->count && culprit == NULL; i++)
		if (!TransactionIdIsValid(rows->row[i].inserted_by) &&
			(is_held(&rows->row[i].lease, now) || rows->row[i].lease.slot == EXCLUSIVE_SLOT))
			culprit = &rows->row[i];
	return culprit;
}

/* The name of the resource in error messages. */
char *
asserted_name(const text *resource, const Asserter *asserter)
{
	if (asserter->row_of != NULL)
		return psprintf("a row of table \"%s\"", asserter->row_of);
	return psprintf("\"%s\"", printable(resource));
}

/*
 * Fail an assertion. An error that must not name the resource does not
 * describe its lease either, because a time or token would identify it in
 * lease_status.
 */
pg_noreturn static void
refuse_assertion(const LeaseRows *rows, const text *resource, const Claim *claim, TimestampTz now,
				 const Asserter *asserter)
{
	const LeaseRow *culprit = find_culprit(rows, claim, now);
	char	   *name = asserted_name(resource, asserter);

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 claim->owner == NULL ?
			 errmsg("lease on %s with token " INT64_FORMAT " is not held", name, *claim->token) :
			 claim->token == NULL ?
			 errmsg("lease on %s is not held by owner \"%s\"", name, printable(claim->owner)) :
			 errmsg("lease on %s is not held by owner \"%s\" with token " INT64_FORMAT,
					name, printable(claim->owner), *claim->token),
			 asserter->row_of != NULL ? 0 :
			 errdetail_internal("%s",
								culprit ? describe_holder(&culprit->lease, claim, now) :
								"Nobody holds it."),
			 errhint("Acquire the lease and repeat the work from the start, "
					 "because the data may have changed.")));
}

/* Fail if the lease has the wrong mode, or if neither of the asserter's roles may act on it. */
static void
require_reliance(const Lease *lease, const Asserter *asserter)
{
	if (has_privs_of_role(asserter->role, lease->role) ||
		(OidIsValid(asserter->other_role) && has_privs_of_role(asserter->other_role, lease->role)))
	{
		if (asserter->exclusive && lease->mode != MODE_EXCLUSIVE)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("lease on %s is not exclusive",
							asserted_name(lease->resource, asserter)),
					 errhint("Acquire an exclusive lease and repeat the work from the start, "
							 "because the data may have changed.")));
		return;
	}

	if (asserter->row_of == NULL)
		refuse_permission(lease);
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for lease on %s", asserted_name(lease->resource, asserter)),
			 errhint("Act as a role that has the privileges of the role that acquired it.")));
}

/* No lease slot whose ending lock an assertion holds. */
#define NO_SLOT		(-1)

/*
 * The slot of a session that waits to end the lease, and that the assertion must
 * wait for; or none. Not if that session waits for this transaction, which uses
 * the lease already. A break waits at one lease of the resource after the other,
 * and may wait for this transaction at any of them.
 */
static int
ending_to_wait_for(const LeaseRows *rows, const LeaseRow *row)
{
	const text *resource = row->lease.resource;

	if (is_used_here(row))
		return NO_SLOT;
	if (row->lease.mode != MODE_EXCLUSIVE && probe_ending(resource, ALL_SLOTS))
		return uses_any(rows) ? NO_SLOT : ALL_SLOTS;
	return probe_ending(resource, row->lease.slot) ? row->lease.slot : NO_SLOT;
}

/* Give the ending lock back. */
static void
end_turn(const text *resource, int *turn)
{
	if (*turn != NO_SLOT)
		unlock_ending(resource, *turn, ShareLock);
	*turn = NO_SLOT;
}

/* A try to assert a lease. */
typedef struct AssertionTry
{
	ClaimedLease claimed;
	bool		locked;			/* the row: the assertion is made */
	int			ending;			/* the slot of an ending to wait for */
} AssertionTry;

/*
 * Lock the row of the claimed lease, or fail if it is not held. The caller holds
 * the resource lock.
 */
static AssertionTry
assert_under_lock(LeaseStore *store, const text *resource, const Claim *claim,
				  const Asserter *asserter, int64 *token)
{
	LeaseRows	rows;
	AssertionTry attempt = {.ending = NO_SLOT};
	ClaimedLease *claimed = &attempt.claimed;
	TimestampTz now;

	store_look(store, resource, &rows);
	now = clock_now();
	*claimed = find_claimed(&rows, claim, ACTION_RELY, now);
	if (!claimed->holds)
		refuse_assertion(&rows, resource, claim, now, asserter);
	require_reliance(&claimed->row->lease, asserter);

	if (!TransactionIdIsValid(claimed->transaction))
		attempt.ending = ending_to_wait_for(&rows, claimed->row);
	if (attempt.ending == NO_SLOT && !TransactionIdIsValid(claimed->transaction))
	{
		attempt.locked = store_lock_weakly(store, claimed->row);
		claimed->transaction = attempt.locked ? InvalidTransactionId : claimed->row->changed_by;
	}
	if (attempt.locked)
	{
		now = clock_now();
		if (!claimed->row->locked_here && !is_held(&claimed->row->lease, now))
			refuse_assertion(&rows, resource, claim, now, asserter);
		*token = claimed->row->lease.token;
		remember_assertion(&claimed->row->lease);
	}
	return attempt;
}

/*
 * Assert the claimed lease, or fail if it is not held. Returns false
 * if that could not be decided. If another transaction had to end first, it
 * has ended. If another session waited to end the lease, it has done that or
 * given up; then turn becomes the slot whose ending lock keeps the next such
 * session waiting until the assertion is made.
 */
static bool
try_assert(LeaseStore *store, const text *resource, const Claim *claim, const Asserter *asserter,
		   int *turn, Overtakers *overtakers, int64 *token)
{
	AssertionTry attempt;

	lock_resource(resource);
	PG_TRY();
	{
		attempt = assert_under_lock(store, resource, claim, asserter, token);
	}
	PG_FINALLY();
	{
		unlock_resource(resource);
	}
	PG_END_TRY();

	end_turn(resource, turn);
	if (attempt.ending != NO_SLOT)
	{
		*turn = attempt.ending;
		lock_ending(resource, *turn, ShareLock);
	}
	else if (!attempt.locked)
		wait_unless_overtaken(overtakers, attempt.claimed.transaction,
							  asserted_name(resource, asserter));
	return attempt.locked;
}

/*
 * Make sure that the claimed lease is held, and that it cannot be lost before
 * the transaction ends, even if it expires. Returns its token. Waits for an
 * open transaction that ends the lease or transfers it, and for a session that
 * waits to do so, but not for one that renews it.
 *
 * During an open renewal, the version before it counts. The renewal may be
 * rolled back, so this errs on the safe side. Both versions get the row lock.
 */
int64
assert_lease(const text *resource, const Claim *claim, const Asserter *asserter)
{
	const Lease *asserted = find_assertion(resource, claim);
	LeaseStore *store;
	int			turn = NO_SLOT;
	Overtakers	overtakers = {0};
	int64		token;

	if (asserted != NULL)
	{
		require_reliance(asserted, asserter);
		return asserted->token;
	}

	store = store_open(RowShareLock);
	while (!try_assert(store, resource, claim, asserter, &turn, &overtakers, &token))
		CHECK_FOR_INTERRUPTS();
	store_close(store);
	return token;
}

/* Get the token of the lease that this owner holds; false if the owner holds none. */
bool
held_token(const text *resource, const text *owner, int64 *token)
{
	LeaseStore *store = store_open(AccessShareLock);
	Claim		claim = {.owner = owner};
	LeaseRows	rows;
	ClaimedLease claimed;

	store_look_committed(store, resource, &rows);
	claimed = find_claimed(&rows, &claim, ACTION_PROLONG, clock_now());
	if (claimed.holds)
		*token = claimed.row->lease.token;
	store_close(store);
	return claimed.holds;
}
