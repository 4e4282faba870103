/*-------------------------------------------------------------------------
 *
 * Locks that show whether the session of a lease has ended.
 *
 * A session that acquires a lease for its own lifetime holds a session-level
 * heavyweight lock, which is identified by the token of the lease. The row
 * says that the lease belongs to a session. A backend that reads the row tries
 * that lock. If the lock is free, the session has ended, in whatever way, and
 * so has the lease.
 *
 * The server also releases session-level locks when the session does not end:
 *
 * - At the end of a transaction that fails, it releases session-level locks of
 *   the default lock method.
 * - DISCARD ALL and pg_advisory_unlock_all() release session-level locks of
 *   the user lock method.
 *
 * So each token has two locks: the keeper, of the default method, and the
 * substitute, of the user method. The session has ended if both are free at
 * the same time. The session takes back what the server released: the
 * substitute before the locks of a transaction are released, the keeper just
 * after. So it has the keeper whenever a statement runs, and the substitute
 * while it does not have the keeper.
 *
 * A backend that tests the locks takes the substitute first, and tries the
 * keeper while it holds the substitute. If it gets the substitute, the session
 * must have the keeper, and cannot give it up: before that, it waits for the
 * substitute. If the keeper is free as well, the session holds neither. This
 * order leaves the keeper alone while the session exists. If a test could make
 * the session fail to take the keeper back, the next pg_advisory_unlock_all()
 * would end the lease.
 *
 * When a backend exits between transactions, the server does not release
 * session-level locks of the default method. This file does.
 *
 * Other sessions can release or break the lease, and COMMIT PREPARED can end
 * it. The session does not notice that. So each grant of a session lease checks
 * a few locks of the session, and releases those that have no lease. It checks
 * more than it adds, so they do not pile up.
 *
 * A standby does not know the locks of the primary. There a lease counts as
 * held as long as its row says so.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/compat.h"
#include "base/race.h"
#include "store/session_lock.h"

/* Number of tries to take the locks of a new token, which somebody may be testing. */
#define MAX_TRIES		100

/* Number of locks that a new grant checks, of those that the session has. */
#define TIDY_AT_ONCE	2

/* A token that this session has locked. */
typedef struct SessionLock
{
	int64		token;
	int			begun_at;		/* nesting level of the transaction that acquired the lease; 0: committed */
	int			ends_at;		/* nesting level of the transaction that released the lease; 0: none */
	text	   *resource;
} SessionLock;

/* In TopMemoryContext. */
static List *session_locks = NIL;
static bool releases_at_exit = false;

void		(*session_lease_ended) (const text *resource) = NULL;

/* field4 distinguishes these tags from those of resources. */
static LOCKTAG
token_tag(int64 token, LOCKMETHODID method)
{
	LOCKTAG		tag = {0};

	tag.locktag_field1 = MyDatabaseId;
	tag.locktag_field2 = (uint32) (token >> 32);
	tag.locktag_field3 = (uint32) token;
	tag.locktag_field4 = 1;
	tag.locktag_type = LOCKTAG_USERLOCK;
	tag.locktag_lockmethodid = method;
	return tag;
}

static LOCKTAG
keeper(int64 token)
{
	return token_tag(token, DEFAULT_LOCKMETHOD);
}

static LOCKTAG
substitute(int64 token)
{
	return token_tag(token, USER_LOCKMETHOD);
}

/* Take a lock for the session; false if another session has it. */
static bool
take(LOCKTAG tag)
{
	for (int i = 0; i < MAX_TRIES; i++)
	{
		if (LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL)
			return true;
		pg_usleep(10);
	}
	return false;
}

/*
 * Take a lock back for the session. Only a backend that tests the lock can have
 * it, for a moment. While we wait, no other one can take it. Without memory for
 * the lock, the end of the next transaction tries again.
 */
static void
take_back(LOCKTAG tag)
{
	if (!LockHeldByMe(&tag, ExclusiveLock, false))
		LockAcquireExtended(&tag, ExclusiveLock, true, false, false, NULL, false);
}

static void
let_go(LOCKTAG tag)
{
	if (LockHeldByMe(&tag, ExclusiveLock, false))
		LockRelease(&tag, ExclusiveLock, true);
}

/* Is the lock free now? False if the server's lock table is full: no error may leave the other lock held. */
static bool
is_free_lock(LOCKTAG tag)
{
	if (LockAcquireExtended(&tag, ShareLock, false, true, false, NULL, false) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	LockRelease(&tag, ShareLock, false);
	return true;
}

LeaseSession
session_of_token(int64 token)
{
	LOCKTAG		first = substitute(token);
	LOCKTAG		second = keeper(token);
	bool		ended;

	if (RecoveryInProgress())
		return SESSION_ALIVE;
	if (LockHeldByMe(&first, ExclusiveLock, false) || LockHeldByMe(&second, ExclusiveLock, false))
		return SESSION_MINE;
	if (LockAcquire(&first, ShareLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return SESSION_ALIVE;
	RACE_POINT("between substitute and keeper");
	ended = is_free_lock(second);
	LockRelease(&first, ShareLock, false);
	return ended ? SESSION_ENDED : SESSION_ALIVE;
}

static void
release_at_exit(int code, Datum arg)
{
	List	   *ended = session_locks;
	ListCell   *cell;

	session_locks = NIL;		/* a rollback after this must not take locks again */
	foreach(cell, ended)
	{
		SessionLock *lock = lfirst(cell);

		let_go(keeper(lock->token));
		let_go(substitute(lock->token));
	}
	foreach(cell, ended)
		if (session_lease_ended != NULL)
			session_lease_ended(((SessionLock *) lfirst(cell))->resource);
}

/*
 * Lock a token that was just handed out. The lock is held until the session
 * ends, unless the current (sub)transaction rolls back.
 */
void
session_lock_begin(int64 token, const text *resource)
{
	MemoryContext context = MemoryContextSwitchTo(TopMemoryContext);
	SessionLock *lock = palloc0(sizeof(SessionLock));
	LOCKTAG		tags[] = {keeper(token), substitute(token)};

	if (!releases_at_exit)
	{
		before_shmem_exit(release_at_exit, (Datum) 0);
		releases_at_exit = true;
	}

	lock->token = token;
	lock->begun_at = GetCurrentTransactionNestLevel();
	lock->resource = (text *) PG_DETOAST_DATUM_COPY(PointerGetDatum(resource));
	session_locks = lappend(session_locks, lock);
	MemoryContextSwitchTo(context);

	for (int i = 0; i < (int) lengthof(tags); i++)
		if (!take(tags[i]))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
					 errmsg("token sequence of the lock table was set back"),
					 errdetail("Another session has a lease with token " INT64_FORMAT ".", token),
					 errhint("Set the sequence above every token that was granted, with setval().")));
}

void
session_lock_end(int64 token)
{
	ListCell   *cell;

	foreach(cell, session_locks)
	{
		SessionLock *lock = lfirst(cell);

		if (lock->token == token)
			lock->ends_at = GetCurrentTransactionNestLevel();
	}
}

/* Unlock a token, and forget it. */
static void
forget(SessionLock *lock)
{
	let_go(keeper(lock->token));
	let_go(substitute(lock->token));
	session_locks = list_delete_ptr(session_locks, lock);
	pfree(lock->resource);
	pfree(lock);
}

/* Does the lease of a lock still have its row? In doubt, true: a look may have missed a row. */
static bool
has_row(LeaseStore *store, const SessionLock *lock)
{
	LeaseRows	rows;

	store_look(store, lock->resource, &rows);
	for (int i = 0; i < rows.count; i++)
		if (rows.row[i].lease.owner != NULL && rows.row[i].lease.token == lock->token)
			return true;
	return !rows.same_moment;
}

void
session_lock_tidy(LeaseStore *store)
{
	static int	next = 0;

	for (int i = 0; i < TIDY_AT_ONCE && session_locks != NIL; i++)
	{
		SessionLock *lock;

		if (next >= list_length(session_locks))
			next = 0;
		lock = list_nth(session_locks, next);
		if (lock->begun_at == 0 && lock->ends_at == 0 && !has_row(store, lock))
			forget(lock);
		else
			next++;
	}
}

/* The transaction ended: make what it began or ended final. */
static void
settle(bool committed)
{
	List	   *locks = list_copy(session_locks);
	ListCell   *cell;

	foreach(cell, locks)
	{
		SessionLock *lock = lfirst(cell);

		if (committed ? lock->ends_at > 0 : lock->begun_at > 0)
			forget(lock);
		else
			lock->begun_at = lock->ends_at = 0;
	}
	list_free(locks);
}

/* A prepared transaction outlives its session, but a lease that ends with the session does not. */
static void
refuse_prepare(void)
{
	ListCell   *cell;

	foreach(cell, session_locks)
		if (((SessionLock *) lfirst(cell))->begun_at > 0)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that acquired a lease for its session")));
}

/* A prepared transaction may still roll back its releases, so keep the locks. */
static void
keep_all(void)
{
	ListCell   *cell;

	foreach(cell, session_locks)
		((SessionLock *) lfirst(cell))->ends_at = 0;
}

static void
take_substitutes(void)
{
	ListCell   *cell;

	foreach(cell, session_locks)
		take_back(substitute(((SessionLock *) lfirst(cell))->token));
	RACE_POINT("before the keepers are released");
}

static void
take_keepers(void)
{
	ListCell   *cell;

	RACE_POINT("after the keepers were released");
	foreach(cell, session_locks)
		take_back(keeper(((SessionLock *) lfirst(cell))->token));
}

static void
end_transaction(XactEvent event, void *arg)
{
	if (session_locks == NIL)
		return;
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			settle(true);
			take_substitutes();
			take_keepers();
			break;
		case XACT_EVENT_ABORT:
			settle(false);
			take_substitutes();
			break;
		case XACT_EVENT_PRE_PREPARE:
			refuse_prepare();
			break;
		case XACT_EVENT_PREPARE:
			keep_all();
			break;
		default:
			break;
	}
}

/* ResourceReleaseCallback */
static void
after_locks(ResourceReleasePhase phase, bool is_commit, bool is_top_level, void *arg)
{
	if (session_locks != NIL && phase == RESOURCE_RELEASE_AFTER_LOCKS && !is_commit && is_top_level)
		take_keepers();
}

static void
end_subtransaction(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();
	List	   *locks;
	ListCell   *cell;

	if (session_locks == NIL || (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB))
		return;

	locks = list_copy(session_locks);
	foreach(cell, locks)
	{
		SessionLock *lock = lfirst(cell);

		if (event == SUBXACT_EVENT_COMMIT_SUB)
		{
			lock->begun_at = Min(lock->begun_at, level - 1);
			lock->ends_at = Min(lock->ends_at, level - 1);
		}
		else if (lock->begun_at >= level)
			forget(lock);
		else if (lock->ends_at >= level)
			lock->ends_at = 0;
	}
	list_free(locks);
}

void
session_lock_init(void)
{
	RegisterXactCallback(end_transaction, NULL);
	RegisterSubXactCallback(end_subtransaction, NULL);
	RegisterResourceReleaseCallback(after_locks, NULL);
}
