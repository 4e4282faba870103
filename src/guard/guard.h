/*-------------------------------------------------------------------------
 *
 * guard.h
 *		The trigger that lets only the holder of a lease write a row.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_GUARD_H
#define LEASE_LOCK_GUARD_H

extern void guard_init(void);

#endif							/* LEASE_LOCK_GUARD_H */
