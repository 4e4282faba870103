/*-------------------------------------------------------------------------
 *
 * grant.c
 *		Who gets a lease: one try.
 *
 * An exclusive lease and the others meet at the gate, the row of slot 0. Who
 * wants the exclusive lease locks that row exclusively and then looks
 * whether a slot is taken. Who wants a slot locks the gate in the weakest
 * mode, which conflicts with nothing else, and then takes a slot. So each of
 * the two finds the other, and those who share are in nobody's way but the
 * exclusive one's. docs/modes.md has all of it as a table.
 *
 * Nobody can lock a gate that an open transaction has just inserted. Others
 * who want a slot need not wait for it: as long as it is not committed, they
 * take a slot only by inserting its row, look at the gate once more while
 * that can still be taken back, and lock it if it is there by then. Who
 * inserts an exclusive lease looks at the slots at the same moment, and so does
 * who turns a gate that it inserted itself into an exclusive lease.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "monitor/events.h"
#include "purge/purge.h"
#include "grant/quota.h"
#include "wait/wait.h"

static GrantOutcome
refused_held(const LeaseRequest *request, const Lease *lease)
{
	GrantOutcome outcome = {.result = REFUSED_HELD, .held_until = free_from(lease)};

	if (request->explain && lease->owner != NULL)
	{
		outcome.blocked_by = (text *) PG_DETOAST_DATUM_COPY(PointerGetDatum(lease->owner));
		outcome.blocked_role = lease->holder;
	}
	return outcome;
}

static GrantOutcome
refused_by_transaction(BusyRow busy)
{
	return (GrantOutcome) {.result = REFUSED_BUSY, .held_until = DT_NOEND, .busy = busy};
}

static GrantOutcome
refused_by_row_lock(int16 slot, LockTupleMode mode)
{
	return (GrantOutcome) {
		.result = REFUSED_BUSY,
		.held_until = DT_NOEND,
		.locked_slot = slot,
		.lock_mode = mode
	};
}

static GrantOutcome
refused_queue(void)
{
	return (GrantOutcome) {.result = REFUSED_QUEUE, .held_until = DT_NOEND};
}

/* Another grant to the same owner is under way, and wins. */
static GrantOutcome
refused_by_name(void)
{
	return (GrantOutcome) {.result = REFUSED_BUSY, .held_until = DT_NOEND, .name_in_use = true};
}

/*
 * Slots are in the way: of an exclusive lease all of them, and so any open
 * transaction that has one is worth waiting for; of the others any of them, and
 * then only a single one leaves no choice what to wait for.
 */
static GrantOutcome
refused_by_slots(const LeaseRequest *request, const SlotSurvey *survey)
{
	GrantOutcome outcome = {
		.result = REFUSED_HELD,
		.held_until = request->mode == MODE_EXCLUSIVE ? survey->last_free_at : survey->first_free_at,
		.open = TransactionIdIsValid(survey->busy.xid),
		.busy = survey->busy,
		.blocked_by = survey->holder,
		.blocked_role = survey->holder_role
	};

	if (outcome.open && (request->mode == MODE_EXCLUSIVE || survey->taken == 1))
	{
		outcome.result = REFUSED_BUSY;
		outcome.held_until = DT_NOEND;
	}
	return outcome;
}

/* Fill in a lease that is granted now. The last lock is held. */
static Lease
new_lease(LeaseStore *store, const LeaseRequest *request, int16 slot)
{
	Lease		lease = {
		.resource = request->resource,
		.slot = slot,
		.owner = request->owner,
		.holder = GetUserId(),
		.xid = GetTopFullTransactionId(),
		.token = store_next_token(store),
		.mode = request->mode,
		.holds = 1,
		.payload = request->payload
	};

	lease.granted_at = clock_now();
	lease.expires_at = lease.granted_at + request->ttl;
	lease.lock_delay = request->lock_delay;
	lease.hold_until = request->min_hold == 0 ? DT_NOBEGIN : lease.granted_at + request->min_hold;
	return lease;
}

static GrantOutcome
granted(const Lease *lease, const Lease *former)
{
	note_grant(lease, former);
	pin_forget(lease);
	purge_note_grant();
	make_durable();
	return (GrantOutcome) {
		.result = GRANTED,
		.token = lease->token,
		.expires_at = lease->expires_at
	};
}

/* Replace the free row that the store stands on and has locked; returns whose lease it was. */
static const Lease *
grant_row(LeaseStore *store, const Lease *lease)
{
	const Lease *former = former_lease(&store->lease);

	if (lease->token <= store->lease.token)
		store_refuse_token(store);
	store_update(store, lease);
	require_lease_allowed(lease);
	return former;
}

/* Insert a row for a lease on what nobody had; false when it cannot be kept. */
static bool
grant_new_row(LeaseStore *store, const Lease *lease, InsertCheck check, void *arg)
{
	if (!store_insert(store, lease, check, arg))
		return false;
	require_lease_allowed(lease);
	return true;
}

/*
 * The owner has the lease that the store stands on, and asks for it again. It
 * gets it once more if it says that it knows how to give it back as often.
 */
static GrantOutcome
try_again(LeaseStore *store, const LeaseRequest *request)
{
	Lease		lease;

	if (!request->reentrant || store->lease.mode != request->mode || !may_act(&store->lease))
		return refused_held(request, &store->lease);

	if (store_lock_row(store, LockTupleNoKeyExclusive, LockWaitSkip) != ROW_LOCKED)
		return refused_by_row_lock(store->lease.slot, LockTupleNoKeyExclusive);

	lease = store->lease;
	if (!is_owner(&lease, request->owner) || !is_held(&lease, clock_now()))
		return refused_queue();	/* lost in this moment: look again */

	if (lease.holds == PG_INT32_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("lease on \"%s\" was acquired too often by the same owner",
						text_to_cstring(request->resource)),
				 errhint("Release it as often as it is acquired.")));
	lease.holds++;
	lease.expires_at = Max(lease.expires_at, clock_now() + request->ttl);
	if (request->min_hold != 0)
		lease.hold_until = Max(lease.hold_until, clock_now() + request->min_hold);
	if (request->payload != (Datum) 0)
		lease.payload = request->payload;
	wait_note_change(lease.resource, free_from(&lease));
	if (!prolong_lease(store, request->resource, &lease))
		return refused_queue();
	return granted(&lease, NULL);
}

/* An exclusive lease that is about to be granted, and what its slots looked like. */
typedef struct SlotCheck
{
	const LeaseRequest *request;
	int			nexpired;		/* none of which is pinned */
	int64		last_token;		/* of all slots */
	const Lease *former;		/* the last granted of those that expired */
	GrantOutcome refused;
} SlotCheck;

/* Is a slot in the way of an exclusive lease? Then refused says how. */
static bool
slots_refuse(LeaseStore *store, SlotCheck *check)
{
	SlotSurvey	survey = survey_slots(store, check->request, NULL);
	int			pinned = -1;

	check->nexpired = list_length(survey.expired);
	check->last_token = survey.last_token;
	check->former = survey.former;
	if (survey.taken > 0)
	{
		check->refused = refused_by_slots(check->request, &survey);
		check->refused.own_lease = survey.own_slot > 0;
	}
	else
	{
		pinned = find_pinned_slot(store, check->request->resource, survey.expired);
		if (pinned >= 0)
			check->refused = refused_by_row_lock(pinned, LockTupleExclusive);
	}
	return survey.taken > 0 || pinned >= 0;
}

/*
 * InsertCheck of an exclusive lease: did somebody take a slot meanwhile? One
 * that has expired since may be pinned, which is not found out here.
 */
static bool
slots_appeared(LeaseStore *store, void *arg)
{
	SlotCheck  *check = arg;
	SlotSurvey	survey;

	if (!store->has_slots)
		return false;
	survey = survey_slots(store, check->request, NULL);
	return survey.taken > 0 || list_length(survey.expired) > check->nexpired;
}

/*
 * What an exclusive grant takes over: the last of the leases in the way that
 * ran out. What was in the gate was lost before if slots were granted since,
 * as far as they tell: a purge may have removed them.
 */
static const Lease *
former_of_all(const SlotCheck *slots, const Lease *gate, int64 gate_token)
{
	if (slots->last_token <= gate_token)
		return gate;
	return slots->former != NULL && slots->former->token > gate_token ? slots->former : NULL;
}

/*
 * Grant the exclusive lease unless somebody holds it, or a slot. Never waits:
 * what an open transaction is changing counts as held.
 */
static GrantOutcome
try_exclusive(LeaseStore *store, const LeaseRequest *request)
{
	for (;;)
	{
		SlotCheck	check = {.request = request};
		ProbeResult found = store_probe_gate(store, request->resource);
		Lease		lease;
		const Lease *former = NULL;

		CHECK_FOR_INTERRUPTS();

		if (found == PROBE_BUSY)
			return refused_by_transaction(store->busy);
		if (found == PROBE_FOUND && !is_free(&store->lease, clock_now()))
		{
			if (is_held(&store->lease, clock_now()) && is_owner(&store->lease, request->owner))
				return try_again(store, request);
			return refused_held(request, &store->lease);
		}
		if (store->has_slots && slots_refuse(store, &check))
			return check.refused;
		if (!wait_is_my_turn(request->resource))
			return refused_queue();

		if (found == PROBE_FOUND)
		{
			RowLockResult locked;
			int64		gate_token;

			if (store->has_slots && store_probe(store, request->resource, GATE_SLOT) != PROBE_FOUND)
				continue;
			locked = store_lock_row(store, LockTupleExclusive, LockWaitSkip);
			if (locked == ROW_BUSY)
				return refused_by_row_lock(GATE_SLOT, LockTupleExclusive);
			if (locked == ROW_GONE || !is_free(&store->lease, clock_now()))
				continue;

			if (!store_slots_unchanged(store))
				store->has_slots = store_used_slots(store, request->resource);
			if (store->has_slots)
			{
				if (slots_refuse(store, &check))
					return check.refused;
				if (store_probe(store, request->resource, GATE_SLOT) != PROBE_FOUND)
					continue;
			}
			lease = new_lease(store, request, GATE_SLOT);
			gate_token = store->lease.token;
			former = former_of_all(&check, grant_row(store, &lease), gate_token);
		}
		else
		{
			lease = new_lease(store, request, GATE_SLOT);
			if (!grant_new_row(store, &lease, slots_appeared, &check))
				continue;
		}

		wait_note_change(request->resource, free_from(&lease));
		return granted(&lease, former);
	}
}

/* InsertCheck of what is in nobody's way. */
static bool
keep_always(LeaseStore *store, void *arg)
{
	return false;
}

/* Insert a gate with nobody in it, for those who share. */
static bool
insert_gate(LeaseStore *store, const LeaseRequest *request)
{
	Lease		gate = new_lease(store, request, GATE_SLOT);

	gate.owner = NULL;
	gate.mode = MODE_EXCLUSIVE;
	gate.expires_at = gate.granted_at;
	gate.lock_delay = 0;
	gate.hold_until = DT_NOBEGIN;
	gate.payload = (Datum) 0;
	return store_insert(store, &gate, keep_always, NULL);
}

/* InsertCheck of a slot whose gate was not committed: is it still in nobody's way? */
static bool
gate_appeared(LeaseStore *store, void *arg)
{
	const Lease *lease = arg;

	switch (store_probe(store, lease->resource, GATE_SLOT))
	{
		case PROBE_ABSENT:
			/* Who inserts one looks at the slots then; but it may be one that just moved. */
			return store_fetch(store, lease->resource, GATE_SLOT);
		case PROBE_BUSY:
			return !store_gate_is_new(store, lease->resource);
		case PROBE_FOUND:
			break;
	}

	/* One that had an owner may be pinned, for which there is no time now. */
	return store->lease.token > lease->token || store->lease.owner != NULL ||
		!is_free(&store->lease, clock_now()) ||
		store_lock_row(store, LockTupleKeyShare, LockWaitSkip) != ROW_LOCKED;
}

/* The gate, and what the slots tell about it. */
typedef struct Gate
{
	ProbeResult found;
	int64		token;
	int64		last_token;		/* of all slots, unless a lower one is above that of the gate */
	const Lease *former;		/* the exclusive lease that ran out, unless slots tell of a later grant */
} Gate;

/*
 * Pass the gate, as the probe has just found it, on the way to a slot; false
 * when that fails. What is in refused is then why, unless it is to look again.
 */
static bool
pass_gate(LeaseStore *store, const LeaseRequest *request, Gate *gate, GrantOutcome *refused)
{
	RowLockResult locked;

	if (gate->found == PROBE_BUSY)
		return true;			/* a new gate: see gate_appeared() */
	if (gate->found == PROBE_ABSENT)
		return insert_gate(store, request);

	/*
	 * Who held it exclusively until it expired may pin it. That was not so if
	 * somebody was granted a slot since, and cannot have begun then; but whoever
	 * that was may have locked the gate, and must not be taken for a pin.
	 */
	if (store_probe(store, request->resource, GATE_SLOT) == PROBE_FOUND && store->lease.owner != NULL &&
		gate->last_token < store->lease.token)
	{
		gate->former = former_lease(&store->lease);
		if (find_pinned_slot(store, request->resource, list_make1_int(GATE_SLOT)) >= 0)
		{
			*refused = refused_by_row_lock(GATE_SLOT, LockTupleExclusive);
			return false;
		}
	}

	if (store_probe(store, request->resource, GATE_SLOT) != PROBE_FOUND)
		return false;

	/* Nobody else can lock one of our own; and unlocked, others know that it is new. */
	if (store_row_is_ours(store))
		return is_free(&store->lease, clock_now());
	locked = store_lock_row(store, LockTupleKeyShare, LockWaitSkip);
	if (locked == ROW_BUSY)
		*refused = refused_by_row_lock(GATE_SLOT, LockTupleKeyShare);
	return locked == ROW_LOCKED && is_free(&store->lease, clock_now());
}

typedef enum SlotTaken
{
	SLOT_TAKEN,
	SLOT_LOCKED,				/* by somebody, but not taken: leave it alone */
	SLOT_CHANGED				/* look again */
} SlotTaken;

/* Write the lease into the slot that was chosen. */
static SlotTaken
take_slot(LeaseStore *store, const LeaseRequest *request, int16 slot, ProbeResult gate,
		  Lease *lease, const Lease **former)
{
	RowLockResult locked;

	switch (store_probe(store, request->resource, slot))
	{
		case PROBE_BUSY:
			return SLOT_CHANGED;

		case PROBE_ABSENT:
			*lease = new_lease(store, request, slot);
			*former = NULL;
			if (!grant_new_row(store, lease, gate == PROBE_BUSY ? gate_appeared : keep_always, lease))
				return SLOT_CHANGED;
			return SLOT_TAKEN;

		case PROBE_FOUND:
			break;
	}

	if (gate == PROBE_BUSY)
		return SLOT_LOCKED;		/* could not be taken back */
	locked = store_lock_row(store, LockTupleExclusive, LockWaitSkip);
	if (locked == ROW_BUSY)
		return SLOT_LOCKED;
	if (locked == ROW_GONE || !is_free(&store->lease, clock_now()))
		return SLOT_CHANGED;

	*lease = new_lease(store, request, slot);
	*former = grant_row(store, lease);
	return SLOT_TAKEN;
}

/*
 * Find a slot for the request and see how the gate looks; 0 when it cannot
 * have any, or not now, and then outcome is the answer.
 */
static int
choose_slot(LeaseStore *store, const LeaseRequest *request, const Bitmapset *avoid,
			Gate *gate, GrantOutcome *outcome)
{
	BusyRow		gate_maker;
	int64		expired_token = 0;	/* of the last exclusive lease, which may be pinned */
	SlotSurvey	survey;

	*gate = (Gate) {.found = store_probe(store, request->resource, GATE_SLOT)};
	gate_maker = store->busy;
	if (gate->found == PROBE_FOUND && !is_free(&store->lease, clock_now()))
	{
		*outcome = refused_held(request, &store->lease);
		return 0;
	}
	if (gate->found == PROBE_BUSY && !store_gate_is_new(store, request->resource))
	{
		*outcome = refused_by_transaction(gate_maker);
		return 0;
	}
	if (gate->found == PROBE_FOUND)
	{
		gate->token = store->lease.token;
		if (store->lease.owner != NULL)
			expired_token = gate->token;
	}

	survey = find_slot(store, request, avoid);
	if (survey.last_token < expired_token)
		survey = survey_slots(store, request, avoid);
	gate->last_token = survey.last_token;
	if (survey.own_slot > 0)
	{
		switch (store_probe(store, request->resource, survey.own_slot))
		{
			case PROBE_ABSENT:
				*outcome = refused_queue(); /* lost in this moment: look again */
				break;
			case PROBE_BUSY:
				*outcome = refused_by_transaction(store->busy);
				outcome->own_lease = true;
				break;
			case PROBE_FOUND:
				*outcome = try_again(store, request);
				outcome->own_lease = outcome->result != GRANTED;
				break;
		}
	}
	else if (survey.free_slot == 0 && TransactionIdIsValid(survey.purger.xid))
		*outcome = refused_by_transaction(survey.purger);
	else if (survey.taken >= request->permits)
		*outcome = refused_by_slots(request, &survey);
	else if (survey.free_slot == 0 && gate->found == PROBE_BUSY)
		*outcome = refused_by_transaction(gate_maker);
	else if (survey.free_slot == 0)
		*outcome = refused_by_row_lock(bms_next_member(avoid, -1), LockTupleExclusive);
	else if (!wait_is_my_turn(request->resource))
		*outcome = refused_queue();
	else
		return survey.free_slot;
	return 0;
}

/* Grant a slot. The owner's name is ours. */
static GrantOutcome
try_named_slot(LeaseStore *store, const LeaseRequest *request)
{
	Bitmapset  *avoid = NULL;
	GrantOutcome outcome = refused_queue();

	for (;;)
	{
		Gate		gate;
		int			slot = choose_slot(store, request, avoid, &gate, &outcome);
		Lease		lease;
		const Lease *former;

		CHECK_FOR_INTERRUPTS();

		if (slot == 0)
			return outcome;
		if (!pass_gate(store, request, &gate, &outcome))
		{
			if (outcome.result == REFUSED_BUSY)
				return outcome;
			continue;
		}

		switch (take_slot(store, request, slot, gate.found, &lease, &former))
		{
			case SLOT_TAKEN:
				/* Whoever waits next may have another slot. */
				wait_note_change(request->resource, DT_NOBEGIN);
				/* What was lost to an exclusive lease is not lost again. */
				if (former == NULL || former->token < gate.token)
					former = gate.former;
				return granted(&lease, former);
			case SLOT_LOCKED:
				avoid = bms_add_member(avoid, slot);
				break;
			case SLOT_CHANGED:
				break;
		}
	}
}

/*
 * Grant a slot unless there is none, or somebody holds the resource
 * exclusively. Never waits either. Who is refused has not written anything.
 */
static GrantOutcome
try_slot(LeaseStore *store, const LeaseRequest *request)
{
	Gate		gate;
	GrantOutcome outcome;

	/* Looking at the slots may take longer than all the rest: once is enough. */
	if (!claim_name(request))
		return choose_slot(store, request, NULL, &gate, &outcome) == 0 ? outcome : refused_by_name();

	outcome = try_named_slot(store, request);
	if (outcome.result != GRANTED)
		give_up_name(request);
	return outcome;
}

/* Grant the lease if it can be had now. Never waits. */
GrantOutcome
try_grant(LeaseStore *store, const LeaseRequest *request)
{
	return request->mode == MODE_EXCLUSIVE ? try_exclusive(store, request) : try_slot(store, request);
}
