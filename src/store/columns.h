/*-------------------------------------------------------------------------
 *
 * columns.h
 *		How a lease is stored in a row. For the files of this folder only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_COLUMNS_H
#define LEASE_LOCK_COLUMNS_H

#include "store/store.h"

/* A column of the lock table, and the field of Lease that has its value. */
typedef struct LeaseColumn
{
	const char *name;
	Oid			type;
	int			offset;			/* of the field */
	int			size;			/* of the field, in bytes: 4 or 8 */
	bool		not_null;
	int64		null;			/* what the field has for NULL */
	bool		renewed;		/* it is written while the lease goes on */
} LeaseColumn;

/* New columns come last. The table of version 1.0 has the first ones only. */
#define OLDEST_COLUMNS	15
#define NUM_COLUMNS		15
extern const LeaseColumn lease_columns[NUM_COLUMNS];

typedef enum ColumnsFound
{
	COLUMNS_GOOD,
	COLUMNS_ALTERED,			/* by hand */
	COLUMNS_OF_LATER_VERSION	/* it needs more than this version can write */
} ColumnsFound;

extern ColumnsFound find_columns(TupleDesc desc);
extern AttrNumber column_attnum(int column);

/* The columns of the primary key. */
#define Anum_resource	1
#define Anum_slot		2

/* Of lease_columns. */
#define OWNER_COLUMN	2
#define KEPT_FOR_COLUMN	11

/* owner_index.c: an index of users on the owner */
#define MAX_OWNER_KEYS	2

typedef enum OwnerSearch
{
	SEARCH_OWNED,				/* owner = ... */
	SEARCH_KEPT					/* owner IS NULL AND kept_for = ... */
} OwnerSearch;

extern Relation open_owner_index(Relation table, const text *owner, OwnerSearch last);
extern int	owner_search_keys(ScanKey keys, const text *owner, OwnerSearch search);

/* write.c: the row that this session wrote last */
typedef struct LastWritten
{
	uint64		resource;		/* hash */
	ItemPointerData tid;
} LastWritten;

extern LastWritten last_written;

extern void lease_from_columns(Lease *lease, const Datum *values, const bool *isnull);
extern TupleTableSlot *row_from_lease(LeaseStore *store, const Lease *lease, HeapTuple old);

#endif							/* LEASE_LOCK_COLUMNS_H */
