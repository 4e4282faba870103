/*-------------------------------------------------------------------------
 *
 * Points of the code at which races with other sessions are likely.
 *
 * With -DLEASE_LOCK_RACES, each race point sometimes waits for a random time.
 * So a race that otherwise takes days to happen happens within minutes.
 * scripts/check-races builds and tests that way.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_RACE_H
#define LEASE_LOCK_RACE_H

#ifdef LEASE_LOCK_RACES
#include "common/pg_prng.h"

#define RACE_POINT(name) \
	do { \
		if (pg_prng_uint32(&pg_global_prng_state) % 4 == 0) \
			pg_usleep(pg_prng_uint32(&pg_global_prng_state) % 3000); \
	} while (0)
#else
#define RACE_POINT(name) ((void) 0)
#endif

#endif							/* LEASE_LOCK_RACE_H */
