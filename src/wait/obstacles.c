/*-------------------------------------------------------------------------
 *
 * obstacles.c
 *		What blocks a waiter: leases, transactions and processes.
 *
 * This is the only file of this folder that reads leases.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "catalog/pg_type.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "rules/rules.h"
#include "wait/queue.h"

/*
 * The process that runs a transaction; 0 if none does. One that ended long ago
 * must not be looked up.
 */
int
transaction_pid(TransactionId xid)
{
	return TransactionIdIsInProgress(xid) ? BackendXidGetPid(SubTransGetTopmostTransaction(xid)) :
		0;
}

/*
 * Look at the resource of a line. The waiter may begin another wait meanwhile:
 * then the rows mean nothing.
 */
LeaseRows *
look_at_line(LeaseStore *store, const WaiterInfo *info, int line)
{
	LeaseRows  *rows = palloc(sizeof(LeaseRows));

	store_look(store, named_resource(info, line), rows);
	return rows;
}

static bool
is_in_the_way(const LeaseRow *row, const WaiterInfo *info, TimestampTz now)
{
	return obstacle_in(row, now).exists &&
		(info->mode != MODE_SHARED || row->lease.slot == EXCLUSIVE_SLOT);
}

/* The process whose session a lease ends with; 0 if it ends with none. */
static int
session_pid(const Lease *lease, TimestampTz now)
{
	return is_held(lease, now) ? lease->session_pid : 0;
}

/*
 * Find what blocks a waiter: a list of SlotBlocker, which point into the rows,
 * in ascending order of lease slots. A slot that a transaction changes may be in
 * it twice.
 */
List *
find_obstacles(const LeaseRows *rows, const WaiterInfo *info)
{
	TimestampTz now = clock_now();
	List	   *blockers = NIL;

	for (int i = rows->count - 1; i >= 0; i--)
	{
		const LeaseRow *row = &rows->row[i];
		SlotBlocker *blocker;

		if (!is_in_the_way(row, info, now))
			continue;
		blocker = palloc0(sizeof(SlotBlocker));
		blocker->slot = row->lease.slot;
		blocker->transaction = obstacle_in(row, now).transaction;
		if (!TransactionIdIsValid(row->inserted_by) && is_held(&row->lease, now))
			blocker->lease = &row->lease;
		if (TransactionIdIsValid(blocker->transaction))
			blocker->pid = transaction_pid(blocker->transaction);
		else if (blocker->lease != NULL)
			blocker->pid = session_pid(&row->lease, now);
		blockers = lappend(blockers, blocker);
	}
	return blockers;
}

/*
 * Add the process of a transaction, unless that has ended; 0 for a prepared
 * transaction, as in pg_blocking_pids().
 */
static List *
add_transaction(List *pids, TransactionId xid)
{
	int			pid = transaction_pid(xid);

	return pid != 0 || TransactionIdIsInProgress(xid) ? list_append_unique_int(pids, pid) : pids;
}

/*
 * List the processes whose transactions or sessions must end, or give up a row
 * lock, before the waiter can have the lease of these rows. Beside what is in
 * the way, an exclusive grant needs the row of its own slot. awaited is the
 * transaction that refused the waiter, if one did.
 */
List *
find_blocking_pids(const LeaseRows *rows, const WaiterInfo *info, TransactionId awaited)
{
	TimestampTz now = clock_now();
	List	   *pids = add_transaction(NIL, awaited);

	for (int i = 0; i < rows->count; i++)
	{
		const LeaseRow *row = &rows->row[i];
		ListCell   *cell;

		if (!is_in_the_way(row, info, now) &&
			(info->mode != MODE_EXCLUSIVE || row->lease.slot != EXCLUSIVE_SLOT))
			continue;
		foreach(cell, store_row_transactions(row))
			pids = add_transaction(pids, lfirst_oid(cell));
		if (session_pid(&row->lease, now) != 0)
			pids = list_append_unique_int(pids, session_pid(&row->lease, now));
	}
	return pids;
}

/*
 * List the processes that block this one by locks of the server. Asking the
 * server is expensive, so it is asked only if the process, or its lock group,
 * may wait for a lock. The PGPROC is read without a lock.
 */
List *
server_blocking_pids(const PGPROC *proc)
{
	List	   *list = NIL;
	Datum	   *pids;
	int			npids;

	if (proc == MyProc || (proc->waitLock == NULL && proc->lockGroupLeader == NULL))
		return NIL;
	deconstruct_array(DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids,
															 Int32GetDatum(proc->pid))),
					  INT4OID, sizeof(int32), true, TYPALIGN_INT, &pids, NULL, &npids);
	for (int i = 0; i < npids; i++)
		list = lappend_int(list, DatumGetInt32(pids[i]));
	return list;
}
