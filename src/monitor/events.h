/*-------------------------------------------------------------------------
 *
 * events.h
 *		What happened to a lease, told to those who count and log it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_EVENTS_H
#define LEASE_LOCK_EVENTS_H

#include "lease_lock.h"

extern void events_init(void);
extern void note_grant(const Lease *granted, const Lease *former);
extern void note_renewal(const Lease *renewed);
extern void note_release(const Lease *released);
extern void note_transfer(const Lease *transferred, const Lease *former);
extern void note_downgrade(const Lease *shared, const Lease *exclusive);
extern void note_break(const Lease *broken);

#endif							/* LEASE_LOCK_EVENTS_H */
