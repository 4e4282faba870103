/*-------------------------------------------------------------------------
 *
 * shared_memory.c
 *		The area of shared memory that the processes of a server share.
 *
 * The area is created when the library is preloaded, and from PostgreSQL 17 on
 * also without preloading, by the first session that needs it. A server that
 * cannot create it does without: waiters look at their leases every
 * lease_lock.poll_interval, nothing is counted, and no lease can end with its
 * session.
 *
 * Each module has a part of the area. All parts are in one piece of memory, so
 * a process has all of them or none.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/shared_memory.h"
#include "base/subxact.h"

/* Its number changes with the layout, because two builds of the library may be in use at once. */
#define AREA_NAME		"lease_lock 3"

#define MAX_PARTS		6

/* Time until the next attempt to attach, after a failure. */
#define ATTACH_PAUSE	(60 * USECS_PER_SEC)

static const SharedPart *parts[MAX_PARTS];
static int	nparts = 0;

/* The area begins with the number of the tranche of its locks. The parts follow. */
static int *area = NULL;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static Size
area_size(void)
{
	Size		size = CACHELINEALIGN(sizeof(int));

	for (int i = 0; i < nparts; i++)
		size = add_size(size, CACHELINEALIGN(parts[i]->size()));
	return size;
}

/* Fill a new area. */
static void
create_area(void *memory)
{
	char	   *part = (char *) memory + CACHELINEALIGN(sizeof(int));
	int			tranche = LWLockNewTrancheId("lease_lock");

	memset(memory, 0, area_size());
	*(int *) memory = tranche;
	for (int i = 0; i < nparts; i++)
	{
		parts[i]->create(part, tranche);
		part += CACHELINEALIGN(parts[i]->size());
	}
}

/* Let the modules of this process use the area. */
static void
use_area(int *memory)
{
	char	   *part = (char *) memory + CACHELINEALIGN(sizeof(int));

	area = memory;
	REGISTER_TRANCHE(*area, "lease_lock");
	for (int i = 0; i < nparts; i++)
	{
		*parts[i]->memory = part;
		part += CACHELINEALIGN(parts[i]->size());
	}
}

static void
request_area(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(area_size());
}

static void
start_area(void)
{
	bool		found;
	void	   *memory;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	memory = ShmemInitStruct(AREA_NAME, area_size(), &found);
	if (!found)
		create_area(memory);
	use_area(memory);
	LWLockRelease(AddinShmemInitLock);
}

void
add_shared_part(const SharedPart *part)
{
	if (process_shared_preload_libraries_in_progress && nparts == 0)
	{
		prev_shmem_request_hook = shmem_request_hook;
		shmem_request_hook = request_area;
		prev_shmem_startup_hook = shmem_startup_hook;
		shmem_startup_hook = start_area;
	}
	Assert(nparts < MAX_PARTS);
	parts[nparts++] = part;
}

#if PG_VERSION_NUM >= 170000
static void
create_segment(DSM_INIT_ARGS)
{
	create_area(ptr);
}

/* SubtransactionWork */
static bool
attach_segment(void *arg)
{
	bool		found;

	use_area(GetNamedDSMSegment(AREA_NAME, area_size(), create_segment, &found, NULL));
	return true;
}

/*
 * Attach to the segment, or create it. A failure leaves a lock of the server's
 * DSM registry held, which only the end of a (sub)transaction releases. At the
 * end of a session there is no transaction, and nothing to share.
 */
static void
attach_or_do_without(void)
{
	static int64 pause_until = 0;
	ErrorData  *error;

	if (clock_monotonic() < pause_until || !IsTransactionState())
		return;

	error = run_subtransaction(attach_segment, NULL);
	if (error == NULL)
		return;
	pause_until = clock_monotonic() + ATTACH_PAUSE;
	ereport(LOG,
			(errmsg("lease_lock has no shared memory: %s", error->message),
			 errhint("Waiters look at their leases every lease_lock.poll_interval, in no order, and no lease can end with its session.")));
	FreeErrorData(error);
}
#endif

/*
 * Attaching may allocate memory. So a transaction that needs the area at its
 * end attaches before that.
 */
bool
attach_shared_area(void)
{
#if PG_VERSION_NUM >= 170000
	if (area == NULL)
		attach_or_do_without();
#endif
	return area != NULL;
}
