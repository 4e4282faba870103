/*-------------------------------------------------------------------------
 *
 * api_wait.c
 *		lease_wait(), which waits without a transaction, and lease_waiters().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "api/api.h"
#include "base/clock.h"
#include "base/compat.h"
#include "base/privileges.h"
#include "grant/grant.h"
#include "rules/rules.h"
#include "wait/waiter.h"

PG_FUNCTION_INFO_V1(lease_wait);
PG_FUNCTION_INFO_V1(lease_waiters);

/* Acquire a lease, waiting without a transaction. */
static GrantOutcome
wait_for_lease(FunctionCallInfo fcinfo, LeaseRequest *request, int64 wait)
{
	CallContext *call_context = (CallContext *) fcinfo->context;
	GrantOutcome outcome;

	require_writable("lease_wait()");
	if (call_context == NULL || !IsA(call_context, CallContext) || call_context->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
				 errmsg("lease_wait() cannot be called inside a transaction block or a function"),
				 errhint("Call it on its own, or use lease_acquire() with a wait.")));

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	outcome = acquire_any(request, &request->resource, 1, wait, WAIT_BETWEEN_TRANSACTIONS);
	SPI_finish();
	return outcome;
}

/*
 * lease_wait(resource text, ttl interval, owner text, wait interval, INOUT acquired boolean,
 *			  INOUT token bigint, INOUT expires_at timestamptz, mode text, permits integer,
 *			  if_own text, min_hold interval, lock_delay interval, payload jsonb, session boolean)
 */
Datum
lease_wait(PG_FUNCTION_ARGS)
{
	LeaseRequest request = {.mode = MODE_EXCLUSIVE};
	GrantOutcome outcome;
	int64		wait;
	TupleDesc	desc;
	Datum		values[3];
	bool		isnull[3] = {false};

	wait = request_args(fcinfo, 7, &request);
	get_call_result_type(fcinfo, NULL, &desc);
	BlessTupleDesc(desc);		/* now: the commit of a wait ends the snapshot */
	outcome = wait_for_lease(fcinfo, &request, wait);

	put_grant(&outcome, values, isnull);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, isnull)));
}

/* A waiter in a list that is in the order of turns. */
typedef struct ListedWaiter
{
	const Waiter *waiter;
	int			position;		/* among the waiters for the same resource alone */
	List	   *obstacles;		/* of SlotBlocker */
} ListedWaiter;

/* Append a waiter to the list. Waiters for the same resource in the same mode have the same obstacles. */
static List *
list_waiter(List *listed, LeaseStore *store, const Waiter *waiter)
{
	ListedWaiter *new = palloc0(sizeof(ListedWaiter));
	const ListedWaiter *before = NULL;
	ListCell   *cell;

	new->waiter = waiter;
	if (waiter->info.nresources > 1)
		return lappend(listed, new);	/* it is in several lines */

	foreach(cell, listed)
	{
		const ListedWaiter *other = lfirst(cell);

		if (other->waiter->info.nresources == 1 && other->waiter->entry[0].hash == waiter->entry[0].hash)
			before = other;
	}
	new->position = before != NULL ? before->position + 1 : 1;
	if (before != NULL && before->waiter->info.mode == waiter->info.mode)
		new->obstacles = before->obstacles;
	else
		new->obstacles = find_obstacles(store, waiter, 0);
	return lappend(listed, new);
}

/* What blocks a waiter: the first lease and the first transaction among its obstacles. */
static SlotBlocker
first_of_each(List *obstacles)
{
	SlotBlocker first = {0};
	ListCell   *cell;

	foreach(cell, obstacles)
	{
		const SlotBlocker *obstacle = lfirst(cell);

		if (first.lease == NULL)
			first.lease = obstacle->lease;
		if (!TransactionIdIsValid(first.transaction))
			first.transaction = obstacle->transaction;
	}
	return first;
}

static void
put_waiter(ReturnSetInfo *result, const ListedWaiter *listed)
{
	const WaiterInfo *waiter = &listed->waiter->info;
	SlotBlocker first = first_of_each(listed->obstacles);
	bool		several = waiter->nresources > 1;
	Datum		values[11];
	bool		isnull[11] = {false};

	values[0] = PointerGetDatum(cstring_to_text_with_len(waiter->names, several ? 0 : waiter->name_length[0]));
	isnull[0] = several;
	values[1] = PointerGetDatum(cstring_to_text_with_len(waiter->owner, waiter->owner_length));
	isnull[1] = !may_see_owner(waiter->role);
	values[2] = Int32GetDatum(waiter->pid);
	values[3] = ObjectIdGetDatum(waiter->role);
	values[4] = TimestampTzGetDatum(clock_wall_time(waiter->since));
	values[5] = Int32GetDatum(listed->position);
	isnull[5] = several;
	values[6] = TimestampTzGetDatum(readable_time(clock_wall_time(waiter->deadline)));
	values[7] = first.lease == NULL ? (Datum) 0 : PointerGetDatum(first.lease->owner);
	isnull[7] = first.lease == NULL || !may_see_owner(first.lease->role);
	values[8] = TransactionIdGetDatum(first.transaction);
	isnull[8] = !TransactionIdIsValid(first.transaction);
	values[9] = CStringGetTextDatum(mode_name(waiter->mode));
	values[10] = Int32GetDatum(waiter->permits);
	isnull[10] = waiter->mode != MODE_PERMIT;
	tuplestore_putvalues(result->setResult, result->setDesc, values, isnull);
}

/*
 * lease_waiters() returns setof record
 *
 * As in lease_status, an owner is shown only to roles that may see it.
 */
Datum
lease_waiters(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *waiters = waiters_list();
	List	   *listed = NIL;
	LeaseStore *store = store_open(AccessShareLock);
	ListCell   *cell;

	foreach(cell, waiters)
		listed = list_waiter(listed, store, lfirst(cell));
	store_close(store);

	InitMaterializedSRF(fcinfo, 0);
	foreach(cell, listed)
		put_waiter(result, lfirst(cell));
	PG_RETURN_NULL();
}
