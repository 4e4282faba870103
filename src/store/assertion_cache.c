/*-------------------------------------------------------------------------
 *
 * assertion_cache.c
 *		Leases that the current transaction has asserted lately.
 *
 * An asserted lease cannot be lost before the transaction ends, except by
 * actions of the transaction itself. So its row need not be read again: a
 * thousand rows under one lease cost one look.
 *
 * Nothing depends on this cache. What an assertion means is written in the
 * row, as a row lock. The server drops that lock if the subtransaction that
 * took it is rolled back. So an entry counts only while that subtransaction is
 * active. The whole cache is dropped when the transaction writes any lease. An
 * entry also makes room for any other with the same place.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/names.h"
#include "rules/rules.h"
#include "store/store.h"

#define PLACES	256

typedef struct Assertion
{
	Lease		lease;
	SubTransactionId made_in;
} Assertion;

static MemoryContext cache_context = NULL;	/* freed with the transaction */
static Assertion **places;		/* by the hash of the resource */

static Assertion **
place_of(const text *resource)
{
	return &places[hash_text(resource, 0) % PLACES];
}

/* Get the claimed lease if this transaction has asserted it lately, else NULL. */
const Lease *
find_assertion(const text *resource, const Claim *claim)
{
	const Assertion *found = cache_context != NULL ? *place_of(resource) : NULL;

	return found != NULL && is_claimed(&found->lease, claim) && same_text(found->lease.resource, resource) &&
		SubTransactionIsActive(found->made_in) ? &found->lease : NULL;
}

static void
forget_cache(void *arg)
{
	cache_context = NULL;
}

static text *
copy_name(const text *name)
{
	return memcpy(palloc(VARSIZE_ANY(name)), name, VARSIZE_ANY(name));
}

/* Remember a lease whose row the current subtransaction has locked. */
void
remember_assertion(const Lease *lease)
{
	MemoryContext caller_context;
	Assertion  *assertion;
	Assertion **place;

	if (cache_context == NULL)
	{
		MemoryContext context = AllocSetContextCreate(TopTransactionContext, "lease assertions", ALLOCSET_DEFAULT_SIZES);
		MemoryContextCallback *callback = MemoryContextAllocZero(context, sizeof(MemoryContextCallback));

		callback->func = forget_cache;
		MemoryContextRegisterResetCallback(context, callback);
		places = MemoryContextAllocZero(context, PLACES * sizeof(Assertion *));
		cache_context = context;
	}

	caller_context = MemoryContextSwitchTo(cache_context);
	assertion = palloc(sizeof(Assertion));
	assertion->lease = *lease;
	assertion->lease.resource = copy_name(lease->resource);
	assertion->lease.owner = copy_name(lease->owner);
	assertion->made_in = GetCurrentSubTransactionId();
	MemoryContextSwitchTo(caller_context);

	place = place_of(lease->resource);
	if (*place != NULL)
	{
		pfree((*place)->lease.resource);
		pfree((*place)->lease.owner);
		pfree(*place);
	}
	*place = assertion;
}

void
forget_assertions(void)
{
	if (cache_context != NULL)
		MemoryContextDelete(cache_context);
}
