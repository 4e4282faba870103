/*-------------------------------------------------------------------------
 *
 * row_transactions.c
 *		All transactions that have to do with a row.
 *
 * The rules need only one transaction for each row: if that has ended, a look
 * finds the next one. A person who wants to know what is in the way needs all.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/multixact.h"

#include "store/store.h"

static List *
add_valid(List *xids, TransactionId xid)
{
	return TransactionIdIsNormal(xid) ? list_append_unique_oid(xids, xid) : xids;
}

/*
 * List the ids of the transactions that have written a version of a row and
 * may be open, or that replace or lock it. They may have ended since the look,
 * and this transaction may be among them.
 */
List *
store_row_transactions(const LeaseRow *row)
{
	HeapTupleHeader header = row->tuple->t_data;
	List	   *xids = add_valid(add_valid(NIL, row->inserted_by), row->changed_by);
	MultiXactMember *members;
	int			nmembers;

	if ((header->t_infomask & HEAP_XMAX_INVALID) != 0)
		return xids;
	if ((header->t_infomask & HEAP_XMAX_IS_MULTI) == 0)
		return add_valid(xids, HeapTupleHeaderGetRawXmax(header));

	nmembers = GetMultiXactIdMembers(HeapTupleHeaderGetRawXmax(header), &members, false,
									 HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask));
	for (int i = 0; i < nmembers; i++)
		xids = add_valid(xids, members[i].xid);
	return xids;
}
