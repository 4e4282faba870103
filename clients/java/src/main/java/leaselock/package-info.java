/**
 * Leases of the PostgreSQL extension lease_lock: renewed in the background, noticed in time when they are lost, and
 * fenced where data is written. Begin with {@link leaselock.Leases}.
 */
package leaselock;
