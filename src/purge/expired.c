/*-------------------------------------------------------------------------
 *
 * Notices of leases that expired.
 *
 * No code runs when a lease expires. So the purge worker looks, at each visit,
 * for leases that expired since its last visit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/compat.h"
#include "monitor/watches.h"
#include "purge/purge.h"
#include "rules/rules.h"
#include "store/store.h"

/* A span of time: after one moment, up to another. */
typedef struct Span
{
	TimestampTz after;
	TimestampTz until;
} Span;

/* StoreFilter: leases that expired in the span, and leases whose session has ended. */
static bool
has_expired(const Lease *lease, const void *arg)
{
	const Span *span = arg;

	return lease->owner != NULL &&
		(lease->session == SESSION_ENDED || (lease->expires_at > span->after && lease->expires_at <= span->until));
}

/* Returns false if the lock table cannot be read now. */
bool
tell_expired(TimestampTz after, TimestampTz until)
{
	Span		span = {after, until};
	LeaseStore *store;
	StoreScan  *scan;
	ItemPointerData tid;
	Lease		lease;

	if (!event_is_watched(EVENT_EXPIRED))
		return true;
	if (store_open_if_free(AccessShareLock, &store) != STORE_OPEN)
		return false;
	scan = store_scan(store, SCAN_COMMITTED, has_expired, &span);
	while (store_next(scan, &lease, &tid))
		tell_watchers(EVENT_EXPIRED, &lease);
	store_end_scan(scan);
	store_close(store);
	return true;
}
