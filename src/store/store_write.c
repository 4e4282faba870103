/*-------------------------------------------------------------------------
 *
 * store_write.c
 *		Locking and writing rows of the lock table.
 *
 * A released lease stays as a row without owner, to be updated in place the
 * next time: a table whose rows come and go collects dead index entries that
 * every look-up has to pass. The primary key never changes in an update,
 * so its new entries, if any, skip the search for duplicates, which would
 * visit all older versions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "commands/sequence.h"
#include "executor/executor.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "store/store.h"
#include "store/tokens.h"

/*
 * Lock the row that the store stands on. With LockWaitBlock, waits for others
 * and goes on to the newest version; with LockWaitSkip, does neither.
 *
 * FOR KEY SHARE does not wait for an open update, and then stands on the
 * version before it. The new one has to be locked as well: only its lockers
 * count when it is committed.
 */
RowLockResult
store_lock_row(LeaseStore *store, LockTupleMode mode, LockWaitPolicy policy)
{
	ItemPointerData tid = store->row->tts_tid;
	uint8		flags = 0;
	TM_FailureData failure;
	TM_Result	result;

	if (policy == LockWaitBlock)
		flags |= TUPLE_LOCK_FLAG_FIND_LAST_VERSION;
	if (mode == LockTupleKeyShare)
		flags |= TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS;

	result = table_tuple_lock(store->table, &tid, GetActiveSnapshot(), store->row,
							  GetCurrentCommandId(false), mode, policy, flags, &failure);
	switch (result)
	{
		case TM_Ok:
			store->written = true;	/* a row lock is */
			store_read_row(store);
			return ROW_LOCKED;
		case TM_WouldBlock:
			return ROW_BUSY;
		case TM_Updated:
		case TM_Deleted:
			return ROW_GONE;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
					 errmsg("lock table \"%s\" is being changed by the same command",
							RelationGetRelationName(store->table)),
					 errhint("Call the lease function in a statement of its own.")));
	}
	pg_unreachable();
}

/* Get the next fencing token; it is used up even when the transaction fails. */
int64
store_next_token(LeaseStore *store)
{
	return tokens_next(store->token_sequence);
}

/* Show what was written to the next call, be it in the same statement. */
static void
finish_write(LeaseStore *store)
{
	store->written = true;
	CommandCounterIncrement();
}

/* The next token is not above that of the row: it would not fence anything. */
void
store_refuse_token(LeaseStore *store)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("token sequence of the lock table \"%s\" was set back",
					RelationGetRelationName(store->table)),
			 errdetail("Token " INT64_FORMAT " was granted before.", store->lease.token),
			 errhint("Set the sequence above every token that was granted, with setval().")));
}

/* The executor's means to write index entries. */
typedef struct IndexWriter
{
	EState	   *estate;
	ResultRelInfo *target;
} IndexWriter;

/*
 * Open the indexes that a row of that slot may have entries in. Like
 * ExecOpenIndices(), but for the condition of the index on owners, which costs
 * more to evaluate than all the rest.
 */
static IndexWriter
open_indexes(LeaseStore *store, int16 slot)
{
	IndexWriter writer;
	MemoryContext context;
	List	   *indexes;
	ListCell   *cell;

	writer.estate = CreateExecutorState();
	context = MemoryContextSwitchTo(writer.estate->es_query_cxt);
	writer.target = makeNode(ResultRelInfo);
	InitResultRelInfo(writer.target, store->table, 0, NULL, 0);

	indexes = RelationGetIndexList(store->table);
	if (slot <= NEAR_SLOTS)
		indexes = list_delete_oid(indexes, store->owner_index_oid);
	writer.target->ri_IndexRelationDescs = palloc(list_length(indexes) * sizeof(Relation));
	writer.target->ri_IndexRelationInfo = palloc(list_length(indexes) * sizeof(IndexInfo *));
	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), RowExclusiveLock);
		int			i = writer.target->ri_NumIndices++;

		writer.target->ri_IndexRelationDescs[i] = index;
		writer.target->ri_IndexRelationInfo[i] = BuildIndexInfo(index);
	}
	MemoryContextSwitchTo(context);
	return writer;
}

static void
close_indexes(IndexWriter *writer)
{
	ExecCloseIndices(writer->target);
	FreeExecutorState(writer->estate);
}

/*
 * Was the resource granted to somebody else with a higher token, and all of
 * it removed again, between our token and our row? For an exclusive lease
 * it does not matter which slot that was. What was there since the
 * statement began is dead by now but cannot have been vacuumed away.
 *
 * For an exclusive lease, finds out by the way whether there are other slots.
 */
static bool
overtaken(LeaseStore *store, const Lease *lease, ItemPointer own_row)
{
	bool		exclusive = lease->slot == GATE_SLOT && lease->owner != NULL;
	IndexScanDesc scan = exclusive ? store_begin_resource_scan(store, SnapshotAny, lease->resource) :
		store_begin_slot_scan(store, SnapshotAny, lease->resource, lease->slot);
	bool		found = false;

	store->has_slots = false;
	while (!found && index_getnext_slot(scan, BackwardScanDirection, store->row))
	{
		store_read_row(store);
		if (store->lease.slot != GATE_SLOT)
			store->has_slots = true;
		found = !ItemPointerEquals(&store->row->tts_tid, own_row) &&
			store->lease.token > lease->token;
	}
	index_endscan(scan);

	/* Then the next token is above that one, or something is wrong. */
	if (found && store_next_token(store) <= store->lease.token)
		store_refuse_token(store);
	return found;
}

/*
 * Insert a row; false when another transaction came first, or may have.
 *
 * The row goes in speculatively: if the unique index then finds another one,
 * or the caller's check says so, it is taken back, without waiting to see what
 * becomes of the other.
 */
bool
store_insert(LeaseStore *store, const Lease *lease, InsertCheck check, void *arg)
{
	TupleTableSlot *row = store_form_row(store, lease);
	IndexWriter writer = open_indexes(store, lease->slot);
	List	   *arbiters = NIL;
	TransactionId xid = GetCurrentTransactionId();
	uint32		speculative_token = SpeculativeInsertionLockAcquire(xid);
	bool		conflict = false;

	for (int i = 0; i < writer.target->ri_NumIndices; i++)
		if (store_is_key_index(writer.target->ri_IndexRelationDescs[i]))
			arbiters = lappend_oid(arbiters, RelationGetRelid(writer.target->ri_IndexRelationDescs[i]));

	table_tuple_insert_speculative(store->table, row, GetCurrentCommandId(true), 0, NULL,
								   speculative_token);
	ExecInsertIndexTuples(writer.target, writer.estate, EIIT_NO_DUPE_ERROR, row, arbiters, &conflict);
	if (!conflict)
		conflict = overtaken(store, lease, &row->tts_tid) || check(store, arg);
	table_tuple_complete_speculative(store->table, row, speculative_token, !conflict);
	SpeculativeInsertionLockRelease(xid);

	close_indexes(&writer);
	store_remember_row(store, lease, &row->tts_tid);
	ExecDropSingleTupleTableSlot(row);
	finish_write(store);
	return !conflict;
}

/* Write the index entries of a new version that needs some. */
static void
insert_index_entries(LeaseStore *store, TupleTableSlot *row, TU_UpdateIndexes which)
{
	IndexWriter writer = open_indexes(store, DatumGetInt16(row->tts_values[Anum_slot - 1]));
	RelationPtr all = writer.target->ri_IndexRelationDescs;
	RelationPtr others = palloc(writer.target->ri_NumIndices * sizeof(Relation));
	Datum		key[2] = {row->tts_values[Anum_resource - 1], row->tts_values[Anum_slot - 1]};
	bool		isnull[2] = {false, false};

	for (int i = 0; i < writer.target->ri_NumIndices; i++)
	{
		IndexInfo  *info = writer.target->ri_IndexRelationInfo[i];

		others[i] = store_is_key_index(all[i]) ? NULL : all[i];
		if (others[i] == NULL && which == TU_All && info->ii_ReadyForInserts)
			index_insert(all[i], key, isnull, &row->tts_tid, store->table, UNIQUE_CHECK_NO, true, info);
	}

	/* The executor passes over an index that is not there. */
	writer.target->ri_IndexRelationDescs = others;
	ExecInsertIndexTuples(writer.target, writer.estate,
						  EIIT_IS_UPDATE | (which == TU_All ? 0 : EIIT_ONLY_SUMMARIZING),
						  row, NIL, NULL);
	writer.target->ri_IndexRelationDescs = all;
	pfree(others);
	close_indexes(&writer);
}

/*
 * The key of the new row stays as it is to the byte, header included, or the
 * update would not be in place. So does the last owner, unless another one
 * takes the slot; a release does not change it.
 */
static void
keep_indexed_columns(LeaseStore *store, TupleTableSlot *row, const Lease *lease)
{
	const TupleTableSlot *old = store->row;
	int			i = Anum_last_owner - 1;

	row->tts_values[Anum_resource - 1] = old->tts_values[Anum_resource - 1];
	if (lease->slot > NEAR_SLOTS &&
		(lease->owner == NULL ||
		 (!old->tts_isnull[i] && same_text(lease->owner, DatumGetTextPP(old->tts_values[i])))))
	{
		row->tts_values[i] = old->tts_values[i];
		row->tts_isnull[i] = old->tts_isnull[i];
	}
}

/* Replace the row that the store stands on and has locked. */
void
store_update(LeaseStore *store, const Lease *lease)
{
	TupleTableSlot *row = store_form_row(store, lease);
	TM_FailureData failure;
	LockTupleMode lockmode;
	TU_UpdateIndexes which;
	TM_Result	result;

	keep_indexed_columns(store, row, lease);
	result = table_tuple_update(store->table, &store->row->tts_tid, row, GetCurrentCommandId(true), 0,
								GetActiveSnapshot(), InvalidSnapshot, true,
								&failure, &lockmode, &which);
	if (result != TM_Ok)
		elog(ERROR, "could not update a locked row of the lock table: %d", (int) result);

	if (which != TU_None)
		insert_index_entries(store, row, which);

	store_remember_row(store, lease, &row->tts_tid);
	ExecDropSingleTupleTableSlot(row);
	finish_write(store);
}

static TM_Result
delete_row(LeaseStore *store, LockWaitPolicy policy)
{
	TM_FailureData failure;

	return table_tuple_delete(store->table, &store->row->tts_tid, GetCurrentCommandId(true), 0,
							  GetActiveSnapshot(), InvalidSnapshot, policy == LockWaitBlock, &failure);
}

/*
 * Delete the row that the store stands on, unless somebody else has it or it
 * changed meanwhile; then false. A row that nobody has is deleted without the
 * detour of a row lock, which would be written to the log, too.
 */
bool
store_delete_if_free(LeaseStore *store)
{
	if (delete_row(store, LockWaitSkip) != TM_Ok)
	{
		TM_Result	result;

		/* Perhaps only the own transaction has locked it. */
		if (store_lock_row(store, LockTupleExclusive, LockWaitSkip) != ROW_LOCKED)
			return false;
		result = delete_row(store, LockWaitBlock);
		if (result != TM_Ok)
			elog(ERROR, "could not delete a locked row of the lock table: %d", (int) result);
	}

	finish_write(store);
	return true;
}
