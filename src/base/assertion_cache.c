/*-------------------------------------------------------------------------
 *
 * assertion_cache.c
 *		Leases that the current transaction has asserted.
 *
 * An asserted lease cannot be lost before the transaction ends, except by
 * actions of the transaction itself. So its row need not be read again: a
 * thousand rows under one lease cost one row lock.
 *
 * An entry lasts as long as its row lock: until the transaction ends, or until
 * a rollback to a savepoint that was set before the lock was taken. To find
 * the entries of a subtransaction, all entries are also kept in the order in
 * which they were made, which is the order in which subtransactions nest.
 *
 * This is only a cache. When it has grown too large, all of it is dropped, and
 * the next assertion of a lease reads its row again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "lib/ilist.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "base/assertion_cache.h"
#include "base/compat.h"
#include "rules/rules.h"

/* Limit of the memory for one transaction, in bytes. */
#define MAX_CACHE_MEMORY	((Size) 16 * 1024 * 1024)

/* A resource with asserted leases. Resources of the same hash share an entry. */
typedef struct AssertedResource
{
	uint64		hash;			/* the key */
	dlist_head	assertions;
} AssertedResource;

typedef struct Assertion
{
	dlist_node	node;			/* link in AssertedResource.assertions */
	dlist_node	in_order;
	int			nest_level;		/* of the subtransaction that holds the row lock */
	Lease		lease;			/* its names are in the same allocation */
} Assertion;

static MemoryContext cache_context = NULL;	/* freed with the transaction */
static HTAB *resources;
static dlist_head assertions_in_order;
static uint64 lost = 0;			/* counts assertions that ended */

/* Get the entry of a resource. Returns NULL if there is none and the action is not HASH_ENTER. */
static AssertedResource *
asserted_resource(const text *resource, HASHACTION action)
{
	uint64		hash = hash_text(resource, 0);
	AssertedResource *place;
	bool		found;

	if (cache_context == NULL)
		return NULL;
	place = hash_search(resources, &hash, action, &found);
	if (place != NULL && !found)
		dlist_init(&place->assertions);
	return place;
}

static void
remove_assertion(Assertion *assertion)
{
	AssertedResource *place = asserted_resource(assertion->lease.resource, HASH_FIND);

	dlist_delete(&assertion->node);
	dlist_delete(&assertion->in_order);
	if (dlist_is_empty(&place->assertions))
		hash_search(resources, &place->hash, HASH_REMOVE, NULL);
	pfree(assertion);
	lost++;
}

/* While this count stays the same, all assertions of this transaction are still valid. */
uint64
assertions_lost(void)
{
	return lost;
}

/* Get the claimed lease if this transaction has asserted it, else NULL. */
const Lease *
find_assertion(const text *resource, const Claim *claim)
{
	AssertedResource *place = asserted_resource(resource, HASH_FIND);
	dlist_iter	iter;

	if (place == NULL)
		return NULL;
	dlist_foreach(iter, &place->assertions)
	{
		const Lease *lease = &dlist_container(Assertion, node, iter.cur)->lease;

		if (is_claimed(lease, claim) && same_text(lease->resource, resource))
			return lease;
	}
	return NULL;
}

static void
create_cache(void)
{
	HASHCTL		info = {
		.keysize = sizeof(uint64),
		.entrysize = sizeof(AssertedResource)
	};
	MemoryContext context = AllocSetContextCreate(TopTransactionContext, "lease assertions",
												  ALLOCSET_SMALL_SIZES);

	info.hcxt = context;
	resources = hash_create("asserted resources", 64, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	dlist_init(&assertions_in_order);
	cache_context = context;
}

static Assertion *
make_assertion(const Lease *lease)
{
	Size		header = MAXALIGN(sizeof(Assertion));
	Size		resource_size = MAXALIGN(VARSIZE_ANY(lease->resource));
	Size		owner_size = VARSIZE_ANY(lease->owner);
	Assertion		   *assertion = MemoryContextAlloc(cache_context, header + resource_size + owner_size);

	assertion->nest_level = GetCurrentTransactionNestLevel();
	assertion->lease = *lease;
	assertion->lease.resource = memcpy((char *) assertion + header, lease->resource, VARSIZE_ANY(lease->resource));
	assertion->lease.owner = memcpy((char *) assertion + header + resource_size, lease->owner, owner_size);
	assertion->lease.payload = (Datum) 0;
	return assertion;
}

/* Remember a lease whose row the current subtransaction has just locked. */
void
remember_assertion(const Lease *lease)
{
	Assertion		   *assertion;

	forget_assertions(lease);
	if (cache_context != NULL && MemoryContextMemAllocated(cache_context, true) > MAX_CACHE_MEMORY)
	{
		MemoryContextDelete(cache_context);
		cache_context = NULL;
		lost++;
	}
	if (cache_context == NULL)
		create_cache();

	assertion = make_assertion(lease);
	dlist_push_tail(&asserted_resource(lease->resource, HASH_ENTER)->assertions, &assertion->node);
	dlist_push_tail(&assertions_in_order, &assertion->in_order);
}

/*
 * Forget the assertions of a lease slot, because the transaction itself
 * grants, ends or changes a lease there. An exclusive lease also ends the
 * assertions of all other slots, and a lease in another slot those of the
 * exclusive lease. Assertions of other shared leases stay, since these leases
 * cannot be lost, even if they expire.
 */
void
forget_assertions(const Lease *lease)
{
	AssertedResource *place = asserted_resource(lease->resource, HASH_FIND);
	dlist_iter	iter;
	List	   *ended = NIL;
	ListCell   *cell;

	if (place == NULL)
		return;
	dlist_foreach(iter, &place->assertions)
	{
		Assertion		   *assertion = dlist_container(Assertion, node, iter.cur);
		int16		slot = assertion->lease.slot;

		if ((slot == lease->slot || slot == EXCLUSIVE_SLOT || lease->slot == EXCLUSIVE_SLOT) &&
			same_text(assertion->lease.resource, lease->resource))
			ended = lappend(ended, assertion);
	}
	foreach(cell, ended)
		remove_assertion(lfirst(cell));
	list_free(ended);
}

static void
forget_at_end(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
	{
		cache_context = NULL;		/* freed with TopTransactionContext */
		lost++;
	}
}

/*
 * At the end of a subtransaction, its assertions go to the parent with their
 * row locks, or are forgotten if the row locks are released.
 */
static void
follow_subtransaction(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (cache_context == NULL || (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB))
		return;

	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		while (!dlist_is_empty(&assertions_in_order))
		{
			Assertion		   *last = dlist_tail_element(Assertion, in_order, &assertions_in_order);

			if (last->nest_level < level)
				break;
			remove_assertion(last);
		}
	}
	else
	{
		dlist_iter	iter;

		dlist_reverse_foreach(iter, &assertions_in_order)
		{
			Assertion		   *assertion = dlist_container(Assertion, in_order, iter.cur);

			if (assertion->nest_level < level)
				break;
			assertion->nest_level = level - 1;
		}
	}
}

void
assertion_cache_init(void)
{
	RegisterXactCallback(forget_at_end, NULL);
	RegisterSubXactCallback(follow_subtransaction, NULL);
}
