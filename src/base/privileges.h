/*-------------------------------------------------------------------------
 *
 * privileges.h
 *		Which role may act on a lease, and which may see its owner.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_PRIVILEGES_H
#define LEASE_LOCK_PRIVILEGES_H

#include "base/types.h"

extern bool may_act(const Lease *lease);
extern bool role_sees_owner(Oid viewer, Oid role);
extern bool may_see_owner(Oid role);
extern void require_role_privileges(const Lease *lease);
pg_noreturn extern void refuse_permission(const Lease *lease);

#endif							/* LEASE_LOCK_PRIVILEGES_H */
