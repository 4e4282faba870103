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
 * row, as a row lock. So the whole cache is dropped whenever an entry might
 * have become wrong: when the transaction writes any lease, and when it rolls
 * back to a savepoint. An entry also makes room for any other with the same
 * place.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/names.h"
#include "rules/rules.h"
#include "store/assertion_cache.h"

#define PLACES	256

static MemoryContext cache_context = NULL;	/* freed with the transaction */
static Lease **places;			/* by the hash of the resource */

static Lease **
place_of(const text *resource)
{
	return &places[hash_text(resource, 0) % PLACES];
}

/* Get the claimed lease if this transaction has asserted it lately, else NULL. */
const Lease *
find_assertion(const text *resource, const Claim *claim)
{
	const Lease *lease = cache_context != NULL ? *place_of(resource) : NULL;

	return lease != NULL && is_claimed(lease, claim) && same_text(lease->resource, resource) ? lease : NULL;
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
	Lease	  **place;

	if (cache_context == NULL)
	{
		cache_context = AllocSetContextCreate(TopTransactionContext, "lease assertions", ALLOCSET_DEFAULT_SIZES);
		places = MemoryContextAllocZero(cache_context, PLACES * sizeof(Lease *));
	}

	caller_context = MemoryContextSwitchTo(cache_context);
	place = place_of(lease->resource);
	if (*place != NULL)
	{
		pfree((*place)->resource);
		pfree((*place)->owner);
	}
	else
		*place = palloc(sizeof(Lease));
	**place = *lease;
	(*place)->resource = copy_name(lease->resource);
	(*place)->owner = copy_name(lease->owner);
	MemoryContextSwitchTo(caller_context);
}

void
forget_assertions(void)
{
	if (cache_context != NULL)
		MemoryContextDelete(cache_context);
	cache_context = NULL;
}

static void
forget_at_end(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
		forget_assertions();
}

static void
forget_at_rollback(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		forget_assertions();
}

void
assertion_cache_init(void)
{
	RegisterXactCallback(forget_at_end, NULL);
	RegisterSubXactCallback(forget_at_rollback, NULL);
}
