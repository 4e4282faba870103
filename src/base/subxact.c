/*-------------------------------------------------------------------------
 *
 * subxact.c
 *		Work in a subtransaction.
 *
 * For what has to be undone without failing the caller's transaction: locks
 * that were only to be looked at, some of several grants.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/subxact.h"

/*
 * Do the work; what it did stays if it returns true. Returns its error, if
 * it failed. It must not leave anything behind that belongs to
 * the subtransaction, such as a row that an open table stands on.
 */
ErrorData *
run_subtransaction(SubtransactionWork work, void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;
	volatile bool keep = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		keep = work(arg);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();

	if (keep)
		ReleaseCurrentSubTransaction();
	else
		RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return error;
}
