/*-------------------------------------------------------------------------
 *
 * compat.h
 *		Differences between server versions.
 *
 * Code is written for the newest API; what older servers lack is defined
 * here in the newest one's shape, with a word on what changed when.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_COMPAT_H
#define LEASE_LOCK_COMPAT_H

#include "access/genam.h"
#include "access/tableam.h"
#include "executor/executor.h"
#include "utils/relcache.h"

#if PG_VERSION_NUM >= 160000
#include "varatt.h"				/* no longer part of postgres.h */
#endif

/* 18: a scan may count for EXPLAIN; a primary key may be deferrable. */
#if PG_VERSION_NUM < 180000
#define index_beginscan(table, index, snapshot, instrument, nkeys, norderbys) \
	index_beginscan(table, index, snapshot, nkeys, norderbys)
#define RelationGetPrimaryKeyIndex(table, deferrable_ok) RelationGetPrimaryKeyIndex(table)
#endif

#if PG_VERSION_NUM < 160000

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_extension.h"
#include "utils/fmgroids.h"

/* 16: an update says which indexes need entries, not only whether any does. */
#define TU_UpdateIndexes bool
#define TU_None false
#define TU_All true
#define TU_Summarizing 2		/* no bool is ever equal to it */
#define ExecInsertIndexTuples(target, row, estate, update, no_error, conflict, arbiters, summarizing) \
	ExecInsertIndexTuples(target, row, estate, update, no_error, conflict, arbiters)

/* 16: exported by the server. */
static inline Oid
get_extension_schema(Oid extension)
{
	Relation	catalog = table_open(ExtensionRelationId, AccessShareLock);
	Oid			schema = InvalidOid;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_extension_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(extension));
	scan = systable_beginscan(catalog, ExtensionOidIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		schema = ((Form_pg_extension) GETSTRUCT(tuple))->extnamespace;
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return schema;
}

#endif							/* < 16 */

#endif							/* LEASE_LOCK_COMPAT_H */
