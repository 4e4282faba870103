/*-------------------------------------------------------------------------
 *
 * Limits of a session.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_QUOTA_H
#define LEASE_LOCK_QUOTA_H

#include "base/types.h"

extern void quota_init(void);
extern char *which_lease(const text *resource);
extern void require_ttl_allowed(const text *resource, const char *what, int64 ttl);
extern void require_lease_allowed(const text *resource, const text *owner, Oid role);

#endif							/* LEASE_LOCK_QUOTA_H */
