/*-------------------------------------------------------------------------
 *
 * resource_lock.c
 *		The locks of the lock manager: on a resource, and on the end of a lease.
 *
 * The resource lock orders all writers of one resource. It is held only while
 * rows are read and written. Its holder never waits for a transaction, so the
 * lock cannot be part of a deadlock. Two resources with the same hash share the
 * lock, which costs only microseconds.
 *
 * The ending lock lets an action that ends a lease go before assertions that
 * come later. The action holds it exclusively for as long as it waits for the
 * transactions that rely on the lease already. An assertion takes it shared for
 * a moment, without waiting, while it holds the resource lock; if that fails,
 * it waits for the action. Each lease slot has its own, so the end of one
 * shared lease does not stop the assertions of the others. Both sides wait in
 * the lock manager, so the server finds their deadlocks.
 *
 * The ending lock can be held for long, so a collision would matter: a role
 * could hinder the assertions of a lease of others by the end of one of its
 * own. So its hash is one for which nobody can compute a second name.
 *
 * No message goes to the client under the resource lock: a client that does not
 * read it keeps the session from going on, and nobody could take the lock. An
 * error is reported before the transaction is rolled back, so whoever has
 * locked a resource unlocks it in PG_FINALLY. The report of FATAL comes even
 * before that, so nothing interrupts the session while it has the lock.
 *
 * After an error the ending lock is released with the (sub)transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/cryptohash.h"
#include "common/sha2.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/lwlock.h"

#include "store/store.h"

/*
 * The last field of a tag: 0 for the resource, 1 + lease slot for the end of a
 * lease, and above these a number for breaks.
 */
#define RESOURCE_FIELD			0
#define ENDING_FIELD(slot)		((uint16) ((slot) + 1))
StaticAssertDecl(ALL_SLOTS + 1 <= PG_UINT16_MAX, "a lease slot must fit into a lock tag");

/* Compute the beginning of the SHA-256 of a name. */
static uint64
sha256_of(const text *resource)
{
	pg_cryptohash_ctx *context = pg_cryptohash_create(PG_SHA256);
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	uint64		hash;

	if (pg_cryptohash_init(context) < 0 ||
		pg_cryptohash_update(context, (const uint8 *) VARDATA_ANY(resource),
							 VARSIZE_ANY_EXHDR(resource)) < 0 ||
		pg_cryptohash_final(context, digest, sizeof(digest)) < 0)
		elog(ERROR, "could not compute SHA-256: %s", pg_cryptohash_error(context));
	pg_cryptohash_free(context);
	memcpy(&hash, digest, sizeof(hash));
	return hash;
}

/*
 * The hash of the ending lock. The last one is remembered: most sessions assert
 * the same lease again and again, and SHA-256 is a tenth of an assertion.
 */
static uint64
one_way_hash(const text *resource)
{
	static char known[MAX_NAME_LENGTH];
	static int	known_length = -1;	/* none */
	static uint64 known_hash;
	int			length = VARSIZE_ANY_EXHDR(resource);

	if (length == known_length && memcmp(known, VARDATA_ANY(resource), length) == 0)
		return known_hash;

	known_length = -1;			/* until all is known: the computation can fail */
	known_hash = sha256_of(resource);
	if (length <= MAX_NAME_LENGTH)
	{
		memcpy(known, VARDATA_ANY(resource), length);
		known_length = length;
	}
	return known_hash;
}

/* Advisory locks have a tag type of their own, so no user can take these locks. */
static LOCKTAG
user_lock_tag(uint64 hash, uint16 field)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash, field);
	tag.locktag_type = LOCKTAG_USERLOCK;
	return tag;
}

static LOCKTAG
resource_tag(const text *resource)
{
	return user_lock_tag(hash_text(resource, 0), RESOURCE_FIELD);
}

static LOCKTAG
ending_tag(const text *resource, int slot)
{
	return user_lock_tag(one_way_hash(resource), ENDING_FIELD(slot));
}

void
lock_resource(const text *resource)
{
	LOCKTAG		tag = resource_tag(resource);

	RACE_POINT("before the resource lock");
	PG_TRY();
	{
		LockAcquire(&tag, ExclusiveLock, false, false);
		HOLD_INTERRUPTS();
	}
	PG_CATCH();
	{
		if (LockHeldByMe_compat(&tag, ExclusiveLock, false))
			unlock_resource(resource);	/* it was granted at that moment */
		PG_RE_THROW();
	}
	PG_END_TRY();
	RACE_POINT("after the resource lock");
}

/* Try to lock a resource without waiting; false if another backend holds the lock. */
bool
try_lock_resource(const text *resource)
{
	LOCKTAG		tag = resource_tag(resource);

	if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	HOLD_INTERRUPTS();
	return true;
}

/* Unlock a resource, also after an error. */
void
unlock_resource(const text *resource)
{
	LOCKTAG		tag = resource_tag(resource);

	RACE_POINT("before the resource is unlocked");
	LWLockReleaseAll();			/* after an error, locks of the server may still be held */
	LockRelease(&tag, ExclusiveLock, false);
	if (InterruptHoldoffCount > 0)	/* an error has reset it */
		RESUME_INTERRUPTS();
	RACE_POINT("after the resource was unlocked");
}

/*
 * Wait for the ending lock of a lease slot, and take it. The caller must not
 * hold the resource lock.
 */
void
lock_ending(const text *resource, int slot, LOCKMODE mode)
{
	LOCKTAG		tag = ending_tag(resource, slot);

	LockAcquire(&tag, mode, false, false);
}

bool
try_to_lock_ending(const text *resource, int slot)
{
	LOCKTAG		tag = ending_tag(resource, slot);

	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/* Try the ending lock: does another session wait to end the lease in this slot? */
bool
probe_ending(const text *resource, int slot)
{
	LOCKTAG		tag = ending_tag(resource, slot);

	if (LockAcquire(&tag, ShareLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	LockRelease(&tag, ShareLock, false);
	return false;
}

void
unlock_ending(const text *resource, int slot, LOCKMODE mode)
{
	LOCKTAG		tag = ending_tag(resource, slot);

	LockRelease(&tag, mode, false);
}
