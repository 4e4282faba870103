/*-------------------------------------------------------------------------
 *
 * stats.c
 *		Counters of what happens to leases, per database.
 *
 * The counters are in shared memory, and are only incremented, with atomic
 * operations. So counting takes no lock. A session looks up the entry of its
 * database once: a session cannot change its database, and an entry is not
 * reused before its database is dropped. The counters of a database are spread
 * over stripes, so that sessions on many processors do not contend for the
 * same cache lines. Readers add the stripes up.
 *
 * Events count when they happen, even if their transaction rolls back, as the
 * server counts rows that were inserted and rolled back.
 *
 * The number of entries is fixed when the server starts. If all entries belong
 * to existing databases, further databases share one more entry, the overflow,
 * and the view shows that.
 *
 * A lease call must never fail because of statistics. Finding the entry may
 * fail, so that is done in a subtransaction. A session in which it failed does
 * not count.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/shared_memory.h"
#include "lease_lock.h"
#include "monitor/stats.h"

#define STRIPES			4

/* Can be changed only if the library is preloaded. */
static int	stats_databases = 256;

typedef struct Stripe
{
	pg_atomic_uint64 counters[NUM_STATS_COUNTERS];
	pg_atomic_uint64 longest_wait;
	pg_atomic_uint64 handoffs[HANDOFF_BOUNDS + 1];
	char		padding[PG_CACHE_LINE_SIZE];	/* keeps stripes in different cache lines */
} Stripe;

typedef struct DatabaseStats
{
	Oid			database;		/* invalid: free */
	TimestampTz since;
	Stripe		stripes[STRIPES];
} DatabaseStats;

/* The lock protects the assignment of entries to databases, and their start times. */
typedef struct Stats
{
	LWLock		lock;
	int			tranche;
	int			databases;
	DatabaseStats overflow;
	DatabaseStats entries[FLEXIBLE_ARRAY_MEMBER];
} Stats;

static Stats *stats = NULL;
static DatabaseStats *entry = NULL; /* entry of this database */
static Stripe *stripe = NULL;	/* and the stripe of this session */
static bool gave_up = false;

/* Reset an entry. The caller holds the lock, or no other process knows the entry. */
static void
clear_entry(DatabaseStats *which)
{
	which->since = clock_now();
	for (int s = 0; s < STRIPES; s++)
	{
		Stripe	   *cleared = &which->stripes[s];

		for (int i = 0; i < NUM_STATS_COUNTERS; i++)
			pg_atomic_write_u64(&cleared->counters[i], 0);
		pg_atomic_write_u64(&cleared->longest_wait, 0);
		for (int i = 0; i <= HANDOFF_BOUNDS; i++)
			pg_atomic_write_u64(&cleared->handoffs[i], 0);
	}
}

static void
init_entry(DatabaseStats *which)
{
	which->database = InvalidOid;
	for (int s = 0; s < STRIPES; s++)
	{
		Stripe	   *made = &which->stripes[s];

		for (int i = 0; i < NUM_STATS_COUNTERS; i++)
			pg_atomic_init_u64(&made->counters[i], 0);
		pg_atomic_init_u64(&made->longest_wait, 0);
		for (int i = 0; i <= HANDOFF_BOUNDS; i++)
			pg_atomic_init_u64(&made->handoffs[i], 0);
	}
	clear_entry(which);
}

static Size
stats_size(void)
{
	return add_size(offsetof(Stats, entries), mul_size(stats_databases, sizeof(DatabaseStats)));
}

static void
create_stats(Stats *new_stats)
{
	new_stats->tranche = LWLockNewTrancheId("lease_lock_stats");
	LWLockInitialize(&new_stats->lock, new_stats->tranche);
	new_stats->databases = stats_databases;
	init_entry(&new_stats->overflow);
	for (int i = 0; i < new_stats->databases; i++)
		init_entry(&new_stats->entries[i]);
}

static void
attach_stats_area(void *memory, bool is_new)
{
	stats = memory;
	if (is_new)
		create_stats(stats);
	REGISTER_TRANCHE(stats->tranche, "lease_lock_stats");
}

static const SharedArea stats_area = {"lease_lock stats", stats_size, attach_stats_area};

void
stats_init(void)
{
	if (process_shared_preload_libraries_in_progress)
	{
		DefineCustomIntVariable("lease_lock.stats_databases",
								"Number of databases whose leases are counted apart.",
								"Those beyond share one set of counters.",
								&stats_databases,
								256, 1, 100000,
								PGC_POSTMASTER,
								0,
								NULL, NULL, NULL);
		request_shared_area(&stats_area);
	}
}

#if PG_VERSION_NUM >= 170000
static void
init_segment(DSM_INIT_ARGS)
{
	create_stats(ptr);
}
#endif

/* Attach to the shared memory; NULL if this server has none. May fail. */
static Stats *
attach_stats(void)
{
#if PG_VERSION_NUM >= 170000
	if (stats == NULL)
	{
		bool		found;

		stats = GetNamedDSMSegment("lease_lock stats 1", stats_size(), init_segment, &found, NULL);
		REGISTER_TRANCHE(stats->tranche, "lease_lock_stats");
	}
#endif
	return stats;
}

/* The entry of a database; NULL if it has none. The caller holds the lock. */
static DatabaseStats *
entry_of(Oid database)
{
	for (int i = 0; i < stats->databases; i++)
		if (stats->entries[i].database == database)
			return &stats->entries[i];
	return NULL;
}

/*
 * Free the entries of dropped databases. No session is connected to a dropped
 * database, so nobody counts in its entry. The catalog is read without the
 * lock. That is safe: a database in the list was already visible to the
 * session that added it, so a catalog lookup from now on sees it, too.
 */
static void
free_dropped(void)
{
	Oid		   *databases = palloc(stats->databases * sizeof(Oid));

	LWLockAcquire(&stats->lock, LW_SHARED);
	for (int i = 0; i < stats->databases; i++)
		databases[i] = stats->entries[i].database;
	LWLockRelease(&stats->lock);

	InvalidateCatalogSnapshot();
	for (int i = 0; i < stats->databases; i++)
	{
		if (!OidIsValid(databases[i]) ||
			SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(databases[i])))
			continue;

		LWLockAcquire(&stats->lock, LW_EXCLUSIVE);
		if (stats->entries[i].database == databases[i])
			stats->entries[i].database = InvalidOid;
		LWLockRelease(&stats->lock);
	}
	pfree(databases);
}

/* Find the entry of this database, or take a free one. */
static DatabaseStats *
find_entry(void)
{
	DatabaseStats *found;
	bool		full;

	LWLockAcquire(&stats->lock, LW_SHARED);
	found = entry_of(MyDatabaseId);
	full = entry_of(InvalidOid) == NULL;
	LWLockRelease(&stats->lock);
	if (found != NULL)
		return found;
	if (full)
		free_dropped();

	LWLockAcquire(&stats->lock, LW_EXCLUSIVE);
	found = entry_of(MyDatabaseId);
	if (found == NULL && (found = entry_of(InvalidOid)) != NULL)
	{
		clear_entry(found);
		found->database = MyDatabaseId;
	}
	LWLockRelease(&stats->lock);

	return found != NULL ? found : &stats->overflow;
}

/* Log why this session cannot count. A cancel is raised again, and the next call tries again. */
static void
report_failure(ErrorData *error)
{
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
	{
		gave_up = false;
		ReThrowError(error);
	}
	ereport(LOG,
			(errmsg("no lease statistics are collected in this session"),
			 errdetail_internal("%s", error->message)));
}

/* Find the stripe of this session, once. */
static void
find_stripe(void)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *error;

	gave_up = true;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		if (attach_stats() != NULL)
			entry = find_entry();
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		report_failure(error);
	}
	PG_END_TRY();

	if (entry != NULL)
		stripe = &entry->stripes[MY_PROC_NUMBER % STRIPES];
}

/* Does this session have a stripe to count in? */
static inline bool
counting(void)
{
	if (stripe == NULL && !gave_up && IsTransactionState() && !IsInParallelMode())
		find_stripe();
	return stripe != NULL;
}

void
stats_add(StatsCounter counter, uint64 amount)
{
	if (counting())
		pg_atomic_fetch_add_u64(&stripe->counters[counter], amount);
}

void
stats_count(StatsCounter counter)
{
	stats_add(counter, 1);
}

/* Count a wait that ended, with or without the lease. */
void
stats_wait_ended(int64 usecs)
{
	uint64		longest;

	if (!counting())
		return;

	stats_add(STATS_WAIT_TIME, usecs);
	longest = pg_atomic_read_u64(&stripe->longest_wait);
	while ((uint64) usecs > longest &&
		   !pg_atomic_compare_exchange_u64(&stripe->longest_wait, &longest, usecs))
		;
}

/* The histogram's bucket for a duration. */
static int
handoff_bucket(int64 usecs)
{
	if (usecs <= FIRST_HANDOFF_BOUND)
		return 0;
	if (usecs > HANDOFF_BOUND(HANDOFF_BOUNDS - 1))
		return HANDOFF_BOUNDS;
	return pg_leftmost_one_pos64((usecs - 1) / FIRST_HANDOFF_BOUND) + 1;
}

/* Count a hand-off: the time from when a lease became free until a waiter was granted it. */
void
stats_handed_off(int64 usecs)
{
	if (!counting())
		return;

	stats_count(STATS_HANDOFFS);
	stats_add(STATS_HANDOFF_TIME, usecs);
	pg_atomic_fetch_add_u64(&stripe->handoffs[handoff_bucket(usecs)], 1);
}

/* Add up the counters of this database. */
StatsTotals
stats_read(void)
{
	StatsTotals totals = {.scope = STATS_NONE};

	if (!counting())
		return totals;

	totals.scope = entry == &stats->overflow ? STATS_OVERFLOW : STATS_DATABASE;
	LWLockAcquire(&stats->lock, LW_SHARED);
	totals.since = entry->since;
	LWLockRelease(&stats->lock);

	for (int s = 0; s < STRIPES; s++)
	{
		Stripe	   *part = &entry->stripes[s];

		for (int i = 0; i < NUM_STATS_COUNTERS; i++)
			totals.counters[i] += pg_atomic_read_u64(&part->counters[i]);
		totals.longest_wait = Max(totals.longest_wait, pg_atomic_read_u64(&part->longest_wait));
		for (int i = 0; i <= HANDOFF_BOUNDS; i++)
			totals.handoffs[i] += pg_atomic_read_u64(&part->handoffs[i]);
	}
	return totals;
}

/* Set the counters of this database to zero. */
void
stats_reset(void)
{
	if (!counting())
		return;

	LWLockAcquire(&stats->lock, LW_EXCLUSIVE);
	clear_entry(entry);
	LWLockRelease(&stats->lock);
}
