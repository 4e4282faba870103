/*-------------------------------------------------------------------------
 *
 * quota.c
 *		Limits of a session: the longest ttl, and the number of leases per owner.
 *
 * Only a superuser may change the two settings. They are meant to be set for
 * roles and databases.
 *
 * A session that hid the superuser's value when it connected gets no leases.
 * See superuser_settings.c. Nor does code that the server runs for the owner of
 * a table, as ANALYZE runs index expressions: the limits of the session, perhaps
 * one of autovacuum, are not those of that role.
 *
 * Leases of an owner count if the same role acquired them. Leases of other
 * roles under the same owner name do not count. If they did, any role could use
 * up the limit of an owner, with leases that the owner cannot release.
 *
 * The leases are counted by reading the table, or an index on the owner if
 * there is one (store/owner_index.c), after the new lease was written and
 * before the call returns. Two sessions of the same owner may count at the same
 * time. The session that counts last sees the lease of the other one, committed
 * or not, so together they never exceed the limit. Counting waits for nobody,
 * and locks nothing that the write has not locked. A lease of an open
 * transaction counts, even if that transaction rolls back later.
 *
 * There is no count in shared memory. It would have to follow rollbacks,
 * savepoints, takeovers, breaks, writes by hand and the mere passing of time.
 * An upper bound that only grants raise is easy to keep, but each release would
 * have to wait for the next scan to lower it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/hsearch.h"

#include "change/change.h"
#include "monitor/monitor.h"
#include "rules/rules.h"

/* Longest possible ttl, in milliseconds. */
#define MAX_MAX_TTL		(MAX_TTL / 1000.0)

static double max_ttl = 0;
static int	max_leases_per_owner = 0;
static bool limit_hidden = false;

static void
define_settings(void)
{
	DefineCustomRealVariable("lease_lock.max_ttl",
							 "Maximum ttl of a grant or renewal.",
							 "0 means no limit.",
							 &max_ttl,
							 0, 0, MAX_MAX_TTL,
							 PGC_SUSET,
							 GUC_UNIT_MS,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("lease_lock.max_leases_per_owner",
							"Maximum number of leases that an owner may hold at a time.",
							"0 means no limit. With a limit, each grant reads the whole lock "
							"table, unless that has an index on (owner, kept_for).",
							&max_leases_per_owner,
							0, 0, INT_MAX,
							PGC_SUSET,
							0,
							NULL, NULL, NULL);
}

void
quota_init(void)
{
	static const char *const names[] = {"lease_lock.max_ttl", "lease_lock.max_leases_per_owner"};

	limit_hidden = define_superuser_settings(define_settings, names, lengthof(names));
}

static void
require_known_limits(void)
{
	if (!limit_hidden && !InSecurityRestrictedOperation())
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied to acquire or renew leases in this session"),
			 limit_hidden ?
			 errdetail("It was started with a value for lease_lock.max_ttl or "
					   "lease_lock.max_leases_per_owner, without the privilege to set it.") :
			 errdetail("The server runs code of a table's owner, whose limits it does not know "
					   "here."),
			 limit_hidden ?
			 errhint("Connect again without that setting.") :
			 errhint("Take leases outside of index expressions and materialized views.")));
}

/*
 * Is a time above lease_lock.max_ttl? The time, in microseconds, is a ttl, or
 * another time that keeps other owners from the lease.
 */
bool
is_above_max_ttl(int64 usecs)
{
	require_known_limits();
	return max_ttl > 0 && usecs > max_ttl * 1000.0;
}

/* Filter: leases of this owner and role that are held, or kept by min_hold, at this time. */
typedef struct Counted
{
	const text *owner;
	Oid			role;
	TimestampTz now;
} Counted;

/* StoreFilter */
static bool
is_counted(const Lease *lease, const void *arg)
{
	const Counted *counted = arg;

	return lease->role == counted->role && is_held_or_kept(lease, counted->owner, counted->now);
}

/* Of an entry of the hash table of resources, which begins with a pointer to its name. */
static uint32
hash_resource(const void *key, Size size)
{
	return (uint32) hash_text(*(const text *const *) key, 0);
}

static int
differ(const void *a, const void *b, Size size)
{
	return same_text(*(const text *const *) a, *(const text *const *) b) ? 0 : 1;
}

/* Add a resource to the table, unless it has the name. */
static void
add_resource(HTAB *resources, const text *resource)
{
	bool		found;
	text	  **entry = hash_search(resources, &resource, HASH_ENTER, &found);

	if (!found)
		*entry = (text *) PG_DETOAST_DATUM_COPY(PointerGetDatum(resource));
}

/*
 * Are there more versions of leases of an owner and role than the limit? Mostly
 * not, and then there are not more leases either.
 */
static bool
finds_more_versions(LeaseStore *store, const Counted *counted, int limit)
{
	StoreScan  *scan = store_scan_owned_or_kept(store, counted->owner, SCAN_POSSIBLE, is_counted,
												counted);
	Lease		lease;
	ItemPointerData tid;
	int			count = 0;

	hint_at_owner_index(store, scan);
	while (count <= limit && store_next(scan, &lease, &tid))
		count++;
	store_end_scan(scan);
	return count > limit;
}

/*
 * Are there more leases of an owner and role than the limit? A lease counts
 * once, even if several versions of its row, or several slots of its resource,
 * are found.
 */
static bool
finds_more_leases(LeaseStore *store, const Counted *counted, int limit)
{
	StoreScan  *scan = store_scan_owned_or_kept(store, counted->owner, SCAN_POSSIBLE, is_counted,
												counted);
	Lease		lease;
	ItemPointerData tid;
	HASHCTL		control = {.keysize = sizeof(text *),.entrysize = sizeof(text *),
		.hash = hash_resource,.match = differ,.hcxt = CurrentMemoryContext};
	HTAB	   *resources = hash_create("leases of an owner", 64, &control,
										HASH_ELEM | HASH_FUNCTION | HASH_COMPARE | HASH_CONTEXT);
	bool		more;

	while (!(more = hash_get_num_entries(resources) > limit) && store_next(scan, &lease, &tid))
		add_resource(resources, lease.resource);
	hash_destroy(resources);
	store_end_scan(scan);
	return more;
}

static bool
has_more_leases(LeaseStore *store, const text *owner, Oid role, int limit)
{
	Counted		counted = {owner, role, clock_now()};

	return finds_more_versions(store, &counted, limit) && finds_more_leases(store, &counted, limit);
}

/*
 * Fail if the owner of a lease that was just written now has more than
 * lease_lock.max_leases_per_owner. This is an error and not a refusal, because
 * waiting would not help.
 */
void
require_lease_allowed(LeaseStore *store, const text *resource, const text *owner, Oid role)
{
	require_known_limits();
	if (max_leases_per_owner == 0 || !has_more_leases(store, owner, role, max_leases_per_owner))
		return;

	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many leases for the owner of the lease on \"%s\"", printable(resource)),
			 errdetail("Setting \"lease_lock.max_leases_per_owner\" is %d. "
					   "Leases of open transactions count, too.", max_leases_per_owner),
			 errhint("Release another lease of this owner first, or ask a superuser to raise the "
					 "setting.")));
}
