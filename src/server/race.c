/*-------------------------------------------------------------------------
 *
 * race.c
 *		Delays and stops at race points, for builds with LEASE_LOCK_RACES.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "server/server.h"

#ifdef LEASE_LOCK_RACES

#include "common/pg_prng.h"
#include "utils/builtins.h"
#include "utils/guc.h"

static char *stop_at = NULL;
static int	stop_lock = 7;
int			race_hashes = 0;

void
race_init(void)
{
	DefineCustomStringVariable("lease_lock.stop_at",
							   "Name of the race point at which the session waits for an advisory "
							   "lock.",
							   "If it is set, to any name, the session waits nowhere else.",
							   &stop_at,
							   "",
							   PGC_USERSET,
							   0,
							   NULL, NULL, NULL);
	DefineCustomIntVariable("lease_lock.stop_lock",
							"The advisory lock for which a stopped session waits.",
							NULL,
							&stop_lock,
							7, 1, PG_INT32_MAX,
							PGC_USERSET,
							0,
							NULL, NULL, NULL);
	DefineCustomIntVariable("lease_lock.hashes",
							"Number of different hashes of resources in the wait queue.",
							"0 means all. The session that creates the shared memory decides.",
							&race_hashes,
							0, 0, INT_MAX,
							PGC_SIGHUP,
							0,
							NULL, NULL, NULL);
}

static void
wait_at_random(void)
{
	if (pg_prng_uint32(&pg_global_prng_state) % 4 == 0)
		pg_usleep(pg_prng_uint32(&pg_global_prng_state) % 3000);
}

void
race_point(const char *name)
{
	if (stop_at[0] == '\0')
		wait_at_random();
	else if (strcmp(stop_at, name) == 0)
	{
		DirectFunctionCall1(pg_advisory_lock_int8, Int64GetDatum(stop_lock));
		DirectFunctionCall1(pg_advisory_unlock_int8, Int64GetDatum(stop_lock));
	}
}

#endif							/* LEASE_LOCK_RACES */
