/*-------------------------------------------------------------------------
 *
 * lease_lock.c
 *		Module entry.
 *
 * Each file defines the settings and callbacks of its own concern.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/guc.h"

#include "change/change.h"
#include "guard/guard.h"
#include "monitor/monitor.h"
#include "purge/purge.h"
#include "store/store.h"
#include "wait/wait.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	clock_init();
	RACE_INIT();
	sessions_init();
	store_init();
	assertion_cache_init();
	tokens_init();
	durability_init();
	wait_init();
	guard_init();
	purge_init();
	launcher_init();
	stats_init();
	events_init();
	watches_init();
	notices_init();
	quota_init();

	MarkGUCPrefixReserved("lease_lock");
}
