/*-------------------------------------------------------------------------
 *
 * overtaken.c
 *		A limit for calls that other transactions overtake again and again.
 *
 * An action or assertion that waited for a transaction looks again, and may
 * meet the next one. The ending lock keeps assertions from overtaking an
 * action that way, but not row locks by hand, nor transactions that change the
 * lease and are rolled back. Their stream may never end, but each call must.
 *
 * So the call counts the transactions that it waits for. No more can have come
 * before it than can be open at a time. If it meets many times as many, it
 * fails.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "access/twophase.h"
#include "miscadmin.h"

#include "hold/hold.h"

/* How many times the transactions that can be open at a time may come first. */
#define PATIENCE	10

/*
 * Wait for a transaction, unless too many others have come before it since the
 * call began. Savepoints of one transaction count once. If the transaction is
 * unknown, do not wait. name is how errors name the resource.
 */
void
wait_unless_overtaken(Overtakers *overtakers, TransactionId transaction, const char *name)
{
	bool		known = TransactionIdIsValid(transaction);
	TransactionId top = known ? SubTransGetTopmostTransaction(transaction) : InvalidTransactionId;

	if ((!known || top != overtakers->last) &&
		++overtakers->count > PATIENCE * (MaxBackends + max_prepared_xacts))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("lease on %s is always locked or being changed by another transaction",
						name),
				 errdetail("%d transactions came first since the call began to wait.",
						   overtakers->count - 1),
				 errhint("Do not lock rows of the lock table by hand.")));
	overtakers->last = top;
	if (known)
		store_wait_for(transaction);
}
