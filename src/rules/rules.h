/*-------------------------------------------------------------------------
 *
 * rules.h
 *		The rules of leases, as functions of rows, request and time.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_RULES_H
#define LEASE_LOCK_RULES_H

#include "model/text.h"
#include "model/types.h"

/* The name of a mode in SQL; NULL if there is no such mode. */
extern const char *mode_name(LeaseMode mode);

/* State of one lease at a time. */
extern bool is_owner(const Lease *lease, const text *owner);
extern bool is_held(const Lease *lease, TimestampTz now);
extern TimestampTz free_from(const Lease *lease);
extern bool is_free(const Lease *lease, TimestampTz now);
extern bool is_claimed(const Lease *lease, const Claim *claim);
extern bool is_open(const LeaseRow *row);
extern bool is_used_here(const LeaseRow *row);
extern bool uses_any(const LeaseRows *rows);
extern bool is_held_or_kept(const Lease *lease, const text *owner, TimestampTz now);
extern void make_tombstone(Lease *lease, TimestampTz free_at);
extern void make_released(Lease *lease, TimestampTz now);

/* What keeps a row from being free: a time or a transaction. */
typedef struct Obstacle
{
	bool		exists;
	TransactionId transaction;	/* invalid: a committed lease, until this time */
	TimestampTz until;
	const Lease *lease;			/* that lease, or a kept tombstone */
	bool		open;			/* of several: there is a transaction among them */
} Obstacle;

extern Obstacle obstacle_in(const LeaseRow *row, TimestampTz now);

/* Decision on a request. */
typedef struct Decision
{
	bool		refused;
	GrantReason reason;			/* refused: why */
	Refusal		refusal;
	const LeaseRow *own;		/* refused, unless the caller may act on this lease: then it is
								 * granted again */
	int			slot;			/* granted: lease slot to take */
	const LeaseRow *target;		/* granted: row to write, NULL if there is none yet */
	const LeaseRow *former;		/* granted: lease that is taken over; of several, the last
								 * granted */
} Decision;

/* Grants */
extern Decision decide(const LeaseRows *rows, const LeaseRequest *request, TimestampTz now);
extern bool takes_over(const LeaseRequest *request, const LeaseRow *row);

/* Actions on a lease. */
typedef enum OwnAction
{
	ACTION_RELY,				/* assert it */
	ACTION_PROLONG,				/* renew it */
	ACTION_END,					/* release, transfer or downgrade it */
	ACTION_BREAK				/* end all leases on the resource, as an administrator */
} OwnAction;

/* The lease that a claim means. */
typedef struct ClaimedLease
{
	const LeaseRow *row;		/* NULL: no such lease */
	bool		holds;			/* it is held or, for ACTION_RELY, cannot have been lost */
	TransactionId transaction;	/* that must end before the action */
} ClaimedLease;

extern ClaimedLease find_claimed(const LeaseRows *rows, const Claim *claim, OwnAction action,
								 TimestampTz now);
extern ClaimedLease find_breakable(const LeaseRows *rows, TimestampTz now);
extern bool may_be_purged(const LeaseRow *row, TimestampTz limit);
extern int64 last_token(const LeaseRows *rows);

#endif							/* LEASE_LOCK_RULES_H */
