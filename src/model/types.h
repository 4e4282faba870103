/*-------------------------------------------------------------------------
 *
 * types.h
 *		What a lease is: the types that every part of the extension shares.
 *
 * src/README.md explains the terms and the protocol, and says which folder
 * may call which.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_TYPES_H
#define LEASE_LOCK_TYPES_H

#include "access/htup.h"
#include "access/transam.h"
#include "datatype/timestamp.h"
#include "nodes/lockoptions.h"

/*
 * Lease slots of a resource. The exclusive lease is in slot 0, shared leases
 * and permits are in the others.
 */
#define EXCLUSIVE_SLOT	0
#define MAX_SLOT		32767

/* Maximum length of the name of a resource or owner, in bytes. Both fit into one index entry. */
#define MAX_NAME_LENGTH	1024

/* Maximum ttl. Added to the clock, it stays far below the end of the range of timestamps. */
#define MAX_TTL_YEARS	100000
#define MAX_TTL			((int64) MAX_TTL_YEARS * MONTHS_PER_YEAR * DAYS_PER_MONTH * USECS_PER_DAY)

/* The modes, as the lock table stores them. */
typedef enum LeaseMode
{
	MODE_EXCLUSIVE = 'x',		/* alone */
	MODE_SHARED = 's',			/* beside other shared leases and permits */
	MODE_PERMIT = 'p'			/* the same, but only up to a number of them */
} LeaseMode;

/* State of the session that a lease ends with. */
typedef enum LeaseSession
{
	SESSION_NONE,				/* the lease does not end with a session */
	SESSION_MINE,				/* it is the session of this backend */
	SESSION_ALIVE,				/* it is the session of another backend */
	SESSION_ENDED				/* it has ended, and so has the lease */
} LeaseSession;

/* The columns of a row of the lock table. */
typedef struct Lease
{
	text	   *resource;
	int32		slot;
	text	   *owner;			/* NULL: released, the row is a tombstone */
	int64		token;
	TimestampTz granted_at;
	TimestampTz expires_at;		/* of a tombstone: free from then on */
	Oid			role;			/* that acquired it */
	FullTransactionId xid;		/* transaction that granted it */
	LeaseMode	mode;
	int32		holds;			/* number of releases that end it */
	TimestampTz hold_until;		/* not free before if released in time; DT_NOBEGIN: no such time */
	text	   *kept_for;		/* of a tombstone that is kept until expires_at: who released it;
								 * else NULL */
	int32		session_pid;	/* process whose session it ends with; 0: none */
	int64		session_number; /* number of that session; 0: none */
	LeaseSession session;		/* its state; not stored */
	Datum		payload;		/* jsonb; 0: none */
} Lease;

/*
 * One version of a row, as a look found it. A row that an open transaction
 * is changing has two: the version before the change, which is current if that
 * transaction rolls back, and the version after it.
 *
 * The transaction ids are those of other transactions. What the current
 * transaction wrote counts as committed.
 */
typedef struct LeaseRow
{
	Lease		lease;			/* points into the tuple */
	HeapTuple	tuple;			/* a copy */
	TransactionId inserted_by;	/* open transaction that wrote this version */
	TransactionId changed_by;	/* open transaction that replaces or deletes it */
	TransactionId locked_by;	/* open transaction that holds a row lock on it, */
	LockTupleMode lock_mode;	/* of the strongest of these locks */
	bool		locked_here;	/* the current transaction holds a row lock on it */
	bool		written_here;	/* the current transaction wrote this version */
} LeaseRow;

/*
 * All rows of a resource, the highest slot first. They stay valid until their
 * memory context is reset.
 */
typedef struct LeaseRows
{
	int			count;
	int			space;
	LeaseRow   *row;
	bool		same_moment;	/* there was a moment at which all of them were as shown */
} LeaseRows;

/* Which lease is meant: that of an owner, that with a token, or both. */
typedef struct Claim
{
	const text *owner;			/* NULL: any owner */
	const int64 *token;			/* NULL: any token */
} Claim;

/* What to do when the owner holds the lease already, in the mode asked for. */
typedef enum IfOwn
{
	IF_OWN_REFUSE,
	IF_OWN_RENEW,				/* let it last for ttl from now */
	IF_OWN_COUNT				/* grant it again; it must be released as many times */
} IfOwn;

/*
 * Spans of time are in microseconds. This one has no end: the ttl of a lease
 * that ends with its session, or a wait.
 */
#define FOREVER			PG_INT64_MAX

/* A span of time that was not given, where zero means something else. */
#define NOT_GIVEN		(-1)

/* What is asked for. */
typedef struct LeaseRequest
{
	text	   *resource;
	text	   *owner;
	int64		ttl;
	LeaseMode	mode;
	int			permits;		/* maximum number of leases at a time; not for MODE_EXCLUSIVE */
	IfOwn		if_own;
	int64		min_hold;		/* or NOT_GIVEN */
	Datum		payload;		/* jsonb; 0: none */
	bool		session;		/* let the lease end with this session */
} LeaseRequest;

/* Why a request was refused, or what is special about a grant. The caller is told. */
typedef enum GrantReason
{
	REASON_NONE,
	REASON_HELD,				/* another owner holds it */
	REASON_OPEN,				/* an open transaction conflicts */
	REASON_QUEUE,				/* others have waited for longer */
	REASON_OWN,					/* the owner itself has a lease that excludes it */
	REASON_FAILOVER,			/* a new era began a short while ago */
	REASON_RENEWED,				/* the owner had it already, and it was renewed */
	REASON_COUNTED				/* the owner had it already, and must release it once more */
} GrantReason;

/* What a grant gives. */
typedef struct Grant
{
	int64		token;
	TimestampTz granted_at;		/* when the ttl begins */
	TimestampTz expires_at;
} Grant;

/* What would have to happen before a request can be granted. */
typedef struct Refusal
{
	TimestampTz held_until;		/* when to look again; DT_NOEND: no time is known */
	TransactionId transaction;	/* the one to wait for; invalid: there is none, or no single one */
	TransactionId brief;		/* one that is no reason to refuse, see purge_met() */
	bool		open;			/* open transactions are among the obstacles */
	bool		own_lease;		/* a lease of the same owner is among them */
	text	   *blocked_by;		/* owner of a lease among them, or NULL */
	Oid			blocked_role;	/* role that acquired that lease */
} Refusal;

/* Outcome of a request. */
typedef struct GrantOutcome
{
	bool		granted;
	bool		waited;
	GrantReason reason;
	text	   *resource;		/* that was granted, or that refused it */
	Grant		grant;			/* if granted */
	Refusal		refusal;		/* if not */
} GrantOutcome;

#endif							/* LEASE_LOCK_TYPES_H */
