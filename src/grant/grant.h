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

/* grant.c: one try */
extern GrantOutcome try_grant(LeaseStore *store, const LeaseRequest *request);

/* Where a session waits: inside its transaction, or after it has committed that. */
typedef enum WaitKind
{
	WAIT_INSIDE_TRANSACTION,
	WAIT_BETWEEN_TRANSACTIONS
} WaitKind;

/* request.c: waiting for leases, one or several */
extern GrantOutcome acquire_any(const LeaseRequest *request, text **resources, int nresources,
								int64 wait, WaitKind kind);
extern bool acquire_all(const LeaseRequest *request, text **resources, int nresources, int64 wait);

#endif							/* LEASE_LOCK_GRANT_H */
