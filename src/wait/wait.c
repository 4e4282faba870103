/*-------------------------------------------------------------------------
 *
 * wait.c
 *		The wait queue for leases that are held, and its wake-ups.
 *
 * Behind a committed lease there is no transaction to wait for in the lock
 * manager: whoever took it may be gone. Waiters stand in a queue in shared
 * memory instead, one entry per backend, in the order of arrival. First come,
 * first served, per resource: a free lease goes to the first entry that
 * names it, and to nobody else.
 *
 * A waiter sleeps on its latch until something may have changed for it, then
 * looks at the lock table again. What it found there says how long it
 * may sleep; the queue never says who holds a lease. So a wake-up too many
 * costs a look, no more. One too few is what must not happen:
 *
 * - A waiter joins before it looks. A transaction that changed a lease first
 *   becomes visible, then looks at the queue. One of them sees the other.
 * - Every wake-up counts up the waiter's news. It sleeps only if nothing came
 *   since before it looked, whatever it waited for in between.
 * - The first in the queue sleeps no longer than the lease that it saw
 *   lasts. A grant that ends earlier than that wakes it: see alarm.
 * - Who leaves the first place without having got the lease wakes the next.
 * - The last in the queue keeps watch over the first. It is awake when it
 *   comes, so that nobody has to be woken to take over the watch. A first
 *   one that was called and does not take its turn, being stopped or
 *   stuck, goes to the end, and counts as absent until it wakes up.
 * - What comes with no wake-up at all, like an UPDATE of the lock table by
 *   hand, is found by looking again, first after deadlock_timeout and then
 *   ever more rarely.
 *
 * The entries are changed under one lightweight lock. A server where nobody
 * waits never takes it: an atomic counter tells.
 *
 * Without shared memory (servers before 17 that do not preload the library)
 * everybody looks again every lease_lock.poll_interval, in no order.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/guc.h"

#include "base/clock.h"
#include "base/compat.h"
#include "monitor/stats.h"
#include "store/session_lock.h"
#include "wait/wait.h"

#define NOBODY	(-1)

/* The longest a sleeper goes without looking again, wake-up or not. */
#define LONGEST_SLEEP	(30 * USECS_PER_SEC)

/*
 * How often to look again when what is wanted is one of several, and open
 * transactions have some of them. No wait in the lock manager would hear of
 * the others, and not every end of a transaction wakes us: not that of one which was
 * prepared, or which only locked the row.
 */
#define OPEN_INTERVAL	USECS_PER_SEC

/* The alarm of a waiter that does not sleep: it has to hear of everything. */
#define NO_ALARM		((uint64) PG_INT64_MAX)

typedef struct WaitQueue
{
	LWLock		lock;
	int			tranche;
	pg_atomic_uint32 length;
	uint64		last_ticket;
	int			first;
	int			last;
	Waiter		waiters[FLEXIBLE_ARRAY_MEMBER]; /* by number of the backend's PGPROC */
} WaitQueue;

/* A lease that the current transaction changed. */
typedef struct Change
{
	uint64		hash;
	TimestampTz expires_at;		/* in the past: it is free */
} Change;

/* More than this are not kept apart: everybody is woken. */
#define MAX_CHANGES 64

static int	handoff_timeout = 1000;
static int	poll_interval = 100;

static WaitQueue *queue = NULL;
static Waiter *me = NULL;		/* own entry, while waiting */
static int64 joined_at;			/* the queue, by the monotonic clock */
static int64 deadline;			/* of the wait, likewise */
static int64 lock_deadline;		/* of lock_timeout, likewise */
static int64 next_check;		/* when to look without a wake-up */
static int64 check_interval;
static int64 expected_end;		/* of the lease seen in the last look; 0: none */
static uint32 news_seen;		/* before the last look */
static bool leaves_at_exit = false;

static Change changes[MAX_CHANGES];
static int	nchanges = 0;		/* MAX_CHANGES + 1: too many to tell */

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static void tell_session_ended(const text *resource);
static void wake_after_transaction(XactEvent event, void *arg);
static void wake_after_subtransaction(SubXactEvent event, SubTransactionId subid,
									  SubTransactionId parent, void *arg);

static Size
queue_size(void)
{
	return add_size(offsetof(WaitQueue, waiters), mul_size(MaxBackends, sizeof(Waiter)));
}

static void
create_queue(WaitQueue *new_queue)
{
	memset(new_queue, 0, queue_size());
	new_queue->tranche = LWLockNewTrancheId("lease_lock");
	LWLockInitialize(&new_queue->lock, new_queue->tranche);
	pg_atomic_init_u32(&new_queue->length, 0);
	new_queue->first = new_queue->last = NOBODY;
	for (int i = 0; i < MaxBackends; i++)
	{
		pg_atomic_init_u64(&new_queue->waiters[i].alarm, 0);
		pg_atomic_init_u32(&new_queue->waiters[i].news, 0);
	}
}

static void
request_queue(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(queue_size());
}

static void
startup_queue(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	queue = ShmemInitStruct("lease_lock", queue_size(), &found);
	if (!found)
		create_queue(queue);
	LWLockRelease(AddinShmemInitLock);
	REGISTER_TRANCHE(queue->tranche, "lease_lock");
}

void
wait_init(void)
{
	DefineCustomIntVariable("lease_lock.handoff_timeout",
							"Time that the first waiter has to take a lease that became free.",
							"After that it goes to the end of the queue.",
							&handoff_timeout,
							1000, 10, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("lease_lock.poll_interval",
							"Time between two looks at a lease when there is no wait queue.",
							"There is none before PostgreSQL 17 unless the library is preloaded.",
							&poll_interval,
							100, 1, INT_MAX,
							PGC_USERSET,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	session_lease_ended = tell_session_ended;
	RegisterXactCallback(wake_after_transaction, NULL);
	RegisterSubXactCallback(wake_after_subtransaction, NULL);

	if (process_shared_preload_libraries_in_progress)
	{
		prev_shmem_request_hook = shmem_request_hook;
		shmem_request_hook = request_queue;
		prev_shmem_startup_hook = shmem_startup_hook;
		shmem_startup_hook = startup_queue;
	}
}

#if PG_VERSION_NUM >= 170000
static void
init_segment(DSM_INIT_ARGS)
{
	create_queue(ptr);
}
#endif

/*
 * Find the queue; false when this server has none. May fail, so whatever has
 * to wake somebody at the end of its transaction finds it before.
 */
static bool
attach_queue(void)
{
#if PG_VERSION_NUM >= 170000
	if (queue == NULL)
	{
		bool		found;

		queue = GetNamedDSMSegment("lease_lock 1", queue_size(), init_segment, &found, NULL);
		REGISTER_TRANCHE(queue->tranche, "lease_lock");
	}
#endif
	return queue != NULL;
}

/* The name that pg_stat_activity shows while a waiter sleeps. */
static uint32
wait_event(void)
{
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("LeaseLockWait");
	return event;
}

/* Is there anybody in the queue? The only thing that costs when there is not. */
static inline bool
anybody_waits(void)
{
	return queue != NULL && pg_atomic_read_u32(&queue->length) > 0;
}

static uint64
resource_hash(const text *resource)
{
	return hash_text(resource, MyDatabaseId);
}

/*
 * Is this a resource that the waiter waits for? One that waits for more of
 * them than have room is in no order.
 */
static bool
waits_for_hash(const Waiter *waiter, Oid database, uint64 hash)
{
	if (waiter->database != database || waiter->nresources > MAX_HASHES)
		return false;
	if (waiter->nresources == 1)
		return waiter->hash == hash;
	for (int i = 0; i < waiter->nresources; i++)
		if (waiter->hashes[i] == hash)
			return true;
	return false;
}

static bool
waits_for(const Waiter *waiter, uint64 hash, const text *resource)
{
	return waits_for_hash(waiter, MyDatabaseId, hash) &&
		(waiter->nresources > 1 ||
		 (waiter->resource_length == (int) VARSIZE_ANY_EXHDR(resource) &&
		  memcmp(waiter->resource, VARDATA_ANY(resource), waiter->resource_length) == 0));
}

/* Do two of them wait for the same resource? */
static bool
share_resource(const Waiter *a, const Waiter *b)
{
	if (a->nresources > 1 && a->nresources <= MAX_HASHES)
	{
		for (int i = 0; i < a->nresources; i++)
			if (waits_for_hash(b, a->database, a->hashes[i]))
				return true;
		return false;
	}
	return a->nresources == 1 && waits_for_hash(b, a->database, a->hash) &&
		(b->nresources > 1 ||
		 (a->resource_length == b->resource_length &&
		  memcmp(a->resource, b->resource, a->resource_length) == 0));
}

static Waiter *
waiter_at(int place)
{
	return place == NOBODY ? NULL : &queue->waiters[place];
}

/*
 * The latch alone is not enough: between a look and the sleep the waiter may
 * wait for something else, and reset it.
 */
static void
wake(Waiter *waiter)
{
	pg_atomic_fetch_add_u32(&waiter->news, 1);
	SetLatch(&GetPGProcByNumber(waiter - queue->waiters)->procLatch);
}

/* Add an entry at the end. The caller holds the lock. */
static void
append(Waiter *waiter)
{
	int			place = (int) (waiter - queue->waiters);

	waiter->previous = queue->last;
	waiter->next = NOBODY;
	if (queue->last == NOBODY)
		queue->first = place;
	else
		waiter_at(queue->last)->next = place;
	queue->last = place;
}

/* Take an entry out. The caller holds the lock. */
static void
take_out(Waiter *waiter)
{
	Assert(queue != NULL);

	if (waiter->previous == NOBODY)
		queue->first = waiter->next;
	else
		waiter_at(waiter->previous)->next = waiter->next;

	if (waiter->next == NOBODY)
		queue->last = waiter->previous;
	else
		waiter_at(waiter->next)->previous = waiter->previous;
}

/* The nearest entry for the same resource before this one. */
static Waiter *
waiter_before(Waiter *waiter)
{
	Waiter	   *other = waiter;

	do
		other = waiter_at(other->previous);
	while (other != NULL && (other->aside || !share_resource(other, waiter)));

	return other;
}

/* The nearest entry for the same resource behind this one. */
static Waiter *
waiter_behind(Waiter *waiter)
{
	Waiter	   *other = waiter;

	do
		other = waiter_at(other->next);
	while (other != NULL && !share_resource(other, waiter));

	return other;
}

/*
 * Is nobody behind this one who could keep watch? Who waits for several
 * resources does so itself: those behind it may not do so for each.
 */
static bool
is_last(Waiter *waiter)
{
	Waiter	   *other = waiter_behind(waiter);

	if (waiter->nresources > 1)
		return true;

	while (other != NULL && (other->lost_turn || other->aside || other->in_lock_wait || other->nresources > 1))
		other = waiter_behind(other);
	return other == NULL;
}

static bool
is_overdue(const Waiter *waiter, int64 now)
{
	return waiter->called_at != 0 && !waiter->in_lock_wait &&
		now - waiter->called_at >= handoff_timeout * INT64CONST(1000);
}

/*
 * May this backend take the lease, which is free? Not while others have been
 * waiting for longer; then the first of them is called.
 */
bool
wait_is_my_turn(const text *resource)
{
	uint64		hash;
	int64		now;
	Waiter	   *first = NULL;
	Waiter	   *next;
	bool		called = false;

	if (!attach_queue() || !anybody_waits())
		return true;

	hash = resource_hash(resource);
	now = clock_monotonic();

	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	if (me != NULL)
		me->lost_turn = me->aside = false;
	for (Waiter *waiter = waiter_at(queue->first); waiter != NULL && first == NULL; waiter = next)
	{
		next = waiter_at(waiter->next);
		if (!waits_for(waiter, hash, resource) || waiter->lost_turn || waiter->aside)
			continue;

		if (waiter == me || !is_overdue(waiter, now))
			first = waiter;
		else
		{
			waiter->lost_turn = true;
			waiter->called_at = 0;
			take_out(waiter);
			append(waiter);
		}
	}
	if (first != NULL && first != me && first->called_at == 0)
	{
		first->called_at = now;
		called = true;
	}
	LWLockRelease(&queue->lock);

	if (called)
		wake(first);
	return first == NULL || first == me;
}

/*
 * Remember that the current transaction changed a lease, so that its waiters
 * are woken when the outcome is known. Of several changes the earliest end
 * counts: they may be of different slots.
 */
void
wait_note_change(const text *resource, TimestampTz expires_at)
{
	uint64		hash = resource_hash(resource);

	if (!attach_queue())
		return;

	for (int i = 0; i < nchanges && nchanges <= MAX_CHANGES; i++)
	{
		if (changes[i].hash == hash)
		{
			/* One of several leases on the resource may be free, whatever became of the others. */
			changes[i].expires_at = Min(changes[i].expires_at, expires_at);
			return;
		}
	}

	if (nchanges < MAX_CHANGES)
		changes[nchanges] = (Change) {hash, expires_at};
	nchanges = Min(nchanges + 1, MAX_CHANGES + 1);
}

/*
 * Does this waiter have to hear of a change? One that looks by itself before the
 * lease ends need not: most grants wake nobody.
 */
static bool
has_to_hear(Waiter *waiter, const Change *change, bool committed)
{
	int64		now = clock_monotonic();
	TimestampTz today = clock_now();

	if (committed && change->expires_at <= today)
	{
		if (waiter->called_at == 0)
			waiter->called_at = now;
		return true;
	}
	return !committed || (int64) pg_atomic_read_u64(&waiter->alarm) > now + (change->expires_at - today);
}

/*
 * Wake the first waiter for every lease that changed.
 *
 * It is woken even if it was called before, since it may be about to sleep,
 * having found the lease taken again; and after the lock is released, which
 * is what it takes next. Who stands in no order is woken by any change.
 */
static void
wake_first_waiters(bool committed)
{
	bool		found[MAX_CHANGES] = {false};
	Waiter	   *to_wake[MAX_CHANGES];
	int			nfound = 0;
	int			nwake = 0;

	if (nchanges == 0 || !anybody_waits())
		return;

	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	for (Waiter *waiter = waiter_at(queue->first); waiter != NULL && nfound < nchanges;
		 waiter = waiter_at(waiter->next))
	{
		bool		has_to_wake = false;

		if (waiter->database != MyDatabaseId || waiter->lost_turn || waiter->aside)
			continue;

		for (int i = 0; i < nchanges; i++)
		{
			if (found[i] || !waits_for_hash(waiter, MyDatabaseId, changes[i].hash))
				continue;
			found[i] = true;
			nfound++;
			has_to_wake |= has_to_hear(waiter, &changes[i], committed);
		}
		if (has_to_wake)
			to_wake[nwake++] = waiter;
	}
	Assert(queue != NULL);
	for (Waiter *waiter = waiter_at(queue->first); waiter != NULL; waiter = waiter_at(waiter->next))
		if (waiter->database == MyDatabaseId && (waiter->aside || waiter->nresources > MAX_HASHES))
			wake(waiter);
	LWLockRelease(&queue->lock);

	while (nwake > 0)
		wake(to_wake[--nwake]);
}

/* Wake everybody: too much has changed to tell what. */
static void
wake_all_waiters(void)
{
	if (!anybody_waits())
		return;

	LWLockAcquire(&queue->lock, LW_SHARED);
	for (Waiter *waiter = waiter_at(queue->first); waiter != NULL; waiter = waiter_at(waiter->next))
		wake(waiter);
	LWLockRelease(&queue->lock);
}

static void
wake_waiters(bool committed)
{
	if (nchanges > MAX_CHANGES)
		wake_all_waiters();
	else
		wake_first_waiters(committed);
}

/*
 * At commit and abort the transaction is no longer in progress for others. At
 * PREPARE it is, and those who wait for the lease have to wait for it.
 */
static void
wake_after_transaction(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			wake_waiters(event == XACT_EVENT_COMMIT);
			nchanges = 0;
			break;
		default:
			break;
	}
}

/* What a subtransaction changed is as it was, although its parent goes on. */
static void
wake_after_subtransaction(SubXactEvent event, SubTransactionId subid,
						  SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		wake_waiters(false);
}

/*
 * A lease ended because this session ends. There is no transaction whose end
 * would tell its waiters.
 */
static void
tell_session_ended(const text *resource)
{
	wait_note_change(resource, DT_NOBEGIN);
	wake_waiters(true);
}

static void
leave_at_exit(int code, Datum arg)
{
	wait_leave(false);
}

/*
 * Begin to wait for any of these resources: for at most timeout microseconds,
 * or for ever when it is negative. Must be followed by wait_leave(), also on
 * error.
 */
void
wait_join(text **resources, int nresources, const LeaseRequest *request, int64 timeout)
{
	if (me != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("this session is already waiting for a lease")));

	deadline = timeout < 0 ? PG_INT64_MAX : clock_monotonic() + timeout;
	lock_deadline = LockTimeout > 0 ? clock_monotonic() + LockTimeout * INT64CONST(1000) : PG_INT64_MAX;
	check_interval = DeadlockTimeout * INT64CONST(1000);
	next_check = clock_monotonic() + check_interval;

	if (!attach_queue())
		return;
	if (!leaves_at_exit)
	{
		before_shmem_exit(leave_at_exit, (Datum) 0);
		leaves_at_exit = true;
	}
	stats_count(STATS_WAITS);

	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	joined_at = clock_monotonic();
	expected_end = 0;
	me = &queue->waiters[MY_PROC_NUMBER];
	me->pid = MyProcPid;
	me->database = MyDatabaseId;
	me->role = GetUserId();
	me->ticket = ++queue->last_ticket;
	me->since = clock_now();
	me->deadline = timeout < 0 ? DT_NOEND : me->since + timeout;
	pg_atomic_write_u64(&me->alarm, NO_ALARM);
	me->called_at = 0;
	me->in_lock_wait = false;
	me->lost_turn = false;
	me->aside = false;
	me->suspect = false;
	me->mode = request->mode;
	me->permits = request->permits;
	me->owner_length = VARSIZE_ANY_EXHDR(request->owner);
	memcpy(me->owner, VARDATA_ANY(request->owner), me->owner_length);
	me->nresources = nresources;
	if (nresources == 1)
	{
		me->hash = resource_hash(resources[0]);
		me->resource_length = VARSIZE_ANY_EXHDR(resources[0]);
		memcpy(me->resource, VARDATA_ANY(resources[0]), me->resource_length);
	}
	else
	{
		me->hash = 0;
		me->resource_length = 0;
		for (int i = 0; i < nresources && nresources <= MAX_HASHES; i++)
			me->hashes[i] = resource_hash(resources[i]);
	}
	append(me);
	pg_atomic_fetch_add_u32(&queue->length, 1);
	LWLockRelease(&queue->lock);
}

/*
 * When did the lease that was just granted become free? When its release called
 * us, or when it expired; 0 when it is not known. The caller holds the lock.
 */
static int64
free_since(int64 now)
{
	int64		expired_at = expected_end <= now ? expected_end : 0;

	if (me->called_at == 0 || expired_at == 0)
		return Max(me->called_at, expired_at);
	return Min(me->called_at, expired_at);
}

/*
 * Stop to wait. Who leaves with empty hands lets the next one look; and so does
 * who got a lease that leaves room for others.
 */
void
wait_leave(bool granted)
{
	int64		now = clock_monotonic();
	int64		since;
	Waiter	   *before;
	Waiter	   *behind;
	bool		was_last;
	bool		shares;

	if (me == NULL)
		return;

	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	since = granted ? free_since(now) : 0;
	before = waiter_before(me);
	behind = waiter_behind(me);
	was_last = is_last(me);
	shares = me->mode != MODE_EXCLUSIVE;
	if (me->nresources > 1)
	{
		/* It may have been the first for some, whatever it got. */
		for (Waiter *other = behind; other != NULL; other = waiter_at(other->next))
			if (share_resource(me, other))
				wake(other);
		behind = before = NULL;
	}
	take_out(me);
	pg_atomic_fetch_sub_u32(&queue->length, 1);
	LWLockRelease(&queue->lock);

	me = NULL;
	stats_wait_ended(now - joined_at);
	if (since != 0)
		stats_handed_off(now - since);
	if ((!granted || shares) && before == NULL && behind != NULL)
		wake(behind);
	if (was_last && before != NULL)
		wake(before);			/* it is the last now and keeps watch */
}

/* Microseconds that are left of the wait. */
int64
wait_remaining(void)
{
	return deadline == PG_INT64_MAX ? PG_INT64_MAX : Max(deadline - clock_monotonic(), 0);
}

/*
 * Is it time to look whether the wait can ever end? Ever more rarely, and when
 * another waiter says so.
 */
bool
wait_is_long(void)
{
	bool		is_long = false;

	if (clock_monotonic() >= next_check)
	{
		check_interval = Min(check_interval * 2, LONGEST_SLEEP);
		next_check = clock_monotonic() + check_interval;
		is_long = true;
	}
	if (me != NULL && me->suspect)
	{
		me->suspect = false;
		is_long = true;
	}
	return is_long;
}

/* About to look: what wakes us from now on must not let us sleep. */
void
wait_begin_look(void)
{
	if (me != NULL)
	{
		pg_atomic_exchange_u64(&me->alarm, NO_ALARM);
		news_seen = pg_atomic_read_u32(&me->news);
		pg_memory_barrier();
	}
}

/*
 * How many milliseconds may a wait in the lock manager take? Not beyond the
 * end of the wait; and now and then it is time to look for a deadlock that
 * only we can see, but never before the server has looked for those it sees.
 */
int
wait_lock_limit(void)
{
	int64		now = clock_monotonic();
	int64		check = Max(next_check, now + DeadlockTimeout * INT64CONST(2000));
	int64		until = Min(Min(deadline, lock_deadline), check);

	return (int) Min(Max((until - now) / 1000, 0), INT_MAX - 1) + 1;
}

/* Has the whole wait been longer than lock_timeout allows? */
void
wait_check_lock_timeout(void)
{
	if (clock_monotonic() >= lock_deadline)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("canceling statement due to lock timeout")));
}

/*
 * Around a wait in the lock manager, where no call is heard. A turn that came
 * did so too early: somebody has the lease.
 */
void
wait_begin_lock(void)
{
	expected_end = 0;			/* that may be changed by who we wait for */
	if (me != NULL)
	{
		LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
		me->called_at = 0;
		me->in_lock_wait = true;
		LWLockRelease(&queue->lock);
	}
}

void
wait_end_lock(void)
{
	if (me != NULL)
	{
		LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
		me->called_at = 0;
		me->in_lock_wait = false;
		LWLockRelease(&queue->lock);
	}
}

/*
 * Copy the queue of this database, in the order of arrival. The own entry is
 * the one with the own pid.
 */
List *
wait_list(void)
{
	List	   *list = NIL;
	Waiter	   *copy;
	int			nwaiters;

	if (!attach_queue() || !anybody_waits())
		return NIL;

	/* Allocate before the lock is taken, with some room for arrivals. */
	nwaiters = Min((int) pg_atomic_read_u32(&queue->length) + 16, MaxBackends);
	copy = palloc_extended(nwaiters * sizeof(Waiter), MCXT_ALLOC_HUGE);

	LWLockAcquire(&queue->lock, LW_SHARED);
	{
		int			n = 0;

		for (Waiter *waiter = waiter_at(queue->first); waiter != NULL && n < nwaiters;
			 waiter = waiter_at(waiter->next))
			if (waiter->database == MyDatabaseId)
				copy[n++] = *waiter;
		nwaiters = n;
	}
	LWLockRelease(&queue->lock);

	for (int i = 0; i < nwaiters; i++)
		list = lappend(list, &copy[i]);
	return list;
}

/* Let another waiter check for a deadlock now. */
void
wait_suspect(const Waiter *waiter)
{
	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	for (Waiter *other = waiter_at(queue->first); other != NULL; other = waiter_at(other->next))
	{
		if (other->ticket == waiter->ticket)
		{
			other->suspect = true;
			wake(other);
		}
	}
	LWLockRelease(&queue->lock);
}

/*
 * Let others go first, or not any more: what is in the way is a lease of the
 * same owner, which is in nobody else's.
 */
void
wait_stand_aside(bool aside)
{
	Waiter	   *behind;

	if (me == NULL || me->aside == aside)
		return;

	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	me->aside = aside;
	behind = waiter_behind(me);
	LWLockRelease(&queue->lock);
	if (aside && behind != NULL)
		wake(behind);
}

/*
 * Sleep until it is worth to look again: when what refused us ends, or earlier.
 */
void
wait_sleep(const GrantOutcome *refusal)
{
	TimestampTz look_at = refusal->held_until;
	int64		now = clock_monotonic();
	int64		until = Min(Min(deadline, lock_deadline), next_check);
	int			events;

	Assert(look_at != DT_NOBEGIN);
	expected_end = look_at == DT_NOEND ? 0 : now + (look_at - clock_now());
	if (expected_end != 0)
		until = Min(until, expected_end);
	if (refusal->open)
		until = Min(until, now + OPEN_INTERVAL);

	if (me != NULL)
	{
		LWLockAcquire(&queue->lock, LW_SHARED);
		if (is_last(me) && waiter_before(me) != NULL)
			until = Min(until, now + handoff_timeout * INT64CONST(1000));
		pg_atomic_exchange_u64(&me->alarm, (uint64) until);
		if (pg_atomic_read_u32(&me->news) != news_seen)
		{
			LWLockRelease(&queue->lock);
			CHECK_FOR_INTERRUPTS();
			return;
		}
		if (refusal->result == REFUSED_HELD)
			me->called_at = 0;	/* a turn that came too early: it is held */
		me->lost_turn = false;
		LWLockRelease(&queue->lock);
	}
	else
		until = Min(until, now + poll_interval * INT64CONST(1000));

	/* Round up: a look too early would be followed by another. */
	events = WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					   (Max(until - now, 0) + 999) / 1000, wait_event());
	if (events & WL_LATCH_SET)
		ResetLatch(MyLatch);

	CHECK_FOR_INTERRUPTS();
}
