/*-------------------------------------------------------------------------
 *
 * drop.c
 *		Says what is lost when the lock table, or the extension, is dropped.
 *
 * DROP waits for open transactions that changed leases, since they hold a lock
 * on the table. It waits neither for leases that are held nor for waiters,
 * which hold no such lock. So the session that drops the table is told how
 * many there are, and its commit wakes the waiters, which end with an error.
 *
 * The session is told only if the library is loaded there: preloaded, or by an
 * earlier call of a function.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "nodes/pg_list.h"

#include "hold/hold.h"
#include "wait/wait.h"

static object_access_hook_type next_hook = NULL;

/* StoreFilter */
static bool
is_held_at(const Lease *lease, const void *now)
{
	return is_held(lease, *(const TimestampTz *) now);
}

static int64
count_held(LeaseStore *store)
{
	TimestampTz now = clock_now();
	int64		held = 0;
	StoreScan  *scan;
	ItemPointerData tid;
	Lease		lease;

	scan = store_scan(store, SCAN_COMMITTED, is_held_at, &now);
	while (store_next(scan, &lease, &tid))
		held++;
	store_end_scan(scan);
	return held;
}

static void
tell_what_is_lost(LeaseStore *store)
{
	int64		held = count_held(store);
	int			waiting = list_length(waiters_list());

	wait_note_drop();
	if (held > 0 || waiting > 0)
		ereport(WARNING,
				(errmsg("leases are in use while their table is dropped"),
				 errdetail("Held leases: " INT64_FORMAT ". Sessions that wait for a lease: %d.", held, waiting),
				 errhint("When this is committed, the leases are gone, and the waits end with an error. Holders are not told before they renew, release or write.")));
}

static void
watch_drop(ObjectAccessType access, Oid class, Oid object, int column, void *arg)
{
	LeaseStore *store;

	if (next_hook != NULL)
		next_hook(access, class, object, column, arg);

	/* Rewrites of a table drop tables, too: internally. */
	if (access != OAT_DROP || class != RelationRelationId || column != 0 ||
		(((ObjectAccessDrop *) arg)->dropflags & PERFORM_DELETION_INTERNAL) != 0)
		return;
	store = store_open_dropped(object);
	if (store != NULL)
	{
		tell_what_is_lost(store);
		store_close(store);
	}
}

void
drop_init(void)
{
	next_hook = object_access_hook;
	object_access_hook = watch_drop;
}
