/*-------------------------------------------------------------------------
 *
 * durability.c
 *		What has to be on disk before a caller is told that it has a lease.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/guc.h"

#include "grant/durability.h"

static bool durable = true;

void
durability_init(void)
{
	DefineCustomBoolVariable("lease_lock.durable",
							 "Makes granted and renewed leases survive a crash, whatever synchronous_commit says.",
							 NULL,
							 &durable,
							 true,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);
}

/*
 * A client whose grant was lost in a crash still believes that it holds the
 * lease, while another one is granted it. A lost release does no such harm:
 * the lease ends when it expires.
 */
void
make_durable(void)
{
	if (durable)
		ForceSyncCommit();
}
