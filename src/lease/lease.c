/*-------------------------------------------------------------------------
 *
 * lease.c
 *		What becomes of a lease: released, renewed, handed over, purged.
 *
 * The store says what is committed now, plus what the own transaction did,
 * whatever snapshot the caller has. Every rule reads the clock after the last
 * thing it may have waited for, so that a lease is never judged, or dated, by
 * a time from before the wait.
 *
 * Strength of the row locks: a transaction that relies on its lease until it
 * ends (a pin) holds the row FOR KEY SHARE. Whatever ends or moves a lease
 * takes the row exclusively, so that it cannot pass a pin. A renewal
 * takes the weaker lock that passes: a heartbeat must go on beside a long
 * transaction of the same owner.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "base/compat.h"
#include "monitor/events.h"
#include "grant/quota.h"
#include "wait/wait.h"

static bool durable = true;

void
lease_init(void)
{
	DefineCustomBoolVariable("lease_lock.durable",
							 "Makes granted and renewed leases survive a crash, whatever synchronous_commit says.",
							 NULL,
							 &durable,
							 true,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);
}

/* Was the lease, when it was last granted, granted to the one who is meant? */
bool
is_claimed(const Lease *lease, const Claim *claim)
{
	return lease->owner != NULL &&
		(claim->owner == NULL || is_owner(lease, claim->owner)) &&
		(claim->token == NULL || lease->token == *claim->token);
}

/* May the current role act for the role that acquired the lease? */
bool
may_act(const Lease *lease)
{
	return has_privs_of_role(GetUserId(), lease->holder);
}

/*
 * May the current role see owners of leases of that role? Also who may see what
 * others are doing in pg_stat_activity.
 */
bool
may_see_owner(Oid role)
{
	return has_privs_of_role(GetUserId(), role) ||
		has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
}

/* The owner's name alone is not enough to act on somebody else's lease. */
void
require_holder_privileges(const Lease *lease)
{
	const char *holder;

	if (may_act(lease))
		return;

	holder = GetUserNameFromId(lease->holder, true);
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for lease on \"%s\"", text_to_cstring(lease->resource)),
			 holder ? errdetail("It was acquired by role \"%s\".", holder) :
			 errdetail("It was acquired by a role that was dropped."),
			 holder ? errhint("Act as a role that has the privileges of that role.") :
			 errhint("Wait until it expires, or ask a superuser to release it.")));
}

/*
 * A lease that is lost in a crash after its holder was told has two owners.
 * The opposite does no harm: a lost release keeps a lease until it expires.
 */
void
make_durable(void)
{
	if (durable)
		ForceSyncCommit();
}

/*
 * Turn the locked row into a tombstone that others get from then on. What means
 * nothing without an owner stays as it is, and need not be logged.
 */
static void
leave_tombstone(LeaseStore *store, TimestampTz free_at)
{
	Lease		lease = store->lease;

	lease.owner = NULL;
	lease.expires_at = Min(lease.expires_at, free_at);
	lease.lock_delay = 0;
	lease.hold_until = DT_NOBEGIN;
	lease.payload = (Datum) 0;
	pin_forget(&lease);
	wait_note_change(lease.resource, lease.expires_at);
	store_update(store, &lease);
}

/* The owner gives the lease back. It may have promised to keep it for longer. */
static void
end_lease(LeaseStore *store)
{
	note_release(&store->lease);
	leave_tombstone(store, Max(clock_now(), store->lease.hold_until));
}

/* Slots with a lease of the one who is meant. */
typedef struct ClaimedSlots
{
	const Claim *claim;
	List	   *slots;			/* int list */
} ClaimedSlots;

/* SlotVisitor */
static bool
note_claimed_slot(const Lease *lease, const BusyRow *busy, void *arg)
{
	ClaimedSlots *claimed = arg;

	if (is_claimed(lease, claimed->claim))
		claimed->slots = list_append_unique_int(claimed->slots, lease->slot);
	return true;
}

/* Look for slots with a lease of the one who is meant. */
static void
find_claimed_slots(LeaseStore *store, const text *resource, ClaimedSlots *claimed)
{
	const text *owner = claimed->claim->owner;

	if (owner == NULL)
		store_visit_slots(store, resource, note_claimed_slot, claimed);
	else if (store_visit_near_slots(store, resource, note_claimed_slot, claimed))
		store_visit_far_slots_of(store, resource, owner, note_claimed_slot, claimed);
}

/* SlotVisitor */
static bool
note_token(const Lease *lease, const BusyRow *busy, void *arg)
{
	int64	   *last_token = arg;

	*last_token = Max(*last_token, lease->token);
	return true;
}

/* Get the highest token of all slots. */
static int64
last_slot_token(LeaseStore *store, const text *resource)
{
	int64		last_token = 0;

	store_visit_slots(store, resource, note_token, &last_token);
	return last_token;
}

/*
 * Stand on the lease of the one who is meant, as far as committed; false when
 * there is none. It may have expired; of several, the latest one counts. One
 * that has expired is lost when the resource was granted in the other way
 * since: exclusively, over its slot, or to a slot, over the gate.
 */
bool
fetch_claimed_lease(LeaseStore *store, const text *resource, const Claim *claim)
{
	ClaimedSlots claimed = {.claim = claim};
	ListCell   *cell;
	int64		gate_token = 0;
	int			slot = -1;
	int64		token = 0;

	/* What nobody is changing is as committed, and found without a snapshot. */
	if (store_probe(store, resource, GATE_SLOT) == PROBE_FOUND || store_fetch(store, resource, GATE_SLOT))
	{
		gate_token = store->lease.token;
		if (is_claimed(&store->lease, claim))
		{
			if (is_held(&store->lease, clock_now()))
				return true;
			slot = GATE_SLOT;
			token = gate_token;
		}
	}

	if (slot == GATE_SLOT && last_slot_token(store, resource) > token)
		slot = -1;
	find_claimed_slots(store, resource, &claimed);
	foreach(cell, claimed.slots)
	{
		if (store_fetch(store, resource, lfirst_int(cell)) && is_claimed(&store->lease, claim) &&
			store->lease.token > token &&
			(store->lease.token > gate_token || is_held(&store->lease, clock_now())))
		{
			slot = store->lease.slot;
			token = store->lease.token;
		}
	}
	return slot >= 0 && store_fetch(store, resource, slot) && is_claimed(&store->lease, claim);
}

/*
 * Stand on the row of a lease that the one who is meant took and has not
 * released, with the row locked; false when there is none. Waits for whoever
 * has the row.
 */
static bool
find_own_lease(LeaseStore *store, const text *resource, const Claim *claim, LockTupleMode mode)
{
	if (!fetch_claimed_lease(store, resource, claim))
		return false;
	require_holder_privileges(&store->lease);

	if (store_lock_row(store, mode, LockWaitBlock) != ROW_LOCKED || !is_claimed(&store->lease, claim))
		return false;
	require_holder_privileges(&store->lease);	/* of whoever took it meanwhile */

	return true;
}

/*
 * Release the lease if the one who is meant was the last to take it, also when
 * its time ran out since. One that was acquired several times has to be released as
 * often. Waits for an open transaction that is changing it.
 */
bool
release_lease(const text *resource, const Claim *claim)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	bool		released = find_own_lease(store, resource, claim, LockTupleExclusive);

	if (released && store->lease.holds > 1 && is_held(&store->lease, clock_now()))
	{
		Lease		lease = store->lease;

		lease.holds--;
		store_update(store, &lease);
	}
	else if (released)
		end_lease(store);

	store_close(store);
	return released;
}

/* StoreFilter: rows of the owner that arg points to. */
static bool
belongs_to(const Lease *lease, const void *arg)
{
	return is_owner(lease, arg);
}

/*
 * Is a lease that has expired lost, since the resource was granted in the other
 * way meanwhile? See fetch_claimed_lease().
 */
static bool
is_lost(const Lease *lease)
{
	LeaseStore *store = store_open(AccessShareLock);
	bool		lost;

	if (lease->slot != GATE_SLOT)
		lost = store_fetch(store, lease->resource, GATE_SLOT) && store->lease.token > lease->token;
	else
		lost = last_slot_token(store, lease->resource) > lease->token;
	store_close(store);
	return lost;
}

/*
 * Release everything that this owner took; returns how many leases.
 *
 * Leases of roles that the caller may not act for are passed over: another
 * role that happens to use the same owner name must not spoil the rest.
 *
 * Reads the whole table. An index on the owner would make every grant and
 * release of every lease pay for it, none of them being in place any more.
 */
int64
release_all_leases(const text *owner)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	int64		released = 0;

	while (store_next(store, belongs_to, owner))
	{
		CHECK_FOR_INTERRUPTS();

		if (may_act(&store->lease) &&
			(is_held(&store->lease, clock_now()) || !is_lost(&store->lease)) &&
			store_lock_row(store, LockTupleExclusive, LockWaitBlock) == ROW_LOCKED &&
			is_owner(&store->lease, owner) && may_act(&store->lease))
		{
			end_lease(store);
			released++;
		}
	}

	store_close(store);
	return released;
}

/*
 * Write that the lease that the store stands on, held and locked, lasts longer;
 * false when its time ran out before others could see that.
 *
 * Who takes a lease in another slot does not lock this row. If it read the clock
 * after the end, and the row before the change, it took the lease for expired and may
 * have granted one that does not go with it. So it is over then, as it was.
 */
bool
prolong_lease(LeaseStore *store, const text *resource, const Lease *prolonged)
{
	Lease		before = store->lease;
	Lease		after;

	store_update(store, prolonged);
	if (before.slot == GATE_SLOT || is_held(&before, clock_now()))
		return true;

	if (!store_fetch(store, resource, before.slot))
		elog(ERROR, "lost a lease of the own transaction");
	after = store->lease;
	after.expires_at = before.expires_at;
	after.holds = before.holds;
	after.hold_until = before.hold_until;
	store_update(store, &after);
	return false;
}

/*
 * Extend a held lease to at least ttl from now. Waits for an open transaction
 * that is changing it, but not for one that only relies on it.
 */
bool
renew_lease(const text *resource, int64 ttl, const Claim *claim)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	bool		renewed = false;

	if (find_own_lease(store, resource, claim, LockTupleNoKeyExclusive))
	{
		TimestampTz now = clock_now();

		if (is_held(&store->lease, now))
		{
			Lease		lease = store->lease;

			lease.expires_at = Max(lease.expires_at, now + ttl);
			wait_note_change(resource, free_from(&lease));
			renewed = prolong_lease(store, resource, &lease);
			if (renewed)
			{
				note_renewal(&lease);
				make_durable();
			}
		}
	}

	store_close(store);
	return renewed;
}

/*
 * Hand a held lease over to another owner, with a new token; false when this
 * owner does not hold it. Waits like a release.
 */
bool
transfer_lease(text *resource, const text *owner, text *new_owner, int64 *token)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	Claim		claim = {.owner = owner};
	bool		held = find_own_lease(store, resource, &claim, LockTupleExclusive) &&
		is_held(&store->lease, clock_now());

	if (held)
	{
		Lease		lease = store->lease;
		bool		to_another = !is_owner(&lease, new_owner);

		if (to_another && lease.slot != GATE_SLOT)
		{
			LeaseRequest request = {.resource = resource, .owner = new_owner, .permits = MAX_SLOT};

			if (!claim_name(&request) || find_slot(store, &request, NULL).own_slot > 0)
				ereport(ERROR,
						(errcode(ERRCODE_OBJECT_IN_USE),
						 errmsg("new owner has a lease on \"%s\" already", text_to_cstring(resource)),
						 errhint("An owner has at most one lease on a resource.")));
			store_fetch(store, resource, lease.slot);
			lease = store->lease;
		}
		lease.owner = new_owner;
		lease.token = *token = store_next_token(store);
		if (lease.token <= store->lease.token)
			store_refuse_token(store);
		lease.granted_at = clock_now();
		lease.xid = GetTopFullTransactionId();
		lease.holds = 1;
		note_transfer(&lease, &store->lease);
		pin_forget(&lease);
		wait_note_change(resource, free_from(&lease));
		store_update(store, &lease);
		if (to_another)
			require_lease_allowed(&lease);
		make_durable();
	}

	store_close(store);
	return held;
}

/* Slots that are not free, and one of the open transactions that have some. */
typedef struct TakenSlots
{
	List	   *slots;			/* int list */
	BusyRow		busy;
} TakenSlots;

/* SlotVisitor */
static bool
note_taken_slot(const Lease *lease, const BusyRow *busy, void *arg)
{
	TakenSlots *taken = arg;

	if (busy != NULL)
		taken->busy = *busy;
	else if (!is_free(lease, clock_now()))
		taken->slots = list_append_unique_int(taken->slots, lease->slot);
	return true;
}

/*
 * Free the resource, whoever has it; false when it was free. Waits for open
 * transactions that change or pin a lease on it, or that take a slot.
 */
bool
break_leases(const text *resource)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	TakenSlots	taken;
	ListCell   *cell;
	bool		broken = false;

	/* Once the gate is locked nobody comes in. */
	while (store_probe(store, resource, GATE_SLOT) == PROBE_BUSY)
		store_wait(store->busy);
	if (store_fetch(store, resource, GATE_SLOT))
		store_lock_row(store, LockTupleExclusive, LockWaitBlock);

	for (;;)
	{
		taken = (TakenSlots) {0};
		store_visit_slots(store, resource, note_taken_slot, &taken);
		if (!TransactionIdIsValid(taken.busy.xid))
			break;
		store_wait(taken.busy);
	}
	taken.slots = lappend_int(taken.slots, GATE_SLOT);
	foreach(cell, taken.slots)
	{
		if (store_fetch(store, resource, lfirst_int(cell)) &&
			!is_free(&store->lease, clock_now()) &&
			store_lock_row(store, LockTupleExclusive, LockWaitBlock) == ROW_LOCKED &&
			!is_free(&store->lease, clock_now()))
		{
			note_break(&store->lease);
			leave_tombstone(store, clock_now());
			broken = true;
		}
	}

	store_close(store);
	return broken;
}

/* SlotVisitor: keep a copy of every lease that somebody holds. */
static bool
note_held_lease(const Lease *lease, const BusyRow *busy, void *arg)
{
	List	  **leases = arg;
	Lease	   *copy;

	if (!is_held(lease, clock_now()) ||
		(*leases != NIL && ((Lease *) llast(*leases))->slot == lease->slot))
		return true;

	copy = palloc(sizeof(Lease));
	*copy = *lease;
	copy->owner = (text *) PG_DETOAST_DATUM_COPY(PointerGetDatum(lease->owner));
	*leases = lappend(*leases, copy);
	return true;
}

/* List the leases that somebody holds on the resource. */
List *
current_leases(LeaseStore *store, const text *resource)
{
	List	   *leases = NIL;

	if (store_fetch(store, resource, GATE_SLOT))
		note_held_lease(&store->lease, NULL, &leases);
	if (leases == NIL)
		store_visit_slots(store, resource, note_held_lease, &leases);
	return leases;
}

/* SlotVisitor: keep a copy of who changes a slot. */
static bool
note_busy_slot(const Lease *lease, const BusyRow *busy, void *arg)
{
	List	  **transactions = arg;
	BusyRow    *copy;

	if (busy == NULL || (*transactions != NIL && ((BusyRow *) llast(*transactions))->xid == busy->xid))
		return true;

	copy = palloc(sizeof(BusyRow));
	*copy = *busy;
	*transactions = lappend(*transactions, copy);
	return true;
}

/* List the open transactions that have taken slots, or are changing them. */
List *
slot_transactions(LeaseStore *store, const text *resource)
{
	List	   *transactions = NIL;

	store_visit_slots(store, resource, note_busy_slot, &transactions);
	return transactions;
}

/* Get the token of a lease that this owner holds; false when it does not. */
bool
held_token(const text *resource, const text *owner, int64 *token)
{
	LeaseStore *store = store_open(AccessShareLock);
	Claim		claim = {.owner = owner};
	bool		held = fetch_claimed_lease(store, resource, &claim) && is_held(&store->lease, clock_now());

	if (held)
		*token = store->lease.token;

	store_close(store);
	return held;
}
