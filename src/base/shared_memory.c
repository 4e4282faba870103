/*-------------------------------------------------------------------------
 *
 * shared_memory.c
 *		Areas of shared memory that exist when the library is preloaded.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/shared_memory.h"

#define MAX_AREAS	4

static const SharedArea *areas[MAX_AREAS];
static int	nareas = 0;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static void
request_areas(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	for (int i = 0; i < nareas; i++)
		RequestAddinShmemSpace(areas[i]->size());
}

static void
attach_areas(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (int i = 0; i < nareas; i++)
	{
		bool		found;
		void	   *memory = ShmemInitStruct(areas[i]->name, areas[i]->size(), &found);

		areas[i]->attach(memory, !found);
	}
	LWLockRelease(AddinShmemInitLock);
}

void
request_shared_area(const SharedArea *area)
{
	if (!process_shared_preload_libraries_in_progress)
		return;

	if (nareas == 0)
	{
		prev_shmem_request_hook = shmem_request_hook;
		shmem_request_hook = request_areas;
		prev_shmem_startup_hook = shmem_startup_hook;
		shmem_startup_hook = attach_areas;
	}
	Assert(nareas < MAX_AREAS);
	areas[nareas++] = area;
}
