/*-------------------------------------------------------------------------
 *
 * lease_lock.h
 *		Types and functions shared between the files of the extension.
 *
 * Calls go one way: api -> acquire -> grant -> slots -> lease -> store, wait,
 * clock. The store knows nothing of rules, the rules nothing of tuples.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_H
#define LEASE_LOCK_H

#include "access/tableam.h"
#include "access/transam.h"
#include "common/hashfn.h"
#include "datatype/timestamp.h"
#include "nodes/bitmapset.h"
#include "nodes/lockoptions.h"
#include "nodes/pg_list.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

/*
 * A resource has an exclusive lease or many others. The exclusive one is in
 * slot 0, which is also the gate: who wants another slot locks it, shared.
 */
#define GATE_SLOT		0
#define MAX_SLOT		32767

/*
 * The first slots are near: they are looked at one by one. The others are far:
 * which of them has the lease of an owner is told by an index, which costs
 * more than it saves among few. To have all tests meet far slots, build with -DNEAR_SLOTS=0.
 */
#ifndef NEAR_SLOTS
#define NEAR_SLOTS		32
#endif

/* Bytes in the name of a resource or owner: both of them fit an index entry. */
#define MAX_NAME_LENGTH	1024

/* Far from where timestamps end, whatever is added to the clock. */
#define MAX_TTL_YEARS	100000
#define MAX_TTL			((int64) MAX_TTL_YEARS * MONTHS_PER_YEAR * DAYS_PER_MONTH * USECS_PER_DAY)

/* How a lease is held, as the lock table says it. */
typedef enum LeaseMode
{
	MODE_EXCLUSIVE = 'x',		/* alone */
	MODE_SHARED = 's',			/* beside other slots */
	MODE_PERMIT = 'p'			/* beside fewer than a number of other slots */
} LeaseMode;

/* One row of the lock table. */
typedef struct Lease
{
	text	   *resource;
	int16		slot;
	text	   *owner;			/* NULL: released, the row is a tombstone */
	int64		token;
	TimestampTz granted_at;
	TimestampTz expires_at;		/* end of what the owner was granted; of a tombstone: free from then */
	Oid			holder;			/* role that acquired it */
	FullTransactionId xid;		/* transaction that granted it */
	LeaseMode	mode;
	int32		holds;			/* how often it has to be released */
	int64		lock_delay;		/* so long after an expiry nobody gets it */
	TimestampTz hold_until;		/* a release before keeps it until then; DT_NOBEGIN: none */
	Datum		payload;		/* jsonb; 0: none */
} Lease;

/* Whose lease is meant: that of an owner, that with a token, or both. */
typedef struct Claim
{
	const text *owner;			/* NULL: whoever has the token */
	const int64 *token;			/* NULL: whichever the owner has */
} Claim;

/* Who relies on a lease, and what errors may tell. */
typedef struct Asserter
{
	Oid			role;			/* has to have the privileges of the role that acquired it, */
	Oid			other_role;		/* or this one has; invalid: no other */
	const char *row_of;			/* table; errors then do not tell the resource. NULL: they do */
} Asserter;

/* Whose uncommitted change is in the way, and which speculative insert of it. */
typedef struct BusyRow
{
	TransactionId xid;
	uint32		speculative_token;
} BusyRow;

/*
 * The open lock table and the row it stands on. What the Lease points to is
 * good until the table is moved to another row, written or closed.
 */
typedef struct LeaseStore
{
	Relation	table;
	Relation	primary_key;
	Oid			owner_index_oid;	/* invalid: there is none */
	Relation	owner_index;	/* opened when needed */
	Oid			token_sequence;
	LOCKMODE	lockmode;
	bool		written;
	bool		has_slots;		/* did the last look at the gate meet rows of other slots? */
	uint64		transactions_ended; /* at that look */
	TupleTableSlot *glance;		/* to look at other rows meanwhile; made when needed */
	BusyRow		busy;			/* what the probe met, if that */
	TupleTableSlot *row;
	Lease		lease;
	TableScanDesc scan;			/* of store_next(), with its snapshot */
	Snapshot	scan_snapshot;
	bool		scans_range;	/* not the whole table */
} LeaseStore;

typedef bool (*StoreFilter) (const Lease *lease, const void *arg);

/* Must the row that is being inserted be taken back? */
typedef bool (*InsertCheck) (LeaseStore *store, void *arg);

/*
 * A lease, as it is committed or as we left it. With busy, another transaction
 * is changing it, or is making it. Returns whether to show more.
 */
typedef bool (*SlotVisitor) (const Lease *lease, const BusyRow *busy, void *arg);

typedef enum StoreOpening
{
	STORE_OPEN,
	STORE_ABSENT,				/* no extension, as far as committed */
	STORE_LOCKED				/* somebody alters or maintains the table */
} StoreOpening;

typedef enum ProbeResult
{
	PROBE_ABSENT,				/* no row, as far as a glance can tell */
	PROBE_BUSY,					/* an open transaction is changing it */
	PROBE_FOUND					/* the store stands on it */
} ProbeResult;

typedef enum RowLockResult
{
	ROW_LOCKED,					/* the store stands on the newest version */
	ROW_BUSY,					/* somebody else has it, and we do not wait */
	ROW_GONE					/* changed or deleted meanwhile */
} RowLockResult;

/* clock.c: what time it is */
extern TimestampTz clock_now(void);
extern int64 clock_monotonic(void);
extern bool interval_to_usecs(const Interval *interval, int64 *usecs);

/* subxact.c: what may have to be undone; true keeps it */
typedef bool (*SubtransactionWork) (void *arg);
extern ErrorData *run_subtransaction(SubtransactionWork work, void *arg);

/* store.c, store_read.c, store_write.c: the lock table */
extern void store_init(void);
extern LeaseStore *store_open(LOCKMODE lockmode);
extern StoreOpening store_open_if_free(LOCKMODE lockmode, LeaseStore **store);
extern void store_close(LeaseStore *store);
extern void store_forget_row(LeaseStore *store);
extern ProbeResult store_probe(LeaseStore *store, const text *resource, int16 slot);
extern ProbeResult store_probe_gate(LeaseStore *store, const text *resource);
extern bool store_slots_unchanged(LeaseStore *store);
extern bool store_has_slots(LeaseStore *store, const text *resource);
extern bool store_used_slots(LeaseStore *store, const text *resource);
extern bool store_gate_is_new(LeaseStore *store, const text *resource);
extern bool store_row_is_ours(LeaseStore *store);
extern void store_visit_slots(LeaseStore *store, const text *resource, SlotVisitor visit, void *arg);
extern void store_visit_slot_range(LeaseStore *store, const text *resource, int first, int last,
								   SlotVisitor visit, void *arg);
extern bool store_visit_near_slots(LeaseStore *store, const text *resource, SlotVisitor visit, void *arg);
extern void store_visit_far_slots_of(LeaseStore *store, const text *resource, const text *owner,
									 SlotVisitor visit, void *arg);
extern bool store_fetch(LeaseStore *store, const text *resource, int16 slot);
extern void store_wait(BusyRow busy);
extern RowLockResult store_lock_row(LeaseStore *store, LockTupleMode mode, LockWaitPolicy policy);
extern int64 store_next_token(LeaseStore *store);
extern void store_refuse_token(LeaseStore *store);
extern bool store_insert(LeaseStore *store, const Lease *lease, InsertCheck check, void *arg);
extern void store_update(LeaseStore *store, const Lease *lease);
extern bool store_delete_if_free(LeaseStore *store);
extern void store_scan_blocks(LeaseStore *store, BlockNumber first, BlockNumber count);
extern bool store_next(LeaseStore *store, StoreFilter wanted, const void *arg);
extern bool store_next_possible(LeaseStore *store, StoreFilter wanted, const void *arg);

/* What is asked for. */
typedef struct LeaseRequest
{
	text	   *resource;
	text	   *owner;
	int64		ttl;			/* microseconds, like all times below */
	LeaseMode	mode;
	int			permits;		/* slots that there are to take; 0 for an exclusive lease */
	bool		reentrant;		/* granted again to the owner who has it */
	int64		min_hold;
	int64		lock_delay;
	Datum		payload;		/* jsonb; 0: none */
	bool		explain;		/* say who is in the way */
} LeaseRequest;

typedef enum GrantResult
{
	GRANTED,
	REFUSED_HELD,				/* by somebody, until a time */
	REFUSED_BUSY,				/* an open transaction is in the way */
	REFUSED_QUEUE				/* free, but others have waited for longer */
} GrantResult;

/* What came of a try. */
typedef struct GrantOutcome
{
	GrantResult result;
	bool		waited;
	bool		own_lease;		/* refused: the same owner has a lease in another slot */
	int64		token;			/* GRANTED */
	TimestampTz expires_at;
	TimestampTz held_until;		/* REFUSED_HELD: when to look again, else DT_NOEND */
	bool		open;			/* REFUSED_HELD: transactions have some of what is wanted */
	BusyRow		busy;			/* REFUSED_BUSY: whom to wait for; */
	bool		name_in_use;	/* or, without xid, another grant to the same owner; */
	int16		locked_slot;	/* or whose row to wait for, */
	LockTupleMode lock_mode;	/* to get this lock on it */
	text	   *blocked_by;		/* owner, when asked to explain */
	Oid			blocked_role;
} GrantOutcome;

/* What the slots of a resource look like to one request. */
typedef struct SlotSurvey
{
	int			taken;			/* slots that somebody has */
	int			own_slot;		/* where the owner has a lease; 0: nowhere */
	int			free_slot;		/* to take; 0: none */
	int64		last_token;		/* highest that is to be seen in any slot */
	List	   *expired;		/* int list: slots whose owner may still pin them */
	Lease	   *former;			/* the last granted of these, for an exclusive request */
	TimestampTz first_free_at;	/* of the taken ones */
	TimestampTz last_free_at;
	BusyRow		busy;			/* open transaction that has one of them */
	BusyRow		purger;			/* that removes the row of a free one */
	text	   *holder;			/* owner of one of them, as far as committed */
	Oid			holder_role;
} SlotSurvey;

static inline bool
same_text(const text *a, const text *b)
{
	return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

static inline uint64
hash_text(const text *string, uint64 seed)
{
	return hash_bytes_extended((const unsigned char *) VARDATA_ANY(string), VARSIZE_ANY_EXHDR(string), seed);
}

static inline bool
is_owner(const Lease *lease, const text *owner)
{
	return lease->owner != NULL && same_text(lease->owner, owner);
}

static inline bool
is_held(const Lease *lease, TimestampTz now)
{
	return lease->owner != NULL && lease->expires_at > now;
}

/* From when can somebody else have it, if nothing happens? */
static inline TimestampTz
free_from(const Lease *lease)
{
	return lease->expires_at + lease->lock_delay;
}

static inline bool
is_free(const Lease *lease, TimestampTz now)
{
	return free_from(lease) <= now;
}

/* slots.c: the slots beside the gate */
extern SlotSurvey survey_slots(LeaseStore *store, const LeaseRequest *request, const Bitmapset *avoid);
extern SlotSurvey find_slot(LeaseStore *store, const LeaseRequest *request, const Bitmapset *avoid);
extern int	find_pinned_slot(LeaseStore *store, const text *resource, const List *slots);
extern bool claim_name(const LeaseRequest *request);
extern void wait_for_name(const LeaseRequest *request);
extern void give_up_name(const LeaseRequest *request);

/* grant.c: who gets a lease */
extern GrantOutcome try_grant(LeaseStore *store, const LeaseRequest *request);

/* acquire.c: waiting for leases, one or several */
extern GrantOutcome acquire_any(LeaseRequest *request, text **resources, int nresources,
								int64 wait, void (*before_sleep) (void));
extern bool acquire_all(LeaseRequest *request, text **resources, int nresources, int64 wait);

/* lease.c: what becomes of a lease */
extern void lease_init(void);
extern void make_durable(void);
extern bool may_act(const Lease *lease);
extern bool may_see_owner(Oid role);
extern void require_holder_privileges(const Lease *lease);
extern void refuse_permission(const Lease *lease);
extern bool is_claimed(const Lease *lease, const Claim *claim);
extern bool fetch_claimed_lease(LeaseStore *store, const text *resource, const Claim *claim);
extern bool release_lease(const text *resource, const Claim *claim);
extern int64 release_all_leases(const text *owner);
extern bool prolong_lease(LeaseStore *store, const text *resource, const Lease *prolonged);
extern bool renew_lease(const text *resource, int64 ttl, const Claim *claim);
extern bool transfer_lease(text *resource, const text *owner, text *new_owner, int64 *token);
extern bool break_leases(const text *resource);
extern List *current_leases(LeaseStore *store, const text *resource);
extern List *slot_transactions(LeaseStore *store, const text *resource);
extern bool held_token(const text *resource, const text *owner, int64 *token);

/* assert.c: leases that a transaction relies on */
extern int64 assert_lease(const text *resource, const Claim *claim, const Asserter *asserter);
extern char *asserted_name(const text *resource, const Asserter *asserter);

/* pin.c: a memory of what the current transaction has asserted */
extern void pin_init(void);
extern const Lease *pin_find(const text *resource, const Claim *claim);
extern void pin_remember(const Lease *lease);
extern void pin_forget(const Lease *lease);
extern uint64 pin_losses(void);

/* guard.c: tables that refuse writes without a lease */
extern void guard_init(void);

#endif							/* LEASE_LOCK_H */
