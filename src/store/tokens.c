/*-------------------------------------------------------------------------
 *
 * Fencing tokens: the next token, and the check of the token sequence.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_class.h"
#include "catalog/pg_sequence.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "store/era.h"
#include "store/store.h"

/* Sequence that passed its check; invalid after any change of a sequence. */
static Oid	checked_sequence = InvalidOid;

static void
forget_relation(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == checked_sequence)
		checked_sequence = InvalidOid;
}

static void
forget_sequence(Datum arg, int cacheid, uint32 hashvalue)
{
	checked_sequence = InvalidOid;
}

void
tokens_init(void)
{
	CacheRegisterRelcacheCallback(forget_relation, (Datum) 0);
	CacheRegisterSyscacheCallback(SEQRELID, forget_sequence, (Datum) 0);
}

/*
 * Refuse a sequence that may hand out a lower token after a higher one. An
 * unlogged sequence does so after a crash. With a cache, each session has its
 * own range of numbers.
 */
static void
check_sequence(Oid sequence)
{
	HeapTuple	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(sequence));
	bool		in_order = false;

	if (HeapTupleIsValid(tuple))
	{
		Form_pg_sequence form = (Form_pg_sequence) GETSTRUCT(tuple);

		in_order = form->seqtypid == INT8OID && form->seqcache == 1 && form->seqincrement == 1 &&
			!form->seqcycle && get_rel_persistence(sequence) == RELPERSISTENCE_PERMANENT;
		ReleaseSysCache(tuple);
	}
	if (!in_order)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("token sequence \"%s\" was altered", get_rel_name(sequence)),
				 errdetail("It may hand out a lower token after a higher one."),
				 errhint("Undo it: ALTER SEQUENCE ... AS bigint INCREMENT 1 CACHE 1 NO CYCLE, and SET LOGGED.")));
}

/*
 * Do everything that may wait or fail before the caller takes the resource
 * lock: wait for a session that alters the sequence, check the sequence, and
 * enter the era.
 */
void
store_prepare_token(LeaseStore *store)
{
	Oid			sequence = store->token_sequence;

	LockRelationOid(sequence, RowExclusiveLock);
	if (sequence != checked_sequence)
	{
		/* From here on, an invalidation clears this, and the next call checks again. */
		checked_sequence = sequence;
		check_sequence(sequence);
	}
	era_enter(sequence);
}

/*
 * Get the next token, which is higher than all earlier ones, in this era and
 * before. last_token is the highest token that the rows of the resource show.
 * The token is used up even if the transaction fails.
 */
int64
store_next_token(LeaseStore *store, int64 last_token)
{
	int64		token = nextval_internal(store->token_sequence, false);

	if (token <= last_token)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("token sequence of the lock table \"%s\" was set back",
						RelationGetRelationName(store->table)),
				 errdetail("Token " INT64_FORMAT " was granted before.", last_token),
				 errhint("Set the sequence above every token that was granted, with setval().")));
	return token;
}
