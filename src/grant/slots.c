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
 * Nor may a permit among thousands cost as much as all of them. An owner's own
 * lease is in one of the first slots, which are looked at one by one, or an
 * index tells where (NEAR_SLOTS). And the search ends at the first slot that is
 * free, unless somebody holds one beyond the number. All slots are looked at
 * when there is no other way to tell that none is free.
 *
 * A lease that expired does not free its slot while its owner's transaction
 * pins it. Nothing but the attempt to lock the row tells; it is made in a
 * subtransaction of which nothing remains.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "monitor/events.h"
#include "purge/purge.h"

/* What the visitor of the slots keeps in mind. */
typedef struct Search
{
	const LeaseRequest *request;
	const Bitmapset *avoid;		/* slots that did not let themselves be locked */
	TimestampTz now;
	int			first;			/* slots to choose from */
	int			last;
	int			home;			/* the owner's place among them */
	int			last_slot;		/* that was visited; they come in descending order */
	int			visited;		/* so many, in one place among the far ones */
	bool		last_was_taken;
	int			taken_beyond;	/* of the taken ones, beyond those to choose from */
	int			used;			/* free slots to choose from: with a row, */
	int			unused;			/* without one, */
	int			lowest;			/* and the lowest of both */
	bool		used_was_own;
	int			left;			/* a far one, free, that the owner was the last to have */
	SlotSurvey	survey;
} Search;

/* How far a slot is from the owner's place, going up and around. */
static int
distance(const Search *search, int slot)
{
	int			nslots = search->last - search->first + 1;

	return (slot - search->home + nslots) % nslots;
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
	to = Min(to, search->last);
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
	SlotSurvey *survey = &search->survey;
	bool		own = is_owner(lease, search->request->owner);

	if (lease->owner != NULL)
	{
		survey->expired = lappend_int(survey->expired, lease->slot);
		if (search->request->mode == MODE_EXCLUSIVE &&
			(survey->former == NULL || survey->former->token < lease->token))
		{
			if (survey->former != NULL)
			{
				pfree(survey->former->owner);
				pfree(survey->former);
			}
			survey->former = former_lease(lease);
		}
	}
	if (lease->slot > search->last || bms_is_member(lease->slot, search->avoid))
		return;

	if (own || !search->used_was_own)
		keep_nearest(search, &search->used, lease->slot);
	search->used_was_own |= own;
	search->lowest = lease->slot;
}

/* SlotVisitor */
static bool
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
		return true;

	if (busy == NULL && is_free(lease, search->now))
	{
		offer_used(search, lease);
		return true;
	}

	if (busy != NULL && purge_has(busy->xid))
	{
		survey->purger = *busy;
		return true;
	}

	search->last_was_taken = true;
	survey->taken++;
	if (lease->slot > search->last)
		search->taken_beyond++;
	if (busy != NULL)
	{
		survey->busy = *busy;
		return true;
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
	return true;
}

/* The place of a hash among so many, from 0. */
static int
hash_place(uint32 hash, int nplaces)
{
	return (int) (((uint64) hash * nplaces) >> 32);
}

/* Begin to look for one of these slots, if any. */
static Search
begin_search(const LeaseRequest *request, const Bitmapset *avoid, int first, int last)
{
	return (Search) {
		.request = request,
		.avoid = avoid,
		.now = clock_now(),		/* before the look: see prolong_lease() */
		.first = first,
		.last = last,
		.home = first <= last ? first + hash_place(hash_text(request->owner, 0), last - first + 1) : 0,
		.last_slot = MAX_SLOT + 1,
		.survey = {.first_free_at = DT_NOEND, .last_free_at = DT_NOBEGIN}
	};
}

/*
 * Look at all slots of the resource, and choose one to take if the request
 * may have any.
 */
SlotSurvey
survey_slots(LeaseStore *store, const LeaseRequest *request, const Bitmapset *avoid)
{
	Search		search = begin_search(request, avoid, 1, request->permits);

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

/* SlotVisitor: a far slot that may have a lease of the owner. */
static bool
look_at_own_slot(const Lease *lease, const BusyRow *busy, void *arg)
{
	Search	   *search = arg;
	bool		own = is_owner(lease, search->request->owner);

	search->survey.last_token = Max(search->survey.last_token, lease->token);
	if (own && (busy != NULL || is_held(lease, search->now)))
		search->survey.own_slot = lease->slot;
	else if (busy == NULL && is_free(lease, search->now) && lease->slot <= search->request->permits &&
			 !bms_is_member(lease->slot, search->avoid))
	{
		search->left = lease->slot;
		if (own)
			search->used = lease->slot;
	}
	return true;
}

/*
 * How many far slots are looked at, where one after the other is taken, before
 * the search goes on elsewhere; also, in the hope for one that somebody left,
 * before a row is made. And in how many places before all are looked at.
 */
#define SLOTS_IN_PLACE	8
#define MAX_PLACES		16

/* One place for so many far slots: with fewer, it is not worth it. */
#define SLOTS_FOR_PLACE	64

/* SlotVisitor: end at the first slot that somebody left. */
static bool
look_at_far_slot(const Lease *lease, const BusyRow *busy, void *arg)
{
	Search	   *search = arg;

	search->survey.last_token = Max(search->survey.last_token, lease->token);
	if (lease->slot != search->last_slot)
	{
		if (search->unused == 0 && lease->slot < search->last_slot - 1)
			search->unused = search->last_slot - 1;
		search->last_slot = lease->slot;
		search->last_was_taken = false;
		search->visited++;
	}

	if (busy != NULL || !is_free(lease, search->now))
		search->last_was_taken = true;
	else if (!search->last_was_taken && !bms_is_member(lease->slot, search->avoid))
		search->used = lease->slot;
	return search->used == 0 && search->visited < SLOTS_IN_PLACE;
}

/*
 * Look for a far slot in some places that depend on the owner. In each, go down
 * for a few slots.
 */
static void
search_far_slots(LeaseStore *store, Search *search)
{
	const LeaseRequest *request = search->request;
	int			nfar = request->permits - NEAR_SLOTS;
	int			nplaces = Min(1 + nfar / SLOTS_FOR_PLACE, MAX_PLACES);
	uint32		hash = hash_text(request->owner, 0);

	for (int i = 0; i < nplaces && search->used == 0 && search->unused == 0; i++)
	{
		int			start = NEAR_SLOTS + 1 + hash_place(murmurhash32(hash + i), nfar);

		search->last_slot = start + 1;
		search->last_was_taken = false;
		search->visited = 0;
		store_visit_slot_range(store, request->resource, NEAR_SLOTS + 1, start, look_at_far_slot, search);
		if (search->visited < SLOTS_IN_PLACE && search->unused == 0 && search->last_slot > NEAR_SLOTS + 1)
			search->unused = search->last_slot - 1;
	}
}

/* Is any of the slots taken that are looked at? */
typedef struct TakenCheck
{
	TimestampTz now;			/* before the look: see prolong_lease() */
	bool		taken;
} TakenCheck;

/* SlotVisitor */
static bool
note_taken(const Lease *lease, const BusyRow *busy, void *arg)
{
	TakenCheck *check = arg;

	check->taken = busy != NULL ? !purge_has(busy->xid) : !is_free(lease, check->now);
	return !check->taken;
}

/* Has somebody a slot beyond the number that is asked for? */
static bool
is_taken_beyond(LeaseStore *store, const LeaseRequest *request)
{
	TakenCheck	check = {.now = clock_now()};

	if (request->permits < MAX_SLOT)
		store_visit_slot_range(store, request->resource, request->permits + 1, MAX_SLOT, note_taken, &check);
	return check.taken;
}

/*
 * Find a slot that the request may have, and the one that its owner has already,
 * without looking at more slots than necessary. When a free one is found, what
 * the survey says of the others is only what was seen.
 *
 * Whether somebody is beyond the permits is looked at last. If nobody is, the
 * primary key alone keeps the others to as many as there are permits.
 */
SlotSurvey
find_slot(LeaseStore *store, const LeaseRequest *request, const Bitmapset *avoid)
{
	Search		search;
	bool		has_far_slots;

	if (request->permits <= NEAR_SLOTS)
		return survey_slots(store, request, avoid);

	search = begin_search(request, avoid, 1, NEAR_SLOTS);
	has_far_slots = store_visit_near_slots(store, request->resource, look_at_slot, &search);
	offer_unused(&search, 1, search.last_slot - 1);
	if (has_far_slots)
		store_visit_far_slots_of(store, request->resource, request->owner, look_at_own_slot, &search);
	if (search.survey.own_slot > 0)
		return search.survey;

	if (search.used == 0 && search.unused == 0)
		search.used = search.left;
	if (search.used == 0 && search.unused == 0)
		search_far_slots(store, &search);
	search.survey.free_slot = search.used != 0 ? search.used : search.unused;
	if (search.survey.free_slot == 0 || (has_far_slots && is_taken_beyond(store, request)))
		return survey_slots(store, request, avoid);
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
	uint64		hash = hash_text(request->owner, hash_text(request->resource, 0));
	LOCKTAG		tag = {0};

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
