/*-------------------------------------------------------------------------
 *
 * rules.c
 *		The rules of leases: when one is granted, and when a call may end it.
 *
 * These are pure functions of rows, request and time. They read no clock, no
 * catalog and no table, and have no state. Every part of the extension that
 * must know whether a lease is held, free or in conflict calls them.
 * src/README.md shows the same rules as tables.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "rules/rules.h"

const char *
mode_name(LeaseMode mode)
{
	switch (mode)
	{
		case MODE_EXCLUSIVE:
			return "exclusive";
		case MODE_SHARED:
			return "shared";
		case MODE_PERMIT:
			return "permit";
	}
	return NULL;
}

bool
is_owner(const Lease *lease, const text *owner)
{
	return lease->owner != NULL && same_text(lease->owner, owner);
}

bool
is_held(const Lease *lease, TimestampTz now)
{
	return lease->owner != NULL && lease->session != SESSION_ENDED && lease->expires_at > now;
}

/* The time from which on the row is free, if nothing changes. */
TimestampTz
free_from(const Lease *lease)
{
	if (lease->session == SESSION_ENDED)
		return DT_NOBEGIN;
	return lease->expires_at;
}

bool
is_free(const Lease *lease, TimestampTz now)
{
	return free_from(lease) <= now;
}

/* Does the claim mean this lease? The lease may have expired, but it was not released. */
bool
is_claimed(const Lease *lease, const Claim *claim)
{
	return lease->owner != NULL &&
		(claim->owner == NULL || is_owner(lease, claim->owner)) &&
		(claim->token == NULL || lease->token == *claim->token);
}

/* Is another transaction changing the row? Its end decides whether this version stays. */
bool
is_open(const LeaseRow *row)
{
	return TransactionIdIsValid(row->inserted_by) || TransactionIdIsValid(row->changed_by);
}

/* Does this transaction rely on the lease, or has it written it? */
bool
is_used_here(const LeaseRow *row)
{
	return row->locked_here || row->written_here;
}

bool
uses_any(const LeaseRows *rows)
{
	for (int i = 0; i < rows->count; i++)
	{
		if (is_used_here(&rows->row[i]))
			return true;
	}
	return false;
}

/*
 * End a lease. The token stays. Most other columns keep their old values as
 * well, to keep the WAL record small.
 */
void
make_tombstone(Lease *lease, TimestampTz free_at)
{
	lease->owner = NULL;
	lease->expires_at = Min(lease->expires_at, free_at);
	lease->hold_until = DT_NOBEGIN;
	lease->kept_for = NULL;
	lease->payload = (Datum) 0;
	lease->session_pid = 0;
	lease->session_number = 0;
	lease->session = SESSION_NONE;
}

/*
 * End a lease for its owner. Only if the lease has not expired does min_hold
 * keep others from it, perhaps for longer than the lease would have lasted. So
 * whoever comes after a holder that crashed need not wait for more than the ttl.
 */
void
make_released(Lease *lease, TimestampTz now)
{
	Lease		released = *lease;

	make_tombstone(lease, now);
	if (is_held(&released, now) && released.hold_until > now)
	{
		lease->expires_at = released.hold_until;
		lease->kept_for = released.owner;
	}
}

/* Does the owner hold the lease, or is it kept because this owner released it early? */
bool
is_held_or_kept(const Lease *lease, const text *owner, TimestampTz now)
{
	return lease->owner != NULL ? is_owner(lease, owner) && is_held(lease, now) :
		lease->kept_for != NULL && same_text(lease->kept_for, owner) && lease->expires_at > now;
}

/* The transaction that must end before the row can be written, whatever the row contains. */
static Obstacle
obstacle_to_write(const LeaseRow *row)
{
	TransactionId transaction = TransactionIdIsValid(row->inserted_by) ? row->inserted_by :
		TransactionIdIsValid(row->changed_by) ? row->changed_by : row->locked_by;

	return (Obstacle) {.exists = TransactionIdIsValid(transaction), .transaction = transaction};
}

/*
 * Find what keeps the row from being free.
 *
 * A lease that is open or asserted is an obstacle even after it expired: only
 * the end of the transaction decides what becomes of it. A free tombstone is
 * no obstacle, even if it is open.
 */
Obstacle
obstacle_in(const LeaseRow *row, TimestampTz now)
{
	bool		free = is_free(&row->lease, now);

	if (free && row->lease.owner == NULL)
		return (Obstacle) {.exists = false};
	if (!free && !is_open(row))
		return (Obstacle) {.exists = true, .until = free_from(&row->lease), .lease = &row->lease};
	return obstacle_to_write(row);
}

/*
 * The weakest row lock that conflicts with each action. FOR KEY SHARE, which
 * asserts a lease, does not conflict with renewals.
 */
static const LockTupleMode conflicting_modes[] = {
	[ACTION_RELY] = LockTupleExclusive,
	[ACTION_PROLONG] = LockTupleShare,
	[ACTION_END] = LockTupleKeyShare
};

/* The transaction that locks the row, if its lock conflicts with the action. */
static TransactionId
locker_in_conflict(const LeaseRow *row, OwnAction action)
{
	return row->lock_mode >= conflicting_modes[action] ? row->locked_by : InvalidTransactionId;
}

/* --- Who may have a lease ------------------------------------------------ */

/*
 * Refuse because of a transaction or, if there is none, a lease until a time.
 * own: the owner has a lease that conflicts.
 */
static Decision
refuse_for(Obstacle obstacle, bool own)
{
	bool		waits = TransactionIdIsValid(obstacle.transaction);
	Refusal		refusal = {
		.own_lease = own,
		.open = waits || obstacle.open,
		.transaction = obstacle.transaction,
		.held_until = waits ? DT_NOEND : obstacle.until
	};
	GrantReason reason = REASON_HELD;

	if (refusal.open && refusal.held_until == DT_NOEND)
		reason = REASON_OPEN;
	else if (own)
		reason = REASON_OWN;
	if (obstacle.lease != NULL)
	{
		refusal.blocked_by = obstacle.lease->owner;
		refusal.blocked_role = obstacle.lease->role;
	}
	return (Decision) {.refused = true, .reason = reason, .refusal = refusal};
}

/*
 * The owner already holds a lease, or may hold it after an open change. Grant
 * it again if the request says so (if_own), and if that lease has the same
 * mode. If the request is for a lease that ends with this session, that lease
 * must also end with this session. It conflicts with row locks as a renewal does.
 */
static Decision
decide_own(const LeaseRow *own, const LeaseRequest *request)
{
	Obstacle	obstacle = {.until = free_from(&own->lease), .lease = &own->lease};
	Decision	decision;
	bool		again = request->if_own != IF_OWN_REFUSE && own->lease.mode == request->mode &&
		(!request->session || own->lease.session == SESSION_MINE);

	if (is_open(own))
		return refuse_for(obstacle_to_write(own), true);
	if (again)
		obstacle.transaction = locker_in_conflict(own, ACTION_PROLONG);
	decision = refuse_for(obstacle, true);
	if (again && !decision.refusal.open)
		decision.own = own;
	return decision;
}

/*
 * Does the owner hold this lease, or may it after an open change? The version
 * before the change counts only while it is held: if it has expired, a
 * rollback brings nothing back.
 */
static bool
may_be_own(const LeaseRow *row, const LeaseRequest *request, TimestampTz now)
{
	return is_owner(&row->lease, request->owner) &&
		(TransactionIdIsValid(row->inserted_by) || is_held(&row->lease, now));
}

static bool
holds_now(const LeaseRow *row, const LeaseRequest *request, TimestampTz now)
{
	return !is_open(row) && may_be_own(row, request, now);
}

/* Note a lease that the grant takes over: an expired lease that was not released. */
static void
note_former(Decision *decision, const LeaseRow *row)
{
	if (row->lease.owner != NULL &&
		(decision->former == NULL || decision->former->lease.token < row->lease.token))
		decision->former = row;
}

/*
 * An exclusive lease needs all rows to be free. All obstacles must go before
 * it can be granted. So the request may wait for any of the transactions, and
 * else for the latest of the times.
 */
static Decision
decide_exclusive(const LeaseRows *rows, const LeaseRequest *request, TimestampTz now)
{
	Decision	decision = {.slot = EXCLUSIVE_SLOT};
	Obstacle	last = {.until = DT_NOBEGIN};
	bool		own = false;

	for (int i = 0; i < rows->count; i++)
	{
		const LeaseRow *row = &rows->row[i];
		Obstacle	obstacle = obstacle_in(row, now);

		if (row->lease.slot != EXCLUSIVE_SLOT)
			own |= may_be_own(row, request, now);
		else if (holds_now(row, request, now))
			return decide_own(row, request);
		else
		{
			decision.target = row;
			if (!obstacle.exists)
				obstacle = obstacle_to_write(row);
		}

		if (!obstacle.exists)
			note_former(&decision, row);
		else if (TransactionIdIsValid(obstacle.transaction))
			last.transaction = obstacle.transaction;
		else
		{
			last.until = Max(last.until, obstacle.until);
			if (last.lease == NULL || obstacle.lease->owner != NULL)
				last.lease = obstacle.lease;
		}
		last.exists |= obstacle.exists;
	}
	return last.exists ? refuse_for(last, own) : decision;
}

/* The slots of shared leases and permits, as a request for one sees them. */
typedef struct Seats
{
	int			taken;
	int			last_taken;		/* slot that count_taken() saw last */
	Obstacle	first;			/* a transaction that takes some; of the others, the earliest
								 * end, and one holder */
	const LeaseRow *own_lease;	/* a lease that the owner holds, or may hold after an open change */
	int			expired_count;	/* expired leases of other owners */
	const LeaseRow *own_row;	/* candidates to write: the owner's former row, */
	const LeaseRow *tombstone;	/* else a tombstone, */
	const LeaseRow *expired;	/* else an expired lease */
} Seats;

static void
count_taken(Seats *seats, const LeaseRow *row, Obstacle obstacle)
{
	if (seats->last_taken != row->lease.slot)
		seats->taken++;
	seats->last_taken = row->lease.slot;

	if (TransactionIdIsValid(obstacle.transaction))
	{
		seats->first.transaction = obstacle.transaction;
		seats->first.open = true;
		return;
	}
	seats->first.until = Min(seats->first.until, obstacle.until);
	if (seats->first.lease == NULL || seats->first.lease->owner == NULL)
		seats->first.lease = obstacle.lease;
}

/* Note a row that the grant may write. Rows come in descending order of slots. */
static void
offer_row(Seats *seats, const LeaseRow *row, const LeaseRequest *request)
{
	if (is_owner(&row->lease, request->owner))
		seats->own_row = row;
	else if (row->lease.owner == NULL)
		seats->tombstone = row;
	else
	{
		seats->expired = row;
		seats->expired_count++;
	}
}

/* The lowest slot above 0 that has no row. Rows come in descending order of slots. */
static int
unused_slot(const LeaseRows *rows)
{
	int			slot = EXCLUSIVE_SLOT + 1;

	for (int i = rows->count - 1; i >= 0; i--)
	{
		if (rows->row[i].lease.slot == slot)
			slot++;
		else if (rows->row[i].lease.slot > slot)
			break;
	}
	return slot;
}

/*
 * Choose the row to write; without one, a new row in the lowest slot that has
 * none. If there is no room for an expired permit beside the new one, the new
 * permit takes over the row of the expired one, so that its owner learns of
 * the loss.
 */
static Decision
grant_seat(const LeaseRows *rows, const Seats *seats, int room)
{
	Decision	decision = {0};
	bool		replaces = seats->expired != NULL && seats->taken + seats->expired_count >= room;

	decision.target = seats->own_row ? seats->own_row :
		seats->tombstone && !replaces ? seats->tombstone : seats->expired;
	decision.slot = decision.target ? decision.target->lease.slot : unused_slot(rows);
	if (decision.target != NULL)
		note_former(&decision, decision.target);
	return decision;
}

/*
 * A shared lease or permit needs the exclusive slot, whose row comes last, to
 * be free. A permit also needs fewer taken slots than there are permits. Shared
 * leases count as taken permits.
 */
static Decision
decide_beside_others(const LeaseRows *rows, const LeaseRequest *request, TimestampTz now)
{
	int			room = request->mode == MODE_PERMIT ? request->permits : MAX_SLOT;
	Seats		seats = {.first = {.until = DT_NOEND}};
	const LeaseRow *exclusive = NULL;
	Decision	decision;

	for (int i = 0; i < rows->count; i++)
	{
		const LeaseRow *row = &rows->row[i];
		Obstacle	obstacle = obstacle_in(row, now);

		if (row->lease.slot == EXCLUSIVE_SLOT && obstacle.exists)
			return refuse_for(obstacle, holds_now(row, request, now));
		if (row->lease.slot == EXCLUSIVE_SLOT)
			exclusive = row;
		else if (obstacle.exists)
			count_taken(&seats, row, obstacle);
		else if (!obstacle_to_write(row).exists)
			offer_row(&seats, row, request);
		if (seats.own_lease == NULL && may_be_own(row, request, now))
			seats.own_lease = row;
	}

	if (seats.own_lease != NULL)
		return decide_own(seats.own_lease, request);
	decision = grant_seat(rows, &seats, room);
	if (seats.taken >= room || decision.slot > MAX_SLOT)
	{
		if (seats.taken > 1)	/* any of them may end first */
			seats.first.transaction = InvalidTransactionId;
		return refuse_for(seats.first, false);
	}
	if (exclusive != NULL)
		note_former(&decision, exclusive);
	return decision;
}

/* Decide on a request, given all rows of the resource. */
Decision
decide(const LeaseRows *rows, const LeaseRequest *request, TimestampTz now)
{
	return request->mode == MODE_EXCLUSIVE ?
		decide_exclusive(rows, request, now) : decide_beside_others(rows, request, now);
}

/*
 * Does a grant that is written to another row end the expired lease in this
 * row? It does if the two leases exclude each other. Then this row becomes a
 * tombstone, so that the former holder learns that the lease is lost.
 */
bool
takes_over(const LeaseRequest *request, const LeaseRow *row)
{
	return row->lease.owner != NULL &&
		(request->mode == MODE_EXCLUSIVE || row->lease.slot == EXCLUSIVE_SLOT);
}

/* --- What may be done to a lease ----------------------------------------- */

/*
 * The open transaction that may end the lease in a row that it is changing;
 * invalid if the change leaves the same lease, as a renewal does. Every
 * version that the transaction wrote must leave the lease, since a rollback to
 * a savepoint may bring back any of them. The last version must be neither
 * deleted nor locked in a conflicting mode.
 */
static TransactionId
change_that_ends(const LeaseRows *rows, const LeaseRow *row)
{
	bool		has_last_version = !TransactionIdIsValid(row->changed_by);

	for (int i = 0; i < rows->count; i++)
	{
		const LeaseRow *version = &rows->row[i];

		if (!TransactionIdIsValid(version->inserted_by) || version->lease.slot != row->lease.slot)
			continue;
		if (version->lease.owner == NULL || version->lease.token != row->lease.token)
			return version->inserted_by;
		if (TransactionIdIsValid(locker_in_conflict(version, ACTION_RELY)))
			return version->locked_by;
		has_last_version |= !TransactionIdIsValid(version->changed_by);
	}
	return has_last_version ? InvalidTransactionId : row->changed_by;
}

/* The transaction that must end before the action on this lease. */
static TransactionId
action_waits_for(const LeaseRows *rows, const LeaseRow *row, OwnAction action)
{
	TransactionId changer = action == ACTION_RELY ? change_that_ends(rows, row) : row->changed_by;

	return TransactionIdIsValid(changer) ? changer : locker_in_conflict(row, action);
}

/*
 * May the owner act on this lease as its holder? A transaction that has locked
 * the row may go on to rely on it after it expired. hold/assert.c says why.
 */
static bool
still_holds(const LeaseRow *row, OwnAction action, TimestampTz now)
{
	return is_held(&row->lease, now) || (action == ACTION_RELY && row->locked_here);
}

/*
 * Find the committed lease that a claim means. After an expiry an owner may
 * have several leases on a resource; then the one that it still holds counts,
 * else the latest.
 */
ClaimedLease
find_claimed(const LeaseRows *rows, const Claim *claim, OwnAction action, TimestampTz now)
{
	ClaimedLease claimed = {0};

	for (int i = 0; i < rows->count; i++)
	{
		const LeaseRow *row = &rows->row[i];
		bool		holds = still_holds(row, action, now);

		if (TransactionIdIsValid(row->inserted_by) || !is_claimed(&row->lease, claim))
			continue;
		if (claimed.row == NULL || holds > claimed.holds ||
			(holds == claimed.holds && row->lease.token > claimed.row->lease.token))
		{
			claimed.row = row;
			claimed.holds = holds;
		}
	}
	if (claimed.row != NULL)
		claimed.transaction = action_waits_for(rows, claimed.row, action);
	return claimed;
}

/*
 * Find a row that a break has to free. If a transaction must end before it can
 * free all of them: a row that such a transaction is in the way of.
 */
ClaimedLease
find_breakable(const LeaseRows *rows, TimestampTz now)
{
	ClaimedLease found = {0};

	for (int i = 0; i < rows->count; i++)
	{
		const LeaseRow *row = &rows->row[i];
		Obstacle	busy = obstacle_to_write(row);

		if (!obstacle_in(row, now).exists)
			continue;
		if (found.row == NULL || busy.exists)
		{
			found.row = row;
			found.transaction = busy.transaction;
		}
	}
	return found;
}

/* Has the row been free since before the limit, and is it not in use by another transaction? */
bool
may_be_purged(const LeaseRow *row, TimestampTz limit)
{
	return is_free(&row->lease, limit) && !obstacle_to_write(row).exists;
}

/* The highest token that the rows of a resource show. */
int64
last_token(const LeaseRows *rows)
{
	int64		token = 0;

	for (int i = 0; i < rows->count; i++)
		token = Max(token, rows->row[i].lease.token);
	return token;
}
