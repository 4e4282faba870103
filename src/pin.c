/*-------------------------------------------------------------------------
 *
 * pin.c
 *		Leases that the current transaction has asserted, and so has pinned.
 *
 * A lease that is pinned cannot be lost before the transaction ends, except
 * by what the transaction itself does. So it need not be looked at again: a
 * thousand rows under one lease cost one row lock.
 *
 * What is remembered goes with the row lock: at the end of the transaction,
 * or when the savepoint is rolled back after which the lock was taken. To find
 * those, pins are kept in the order in which they were taken, which is also
 * that of the nesting of their subtransactions.
 *
 * This is only a memory. When it has grown too large, all is forgotten; a
 * lease that is then asserted again is looked at again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "lib/ilist.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "compat.h"
#include "lease_lock.h"

/* Bytes that may be spent on one transaction's pins. */
#define MAX_PIN_MEMORY	((Size) 16 * 1024 * 1024)

typedef struct Pin
{
	uint64		hash;			/* of the resource; the key */
	int			nest_level;		/* of the subtransaction that has the row lock */
	dlist_node	node;
	Lease		lease;
} Pin;

static MemoryContext pin_context = NULL;	/* goes with the transaction */
static HTAB *pins;
static dlist_head pins_in_order;
static uint64 losses = 0;		/* pins that were here and are not any more */

static uint64
resource_hash(const text *resource)
{
	return hash_bytes_extended((const unsigned char *) VARDATA_ANY(resource),
							   VARSIZE_ANY_EXHDR(resource), 0);
}

static bool
same_text(const text *a, const text *b)
{
	return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

/* Find the pin of a resource, or that of another one with the same hash. */
static Pin *
find_pin(uint64 hash)
{
	return pin_context == NULL ? NULL : hash_search(pins, &hash, HASH_FIND, NULL);
}

static void
remove_pin(Pin *pin)
{
	dlist_delete(&pin->node);
	pfree(pin->lease.resource);
	pfree(pin->lease.owner);
	hash_search(pins, &pin->hash, HASH_REMOVE, NULL);
	losses++;
}

/*
 * Count of pins that were forgotten, ever. While it stays the same, what was
 * pinned in this transaction still is.
 */
uint64
pin_losses(void)
{
	return losses;
}

/* Get the lease on the resource if this transaction has pinned it, or NULL. */
const Lease *
pin_find(const text *resource)
{
	Pin		   *pin = find_pin(resource_hash(resource));

	return pin != NULL && same_text(pin->lease.resource, resource) ? &pin->lease : NULL;
}

static void
create_pins(void)
{
	HASHCTL		info = {
		.keysize = sizeof(uint64),
		.entrysize = sizeof(Pin)
	};
	MemoryContext context = AllocSetContextCreate(TopTransactionContext, "lease pins",
												  ALLOCSET_SMALL_SIZES);

	info.hcxt = context;
	pins = hash_create("lease pins", 64, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	dlist_init(&pins_in_order);
	pin_context = context;
}

static text *
copy_text(const text *original)
{
	text	   *copy = MemoryContextAlloc(pin_context, VARSIZE_ANY(original));

	return memcpy(copy, original, VARSIZE_ANY(original));
}

/* Remember a lease whose row the current subtransaction has just locked. */
void
pin_remember(const Lease *lease)
{
	uint64		hash = resource_hash(lease->resource);
	Pin		   *pin = find_pin(hash);
	Lease		copy = *lease;

	if (pin != NULL)
		remove_pin(pin);

	if (pin_context != NULL && MemoryContextMemAllocated(pin_context, true) > MAX_PIN_MEMORY)
	{
		MemoryContextDelete(pin_context);
		pin_context = NULL;
		losses++;
	}
	if (pin_context == NULL)
		create_pins();

	copy.resource = copy_text(lease->resource);
	copy.owner = copy_text(lease->owner);
	pin = hash_search(pins, &hash, HASH_ENTER, NULL);
	pin->nest_level = GetCurrentTransactionNestLevel();
	pin->lease = copy;
	dlist_push_tail(&pins_in_order, &pin->node);
}

/* The transaction itself ends or moves the lease. */
void
pin_forget(const text *resource)
{
	Pin		   *pin = pin_context == NULL ? NULL : find_pin(resource_hash(resource));

	if (pin != NULL)
		remove_pin(pin);
}

static void
forget_at_end(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
	{
		pin_context = NULL;		/* freed with TopTransactionContext */
		losses++;
	}
}

/* Pins go to the parent with their row locks, or are gone with them. */
static void
follow_subtransaction(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (pin_context == NULL || (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB))
		return;

	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		while (!dlist_is_empty(&pins_in_order))
		{
			Pin		   *last = dlist_tail_element(Pin, node, &pins_in_order);

			if (last->nest_level < level)
				break;
			remove_pin(last);
		}
	}
	else
	{
		dlist_iter	iter;

		dlist_reverse_foreach(iter, &pins_in_order)
		{
			Pin		   *pin = dlist_container(Pin, node, iter.cur);

			if (pin->nest_level < level)
				break;
			pin->nest_level = level - 1;
		}
	}
}

void
pin_init(void)
{
	RegisterXactCallback(forget_at_end, NULL);
	RegisterSubXactCallback(follow_subtransaction, NULL);
}
