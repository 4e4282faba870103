/*-------------------------------------------------------------------------
 *
 * api_admin.c
 *		The functions that administrators and the install script call.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/lsyscache.h"

#include "api/api.h"
#include "monitor/monitor.h"
#include "purge/purge.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(lease_purge);
PG_FUNCTION_INFO_V1(lease_stats_reset);
PG_FUNCTION_INFO_V1(lease_new_era);

/* lease_purge() returns bigint */
Datum
lease_purge(PG_FUNCTION_ARGS)
{
	require_writable("lease_purge()");
	PG_RETURN_INT64(purge_leases());
}

/* lease_stats_reset() */
Datum
lease_stats_reset(PG_FUNCTION_ARGS)
{
	stats_reset();
	PG_RETURN_VOID();
}

/*
 * lease_new_era()
 *
 * The sequences are those in the schema of the function.
 */
Datum
lease_new_era(PG_FUNCTION_ARGS)
{
	PreventCommandIfReadOnly("lease_new_era()");
	era_begin(get_func_namespace(fcinfo->flinfo->fn_oid));
	PG_RETURN_VOID();
}
