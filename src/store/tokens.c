/*-------------------------------------------------------------------------
 *
 * tokens.c
 *		Fencing tokens, their eras, and the wait after a failover.
 *
 * An era is the time during which one server is the primary on one timeline. A
 * server that is promoted may lack the last tokens that the old primary handed
 * out, so it must not continue from its copy of the sequence. The first
 * session that needs a token compares the server's system identifier and
 * timeline with those recorded in the database. If they differ, a new era
 * begins: the token sequence jumps ahead.
 *
 * Where the tokens of an era begin:
 *
 * - The wall clock says it: four tokens for each microsecond since 2026. No
 *   server grants leases that fast. So all tokens that were handed out before
 *   are lower, even those that nobody knows of here: those of a primary that
 *   was lost, those after a dump, those of an extension that was dropped.
 * - Each timeline adds 67 seconds. So the tokens of timeline 3 are above those
 *   of timeline 2 even if the clock of the server that is promoted to timeline
 *   3 is behind by that much.
 * - If the sequence has passed that place, because the clock was set back, the
 *   era begins far above the last known token instead, and the farther the
 *   higher the timeline.
 *
 * Tokens stay below 2^53 until the year 2097. So programs that keep numbers in
 * floating point, as JavaScript does, do not confuse two tokens.
 *
 * The record belongs to one token sequence of one database. A database that
 * was restored from a dump, or copied from a template, begins a new era,
 * because its sequence is another one. CREATE EXTENSION records the timeline
 * alone. So the first session begins an era, and knows whether a server was
 * promoted meanwhile.
 *
 * The record must survive a rollback of the transaction, and standbys must
 * replay it. So it is kept in sequences. The jump is flushed before the record
 * is written, so a session that sees the record can rely on the jump. The lock
 * that orders the first sessions of an era is held until then.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/htup_details.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_sequence.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "commands/sequence.h"
#include "common/int.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "store/store.h"

#define CLOCK_ORIGIN	(INT64CONST(9497) * USECS_PER_DAY)	/* 2026-01-01, as a timestamptz */
#define CLOCK_SHIFT		2		/* four tokens for each microsecond */
#define TIMELINE_SHIFT	28		/* 67 seconds */
#define JUMP_SHIFT		32		/* far above the last known token */

static int	failover_wait = 0;	/* milliseconds */

/* Era that this process has entered: its token sequence, and when it began. */
static Oid	entered_sequence = InvalidOid;
static TimestampTz entered_began = 0;

void
tokens_init(void)
{
	DefineCustomIntVariable("lease_lock.failover_wait",
							"Time after a failover during which no lease is granted.",
							"Renewals and releases work meanwhile.",
							&failover_wait,
							0, 0, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);
}

/* --- Eras ----------------------------------------------------------------- */

/* Find a sequence of the extension in the schema of another sequence. */
static Oid
sequence_beside(Oid sequence, const char *name)
{
	Oid			found = get_relname_relid(name, get_rel_namespace(sequence));

	if (!OidIsValid(found))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s\" of extension \"lease_lock\" does not exist", name),
				 errhint("Run ALTER EXTENSION lease_lock UPDATE in this database.")));
	return found;
}

/* Get the last value of a sequence; 0 if the sequence was never used. */
static int64
last_value(Oid sequence)
{
	LOCAL_FCINFO(call, 1);
	Datum		value;

	InitFunctionCallInfoData(*call, NULL, 1, InvalidOid, NULL, NULL);
	call->args[0].value = ObjectIdGetDatum(sequence);
	call->args[0].isnull = false;
	value = pg_sequence_last_value(call);
	return call->isnull ? 0 : DatumGetInt64(value);
}

static void
set_value(Oid sequence, int64 value)
{
	DirectFunctionCall2(setval_oid, ObjectIdGetDatum(sequence), Int64GetDatum(value));
}

/*
 * The record of this era: a hash that identifies server, database and sequence
 * in the high half, and the timeline in the low half. It is never 0.
 */
static uint64
era_record(Oid token_sequence)
{
	uint64		owner = hash_combine64(GetSystemIdentifier(),
									   hash_combine64(MyDatabaseId, token_sequence));

	return (owner >> 32) << 32 | GetWALInsertionTimeLine();
}

/* Choose the value from which the tokens of a new era count up. */
static int64
first_token(int64 last_token, int64 timeline)
{
	int64		usecs = Max(GetCurrentTimestamp() - CLOCK_ORIGIN, 0);
	int64		token = (Min(usecs, PG_INT64_MAX >> 3) << CLOCK_SHIFT) +
		(timeline << TIMELINE_SHIFT);

	if (token <= last_token &&
		pg_add_s64_overflow(last_token, Min(timeline, 1000) << JUMP_SHIFT, &token))
		ereport(ERROR,
				(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
				 errmsg("fencing tokens are used up")));
	return token;
}

static void
log_era(uint64 recorded, uint64 record)
{
	bool		copied = recorded >> 32 != 0 && recorded >> 32 != record >> 32;

	/* The caller has a lock that others need: do not wait for a client that does not read. */
	ereport(LOG_SERVER_ONLY,
			(copied ?
			 errmsg("new era of fencing tokens in database \"%s\", which was copied or restored",
					get_database_name(MyDatabaseId)) :
			 errmsg("new era of fencing tokens in database \"%s\", timeline %u",
					get_database_name(MyDatabaseId), (uint32) record),
			 failover_wait == 0 ?
			 errdetail("Leases are granted at once.") :
			 errdetail("Leases are granted after %d ms.", failover_wait),
			 failover_wait == 0 && !copied ?
			 errhint("If grants may have been lost in an asynchronous failover, set "
					 "lease_lock.failover_wait to the longest ttl in use.") : 0));
}

/* Begin an era, and record it. The caller holds the lock. */
static void
begin_era(Oid token_sequence, Oid record_sequence, Oid began_sequence, uint64 record)
{
	uint64		recorded = (uint64) last_value(record_sequence);

	set_value(token_sequence, first_token(last_value(token_sequence), (uint32) record));

	/* There was nothing to be lost if the extension was created on this timeline. */
	if (recorded != (uint32) record)
	{
		set_value(began_sequence, clock_now());
		log_era(recorded, record);
	}
	XLogFlush(XactLastRecEnd);
	set_value(record_sequence, (int64) record);
}

/*
 * Make sure that the sequence is above all tokens of earlier eras: compare the
 * record with this server, and begin a new era if they differ, or if the caller
 * wants a new era. The current role needs no privileges on the sequences.
 *
 * Once in the life of a process is enough. The timeline changes only by a
 * promotion, and before a promotion the process cannot have needed a token.
 */
static void
enter_era(Oid token_sequence, bool begin_new)
{
	Oid			record_sequence;	/* identifies the era, see era_record() */
	Oid			began_sequence; /* lease time at which the era began; unused in the first era */
	uint64		record;
	Oid			role;
	int			context;

	if (token_sequence == entered_sequence && !begin_new)
		return;

	record_sequence = sequence_beside(token_sequence, "lease_era_seq");
	began_sequence = sequence_beside(token_sequence, "lease_era_began_seq");
	record = era_record(token_sequence);
	GetUserIdAndSecContext(&role, &context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, context | SECURITY_LOCAL_USERID_CHANGE);
	if (begin_new || (uint64) last_value(record_sequence) != record)
	{
		LockDatabaseObject(RelationRelationId, record_sequence, 0, ExclusiveLock);
		if (begin_new || (uint64) last_value(record_sequence) != record)
			begin_era(token_sequence, record_sequence, began_sequence, record);
		UnlockDatabaseObject(RelationRelationId, record_sequence, 0, ExclusiveLock);
	}
	entered_began = last_value(began_sequence);
	SetUserIdAndSecContext(role, context);
	entered_sequence = token_sequence;
}

TimestampTz
era_grants_from(LeaseStore *store)
{
	if (failover_wait == 0)
		return DT_NOBEGIN;
	enter_era(store->token_sequence, false);
	return entered_began + failover_wait * INT64CONST(1000);
}

void
era_begin(Oid schema)
{
	enter_era(get_relname_relid("lease_token_seq", schema), true);
}

/* --- Tokens --------------------------------------------------------------- */

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
				 errhint("Undo it: ALTER SEQUENCE ... AS bigint INCREMENT 1 CACHE 1 NO CYCLE, and "
						 "SET LOGGED.")));
}

/*
 * Do everything that may wait or fail before the caller takes the resource
 * lock: wait for a session that alters the sequence, check the sequence, and
 * enter the era.
 */
void
store_prepare_token(LeaseStore *store)
{
	LockRelationOid(store->token_sequence, RowExclusiveLock);
	check_sequence(store->token_sequence);
	enter_era(store->token_sequence, false);
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
