/*-------------------------------------------------------------------------
 *
 * era.h
 *		Eras of fencing tokens, and the wait after a failover.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_ERA_H
#define LEASE_LOCK_ERA_H

#include "datatype/timestamp.h"

/* Define the setting lease_lock.failover_wait. */
extern void era_init(void);

/*
 * Make sure that the sequence is above all tokens of earlier eras. Only the
 * first call in a process does anything.
 */
extern void era_enter(Oid token_sequence);

/* Begin an era of the sequences in a schema, whether or not it is another one. */
extern void era_begin(Oid schema);

/*
 * Return the lease time from which leases are granted in this era; DT_NOBEGIN
 * if they are granted at once.
 */
extern TimestampTz era_grants_from(Oid token_sequence);

#endif							/* LEASE_LOCK_ERA_H */
