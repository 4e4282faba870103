/*-------------------------------------------------------------------------
 *
 * privileges.h
 *		Which role may act on a lease, and what errors may show.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_PRIVILEGES_H
#define LEASE_LOCK_PRIVILEGES_H

#include "utils/relcache.h"

#include "base/types.h"

extern bool may_act(const Lease *lease);
extern bool role_sees_owner(Oid viewer, Oid role);
extern bool may_see_owner(Oid role);
pg_noreturn extern void refuse_permission(const Lease *lease);
extern bool column_is_visible(Relation table, AttrNumber column);

#endif							/* LEASE_LOCK_PRIVILEGES_H */
