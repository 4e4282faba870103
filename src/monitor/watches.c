/*-------------------------------------------------------------------------
 *
 * Watches: channels that are notified of events of leases.
 *
 * Events are collected while the transaction runs. A rollback to a savepoint
 * forgets its events. The others are passed to NOTIFY just before the commit,
 * which puts them in commit order. They are not passed earlier, because a
 * transaction that has executed NOTIFY cannot be prepared. A prepared
 * transaction sends no notices.
 *
 * Each backend keeps the watches in memory. A change to the table sends an
 * invalidation to all backends. While there are no watches, an event only tests
 * a flag.
 *
 * Notices contain only ASCII characters. The server converts a notice to the
 * encoding of each client that listens, and ends the connection if that fails.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/async.h"
#include "catalog/namespace.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/json.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/printable.h"
#include "base/privileges.h"
#include "monitor/watches.h"
#include "rules/rules.h"

/* The longest payload that NOTIFY takes, by the default block size. */
#define MAX_PAYLOAD		7999

static MemoryContext watches_context = NULL;
static Watch *watches = NULL;
static int	nwatches = 0;
static uint32 watched_events = 0;	/* by any of them */
static Oid	table_oid = InvalidOid;
static uint64 invalidations = 0;
static bool loaded = false;
static bool watches_possible = true;	/* false: there are none */

/* In TopTransactionContext. */
static List *pending = NIL;

static void
forget_watches(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == table_oid)
	{
		invalidations++;
		loaded = false;
		watches_possible = true;
	}
}

/*
 * Read the table again. If it is locked, keep the watches that are known,
 * since an event must not wait for the lock.
 */
static void
load_watches(void)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "lease watches", ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller_context = MemoryContextSwitchTo(context);
	uint64		before = invalidations;
	Watch	   *read;
	int			nread;
	bool		done;

	table_oid = watch_table();
	done = OidIsValid(table_oid) && read_watches(table_oid, &read, &nread);
	MemoryContextSwitchTo(caller_context);
	if (!done)
	{
		MemoryContextDelete(context);
		return;
	}

	if (watches_context != NULL)
		MemoryContextDelete(watches_context);
	watches_context = context;
	watches = read;
	nwatches = nread;
	watched_events = 0;
	for (int i = 0; i < nread; i++)
		watched_events |= read[i].events;
	loaded = before == invalidations;
	watches_possible = !loaded || nwatches > 0;
}

/* Does any watch include this event? */
bool
event_is_watched(LeaseEvent event)
{
	if (!watches_possible)
		return false;
	if (!loaded)
		load_watches();
	return (watched_events & EVENT_BIT(event)) != 0;
}

static bool
creator_sees_owner(const Watch *watch, const Lease *lease)
{
	return OidIsValid(watch->creator) && lease->owner != NULL && role_sees_owner(watch->creator, lease->role);
}

/*
 * Convert a text to UTF-8. In SQL_ASCII, and if the text cannot be converted,
 * each byte becomes the character with that code.
 */
static char *
to_utf8(const text *string)
{
	int			encoding = GetDatabaseEncoding();
	Oid			conversion = encoding == PG_SQL_ASCII ? InvalidOid : FindDefaultConversionProc(encoding, PG_UTF8);
	char	   *source = text_to_cstring(string);
	int			length = strlen(source);
	int			space = length * MAX_CONVERSION_GROWTH + 1;
	unsigned char *converted = palloc(space);

	if (encoding == PG_UTF8)
		return source;
	if (OidIsValid(conversion) &&
		pg_do_encoding_conversion_buf(conversion, encoding, PG_UTF8, (unsigned char *) source, length,
									  converted, space, true) == length)
		return (char *) converted;
	return (char *) pg_do_encoding_conversion((unsigned char *) source, length, PG_LATIN1, PG_UTF8);
}

/* Append a character as JSON writes it in ASCII: in one part, or in two. */
static void
append_escaped(StringInfo json, pg_wchar character)
{
	if (character < 0x10000)
		appendStringInfo(json, "\\u%04x", character);
	else
		appendStringInfo(json, "\\u%04x\\u%04x", 0xD800 + ((character - 0x10000) >> 10), 0xDC00 + (character & 0x3FF));
}

static void
append_json(StringInfo json, const text *string)
{
	StringInfoData quoted;
	const char *end;

	initStringInfo(&quoted);
	escape_json(&quoted, to_utf8(string));
	end = quoted.data + quoted.len;
	for (const char *c = quoted.data; c < end; c += pg_utf_mblen((const unsigned char *) c))
	{
		if (IS_HIGHBIT_SET(*c) || *c == '\x7f')
			append_escaped(json, utf8_to_unicode((const unsigned char *) c));
		else
			appendStringInfoChar(json, *c);
	}
	pfree(quoted.data);
}

/* Build the payload of a notice. The owner is left out if it would make the payload too long. */
static char *
make_payload(LeaseEvent event, const Lease *lease, bool with_owner)
{
	StringInfoData json;
	char	   *payload;

	initStringInfo(&json);
	appendStringInfo(&json, "{\"event\": \"%s\", \"resource\": ", event_name(event));
	append_json(&json, lease->resource);
	if (lease->token != 0)
		appendStringInfo(&json, ", \"token\": " INT64_FORMAT, lease->token);
	appendStringInfo(&json, ", \"mode\": \"%s\"", mode_name(lease->mode));
	if (event == EVENT_BROKEN)
	{
		appendStringInfoString(&json, ", \"broken_by\": ");
		append_json(&json, cstring_to_text(role_name(GetUserId())));
	}
	if (with_owner)
	{
		appendStringInfoString(&json, ", \"owner\": ");
		append_json(&json, lease->owner);
	}
	appendStringInfoChar(&json, '}');

	/* The notice is kept until the commit, so do not keep the rest of the buffer. */
	payload = with_owner && json.len > MAX_PAYLOAD ? make_payload(event, lease, false) : pstrdup(json.data);
	pfree(json.data);
	return payload;
}

static bool
concerns(const Watch *watch, LeaseEvent event, const Lease *lease)
{
	return (watch->events & EVENT_BIT(event)) != 0 &&
		watch->length <= (int) VARSIZE_ANY_EXHDR(lease->resource) &&
		memcmp(watch->prefix, VARDATA_ANY(lease->resource), watch->length) == 0;
}

/* List the notices of an event. */
List *
find_notices(LeaseEvent event, const Lease *lease)
{
	char	   *payloads[2] = {NULL, NULL};	/* without and with owner */
	List	   *notices = NIL;

	if (!event_is_watched(event))
		return NIL;
	for (int i = 0; i < nwatches; i++)
	{
		Notice	   *notice;
		bool		with_owner;

		if (!concerns(&watches[i], event, lease))
			continue;
		with_owner = creator_sees_owner(&watches[i], lease);
		if (payloads[with_owner] == NULL)
			payloads[with_owner] = make_payload(event, lease, with_owner);
		notice = palloc0(sizeof(Notice));
		notice->channel = pstrdup(watches[i].channel);
		notice->payload = payloads[with_owner];
		notice->nest_level = GetCurrentTransactionNestLevel();
		notices = lappend(notices, notice);
	}
	return notices;
}

void
tell_watchers(LeaseEvent event, const Lease *lease)
{
	MemoryContext caller_context;
	List	   *notices;

	if (!event_is_watched(event))
		return;
	caller_context = MemoryContextSwitchTo(TopTransactionContext);
	notices = find_notices(event, lease);
	pending = list_concat(pending, notices);
	list_free(notices);
	MemoryContextSwitchTo(caller_context);
}

static void
end_transaction(XactEvent event, void *arg)
{
	ListCell   *cell;

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			foreach(cell, pending)
			{
				Notice	   *notice = lfirst(cell);

				Async_Notify(notice->channel, notice->payload);
			}
			pending = NIL;
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			pending = NIL;		/* freed with TopTransactionContext */
			break;
		default:
			break;
	}
}

/* The notices of the subtransaction that ends are the last ones. */
static void
end_subtransaction(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;

	for (int i = list_length(pending) - 1; i >= 0; i--)
	{
		Notice	   *notice = list_nth(pending, i);

		if (notice->nest_level < level)
			break;
		if (event == SUBXACT_EVENT_COMMIT_SUB)
			notice->nest_level = level - 1;
		else
			pending = list_delete_last(pending);
	}
}

void
watches_init(void)
{
	CacheRegisterRelcacheCallback(forget_watches, (Datum) 0);
	RegisterXactCallback(end_transaction, NULL);
	RegisterSubXactCallback(end_subtransaction, NULL);
}
