/*-------------------------------------------------------------------------
 *
 * resource_lock.c
 *		The lock that orders all writers of one resource.
 *
 * This is a heavyweight lock on the hash of the resource, held only while rows
 * are read and written. Its holder never waits for a transaction, so the lock
 * cannot be part of a deadlock. Two resources with the same hash share the
 * lock, which costs only microseconds.
 *
 * After an error the lock is released with the (sub)transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lock.h"

#include "store/store.h"

/* Advisory locks have a tag type of their own, so no user can take this lock. */
static LOCKTAG
resource_tag(const text *resource)
{
	uint64		hash = hash_text(resource, 0);
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash, 0);
	tag.locktag_type = LOCKTAG_USERLOCK;
	return tag;
}

void
lock_resource(const text *resource)
{
	LOCKTAG		tag = resource_tag(resource);

	RACE_POINT("before the resource lock");
	LockAcquire(&tag, ExclusiveLock, false, false);
	RACE_POINT("after the resource lock");
}

/* Try to lock a resource without waiting; false if another backend holds the lock. */
bool
try_lock_resource(const text *resource)
{
	LOCKTAG		tag = resource_tag(resource);

	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

void
unlock_resource(const text *resource)
{
	LOCKTAG		tag = resource_tag(resource);

	RACE_POINT("before the resource is unlocked");
	LockRelease(&tag, ExclusiveLock, false);
	RACE_POINT("after the resource was unlocked");
}

/* Unlock a resource if this session has locked it. */
void
unlock_resource_if_locked(const text *resource)
{
	LOCKTAG		tag = resource_tag(resource);

	if (LockHeldByMe(&tag, ExclusiveLock, false))
		unlock_resource(resource);
}
