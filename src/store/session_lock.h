/*-------------------------------------------------------------------------
 *
 * Locks that show whether the session of a lease has ended.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_SESSION_LOCK_H
#define LEASE_LOCK_SESSION_LOCK_H

#include "store/store.h"

extern void session_lock_init(void);

/* State of the session of a lease, by the token of the lease. */
extern LeaseSession session_of_token(int64 token);

/* Lock a token until this session ends, or until the transaction rolls back. */
extern void session_lock_begin(int64 token, const text *resource);

/* Unlock a token when the transaction commits. */
extern void session_lock_end(int64 token);

/* Unlock some tokens whose leases have been ended by others. */
extern void session_lock_tidy(LeaseStore *store);

/* Called for each lease that ends because this session ends. */
extern void (*session_lease_ended) (const text *resource);

#endif							/* LEASE_LOCK_SESSION_LOCK_H */
