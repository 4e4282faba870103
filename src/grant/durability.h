/*-------------------------------------------------------------------------
 *
 * durability.h
 *		What has to be on disk before a caller is told that it has a lease.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_DURABILITY_H
#define LEASE_LOCK_DURABILITY_H

extern void durability_init(void);
extern void make_durable(void);

#endif							/* LEASE_LOCK_DURABILITY_H */
