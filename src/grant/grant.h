/*-------------------------------------------------------------------------
 *
 * grant.h
 *		Granting leases: one try, and waiting for one or several.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_GRANT_H
#define LEASE_LOCK_GRANT_H

#include "store/store.h"

typedef enum GrantResult
{
	GRANTED,
	REFUSED_HELD,				/* by somebody, until a time */
	REFUSED_BUSY,				/* an open transaction has to end first */
	REFUSED_QUEUE				/* free, but others have waited for longer */
} GrantResult;

/* Why it was refused, or what is special about a grant, for the caller to know. */
typedef enum GrantReason
{
	REASON_NONE,
	REASON_HELD,				/* somebody holds it */
	REASON_OPEN,				/* an open transaction is in the way */
	REASON_QUEUE,				/* others have waited for longer */
	REASON_OWN,					/* the owner itself has a lease that excludes it */
	REASON_FAILOVER,			/* a new era began a short while ago */
	REASON_RENEWED,				/* the owner had it, and has it for longer now */
	REASON_COUNTED				/* the owner had it, and has to release it once more */
} GrantReason;

/* What came of a try. */
typedef struct GrantOutcome
{
	GrantResult result;
	GrantReason reason;
	bool		waited;
	bool		own_lease;		/* refused because of a lease of the same owner */
	int64		token;			/* GRANTED */
	TimestampTz expires_at;
	TimestampTz held_until;		/* REFUSED_HELD: when to look again, else DT_NOEND */
	bool		open;			/* transactions have some of what is wanted */
	TransactionId transaction;	/* REFUSED_BUSY: the one to wait for */
	text	   *blocked_by;		/* owner, if the request asks to explain */
	Oid			blocked_role;
} GrantOutcome;

/* grant.c: one try */
extern GrantOutcome try_grant(LeaseStore *store, const LeaseRequest *request);

/* request.c: waiting for leases, one or several */
extern GrantOutcome acquire_any(LeaseRequest *request, text **resources, int nresources,
								int64 wait, void (*before_sleep) (void));
extern bool acquire_all(LeaseRequest *request, text **resources, int nresources, int64 wait);

#endif							/* LEASE_LOCK_GRANT_H */
