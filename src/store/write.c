/*-------------------------------------------------------------------------
 *
 * write.c
 *		Writing rows of the lock table.
 *
 * The caller holds the resource lock, has looked at the row since, and found
 * that no other transaction changes it, or locks it in a conflicting mode. Only
 * a write or a row lock by hand can come in between. That is an error.
 *
 * A released lease stays as a tombstone, which the next grant updates in
 * place. If rows were deleted and inserted instead, the table would collect
 * dead index entries, which every look has to skip.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/race.h"
#include "rules/rules.h"
#include "store/columns.h"

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
			 errhint("Call the lease function again, and do not write to the lock table by hand.")));
}

/* Insert a row for a lease slot that has none. */
void
store_insert(LeaseStore *store, const Lease *lease)
{
	TupleTableSlot *row = row_from_lease(store, lease);

	RACE_POINT("before an insert");
	table_tuple_insert(store->table, row, GetCurrentCommandId(true), 0, NULL);
	insert_index_entries(store, row);
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
										  GetCurrentCommandId(false), mode, LockWaitSkip, flags, &failure);

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
 * Replace a row. Never waits: returns false, with nothing written, if another
 * session locked or wrote the row by hand since the look.
 *
 * If the look found no row lock, heap_update() is told not to wait. Otherwise
 * it fails unless it may wait. So the row is locked first, in the mode of the
 * update. heap_update() asserts that its caller waits, so a build with
 * assertions does.
 */
bool
store_try_update(LeaseStore *store, const LeaseRow *old, const Lease *lease)
{
	TupleTableSlot *row = row_from_lease(store, lease);
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
		result = table_tuple_update(store->table, &tid, row, GetCurrentCommandId(true), 0,
									GetActiveSnapshot(), InvalidSnapshot, wait,
									&failure, &lockmode, &which);
	require_other_command(store, result);
	if (result == TM_Ok)
	{
		if (which != TU_None)
			update_index_entries(store, row, which != TU_All);
		finish_write(store);
	}
	ExecDropSingleTupleTableSlot(row);
	return result == TM_Ok;
}

/* Delete a row; false if another transaction locks or changes it. */
bool
store_try_delete(LeaseStore *store, const LeaseRow *row)
{
	ItemPointerData tid = row->tuple->t_self;
	TM_FailureData failure;
	TM_Result	result = TM_Ok;

	if (row->locked_here)
		result = lock_row(store, row, LockTupleExclusive, 0);
	if (result == TM_Ok)
		result = table_tuple_delete(store->table, &tid, GetCurrentCommandId(true), 0,
									GetActiveSnapshot(), InvalidSnapshot, row->locked_here, &failure);
	if (result != TM_Ok)
		return false;
	finish_write(store);
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
	TM_Result	result = lock_row(store, row, LockTupleKeyShare, TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS);

	require_other_command(store, result);
	return result == TM_Ok;
}
