/*-------------------------------------------------------------------------
 *
 * assertion_cache.c
 *		Leases that the current transaction has asserted lately.
 *
 * An asserted lease cannot be lost before the transaction ends, except by
 * actions of the transaction itself. So its row need not be read again: a
 * thousand rows under one lease cost one look.
 *
 * The assertion itself is the row lock. The server drops that lock if the
 * subtransaction that took it is rolled back. So an entry counts only while
 * that subtransaction is active. The whole cache is dropped when the
 * transaction writes any lease. An entry also makes room for any other with
 * the same cell.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"

#include "rules/rules.h"
#include "store/store.h"

#define NUM_CELLS	1024

typedef struct Assertion
{
	Lease		lease;
	SubTransactionId made_in;
} Assertion;

static MemoryContext cache_context; /* reset with the transaction */
static Assertion *cells[NUM_CELLS];	/* by the hash of the resource */

uint64		assertions_version = 0;

static Assertion **
cell_of(const text *resource)
{
	return &cells[hash_text(resource, 0) % NUM_CELLS];
}

/* Get the claimed lease if this transaction has asserted it lately, else NULL. */
const Lease *
find_assertion(const text *resource, const Claim *claim)
{
	const Assertion *found = *cell_of(resource);

	return found != NULL && is_claimed(&found->lease, claim) &&
		same_text(found->lease.resource, resource) &&
		SubTransactionIsActive(found->made_in) ? &found->lease : NULL;
}

/* Remember a lease whose row the current subtransaction has locked. */
void
remember_assertion(const Lease *lease)
{
	MemoryContext caller_context = MemoryContextSwitchTo(cache_context);
	Assertion  *assertion = palloc(sizeof(Assertion));
	Assertion **cell = cell_of(lease->resource);

	assertion->lease = *lease;
	assertion->lease.resource = DatumGetTextPCopy(PointerGetDatum(lease->resource));
	assertion->lease.owner = DatumGetTextPCopy(PointerGetDatum(lease->owner));
	assertion->made_in = GetCurrentSubTransactionId();
	MemoryContextSwitchTo(caller_context);

	if (*cell != NULL)
	{
		pfree((*cell)->lease.resource);
		pfree((*cell)->lease.owner);
		pfree(*cell);
		assertions_version++;
	}
	*cell = assertion;
}

void
forget_assertions(void)
{
	assertions_version++;
	if (MemoryContextIsEmpty(cache_context))
		return;
	MemoryContextReset(cache_context);
	memset(cells, 0, sizeof(cells));
}

static void
forget_at_end(XactEvent event, void *arg)
{
	forget_assertions();
}

void
assertion_cache_init(void)
{
	cache_context = AllocSetContextCreate(TopMemoryContext, "lease assertions",
										  ALLOCSET_DEFAULT_SIZES);
	RegisterXactCallback(forget_at_end, NULL);
}
