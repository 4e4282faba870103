/*-------------------------------------------------------------------------
 *
 * index_hint.c
 *		A hint in the log at the index that would make calls quicker.
 *
 * Without an index on the owner, a call that is about the leases of an owner
 * reads the whole lock table. Whether grants shall pay for such an index is
 * for the user to decide. So the log names it once, when the table is large:
 * once since the server started, for each database, or once in each session if
 * the server has no shared memory of ours.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "monitor/monitor.h"

/* Number of blocks from which a table is large: reading it takes some milliseconds. */
#define LARGE_TABLE		1000

static bool hinted = false;		/* by this session, or by another one */

/* Note how the leases of an owner are about to be read. */
void
hint_at_owner_index(const LeaseStore *store, const StoreScan *scan)
{
	BlockNumber blocks;
	char	   *schema;

	if (hinted || store_reads_index(scan))
		return;
	blocks = RelationGetNumberOfBlocks(store->table);
	if (blocks < LARGE_TABLE)
		return;

	hinted = true;
	schema = get_namespace_name(RelationGetNamespace(store->table));
	if (stats_note_hint())
		ereport(LOG_SERVER_ONLY,	/* a client may not read, and keep a lease open */
				(errmsg("all %u blocks of the lock table were read to find the leases of an owner",
						blocks),
				 errdetail("Functions lease_release_all and lease_renew_all do this, and each "
						   "grant under setting \"lease_lock.max_leases_per_owner\". "
						   "This is logged once."),
				 errhint("If that is often, create an index, to which each grant and release "
						 "has to write: CREATE INDEX CONCURRENTLY ON %s (owner, kept_for).",
						 quote_qualified_identifier(schema,
													RelationGetRelationName(store->table)))));
}
