/*-------------------------------------------------------------------------
 *
 * assertion_cache.h
 *		Leases that the current transaction has asserted lately.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_ASSERTION_CACHE_H
#define LEASE_LOCK_ASSERTION_CACHE_H

#include "base/types.h"

extern void assertion_cache_init(void);
extern const Lease *find_assertion(const text *resource, const Claim *claim);
extern void remember_assertion(const Lease *lease);
extern void forget_assertions(void);

#endif							/* LEASE_LOCK_ASSERTION_CACHE_H */
