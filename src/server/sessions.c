/*-------------------------------------------------------------------------
 *
 * sessions.c
 *		Numbers of sessions, for leases that end with their session.
 *
 * A session that acquires such a lease takes a number and writes it into an
 * array in shared memory. The row of the lease keeps the number. The session
 * has ended if the array no longer has its number. Nothing else ends it: no
 * error, no DISCARD, no lack of memory.
 *
 * The array has an element for each PGPROC, and the number of the session
 * contains the number of its PGPROC. So a look reads one element, without a
 * lock. The rest of the number is counted from a random start, which shared
 * memory gets when it is created. So no session has the number of an earlier
 * one, even after a restart, a crash, or a failover.
 *
 * The element is cleared in before_shmem_exit. A transaction of the session may
 * still be open then. It can no longer commit, and whatever it has written or
 * asserted is an obstacle to others until it is rolled back, like that of any
 * transaction.
 *
 * A standby does not know the sessions of its primary. There a lease counts as
 * held as long as its row says so. So it does for a process that cannot attach
 * to the shared area. Before PostgreSQL 17 no process of such a server can, and
 * the lease is from before the last restart.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "postmaster/postmaster.h"
#include "storage/ipc.h"
#include "utils/timestamp.h"

#include "server/server.h"

/* A number is a count and, in the lowest bits, the number of the PGPROC. */
#define PROC_BITS		18
#define PROC_MASK		((1 << PROC_BITS) - 1)
#define START_BITS		44

StaticAssertDecl(MAX_BACKENDS <= PROC_MASK, "the number of a PGPROC has to fit into its bits");

typedef struct Sessions
{
	pg_atomic_uint64 last;		/* count of the last number */
	int			nprocs;
	pg_atomic_uint64 numbers[FLEXIBLE_ARRAY_MEMBER];	/* indexed by PGPROC number; 0: none */
} Sessions;

static Sessions *sessions = NULL;
static int64 my_number = 0;

static Size
sessions_size(void)
{
	return add_size(offsetof(Sessions, numbers), mul_size(MaxBackends, sizeof(pg_atomic_uint64)));
}

static void
create_sessions(void *memory, int tranche)
{
	Sessions   *created = memory;
	uint64		start;

	if (!pg_strong_random(&start, sizeof(start)))
		start = (uint64) GetCurrentTimestamp();
	pg_atomic_init_u64(&created->last, start & ((UINT64CONST(1) << START_BITS) - 1));
	created->nprocs = MaxBackends;
	for (int i = 0; i < created->nprocs; i++)
		pg_atomic_init_u64(&created->numbers[i], 0);
}

/*
 * Backends of two builds of the library must find each other's sessions. So
 * the layout must not change, or else the number in the name.
 */
static const SharedPart sessions_part = {"lease_lock sessions 1", sessions_size, create_sessions,
										 (void **) &sessions};

void
sessions_init(void)
{
	add_shared_part(&sessions_part);
}

void
require_session_numbers(void)
{
	if (!attach_shared_area())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("no lease can end with its session on this server"),
				 errdetail("lease_lock has no shared memory."),
				 errhint("Add lease_lock to shared_preload_libraries and restart the server, or "
						 "leave out session => true.")));
}

void
session_end(void)
{
	if (my_number != 0)
		pg_atomic_write_u64(&sessions->numbers[MY_PROC_NUMBER], 0);
	my_number = 0;
	pg_memory_barrier();
}

static void
end_at_exit(int code, Datum arg)
{
	session_end();
}

int64
session_number(void)
{
	if (my_number == 0)
	{
		require_session_numbers();
		before_shmem_exit(end_at_exit, (Datum) 0);
		my_number =
			(int64) ((pg_atomic_add_fetch_u64(&sessions->last, 1) << PROC_BITS) | MY_PROC_NUMBER);
		pg_atomic_write_u64(&sessions->numbers[MY_PROC_NUMBER], (uint64) my_number);
	}
	return my_number;
}

LeaseSession
session_state(int64 number)
{
	int			proc = (int) (number & PROC_MASK);

	if (number == 0)
		return SESSION_NONE;
	if (RecoveryInProgress())
		return SESSION_ALIVE;
	if (number == my_number)
		return SESSION_MINE;
	if (!attach_shared_area())
		return PG_VERSION_NUM < 170000 ? SESSION_ENDED : SESSION_ALIVE;
	if (proc < sessions->nprocs && pg_atomic_read_u64(&sessions->numbers[proc]) == (uint64) number)
		return SESSION_ALIVE;
	return SESSION_ENDED;
}
