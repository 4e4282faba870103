/*-------------------------------------------------------------------------
 *
 * store.h
 *		The lock table. Only the files of this folder touch it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_STORE_H
#define LEASE_LOCK_STORE_H

#include "server/server.h"

/* The open lock table. */
typedef struct LeaseStore
{
	Relation	table;
	Relation	primary_key;
	Oid			token_sequence;
	LOCKMODE	lockmode;
	List	   *written_relations;	/* locked, since a write opens them */
	bool		written;		/* keep the table lock until the transaction ends */
	TupleTableSlot *slot;		/* tuple slot for reading rows */
} LeaseStore;

/* table.c: opening it */
typedef enum StoreOpening
{
	STORE_OPEN,
	STORE_ABSENT,				/* the extension does not exist */
	STORE_LOCKED				/* another session creates, alters or maintains the table */
} StoreOpening;

extern void store_init(void);
extern LeaseStore *store_open(LOCKMODE lockmode);
extern Oid	extension_relation(const char *name, bool missing_ok);
extern Oid	store_relid(void);
extern LeaseStore *store_open_unless_locked(LOCKMODE lockmode);
extern void store_lock_table(Oid relid);
extern StoreOpening store_open_if_free(LOCKMODE lockmode, LeaseStore **store);
extern void store_prepare_write(LeaseStore *store);
extern void store_close(LeaseStore *store);

/* resource_lock.c: one writer at a time for each resource; who waits to end a lease goes first */
extern void lock_resource(const text *resource);
extern bool try_lock_resource(const text *resource);
extern void unlock_resource(const text *resource);

#define ALL_SLOTS	(MAX_SLOT + 1)	/* of a break, so that one follows the other */
extern void lock_ending(const text *resource, int slot, LOCKMODE mode);
extern bool try_to_lock_ending(const text *resource, int slot);
extern bool probe_ending(const text *resource, int slot);
extern void unlock_ending(const text *resource, int slot, LOCKMODE mode);

/* look.c: what the rows are now */
extern void store_look(LeaseStore *store, const text *resource, LeaseRows *rows);
extern bool store_look_at_last_written(LeaseStore *store, const text *resource, LeaseRows *rows);
extern void store_look_committed(LeaseStore *store, const text *resource, LeaseRows *rows);
extern bool store_look_again(LeaseStore *store, const ItemPointerData *tid, LeaseRow *row);
extern void store_wait_for(TransactionId transaction);

/* row_transactions.c */
extern List *store_row_transactions(const LeaseRow *row);

/* scan.c: rows of many resources */
typedef struct StoreScan StoreScan;
typedef bool (*StoreFilter) (const Lease *lease, const void *arg);	/* NULL: all leases */

typedef enum ScanRows
{
	SCAN_COMMITTED,				/* rows that were committed when the scan began */
	SCAN_POSSIBLE				/* also those that another transaction has written before, or
								 * since, and not rolled back; of a row, perhaps several versions */
} ScanRows;

extern StoreScan *store_scan(LeaseStore *store, ScanRows rows, StoreFilter wanted, const void *arg);
extern StoreScan *store_scan_blocks(LeaseStore *store, BlockNumber first, BlockNumber last,
									ScanRows rows, StoreFilter wanted, const void *arg);
extern StoreScan *store_scan_owned(LeaseStore *store, const text *owner,
								   ScanRows rows, StoreFilter wanted, const void *arg);
extern StoreScan *store_scan_owned_or_kept(LeaseStore *store, const text *owner,
										   ScanRows rows, StoreFilter wanted, const void *arg);
extern bool store_reads_index(const StoreScan *scan);
extern bool store_next(StoreScan *scan, Lease *lease, ItemPointerData *tid);
extern void store_end_scan(StoreScan *scan);

/* write.c: writing rows; the caller holds the resource lock */
extern bool store_try_write(LeaseStore *store, const LeaseRow *old, const Lease *new);
extern bool store_lock_weakly(LeaseStore *store, const LeaseRow *row);
pg_noreturn extern void store_refuse_written_by_hand(LeaseStore *store);

/* tokens.c: fencing tokens, and their eras */
extern void tokens_init(void);
extern void store_prepare_token(LeaseStore *store);
extern int64 store_next_token(LeaseStore *store, int64 last_token);

/* The lease time from which leases are granted in this era; DT_NOBEGIN: at once. */
extern TimestampTz era_grants_from(LeaseStore *store);

/* Begin an era of the sequences in a schema, whether or not it is another one. */
extern void era_begin(Oid schema);

/* assertion_cache.c: leases that the current transaction has asserted lately */
extern const Lease *find_assertion(const text *resource, const Claim *claim);
extern void remember_assertion(const Lease *lease);
extern void forget_assertions(void);
extern uint64 assertions_version;	/* changes when a lease is written, when a found one is
									 * freed, and when the guard's settings change */
extern void assertion_cache_init(void);

#endif							/* LEASE_LOCK_STORE_H */
