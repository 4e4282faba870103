/*-------------------------------------------------------------------------
 *
 * owner_index.c
 *		An index on the owner, if there is one.
 *
 * The extension creates none: with such an index, a grant or release can no
 * longer update its row in place. If a user has created one, the leases of an
 * owner are read through it instead of the whole table. Rows that are kept for
 * an owner have it in another column. So if these are wanted as well, the index
 * must be one on both columns, and is searched twice.
 *
 * The index must find every version of a row whose owner has the same bytes.
 * So its first columns are these columns themselves, in the server's own order
 * of bytes: an operator class of users could find anything, and an index that
 * another collation orders is wrong after an upgrade of the collation's
 * library. The definition is read without evaluating anything in it.
 *
 * Only indisvalid counts. An index that CREATE INDEX CONCURRENTLY or REINDEX
 * CONCURRENTLY builds, or has left behind after an error, is not valid yet. One
 * that DROP INDEX CONCURRENTLY removes stays complete as long as the table
 * is locked.
 *
 * indcheckxmin does not count. It says that versions which were dead when the
 * index was built may be missing in it, because they were in a HOT chain with
 * a version that has another owner. Only a snapshot that is older than the
 * index could need them. Scans take theirs when the index is open. A
 * transaction that has itself created the index cannot need them either: a
 * rollback to a savepoint that revives such a version drops the index.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "catalog/pg_am.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "store/columns.h"

/* The columns that have an owner. Those of an index begin with the first one, or with both. */
static const int owner_columns[] = {OWNER_COLUMN, KEPT_FOR_COLUMN};

static Expr *
column_expr(Relation table, int column)
{
	AttrNumber	attno = column_attnum(column);

	Oid			collation = TupleDescAttr(RelationGetDescr(table), attno - 1)->attcollation;

	return (Expr *) makeVar(1, attno, TEXTOID, -1, collation, 0);
}

static Expr *
is_owner_expr(Relation table, int column, const text *owner)
{
	Const	   *value = makeConst(TEXTOID, -1, C_COLLATION_OID, -1, PointerGetDatum(owner), false,
								  false);

	return make_opclause(TextEqualOperator, BOOLOID, false, column_expr(table, column),
						 (Expr *) value,
						 InvalidOid, C_COLLATION_OID);
}

static Expr *
is_null_expr(Relation table, int column)
{
	NullTest   *test = makeNode(NullTest);

	test->arg = column_expr(table, column);
	test->nulltesttype = IS_NULL;
	test->location = -1;
	return (Expr *) test;
}

/*
 * Has the index all rows that a search is for? A partial one has, if the server
 * can prove that its predicate is true for them. The proof is about the
 * predicate as it is stored: the relation cache would evaluate functions of
 * users in it.
 */
static bool
has_rows(Relation table, Relation index, const text *owner, OwnerSearch search)
{
	bool		all;
	Datum		stored = SysCacheGetAttr(INDEXRELID, index->rd_indextuple, Anum_pg_index_indpred,
										 &all);
	List	   *predicate;
	List	   *searched;

	if (all)
		return true;
	searched = search == SEARCH_OWNED ? list_make1(is_owner_expr(table, OWNER_COLUMN, owner)) :
		list_make2(is_null_expr(table, OWNER_COLUMN), is_owner_expr(table, KEPT_FOR_COLUMN, owner));
	predicate = make_ands_implicit(stringToNode(TextDatumGetCString(stored)));
	return predicate_implied_by(predicate, searched, false);
}

/* Does an equality search in the first columns find the rows that have these bytes there? */
static bool
is_on_owner(Relation index, int ncolumns)
{
	Assert(ncolumns <= (int) lengthof(owner_columns));
	if (!index->rd_index->indisvalid || index->rd_rel->relam != BTREE_AM_OID ||
		index->rd_index->indnkeyatts < ncolumns)
		return false;
	for (int i = 0; i < ncolumns; i++)
		if (index->rd_index->indkey.values[i] != column_attnum(owner_columns[i]) ||
			index->rd_opfamily[i] != TEXT_BTREE_FAM_OID ||
			index->rd_opcintype[i] != TEXTOID ||
			index->rd_indcollation[i] != C_COLLATION_OID)
			return false;
	return true;
}

/* Open an index that is good for all searches up to the last one; NULL if there is none. */
Relation
open_owner_index(Relation table, const text *owner, OwnerSearch last)
{
	List	   *indexes = RelationGetIndexList(table);
	Relation	found = NULL;
	ListCell   *cell;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);
		bool		good = is_on_owner(index, last + 1);

		for (OwnerSearch search = SEARCH_OWNED; good && search <= last; search++)
			good = has_rows(table, index, owner, search);
		if (good)
		{
			found = index;
			break;
		}
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return found;
}

/* Fill in the keys of a search; returns their number. */
int
owner_search_keys(ScanKey keys, const text *owner, OwnerSearch search)
{
	int			nkeys = 0;

	if (search == SEARCH_KEPT)
		ScanKeyEntryInitialize(&keys[nkeys++], SK_ISNULL | SK_SEARCHNULL, 1, InvalidStrategy,
							   InvalidOid,
							   InvalidOid, InvalidOid, (Datum) 0);
	ScanKeyEntryInitialize(&keys[nkeys], 0, nkeys + 1, BTEqualStrategyNumber, TEXTOID,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(owner));
	return nkeys + 1;
}
