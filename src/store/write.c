/*-------------------------------------------------------------------------
 *
 * write.c
 *		Writing rows of the lock table.
 *
 * The caller holds the resource lock, has looked at the row since, and found
 * that no other transaction changes or locks it. So the row is written without
 * being locked first. Only writes by hand could come in between.
 *
 * A released lease stays as a row without owner, to be updated in place the
 * next time. A table whose rows come and go would collect dead index
 * entries, which every look has to pass.
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
#include "store/session_lock.h"

/* Show what was written to the next call, be it in the same statement. */
static void
finish_write(LeaseStore *store)
{
	store->written = true;
	CommandCounterIncrement();
}

/* Somebody writes to the lock table with SQL at the same moment, or in the same command. */
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

/* Insert the row of a lease slot that has none. */
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
 * Does the header show a row lock, of ours or of a transaction that lets us
 * pass? heap_update() then has to be told to wait, which it will not.
 */
static inline bool
is_locked(const LeaseRow *row)
{
	return (row->tuple->t_data->t_infomask & HEAP_XMAX_INVALID) == 0;
}

/*
 * Replace a row.
 *
 * If nobody had locked it, the update does not wait for a row lock that somebody took by
 * hand since. The server asserts that its callers wait, so a build
 * with assertions waits.
 */
void
store_update(LeaseStore *store, const LeaseRow *old, const Lease *lease)
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

	/* The same bytes, header included, or the update would not be in place. */
	row->tts_values[Anum_resource - 1] = PointerGetDatum(old->lease.resource);

	if (old->lease.session == SESSION_MINE && (lease->owner == NULL || lease->token != old->lease.token))
		session_lock_end(old->lease.token);

	RACE_POINT("before an update");
	result = table_tuple_update(store->table, &tid, row, GetCurrentCommandId(true), 0,
								GetActiveSnapshot(), InvalidSnapshot, wait,
								&failure, &lockmode, &which);
	if (result != TM_Ok)
		refuse_written_by_hand(store, result);
	if (which != TU_None)
		update_index_entries(store, row, which != TU_All);
	store_remember(store, lease, &row->tts_tid);
	ExecDropSingleTupleTableSlot(row);
	finish_write(store);
}

static TM_Result
delete_version(LeaseStore *store, const LeaseRow *row, bool wait)
{
	ItemPointerData tid = row->tuple->t_self;
	TM_FailureData failure;

	return table_tuple_delete(store->table, &tid, GetCurrentCommandId(true), 0,
							  GetActiveSnapshot(), InvalidSnapshot, wait, &failure);
}

/* Delete a row; false if somebody came first. */
bool
store_delete(LeaseStore *store, const LeaseRow *row)
{
	TM_Result	result = delete_version(store, row, false);
	LeaseRow	now;

	/* Our own row lock is told like that of others, but there is nobody to wait for. */
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
 * This does not wait for an open renewal, and then locks the version before it.
 * The new version has to be locked as well: when it is committed, only its
 * lockers count.
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
		store->written = true;	/* a row lock is */
	return result == TM_Ok;
}
