/*-------------------------------------------------------------------------
 *
 * write.c
 *		Writing rows of the lock table.
 *
 * The caller holds the resource lock, has looked at the row since, and found
 * that no other transaction changes or locks it. So the row is written without
 * being locked first. Only a write by hand can come in between.
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

/* Fail because the lock table was written by hand at the same moment, or by the same command. */
static void
refuse_written_by_hand(LeaseStore *store, TM_Result result)
{
	if (result == TM_Invisible || result == TM_SelfModified)
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
				 errmsg("lock table \"%s\" is being changed by the same command",
						RelationGetRelationName(store->table)),
				 errhint("Call the lease function in a statement of its own.")));
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
	store_remember(store, lease, &row->tts_tid);
	ExecDropSingleTupleTableSlot(row);
	finish_write(store);
}

/*
 * Does the header show a row lock, of our own or of a transaction that does
 * not conflict? Then heap_update() must be told to wait, although there is
 * nothing to wait for.
 */
static inline bool
is_locked(const LeaseRow *row)
{
	return (row->tuple->t_data->t_infomask & HEAP_XMAX_INVALID) == 0;
}

/*
 * Replace a row; false if somebody wrote or locked it by hand since the look.
 *
 * If the look saw no row lock, the update does not wait for a row lock that
 * was taken by hand since. heap_update() asserts that its caller waits, so a
 * build with assertions waits.
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
	TM_FailureData failure;
	LockTupleMode lockmode;
	TU_UpdateIndexes which;
	TM_Result	result;

	/* The key must be identical, varlena header included, for a HOT update. */
	row->tts_values[Anum_resource - 1] = PointerGetDatum(old->lease.resource);

	RACE_POINT("before an update");
	result = table_tuple_update(store->table, &tid, row, GetCurrentCommandId(true), 0,
								GetActiveSnapshot(), InvalidSnapshot, wait,
								&failure, &lockmode, &which);
	if (result == TM_Invisible || result == TM_SelfModified)
		refuse_written_by_hand(store, result);
	if (result == TM_Ok)
	{
		if (which != TU_None)
			update_index_entries(store, row, which != TU_All);
		store_remember(store, lease, &row->tts_tid);
		finish_write(store);
	}
	ExecDropSingleTupleTableSlot(row);
	return result == TM_Ok;
}

/* The same for a caller that cannot look again: failure is an error. */
void
store_update(LeaseStore *store, const LeaseRow *old, const Lease *lease)
{
	if (!store_try_update(store, old, lease))
		refuse_written_by_hand(store, TM_BeingModified);
}

static TM_Result
delete_version(LeaseStore *store, const LeaseRow *row, bool wait)
{
	ItemPointerData tid = row->tuple->t_self;
	TM_FailureData failure;

	return table_tuple_delete(store->table, &tid, GetCurrentCommandId(true), 0,
							  GetActiveSnapshot(), InvalidSnapshot, wait, &failure);
}

/* Delete a row; false if another transaction locks or changes it. */
bool
store_delete(LeaseStore *store, const LeaseRow *row)
{
	TM_Result	result = delete_version(store, row, false);
	LeaseRow	now;

	/* Our own row lock gives the same result as one of another transaction, but needs no wait. */
	if (result == TM_BeingModified && store_look_again(store, &row->tuple->t_self, &now) &&
		!is_open(&now) && !TransactionIdIsValid(now.locked_by))
		result = delete_version(store, row, true);
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
	ItemPointerData tid = row->tuple->t_self;
	TM_FailureData failure;
	TM_Result	result = table_tuple_lock(store->table, &tid, GetActiveSnapshot(), store->slot,
										  GetCurrentCommandId(false), LockTupleKeyShare, LockWaitSkip,
										  TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS, &failure);

	ExecClearTuple(store->slot);
	if (result == TM_Invisible || result == TM_SelfModified)
		refuse_written_by_hand(store, result);
	if (result == TM_Ok)
		store->written = true;	/* a row lock is a write */
	return result == TM_Ok;
}
