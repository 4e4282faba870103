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
 * Each module has a part of the area. A process attaches to all parts or to
 * none.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "server/server.h"

#define MAX_PARTS		6

/* Time until the next attempt to attach, after a failure. */
#define ATTACH_PAUSE	(60 * USECS_PER_SEC)

/* A part begins with the number of the tranche of its locks. */
#define HEADER_SIZE		MAXALIGN(sizeof(int))

static const SharedPart *parts[MAX_PARTS];
static int	nparts = 0;
static bool attached = false;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static Size
size_of_part(const SharedPart *part)
{
	return add_size(HEADER_SIZE, part->size());
}

/* Fill a new part. */
static void
create_part(const SharedPart *part, void *memory)
{
	int			tranche = LWLockNewTrancheId_compat("lease_lock");

	memset(memory, 0, size_of_part(part));
	*(int *) memory = tranche;
	part->create((char *) memory + HEADER_SIZE, tranche);
}

/* Let the module of this process use its part. */
static void
use_part(const SharedPart *part, void *memory)
{
	LWLockRegisterTranche_compat(*(int *) memory, "lease_lock");
	*part->memory = (char *) memory + HEADER_SIZE;
}

static void
request_area(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	for (int i = 0; i < nparts; i++)
		RequestAddinShmemSpace(size_of_part(parts[i]));
}

static void
start_area(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (int i = 0; i < nparts; i++)
	{
		bool		found;
		void	   *memory = ShmemInitStruct(parts[i]->name, size_of_part(parts[i]), &found);

		if (!found)
			create_part(parts[i], memory);
		use_part(parts[i], memory);
	}
	attached = true;
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

/* The part that is being attached, for create_segment(). */
static const SharedPart *this_part;

static void
create_segment(DSM_INIT_ARGS)
{
	create_part(this_part, ptr);
}

/* SubtransactionWork */
static bool
attach_segments(void *arg)
{
	for (int i = 0; i < nparts; i++)
	{
		bool		found;

		this_part = parts[i];
		use_part(this_part,
				 GetNamedDSMSegment_compat(this_part->name, size_of_part(this_part), create_segment,
										   &found, NULL));
	}
	attached = true;
	return true;
}

#endif

/*
 * Attaching may allocate memory. So a transaction that needs the area at its
 * end attaches before that. At the end of a session there is no transaction,
 * and nothing to share.
 *
 * A failure leaves a lock of the server's DSM registry held, which only the end
 * of a (sub)transaction releases.
 */
bool
attach_shared_area(void)
{
#if PG_VERSION_NUM >= 170000
	static MonotonicTime pause_until = {0};
	ErrorData  *error;

	if (attached || !mono_has_come(pause_until) || !IsTransactionState() ||
		run_subtransaction(attach_segments, NULL, &error))
		return attached;

	pause_until = mono_from_now(ATTACH_PAUSE);
	ereport(LOG_SERVER_ONLY,	/* not to a client that does not read: a resource may be locked */
			(errmsg("lease_lock has no shared memory: %s", error->message),
			 errhint("Waiters look at their leases every lease_lock.poll_interval, in no order, "
					 "and no lease can end with its session.")));
	FreeErrorData(error);
#endif
	return attached;
}
