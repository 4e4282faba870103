/*-------------------------------------------------------------------------
 *
 * lease_lock.h
 *		Types and functions shared between the files of the extension.
 *
 * Calls go one way: api -> lease -> store, wait, clock. The store knows nothing
 * of rules, the rules nothing of tuples.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_H
#define LEASE_LOCK_H

#include "access/tableam.h"
#include "access/transam.h"
#include "datatype/timestamp.h"
#include "nodes/lockoptions.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

/* The slot of the exclusive lease on a resource. */
#define EXCLUSIVE_SLOT	0

/* Bytes in the name of a resource or owner; fits an index entry many times. */
#define MAX_NAME_LENGTH	1024

/* One row of the lock table. */
typedef struct Lease
{
	text	   *resource;
	int16		slot;
	text	   *owner;			/* NULL: released, the row is a tombstone */
	int64		token;
	TimestampTz granted_at;
	TimestampTz expires_at;
	Oid			holder;			/* role that acquired it */
	FullTransactionId xid;		/* transaction that granted it */
} Lease;

/* Whose lease is meant: that of an owner, that with a token, or both. */
typedef struct Claim
{
	const text *owner;			/* NULL: whoever has the token */
	const int64 *token;			/* NULL: whichever the owner has */
} Claim;

/* Which role needs the privileges of the one that acquired an asserted lease. */
typedef enum AssertRole
{
	ASSERT_AS_CALLER,			/* the current one */
	ASSERT_AS_SESSION			/* it, or the one that the session acts as */
} AssertRole;

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
	Oid			token_sequence;
	LOCKMODE	lockmode;
	bool		written;
	BusyRow		busy;			/* what the probe met, if that */
	TupleTableSlot *row;
	Lease		lease;
	TableScanDesc scan;			/* of store_next(), with its snapshot */
	Snapshot	scan_snapshot;
} LeaseStore;

typedef bool (*StoreFilter) (const Lease *lease, const void *arg);

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

/* store.c: the lock table */
extern void store_init(void);
extern LeaseStore *store_open(LOCKMODE lockmode);
extern void store_close(LeaseStore *store);
extern ProbeResult store_probe(LeaseStore *store, const text *resource, int16 slot);
extern bool store_fetch(LeaseStore *store, const text *resource, int16 slot);
extern void store_wait(BusyRow busy);
extern RowLockResult store_lock_row(LeaseStore *store, LockTupleMode mode, LockWaitPolicy policy);
extern int64 store_next_token(LeaseStore *store);
extern void store_refuse_token(LeaseStore *store);
extern bool store_insert(LeaseStore *store, const Lease *lease);
extern void store_update(LeaseStore *store, const Lease *lease);
extern void store_delete(LeaseStore *store);
extern bool store_next(LeaseStore *store, StoreFilter wanted, const void *arg);

/* lease.c: the rules */
extern void lease_init(void);
extern bool acquire_lease(text *resource, int64 ttl, text *owner, int64 wait, void (*before_sleep) (void));
extern bool release_lease(text *resource, const Claim *claim);
extern int64 release_all_leases(const text *owner);
extern bool renew_lease(text *resource, int64 ttl, const Claim *claim);
extern int64 assert_lease(text *resource, const Claim *claim, AssertRole role);
extern bool current_holder(LeaseStore *store, const text *resource);
extern bool held_token(text *resource, const text *owner, int64 *token);
extern int64 purge_leases(void);

/* pin.c: leases that the current transaction relies on */
extern void pin_init(void);
extern const Lease *pin_find(const text *resource);
extern void pin_remember(const Lease *lease);
extern void pin_forget(const text *resource);
extern uint64 pin_losses(void);

/* guard.c: tables that refuse writes without a lease */
extern void guard_init(void);

#endif							/* LEASE_LOCK_H */
