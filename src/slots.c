/*-------------------------------------------------------------------------
 *
 * slots.c
 *		The slots beside the gate: shared leases and permits.
 *
 * There is one mechanism for both. A lease of that kind stands in a slot of
 * its own, numbered from 1, as an ordinary row with owner, token and expiry. A
 * permit may take one of the first so many slots, a shared lease any. So
 * the primary key sees to it that there are not more holders than permits,
 * without a counter that everybody would have to change.
 *
 * That is not enough when somebody holds a slot beyond the number that is
 * asked for, since another caller stated a larger one. Then those are counted,
 * and the lowest free slot is the only one that may be taken: of two who do
 * that at the same time one meets the other, and counts again.
 *
 * Otherwise the search begins at a place that depends on the owner, so that
 * many who come at once do not all try the same slot, and who comes again
 * finds the row that it left.
 *
 * A lease that expired does not free its slot while its owner's transaction
 * pins it. Nothing but the attempt to lock the row tells; it is made in a
 * subtransaction of which nothing remains.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"

#include "compat.h"
#include "purge.h"

/* What the visitor of the slots keeps in mind. */
typedef struct Search
{
	const LeaseRequest *request;
	const Bitmapset *avoid;		/* slots that did not let themselves be locked */
	TimestampTz now;
	int			home;			/* the owner's place among the permits */
	int			last_slot;		/* that was visited; they come in descending order */
	bool		last_was_taken;
	int			taken_beyond;	/* of the taken ones, beyond the permits */
	int			used;			/* free slots to choose from: with a row, */
	int			unused;			/* without one, */
	int			lowest;			/* and the lowest of both */
	bool		used_was_own;
	SlotSurvey	survey;
} Search;

/* How far a slot is from the owner's place, going up and around. */
static int
distance(const Search *search, int slot)
{
	return (slot - search->home + search->request->permits) % search->request->permits;
}

static void
keep_nearest(const Search *search, int *best, int slot)
{
	if (*best == 0 || distance(search, slot) < distance(search, *best))
		*best = slot;
}

/* Nobody ever used the slots between two numbers. */
static void
offer_unused(Search *search, int from, int to)
{
	to = Min(to, search->request->permits);
	if (from > to)
		return;

	if (from <= search->home && search->home <= to)
		search->unused = search->home;
	else
		keep_nearest(search, &search->unused, from);
	search->lowest = from;
}

/* Somebody left this slot. */
static void
offer_used(Search *search, const Lease *lease)
{
	bool		own = is_owner(lease, search->request->owner);

	if (lease->owner != NULL)
		search->survey.expired = lappend_int(search->survey.expired, lease->slot);
	if (lease->slot > search->request->permits || bms_is_member(lease->slot, search->avoid))
		return;

	if (own || !search->used_was_own)
		keep_nearest(search, &search->used, lease->slot);
	search->used_was_own |= own;
	search->lowest = lease->slot;
}

/* SlotVisitor */
static void
look_at_slot(const Lease *lease, const BusyRow *busy, void *arg)
{
	Search	   *search = arg;
	SlotSurvey *survey = &search->survey;

	survey->last_token = Max(survey->last_token, lease->token);
	if (lease->slot != search->last_slot)
	{
		offer_unused(search, lease->slot + 1, search->last_slot - 1);
		search->last_slot = lease->slot;
		search->last_was_taken = false;
	}

	/* Whatever an open transaction does to the owner's lease may be undone. */
	if (busy != NULL && is_owner(lease, search->request->owner))
		survey->own_slot = lease->slot;
	if (search->last_was_taken)
		return;

	if (busy == NULL && is_free(lease, search->now))
	{
		offer_used(search, lease);
		return;
	}

	if (busy != NULL && purge_has(busy->xid))
	{
		survey->purger = *busy;
		return;
	}

	search->last_was_taken = true;
	survey->taken++;
	if (lease->slot > search->request->permits)
		search->taken_beyond++;
	if (busy != NULL)
	{
		survey->busy = *busy;
		return;
	}

	survey->first_free_at = Min(survey->first_free_at, free_from(lease));
	survey->last_free_at = Max(survey->last_free_at, free_from(lease));
	if (is_held(lease, search->now) && is_owner(lease, search->request->owner))
		survey->own_slot = lease->slot;
	if (search->request->explain && lease->owner != NULL && survey->holder == NULL)
	{
		survey->holder = (text *) PG_DETOAST_DATUM_COPY(PointerGetDatum(lease->owner));
		survey->holder_role = lease->holder;
	}
}

/* The owner's place among so many slots. */
static int
home_slot(const LeaseRequest *request)
{
	uint32		hash = hash_bytes((const unsigned char *) VARDATA_ANY(request->owner),
								  VARSIZE_ANY_EXHDR(request->owner));

	return 1 + (int) (((uint64) hash * request->permits) >> 32);
}

/*
 * Look at all slots of the resource, and choose one to take if the request
 * may have any.
 */
SlotSurvey
survey_slots(LeaseStore *store, const LeaseRequest *request, const Bitmapset *avoid)
{
	Search		search = {
		.request = request,
		.avoid = avoid,
		.now = clock_now(),
		.home = request->permits > 0 ? home_slot(request) : 0,
		.last_slot = MAX_SLOT + 1,
		.survey = {.first_free_at = DT_NOEND, .last_free_at = DT_NOBEGIN}
	};

	store_visit_slots(store, request->resource, look_at_slot, &search);
	offer_unused(&search, 1, search.last_slot - 1);

	if (search.survey.taken >= request->permits)
		search.survey.free_slot = 0;
	else if (search.taken_beyond > 0)
		search.survey.free_slot = search.lowest;
	else
		search.survey.free_slot = search.used != 0 ? search.used : search.unused;
	return search.survey;
}

typedef struct PinSearch
{
	LeaseStore *store;
	const text *resource;
	const List *slots;
	int			pinned;
} PinSearch;

/* SubtransactionWork: try to lock every slot, and keep nothing of it. */
static bool
search_pin(void *arg)
{
	PinSearch  *search = arg;
	ListCell   *cell;

	foreach(cell, search->slots)
	{
		ProbeResult found = store_probe(search->store, search->resource, lfirst_int(cell));

		if (found == PROBE_BUSY ||
			(found == PROBE_FOUND &&
			 store_lock_row(search->store, LockTupleExclusive, LockWaitSkip) == ROW_BUSY))
		{
			search->pinned = lfirst_int(cell);
			break;
		}
	}
	store_forget_row(search->store);
	return false;
}

/*
 * Find one of these slots, whose leases have expired, that its owner's
 * transaction still pins; -1 when there is none.
 */
int
find_pinned_slot(LeaseStore *store, const text *resource, const List *slots)
{
	PinSearch	search = {store, resource, slots, -1};
	bool		written = store->written;
	ErrorData  *error;

	if (slots == NIL)
		return -1;

	store_forget_row(store);
	error = run_subtransaction(search_pin, &search);
	if (error != NULL)
		ReThrowError(error);
	store->written = written;
	return search.pinned;
}

static LOCKTAG
name_tag(const LeaseRequest *request)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) VARDATA_ANY(request->resource),
										   VARSIZE_ANY_EXHDR(request->resource), 0);
	LOCKTAG		tag = {0};

	hash = hash_bytes_extended((const unsigned char *) VARDATA_ANY(request->owner),
							   VARSIZE_ANY_EXHDR(request->owner), hash);
	tag.locktag_field1 = MyDatabaseId;
	tag.locktag_field2 = (uint32) (hash >> 32);
	tag.locktag_field3 = (uint32) hash;
	tag.locktag_type = LOCKTAG_USERLOCK;
	tag.locktag_lockmethodid = USER_LOCKMETHOD;
	return tag;
}

/*
 * Make sure that nobody else takes a slot under the same owner's name until
 * our transaction ends: two of them would not meet in any row. Does not wait.
 */
bool
claim_name(const LeaseRequest *request)
{
	LOCKTAG		tag = name_tag(request);

	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/* Wait until nobody else has the name. To be called in a subtransaction: leaves a lock. */
void
wait_for_name(const LeaseRequest *request)
{
	LOCKTAG		tag = name_tag(request);

	LockAcquire(&tag, ShareLock, false, false);
}

void
give_up_name(const LeaseRequest *request)
{
	LOCKTAG		tag = name_tag(request);

	LockRelease(&tag, ExclusiveLock, false);
}
