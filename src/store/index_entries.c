/*-------------------------------------------------------------------------
 *
 * index_entries.c
 *		Index entries of rows that were written.
 *
 * Users may add indexes of any shape to the lock table. The executor's
 * functions maintain them, with two exceptions.
 *
 * No insertion waits for another transaction. A conflict in a unique index is
 * an error. It can only come from writes by hand, or from an index that a user
 * added.
 *
 * An update does not change the primary key. So the new entry skips the search
 * for duplicates, which would visit all older versions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "catalog/index.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_index.h"
#include "executor/executor.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "store/columns.h"

/* Is it the primary key as the extension created it? */
bool
is_key_index(Relation index)
{
	Form_pg_index form = index->rd_index;

	return form->indisunique && form->indimmediate && form->indnatts == 2 &&
		form->indkey.values[0] == Anum_resource && form->indkey.values[1] == Anum_slot &&
		index->rd_indcollation[0] == C_COLLATION_OID &&
		heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL);
}

/* What the executor needs to write index entries. */
typedef struct IndexWriter
{
	EState	   *estate;
	ResultRelInfo *target;
} IndexWriter;

static IndexWriter
open_indexes(LeaseStore *store)
{
	IndexWriter writer;
	MemoryContext context;

	writer.estate = CreateExecutorState();
	context = MemoryContextSwitchTo(writer.estate->es_query_cxt);
	writer.target = makeNode(ResultRelInfo);
	InitResultRelInfo(writer.target, store->table, 0, NULL, 0);
	ExecOpenIndices(writer.target, false);
	MemoryContextSwitchTo(context);
	return writer;
}

static void
close_indexes(IndexWriter *writer)
{
	ExecCloseIndices(writer->target);
	FreeExecutorState(writer->estate);
}

/* Write entries without waiting. A conflicting entry is an error. */
static void
insert_entries(IndexWriter *writer, TupleTableSlot *row, uint32 flags)
{
	bool		conflict = false;
	List	   *conflicts = ExecInsertIndexTuples(writer->target, writer->estate, flags | EIIT_NO_DUPE_ERROR,
												  row, NIL, &conflict);

	if (conflicts != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg("could not write lease because of unique index \"%s\" of the lock table",
						get_rel_name(linitial_oid(conflicts))),
				 errdetail("Another row, which may not be committed yet, has the same key."),
				 errhint("If the index was added to the lock table, drop it. Do not write to the lock table by hand.")));
}

void
insert_index_entries(LeaseStore *store, TupleTableSlot *row)
{
	IndexWriter writer = open_indexes(store);

	insert_entries(&writer, row, 0);
	close_indexes(&writer);
}

/* Write an entry of the primary key for a new version of a row. */
static void
insert_key_entry(LeaseStore *store, Relation index, IndexInfo *info, TupleTableSlot *row)
{
	Datum		key[2] = {row->tts_values[Anum_resource - 1], row->tts_values[Anum_slot - 1]};
	bool		isnull[2] = {false, false};

	index_insert(index, key, isnull, &row->tts_tid, store->table, UNIQUE_CHECK_NO, true, info);
}

/* Write the entries of a new version of a row, or only those of summarizing indexes. */
void
update_index_entries(LeaseStore *store, TupleTableSlot *row, bool only_summarizing)
{
	IndexWriter writer = open_indexes(store);
	RelationPtr indexes = writer.target->ri_IndexRelationDescs;
	int			nindexes = writer.target->ri_NumIndices;
	RelationPtr others = palloc(nindexes * sizeof(Relation));

	for (int i = 0; i < nindexes; i++)
	{
		bool		is_key = RelationGetRelid(indexes[i]) == RelationGetRelid(store->primary_key);

		if (is_key && !only_summarizing)
			insert_key_entry(store, indexes[i], writer.target->ri_IndexRelationInfo[i], row);
		others[i] = is_key ? NULL : indexes[i];
	}

	/* The executor skips indexes that are NULL. */
	writer.target->ri_IndexRelationDescs = others;
	insert_entries(&writer, row, EIIT_IS_UPDATE | (only_summarizing ? EIIT_ONLY_SUMMARIZING : 0));
	writer.target->ri_IndexRelationDescs = indexes;
	close_indexes(&writer);
}
