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
 * Make sure that the sequence stands above all tokens of earlier eras. Does
 * nothing but at the first call of a process.
 */
extern void era_enter(Oid token_sequence);

/*
 * Return from when on leases are granted in this era, in lease time: DT_NOBEGIN
 * when they are granted at once.
 */
extern TimestampTz era_grants_from(Oid token_sequence);

#endif							/* LEASE_LOCK_ERA_H */
