/*-------------------------------------------------------------------------
 *
 * rules.h
 *		The rules of leases, as functions of rows, request and time.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_RULES_H
#define LEASE_LOCK_RULES_H

#include "lease_lock.h"

/* What one lease is at a time. */
extern bool is_owner(const Lease *lease, const text *owner);
extern bool is_held(const Lease *lease, TimestampTz now);
extern TimestampTz free_from(const Lease *lease);
extern bool is_free(const Lease *lease, TimestampTz now);
extern bool is_claimed(const Lease *lease, const Claim *claim);
extern bool is_open(const LeaseRow *row);
extern void make_tombstone(Lease *lease, TimestampTz free_at);

/* What keeps a row from being free: a time, or a transaction. */
typedef struct Obstacle
{
	bool		exists;
	TransactionId transaction;	/* invalid: it is a lease, until this time */
	TimestampTz until;
} Obstacle;

extern Obstacle obstacle_in(const LeaseRow *row, TimestampTz now);

typedef enum Verdict
{
	VERDICT_GRANT,
	VERDICT_OWN,				/* the owner holds it already, in the mode asked for */
	VERDICT_REFUSE
} Verdict;

/* What becomes of a request. */
typedef struct Decision
{
	Verdict		verdict;
	int			slot;			/* GRANT: lease slot to take */
	const LeaseRow *target;		/* GRANT: row to write, NULL if there is none yet; OWN: the lease */
	const LeaseRow *former;		/* GRANT: lease that is taken over, the last granted of several */
	bool		own_lease;		/* REFUSE: because of a lease of the same owner */
	bool		open;			/* REFUSE: transactions hold some of what is asked for */
	TransactionId transaction;	/* REFUSE: to wait for, */
	TimestampTz until;			/* or this time, */
	const LeaseRow *blocker;	/* or a release of this lease; NULL: no single one */
} Decision;

/* Grants */
extern Decision decide(const LeaseRows *rows, const LeaseRequest *request, TimestampTz now);
extern bool takes_over(const LeaseRequest *request, const LeaseRow *row);

/* Where a shared lease can be written when its owner has the exclusive one */
extern const LeaseRow *free_seat(const LeaseRows *rows, TimestampTz now);
extern int	unused_slot(const LeaseRows *rows);

/* What is to be done to an owner's own lease. */
typedef enum OwnAction
{
	ACTION_RELY,				/* assert it */
	ACTION_PROLONG,				/* renew it */
	ACTION_END					/* release it, or give it to somebody else */
} OwnAction;

/* The lease that a claim means, and the transaction to wait for before anything is done to it. */
typedef struct ClaimedLease
{
	const LeaseRow *row;		/* NULL: there is none */
	TransactionId transaction;
} ClaimedLease;

extern TransactionId locker_in_conflict(const LeaseRow *row, OwnAction action);
extern ClaimedLease find_claimed(const LeaseRows *rows, const Claim *claim, OwnAction action, TimestampTz now);
extern const LeaseRow *find_held(const LeaseRows *rows, const Claim *claim, TimestampTz now);
extern TransactionId break_waits_for(const LeaseRows *rows, TimestampTz now);
extern bool may_be_purged(const LeaseRow *row, TimestampTz limit);
extern int64 last_token(const LeaseRows *rows);

#endif							/* LEASE_LOCK_RULES_H */
