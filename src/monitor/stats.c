/*-------------------------------------------------------------------------
 *
 * stats.c
 *		Counters of what happens to leases, per database.
 *
 * The counters are in shared memory, and are only incremented, with atomic
 * operations. So counting takes no lock. A session looks up the entry of its
 * database once: a session cannot change its database, and an entry is not
 * reused before its database is dropped.
 *
 * Events count when they happen, even if their transaction rolls back, as the
 * server counts rows that were inserted and rolled back.
 *
 * The number of entries is fixed when the server starts. If all entries belong
 * to existing databases, further databases share one more entry, the overflow,
 * and the view shows that.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/lwlock.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "monitor/monitor.h"

/* Can be changed only if the library is preloaded. */
static int	stats_databases = 256;

typedef struct DatabaseStats
{
	Oid			database;		/* invalid: free, or the overflow */
	pg_atomic_uint32 granted;	/* leases, since the purge launcher asked */
	pg_atomic_uint32 hinted;	/* the log has the hint at an index on the owner */
	pg_atomic_uint64 counters[NUM_STATS_COUNTERS];
} DatabaseStats;

/* The lock protects the assignment of entries to databases. */
typedef struct Stats
{
	LWLock		lock;
	int			databases;
	DatabaseStats entries[FLEXIBLE_ARRAY_MEMBER];	/* the last one, after those of databases, is
													 * the overflow */
} Stats;

static Stats *stats = NULL;
static DatabaseStats *entry = NULL; /* entry of this database */

static void
clear_entry(DatabaseStats *which)
{
	for (int i = 0; i < NUM_STATS_COUNTERS; i++)
		pg_atomic_write_u64(&which->counters[i], i == STATS_SINCE ? clock_now() : 0);
}

static Size
stats_size(void)
{
	return add_size(offsetof(Stats, entries), mul_size(stats_databases + 1, sizeof(DatabaseStats)));
}

static void
create_stats(void *memory, int tranche)
{
	Stats	   *created = memory;

	LWLockInitialize(&created->lock, tranche);
	created->databases = stats_databases;
	for (int i = 0; i <= created->databases; i++)
	{
		pg_atomic_init_u32(&created->entries[i].granted, 0);
		pg_atomic_init_u32(&created->entries[i].hinted, 0);
		for (int j = 0; j < NUM_STATS_COUNTERS; j++)
			pg_atomic_init_u64(&created->entries[i].counters[j], 0);
		clear_entry(&created->entries[i]);
	}
}

static const SharedPart stats_part = {"lease_lock stats 5", stats_size, create_stats,
									  (void **) &stats};

void
stats_init(void)
{
	if (process_shared_preload_libraries_in_progress)
		DefineCustomIntVariable("lease_lock.stats_databases",
								"Number of databases whose leases are counted apart.",
								"Those beyond share one set of counters.",
								&stats_databases,
								256, 1, 100000,
								PGC_POSTMASTER,
								0,
								NULL, NULL, NULL);
	add_shared_part(&stats_part);
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
	InvalidateCatalogSnapshot();
	for (int i = 0; i < stats->databases; i++)
	{
		DatabaseStats *which = &stats->entries[i];
		Oid			database = which->database;

		if (!OidIsValid(database) || SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(database)))
			continue;

		LWLockAcquire(&stats->lock, LW_EXCLUSIVE);
		if (which->database == database)
			which->database = InvalidOid;
		LWLockRelease(&stats->lock);
	}
}

/* Find the entry of this database, or take a free one; the overflow if all belong to others. */
static DatabaseStats *
find_entry(void)
{
	DatabaseStats *overflow = &stats->entries[stats->databases];
	DatabaseStats *found = overflow;

	LWLockAcquire(&stats->lock, LW_EXCLUSIVE);
	for (int i = 0; i < stats->databases && found->database != MyDatabaseId; i++)
	{
		DatabaseStats *which = &stats->entries[i];

		if (which->database == MyDatabaseId || (found == overflow && !OidIsValid(which->database)))
			found = which;
	}
	if (found != overflow && found->database != MyDatabaseId)
	{
		clear_entry(found);
		pg_atomic_write_u32(&found->hinted, 0);
		found->database = MyDatabaseId;
	}
	LWLockRelease(&stats->lock);
	return found;
}

/* Find the entry that this session counts in; false if there is none. */
static inline bool
attach_counters(void)
{
	if (entry == NULL && attach_shared_area() && IsTransactionState())
	{
		if (!OidIsValid(find_entry()->database))
			free_dropped();
		entry = find_entry();
	}
	return entry != NULL;
}

void
stats_add(StatsCounter counter, uint64 amount)
{
	if (attach_counters())
		pg_atomic_fetch_add_u64(&entry->counters[counter], amount);
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

	if (!attach_counters())
		return;

	stats_add(STATS_WAIT_TIME, usecs);
	longest = pg_atomic_read_u64(&entry->counters[STATS_LONGEST_WAIT]);
	while ((uint64) usecs > longest &&
		   !pg_atomic_compare_exchange_u64(&entry->counters[STATS_LONGEST_WAIT], &longest, usecs))
		;
}

/* The histogram's bucket for a duration. */
static int
handoff_bucket(int64 usecs)
{
	if (usecs <= FIRST_HANDOFF_BOUND)
		return 0;
	return Min(pg_leftmost_one_pos64((usecs - 1) / FIRST_HANDOFF_BOUND) + 1, HANDOFF_BOUNDS);
}

/* Count a hand-off: the time from when a lease became free until a waiter was granted it. */
void
stats_handed_off(int64 usecs)
{
	stats_count(STATS_HANDOFFS);
	stats_add(STATS_HANDOFF_TIME, usecs);
	stats_count(STATS_HANDOFF_BUCKETS + handoff_bucket(usecs));
}

/* Read the counters of this database; false if nothing is counted. */
bool
stats_read(StatsValues *values)
{
	if (!attach_counters())
		return false;
	values->database = entry->database;
	for (int i = 0; i < NUM_STATS_COUNTERS; i++)
		values->counters[i] = pg_atomic_read_u64(&entry->counters[i]);
	return true;
}

/* Set the counters of this database to zero. */
void
stats_reset(void)
{
	if (attach_counters())
		clear_entry(entry);
}

void
stats_note_grant(void)
{
	if (attach_counters() && pg_atomic_read_u32(&entry->granted) == 0)
		pg_atomic_write_u32(&entry->granted, 1);
}

List *
stats_take_granted(void)
{
	List	   *databases = NIL;

	for (int i = 0; i <= stats->databases; i++)
		if (pg_atomic_exchange_u32(&stats->entries[i].granted, 0) != 0)
			databases = lappend_oid(databases, stats->entries[i].database);
	return databases;
}

/* Note that the log gets the hint; false if it has it already. */
bool
stats_note_hint(void)
{
	return !attach_counters() || pg_atomic_exchange_u32(&entry->hinted, 1) == 0;
}
