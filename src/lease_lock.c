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

#include "purge/purge.h"
#include "monitor/events.h"
#include "grant/durability.h"
#include "grant/quota.h"
#include "monitor/stats.h"
#include "guard/template.h"
#include "store/era.h"
#include "store/tokens.h"
#include "wait/wait.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

void
_PG_init(void)
{
	clock_init();
	store_init();
	tokens_init();
	era_init();
	durability_init();
	wait_init();
	pin_init();
	guard_init();
	template_init();
	purge_init();
	worker_init();
	stats_init();
	events_init();
	quota_init();

	MarkGUCPrefixReserved("lease_lock");
}
