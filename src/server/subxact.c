/*-------------------------------------------------------------------------
 *
 * subxact.c
 *		Work in a subtransaction.
 *
 * For work that must be undone without failing the caller's transaction: an
 * attempt that may fail, or grants of which all or none must stay.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/resowner.h"

#include "server/server.h"

/*
 * Do the work in a subtransaction. Its effects stay if it returns true, and
 * are rolled back if it returns false or fails. Returns whether they stay. An
 * error of the work is stored in *error or, if that is NULL, raised again.
 * Interrupts are held after it if they were held before, as under a resource lock.
 * The work must not leave anything behind that belongs to the subtransaction,
 * such as a buffer pin in the slot of an open table.
 */
bool
run_subtransaction(SubtransactionWork work, void *arg, ErrorData **error)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	uint32		interrupts_held = InterruptHoldoffCount;
	ErrorData  *volatile caught = NULL;
	volatile bool keep = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		keep = work(arg);
	}
	PG_CATCH();
	{
		InterruptHoldoffCount = interrupts_held;	/* the error has reset it */
		MemoryContextSwitchTo(context);
		caught = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();

	if (keep)
		ReleaseCurrentSubTransaction();
	else
		RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;

	if (error != NULL)
		*error = caught;
	else if (caught != NULL)
		ReThrowError(caught);
	return keep;
}
