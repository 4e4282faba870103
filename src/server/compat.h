/*-------------------------------------------------------------------------
 *
 * compat.h
 *		Differences between server versions.
 *
 * The code is written for the newest API. What older servers lack is defined
 * here, with the version that brought it. A function whose arguments changed is
 * called by a name with _compat, with the newest arguments.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_COMPAT_H
#define LEASE_LOCK_COMPAT_H

#include "access/genam.h"
#include "access/tableam.h"
#include "executor/executor.h"
#include "utils/relcache.h"

#if PG_VERSION_NUM >= 170000
#include "storage/dsm_registry.h"
#endif
#if PG_VERSION_NUM >= 160000
#include "varatt.h"				/* no longer part of postgres.h */
#endif

/*
 * 19: writes and scans take options; flags say which index entries to write. A
 * lock tranche is named when it is created, and a DSM initializer has an
 * argument.
 */
#include "storage/lwlock.h"
#if PG_VERSION_NUM >= 190000
#define table_beginscan_compat table_beginscan
#define table_beginscan_tidrange_compat table_beginscan_tidrange
#define table_tuple_update_compat table_tuple_update
#define table_tuple_delete_compat table_tuple_delete
#define index_beginscan_compat index_beginscan
#define ExecInsertIndexTuples_compat ExecInsertIndexTuples
#define LWLockNewTrancheId_compat LWLockNewTrancheId
#define GetNamedDSMSegment_compat GetNamedDSMSegment
#define LWLockRegisterTranche_compat(id, name) ((void) 0)
#define DSM_INIT_ARGS void *ptr, void *arg
#else
#define SO_NONE 0
#define table_beginscan_compat(table, snapshot, nkeys, keys, flags) \
	table_beginscan(table, snapshot, nkeys, keys)
#define table_beginscan_tidrange_compat(table, snapshot, from, to, flags) \
	table_beginscan_tidrange(table, snapshot, from, to)
#define table_tuple_update_compat(table, tid, row, cid, options, snapshot, check, wait, failure, \
								  mode, indexes) \
	table_tuple_update(table, tid, row, cid, snapshot, check, wait, failure, mode, indexes)
#define table_tuple_delete_compat(table, tid, cid, options, snapshot, check, wait, failure) \
	table_tuple_delete(table, tid, cid, snapshot, check, wait, failure, false)

#define EIIT_IS_UPDATE			(1 << 0)
#define EIIT_NO_DUPE_ERROR		(1 << 1)
#define EIIT_ONLY_SUMMARIZING	(1 << 2)
#if PG_VERSION_NUM >= 160000
#define ONLY_SUMMARIZING(flags) , ((flags) & EIIT_ONLY_SUMMARIZING) != 0
#else
#define ONLY_SUMMARIZING(flags)	/* 16: such indexes do not stop HOT updates */
#endif
#define ExecInsertIndexTuples_compat(target, estate, flags, row, arbiters, conflict) \
	ExecInsertIndexTuples(target, row, estate, ((flags) & EIIT_IS_UPDATE) != 0, \
						  ((flags) & EIIT_NO_DUPE_ERROR) != 0, conflict, arbiters \
						  ONLY_SUMMARIZING(flags))

#define LWLockNewTrancheId_compat(name) LWLockNewTrancheId()
#define LWLockRegisterTranche_compat(id, name) LWLockRegisterTranche(id, name)
#define GetNamedDSMSegment_compat(name, size, init, found, arg) \
	GetNamedDSMSegment(name, size, init, found)
#define DSM_INIT_ARGS void *ptr

/* 18: scans count for EXPLAIN (19: and take flags). */
#if PG_VERSION_NUM >= 180000
#define index_beginscan_compat(table, index, snapshot, instrument, nkeys, norderbys, flags) \
	index_beginscan(table, index, snapshot, instrument, nkeys, norderbys)
#else
#define index_beginscan_compat(table, index, snapshot, instrument, nkeys, norderbys, flags) \
	index_beginscan(table, index, snapshot, nkeys, norderbys)
#endif
#endif

/* 18: a primary key may be deferrable. */
#if PG_VERSION_NUM >= 180000
#define RelationGetPrimaryKeyIndex_compat RelationGetPrimaryKeyIndex
#else
#define RelationGetPrimaryKeyIndex_compat(table, deferrable_ok) RelationGetPrimaryKeyIndex(table)
#endif

/* 18: a function that does not return is marked before its type. */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

/* 17: LockHeldByMe() can include stronger modes, and ShmemVariableCache was renamed. */
#include "storage/lock.h"
#if PG_VERSION_NUM >= 170000
#define LockHeldByMe_compat LockHeldByMe
#else
#define LockHeldByMe_compat(tag, mode, or_stronger) LockHeldByMe(tag, mode)
#define TransamVariables ShmemVariableCache
#endif

/* 19: a worker can be made to exit when its database is to be dropped or copied. */
#include "postmaster/bgworker.h"
#ifndef BGWORKER_INTERRUPTIBLE
#define BGWORKER_INTERRUPTIBLE 0
#endif

/* 15.4: marks a database whose DROP was interrupted. */
#ifndef DATCONNLIMIT_INVALID_DB
#define DATCONNLIMIT_INVALID_DB -2
#endif

/* 17: MyProcNumber, and wait events with names of their own. */
#if PG_VERSION_NUM >= 170000
#include "utils/wait_event.h"
#define MY_PROC_NUMBER MyProcNumber
#else
#include "pgstat.h"
#include "storage/proc.h"
#define MY_PROC_NUMBER (MyProc->pgprocno)
#define WaitEventExtensionNew(name) PG_WAIT_EXTENSION
#endif

#if PG_VERSION_NUM < 160000

/*
 * 16: a module exports what is marked so, which is what the server looks up by
 * name. If it exported more, a library that was loaded earlier could take the
 * place of our functions.
 */
#include "fmgr.h"
#undef PGDLLEXPORT
#define PGDLLEXPORT __attribute__((visibility("default")))
#undef PG_FUNCTION_INFO_V1
#define PG_FUNCTION_INFO_V1(function) \
extern PGDLLEXPORT Datum function(PG_FUNCTION_ARGS); \
extern PGDLLEXPORT const Pg_finfo_record *CppConcat(pg_finfo_,function)(void); \
const Pg_finfo_record * \
CppConcat(pg_finfo_,function)(void) \
{ \
	static const Pg_finfo_record info = {1}; \
\
	return &info; \
} \
extern int	no_such_variable

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_extension.h"
#include "utils/fmgroids.h"
#include "utils/guc_tables.h"

/* 16: exported, and can look up any setting by name. */
static inline struct config_generic *
find_option(const char *name, bool create_placeholders, bool skip_errors, int elevel)
{
	struct config_generic **settings = get_guc_variables();

	for (int i = 0; i < GetNumConfigOptions(); i++)
		if (pg_strcasecmp(settings[i]->name, name) == 0)
			return settings[i];
	return NULL;
}

/* 16: one function checks the owner of any object. */
#define object_ownercheck(class, object, role) pg_class_ownercheck(object, role)

/* 16: an update tells which indexes need entries, not only whether any does. */
#define TU_UpdateIndexes bool
#define TU_None false
#define TU_All true

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
