/*-------------------------------------------------------------------------
 *
 * purge.c
 *		Removal of the rows of leases that ended.
 *
 * lease_purge() removes the rows in the transaction of its caller. The worker
 * removes them in batches, each in its own short transaction. The worker never
 * waits: not for a row, not for a table, and not for an extension that another
 * session works on.
 *
 * The worker must not cause refusals either. So batches are short, and the
 * worker publishes the transaction of its batch in shared memory. A request
 * that meets this transaction looks again until the batch is over.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/guc.h"
#include "utils/rel.h"

#include "monitor/monitor.h"
#include "purge/purge.h"
#include "rules/rules.h"
#include "store/store.h"

/*
 * Limits of a batch: blocks to scan, rows to remove, and microseconds during
 * which other sessions may meet rows that are being removed. The last two are
 * checked only between blocks, so that each batch makes progress.
 */
#define BATCH_BLOCKS	256
#define BATCH_ROWS		1000
#define BATCH_TIME		INT64CONST(10000)

/*
 * Longest time, in microseconds, that a request waits for a batch. A batch is
 * far shorter, unless the worker is stopped or the disk hangs.
 */
#define LONGEST_PATIENCE	USECS_PER_SEC
#define PAUSE				200

/* How often a request looks again because a transaction has ended. */
#define MAX_ENDED			10

static int	purge_after = 60;

PurgeState *purge_state = NULL;

static Size
state_size(void)
{
	return sizeof(PurgeState);
}

static void
create_state(void *memory, int tranche)
{
	PurgeState *state = memory;

	pg_atomic_init_u32(&state->batch_xid, InvalidTransactionId);
}

static const SharedPart state_part = {"lease_lock purge 3", state_size, create_state,
									  (void **) &purge_state};

void
purge_init(void)
{
	DefineCustomIntVariable("lease_lock.purge_after",
							"Time for which the row of a free lease is kept before it is purged.",
							NULL,
							&purge_after,
							60, 0, INT_MAX,
							PGC_USERSET,
							GUC_UNIT_S,
							NULL, NULL, NULL);

	add_shared_part(&state_part);
}

/* StoreFilter: was the lease released, or did it expire, before the time that arg points to? */
static bool
ended_before(const Lease *lease, const void *arg)
{
	return is_free(lease, *(const TimestampTz *) arg);
}

static TimestampTz
purge_limit(void)
{
	return clock_now() - purge_after * USECS_PER_SEC;
}

/* Delete a row that a scan found; false if it must stay. The caller holds the resource lock. */
static bool
purge_under_lock(LeaseStore *store, const ItemPointerData *tid, TimestampTz limit)
{
	LeaseRow	row;
	bool		purged = false;

	if (!store_look_again(store, tid, &row))
		return false;
	if (may_be_purged(&row, limit))
	{
		forget_assertions();	/* this transaction may have asserted it */
		purged = store_try_write(store, &row, NULL);
	}
	heap_freetuple(row.tuple);
	return purged;
}

/* The same. Never waits: a row that another transaction uses is left for the next purge. */
static bool
purge_row(LeaseStore *store, const text *resource, const ItemPointerData *tid, TimestampTz limit)
{
	volatile bool purged = false;

	if (!try_lock_resource(resource))
		return false;
	PG_TRY();
	{
		purged = purge_under_lock(store, tid, limit);
	}
	PG_FINALLY();
	{
		unlock_resource(resource);
	}
	PG_END_TRY();
	return purged;
}

/*
 * Remove the rows that have been free for lease_lock.purge_after. Returns
 * their number.
 */
int64
purge_leases(void)
{
	TimestampTz limit = purge_limit();
	LeaseStore *store = store_open(RowExclusiveLock);
	StoreScan  *scan;
	int64		purged = 0;
	ItemPointerData tid;
	Lease		lease;

	store_prepare_write(store);
	scan = store_scan(store, SCAN_COMMITTED, ended_before, &limit);
	while (store_next(scan, &lease, &tid))
		if (purge_row(store, lease.resource, &tid, limit))
			purged++;

	store_end_scan(scan);
	store_close(store);
	stats_add(STATS_PURGED, purged);
	return purged;
}

/*
 * Purge the next blocks of a visit: a batch, or less of it. Before the first
 * row, announce that this transaction will be over soon, for requests that meet
 * its rows. Returns the number of rows that were removed.
 */
static int64
purge_blocks(LeaseStore *store, Visit *visit, BlockNumber nblocks)
{
	BlockNumber first = visit->next_block;
	TimestampTz limit = purge_limit();
	StoreScan  *scan = store_scan_blocks(store, first, first + (BATCH_BLOCKS - 1), SCAN_COMMITTED,
										 ended_before, &limit);
	BlockNumber block = InvalidBlockNumber;
	int64		purged = 0;
	MonotonicTime begun_at = AT_ONCE;
	ItemPointerData tid;
	Lease		lease;

	visit->next_block = Min(first + BATCH_BLOCKS, nblocks);
	while (store_next(scan, &lease, &tid))
	{
		BlockNumber row_block = ItemPointerGetBlockNumber(&tid);

		if (row_block != block && purged > 0 &&
			(purged >= BATCH_ROWS || mono_since(begun_at) >= BATCH_TIME))
		{
			visit->next_block = row_block;
			break;
		}
		block = row_block;

		if (mono_equal(begun_at, AT_ONCE))
		{
			begun_at = clock_monotonic();
			pg_atomic_write_u32(&purge_state->batch_xid, GetTopTransactionId());
			pg_memory_barrier();
		}
		if (!purge_row(store, lease.resource, &tid, limit))
			continue;
		purged++;
		/* It has expired since the visit told that, or its session has ended. */
		if (lease.owner != NULL && lease.expires_at > visit->told_until)
			tell_watchers(EVENT_EXPIRED, &lease);
	}
	store_end_scan(scan);
	return purged;
}

/*
 * Are there no rows, and no open transaction that may leave one? One snapshot
 * tells that: while batches are purged, a row can move to a block before them.
 */
static bool
is_empty(LeaseStore *store)
{
	StoreScan  *scan = store_scan(store, SCAN_POSSIBLE, NULL, NULL);
	ItemPointerData tid;
	Lease		lease;
	bool		empty = !store_next(scan, &lease, &tid);

	store_end_scan(scan);
	return empty;
}

/*
 * Purge one batch of a visit, in the current transaction. The caller must commit
 * it right after. The batch has the privileges of the owner of the lock table,
 * which cannot change while the table is locked. An error ends the transaction,
 * which restores the role. Returns the number of blocks of the table.
 */
BlockNumber
purge_batch(Visit *visit)
{
	LeaseStore *store;
	StoreOpening opening = store_open_if_free(RowExclusiveLock, &store);
	BlockNumber nblocks;
	Oid			user;
	int			context;
	int64		purged;

	visit->result = opening == STORE_ABSENT ? VISIT_EMPTY : VISIT_LOCKED;
	if (opening != STORE_OPEN)
		return 0;
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(store->table->rd_rel->relowner, context | SECURITY_RESTRICTED_OPERATION);

	nblocks = RelationGetNumberOfBlocks(store->table);
	purged = purge_blocks(store, visit, nblocks);
	visit->purged += purged;
	if (visit->next_block < nblocks)
		visit->result = VISIT_UNFINISHED;
	else
	{
		visit->result = purged == 0 && is_empty(store) ? VISIT_EMPTY : VISIT_DONE;
		visit->next_block = 0;
	}

	SetUserIdAndSecContext(user, context);
	store_close(store);
	stats_add(STATS_PURGED, purged);
	return nblocks;
}

/*
 * Find an open transaction that a look met and that is no reason to refuse:
 * the worker's batch, or one that has ended since. Invalid if there is none.
 */
TransactionId
purge_met(const LeaseRows *rows)
{
	TransactionId batch = purge_state != NULL ? pg_atomic_read_u32(&purge_state->batch_xid) :
		InvalidTransactionId;

	for (int i = 0; i < rows->count; i++)
	{
		TransactionId xid = rows->row[i].changed_by;

		if (TransactionIdIsValid(xid) && (xid == batch || !TransactionIdIsInProgress(xid)))
			return xid;
	}
	return InvalidTransactionId;
}

/*
 * A request was refused because of a transaction that purge_met() found. Waits
 * for a moment, unless the transaction has ended. Returns false if the request
 * has waited too long, or looked too often: the refusal stands.
 */
bool
wait_for_purge(TransactionId xid, PurgePatience *patience)
{
	if (mono_equal(patience->until, AT_ONCE))
		patience->until = mono_from_now(LONGEST_PATIENCE);
	if (!TransactionIdIsInProgress(xid))
		return ++patience->ended <= MAX_ENDED;
	if (mono_has_come(patience->until))
		return false;

	CHECK_FOR_INTERRUPTS();
	pg_usleep(PAUSE);
	return true;
}
