/*-------------------------------------------------------------------------
 *
 * write.c
 *		Writing rows of the lock table.
 *
 * The caller holds the resource lock, has looked at the row since, and found
 * that no other transaction changes it, or locks it in a conflicting mode. Only
 * a write or a row lock by hand can come in between. Then nothing is written,
 * and the caller decides.
 *
 * A released lease stays as a tombstone, which the next grant updates in
 * place. If rows were deleted and inserted instead, the table would collect
 * dead index entries, which every look has to skip.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "store/columns.h"

LastWritten last_written;

/* Make the write visible to the next call, even in the same statement. */
static void
finish_write(LeaseStore *store)
{
	store->written = true;
	CommandCounterIncrement();
}

/* Fail if it was the command itself that wrote the row. */
static void
require_other_command(LeaseStore *store, TM_Result result)
{
	if (result == TM_Invisible || result == TM_SelfModified)
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
				 errmsg("lock table \"%s\" is being changed by the same command",
						RelationGetRelationName(store->table)),
				 errhint("Call the lease function in a statement of its own.")));
}

/* Fail because another session locked or wrote the row by hand since the look. */
void
store_refuse_written_by_hand(LeaseStore *store)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("lock table \"%s\" was changed by hand at the same moment",
					RelationGetRelationName(store->table)),
			 errhint("Call the lease function again, and do not write to the lock table by "
					 "hand.")));
}

/*
 * Write the index entries of a row that was inserted or, with EIIT_IS_UPDATE,
 * of a new version of a row. Users may add indexes of any shape, so the
 * executor writes the entries, with two exceptions.
 *
 * No insertion waits for another transaction. A conflict in a unique index is
 * an error. It can only come from writes by hand, or from an index that a user
 * added.
 *
 * An update does not change the primary key. So the new entry skips the search
 * for duplicates, which would visit all older versions.
 */
static void
write_index_entries(LeaseStore *store, TupleTableSlot *row, uint32 flags)
{
	EState	   *estate = CreateExecutorState();
	MemoryContext context = MemoryContextSwitchTo(estate->es_query_cxt);
	ResultRelInfo *target = makeNode(ResultRelInfo);
	int			key = 0;
	bool		conflict = false;
	List	   *conflicts;

	InitResultRelInfo(target, store->table, 0, NULL, 0);
	ExecOpenIndices(target, false);
	MemoryContextSwitchTo(context);
	while (target->ri_IndexRelationDescs[key] != store->primary_key)
		key++;

	if ((flags & EIIT_IS_UPDATE) != 0)
	{
		/* The columns of the key are the first two. */
		if ((flags & EIIT_ONLY_SUMMARIZING) == 0)
			index_insert(store->primary_key, row->tts_values, row->tts_isnull, &row->tts_tid,
						 store->table, UNIQUE_CHECK_NO, true, target->ri_IndexRelationInfo[key]);
		target->ri_IndexRelationDescs[key] = NULL;	/* the executor skips it */
	}
	conflicts = ExecInsertIndexTuples_compat(target, estate, flags | EIIT_NO_DUPE_ERROR, row, NIL,
											 &conflict);
	if (conflicts != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg("could not write lease because of unique index \"%s\" of the lock table",
						get_rel_name(linitial_oid(conflicts))),
				 errdetail("Another row, which may not be committed yet, has the same key."),
				 errhint("If the index was added to the lock table, drop it. Do not write to the "
						 "lock table by hand.")));

	target->ri_IndexRelationDescs[key] = store->primary_key;
	ExecCloseIndices(target);
	FreeExecutorState(estate);
}

static void
insert_row(LeaseStore *store, const Lease *lease)
{
	TupleTableSlot *row = row_from_lease(store, lease, NULL);

	RACE_POINT("before an insert");
	table_tuple_insert(store->table, row, GetCurrentCommandId(true), 0, NULL);
	write_index_entries(store, row, 0);
	last_written = (LastWritten) {hash_text(lease->resource, 0), row->tts_tid};
	ExecDropSingleTupleTableSlot(row);
	finish_write(store);
}

/* Lock a row until the transaction ends, without waiting. */
static TM_Result
lock_row(LeaseStore *store, const LeaseRow *row, LockTupleMode mode, uint8 flags)
{
	ItemPointerData tid = row->tuple->t_self;
	TM_FailureData failure;
	TM_Result	result = table_tuple_lock(store->table, &tid, GetActiveSnapshot(), store->slot,
										  GetCurrentCommandId(false), mode, LockWaitSkip, flags,
										  &failure);

	ExecClearTuple(store->slot);
	if (result == TM_Ok)
		store->written = true;	/* a row lock is a write */
	return result;
}

/*
 * Does the row have a row lock that does not conflict with its change? That is
 * our own, or that of a transaction that relies on a lease that is renewed.
 */
static bool
is_locked(const LeaseRow *row)
{
	return row->locked_here || TransactionIdIsValid(row->locked_by);
}

/*
 * Replace a row, without waiting.
 *
 * If the look found no row lock, heap_update() is told not to wait. Otherwise
 * it fails unless it may wait. So the row is locked first, in the mode of the
 * update. heap_update() asserts that its caller waits, so a build with
 * assertions does.
 */
static bool
try_update(LeaseStore *store, const LeaseRow *old, const Lease *lease)
{
	TupleTableSlot *row = row_from_lease(store, lease, old->tuple);
	ItemPointerData tid = old->tuple->t_self;
#ifdef USE_ASSERT_CHECKING
	bool		wait = true;
#else
	bool		wait = is_locked(old);
#endif
	TM_Result	result = TM_Ok;
	TM_FailureData failure;
	LockTupleMode lockmode;
	TU_UpdateIndexes which;

	/* The key must be identical, varlena header included, for a HOT update. */
	row->tts_values[Anum_resource - 1] = PointerGetDatum(old->lease.resource);

	RACE_POINT("before an update");
	if (is_locked(old))
		result = lock_row(store, old, LockTupleNoKeyExclusive, 0);
	if (result == TM_Ok)
		result = table_tuple_update_compat(store->table, &tid, row, GetCurrentCommandId(true), 0,
										   GetActiveSnapshot(), InvalidSnapshot, wait, &failure,
										   &lockmode, &which);
	require_other_command(store, result);
	if (result == TM_Ok)
	{
		if (which != TU_None)
			write_index_entries(store, row,
								EIIT_IS_UPDATE | (which == TU_All ? 0 : EIIT_ONLY_SUMMARIZING));
		last_written = (LastWritten) {hash_text(lease->resource, 0), row->tts_tid};
		finish_write(store);
	}
	ExecDropSingleTupleTableSlot(row);
	return result == TM_Ok;
}

static bool
try_delete(LeaseStore *store, const LeaseRow *row)
{
	ItemPointerData tid = row->tuple->t_self;
	TM_FailureData failure;
	TM_Result	result = TM_Ok;

	if (row->locked_here)
		result = lock_row(store, row, LockTupleExclusive, 0);
	if (result == TM_Ok)
		result = table_tuple_delete_compat(store->table, &tid, GetCurrentCommandId(true), 0,
										   GetActiveSnapshot(), InvalidSnapshot, row->locked_here,
										   &failure);
	if (result != TM_Ok)
		return false;
	finish_write(store);
	return true;
}

/*
 * Replace a row; insert it if there is no old one, delete it if there is no new
 * one. Never waits: returns false, with nothing written, if another session
 * locked or wrote the row by hand since the look.
 */
bool
store_try_write(LeaseStore *store, const LeaseRow *old, const Lease *new)
{
	if (old != NULL)
		return new != NULL ? try_update(store, old, new) : try_delete(store, old);
	insert_row(store, new);
	return true;
}

/*
 * Lock a row FOR KEY SHARE until the transaction ends; false if another
 * transaction has a lock on it that conflicts, or replaced it.
 *
 * This does not wait for an open renewal; it locks the version before the
 * renewal. The new version must be locked as well, since once it is committed,
 * only the locks on it count.
 */
bool
store_lock_weakly(LeaseStore *store, const LeaseRow *row)
{
	TM_Result	result = lock_row(store, row, LockTupleKeyShare,
								  TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS);

	require_other_command(store, result);
	return result == TM_Ok;
}
