/*-------------------------------------------------------------------------
 *
 * own.c
 *		Finding all leases of an owner.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/names.h"
#include "base/privileges.h"
#include "lease/lease.h"

/* StoreFilter: leases of an owner that the caller may act on. */
static bool
is_own(const Lease *lease, const void *owner)
{
	return is_owner(lease, owner) && may_act(lease);
}

/* For list_sort: by the bytes of the resource. */
static int
compare_resources(const ListCell *a, const ListCell *b)
{
	return compare_texts(((const OwnLease *) lfirst(a))->resource, ((const OwnLease *) lfirst(b))->resource);
}

/*
 * List the leases of an owner that the caller may act on, without released
 * ones. The list is sorted, so that two sessions that work through the leases
 * of the same owner do not deadlock.
 */
List *
find_own_leases(const text *owner)
{
	LeaseStore *store = store_open(RowExclusiveLock);
	StoreScan  *scan = store_scan(store, is_own, owner);
	List	   *found = NIL;
	ItemPointerData tid;
	Lease		lease;

	while (store_next(scan, &lease, &tid))
	{
		OwnLease   *own = palloc(sizeof(OwnLease));

		own->resource = (text *) PG_DETOAST_DATUM_COPY(PointerGetDatum(lease.resource));
		own->token = lease.token;
		found = lappend(found, own);
	}
	store_end_scan(scan);
	store_close(store);
	list_sort(found, compare_resources);
	return found;
}
