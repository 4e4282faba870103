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
#include "lib/ilist.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "lease_lock.h"

/* Bytes that may be spent on one transaction's pins. */
#define MAX_PIN_MEMORY	((Size) 16 * 1024 * 1024)

/* A resource that has pins; several ones of the same hash share this. */
typedef struct PinnedResource
{
	uint64		hash;			/* the key */
	dlist_head	pins;
} PinnedResource;

typedef struct Pin
{
	dlist_node	node;			/* among those of the resource */
	dlist_node	in_order;
	int			nest_level;		/* of the subtransaction that has the row lock */
	Lease		lease;			/* its names are in the same piece of memory */
} Pin;

static MemoryContext pin_context = NULL;	/* goes with the transaction */
static HTAB *resources;
static dlist_head pins_in_order;
static uint64 losses = 0;		/* pins that were here and are not any more */

/* Get the place of a resource's pins; NULL when it is not there, unless it is to be made. */
static PinnedResource *
pinned_resource(const text *resource, HASHACTION action)
{
	uint64		hash = hash_text(resource, 0);
	PinnedResource *place;
	bool		found;

	if (pin_context == NULL)
		return NULL;
	place = hash_search(resources, &hash, action, &found);
	if (place != NULL && !found)
		dlist_init(&place->pins);
	return place;
}

static void
remove_pin(Pin *pin)
{
	PinnedResource *place = pinned_resource(pin->lease.resource, HASH_FIND);

	dlist_delete(&pin->node);
	dlist_delete(&pin->in_order);
	if (dlist_is_empty(&place->pins))
		hash_search(resources, &place->hash, HASH_REMOVE, NULL);
	pfree(pin);
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

/* Get the lease of the one who is meant if this transaction has pinned it, or NULL. */
const Lease *
pin_find(const text *resource, const Claim *claim)
{
	PinnedResource *place = pinned_resource(resource, HASH_FIND);
	dlist_iter	iter;

	if (place == NULL)
		return NULL;
	dlist_foreach(iter, &place->pins)
	{
		const Lease *lease = &dlist_container(Pin, node, iter.cur)->lease;

		if (is_claimed(lease, claim) && same_text(lease->resource, resource))
			return lease;
	}
	return NULL;
}

static void
create_pins(void)
{
	HASHCTL		info = {
		.keysize = sizeof(uint64),
		.entrysize = sizeof(PinnedResource)
	};
	MemoryContext context = AllocSetContextCreate(TopTransactionContext, "lease pins",
												  ALLOCSET_SMALL_SIZES);

	info.hcxt = context;
	resources = hash_create("pinned resources", 64, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	dlist_init(&pins_in_order);
	pin_context = context;
}

static Pin *
make_pin(const Lease *lease)
{
	Size		header = MAXALIGN(sizeof(Pin));
	Size		resource_size = MAXALIGN(VARSIZE_ANY(lease->resource));
	Size		owner_size = VARSIZE_ANY(lease->owner);
	Pin		   *pin = MemoryContextAlloc(pin_context, header + resource_size + owner_size);

	pin->nest_level = GetCurrentTransactionNestLevel();
	pin->lease = *lease;
	pin->lease.resource = memcpy((char *) pin + header, lease->resource, VARSIZE_ANY(lease->resource));
	pin->lease.owner = memcpy((char *) pin + header + resource_size, lease->owner, owner_size);
	pin->lease.payload = (Datum) 0;
	return pin;
}

/* Remember a lease whose row the current subtransaction has just locked. */
void
pin_remember(const Lease *lease)
{
	Pin		   *pin;

	pin_forget(lease);
	if (pin_context != NULL && MemoryContextMemAllocated(pin_context, true) > MAX_PIN_MEMORY)
	{
		MemoryContextDelete(pin_context);
		pin_context = NULL;
		losses++;
	}
	if (pin_context == NULL)
		create_pins();

	pin = make_pin(lease);
	dlist_push_tail(&pinned_resource(lease->resource, HASH_ENTER)->pins, &pin->node);
	dlist_push_tail(&pins_in_order, &pin->in_order);
}

/*
 * The transaction itself grants, ends or moves a lease. A pin in the same slot
 * goes with that, and an exclusive lease leaves no other one beside it. Those
 * of others who share the resource stay: they cannot be lost, even when their
 * time ran out since.
 */
void
pin_forget(const Lease *lease)
{
	PinnedResource *place = pinned_resource(lease->resource, HASH_FIND);
	dlist_iter	iter;
	List	   *ended = NIL;
	ListCell   *cell;

	if (place == NULL)
		return;
	dlist_foreach(iter, &place->pins)
	{
		Pin		   *pin = dlist_container(Pin, node, iter.cur);
		int16		slot = pin->lease.slot;

		if ((slot == lease->slot || slot == GATE_SLOT || lease->slot == GATE_SLOT) &&
			same_text(pin->lease.resource, lease->resource))
			ended = lappend(ended, pin);
	}
	foreach(cell, ended)
		remove_pin(lfirst(cell));
	list_free(ended);
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
			Pin		   *last = dlist_tail_element(Pin, in_order, &pins_in_order);

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
			Pin		   *pin = dlist_container(Pin, in_order, iter.cur);

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
