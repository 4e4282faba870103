/*-------------------------------------------------------------------------
 *
 * durability.h
 *		What a commit waits for when its transaction changed leases.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_DURABILITY_H
#define LEASE_LOCK_DURABILITY_H

/* Define the settings, and register a callback for the end of transactions. */
extern void durability_init(void);

/* Note that the transaction granted, renewed or transferred a lease. */
extern void durable_write(void);

/* Note that the transaction is about to release leases; call it before looking for them. */
extern void durable_release_begins(void);

/* Note that a release has been written; call it after the last write of the release. */
extern void durable_release(void);

#endif							/* LEASE_LOCK_DURABILITY_H */
