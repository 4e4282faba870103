/*-------------------------------------------------------------------------
 *
 * notices.c
 *		Notices of events of leases, for the channels that watch them.
 *
 * Events are collected while the transaction runs. Those that no rollback to a
 * savepoint has undone are passed to NOTIFY just before the commit, which puts
 * them in commit order. They are not passed earlier, because a transaction that
 * has executed NOTIFY cannot be prepared. A prepared transaction sends no
 * notices.
 *
 * Notices contain only ASCII characters. The server converts a notice to the
 * encoding of each client that listens, and ends the connection if that fails.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/async.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/memutils.h"

#include "monitor/monitor.h"
#include "rules/rules.h"

/* The longest payload that NOTIFY takes, by the default block size. */
#define MAX_PAYLOAD		7999

typedef struct Notice
{
	char	   *channel;
	char	   *payload;
	TransactionId xid;			/* of the (sub)transaction that it belongs to; invalid: it has
								 * none */
} Notice;

/* In TopTransactionContext. */
static List *pending = NIL;

static bool
creator_sees_owner(const Watch *watch, const Lease *lease)
{
	return lease->owner != NULL && role_sees_owner(watch->creator, lease->role) &&
		GetUserNameFromId(watch->creator, true) != NULL;
}

/*
 * Convert a text to UTF-8. In SQL_ASCII, and if the text cannot be converted,
 * each byte becomes the character with that code.
 */
static char *
to_utf8(const text *string)
{
	int			encoding = GetDatabaseEncoding();
	Oid			conversion = encoding == PG_SQL_ASCII ? InvalidOid :
		FindDefaultConversionProc(encoding, PG_UTF8);
	char	   *source = text_to_cstring(string);
	int			length = strlen(source);
	int			space = length * MAX_CONVERSION_GROWTH + 1;
	unsigned char *converted;

	if (encoding == PG_UTF8)
		return source;
	converted = palloc(space);
	if (OidIsValid(conversion) &&
		pg_do_encoding_conversion_buf(conversion, encoding, PG_UTF8, (unsigned char *) source,
									  length,
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
		appendStringInfo(json, "\\u%04x\\u%04x", 0xD800 + ((character - 0x10000) >> 10),
						 0xDC00 + (character & 0x3FF));
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
	appendStringInfo(&json, ", \"token\": " INT64_FORMAT ", \"mode\": \"%s\"", lease->token,
					 mode_name(lease->mode));
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
	payload = with_owner && json.len > MAX_PAYLOAD ? make_payload(event, lease, false) :
		pstrdup(json.data);
	pfree(json.data);
	return payload;
}

/* List the notices of an event. */
static List *
find_notices(LeaseEvent event, const Lease *lease)
{
	char	   *payloads[2] = {NULL, NULL};	/* without and with owner */
	List	   *watches = watches_of(event, lease->resource);
	List	   *notices = NIL;
	ListCell   *cell;

	foreach(cell, watches)
	{
		const Watch *watch = lfirst(cell);
		Notice	   *notice = palloc(sizeof(Notice));
		bool		with_owner = creator_sees_owner(watch, lease);

		if (payloads[with_owner] == NULL)
			payloads[with_owner] = make_payload(event, lease, with_owner);
		notice->channel = pstrdup(watch->channel);
		notice->payload = payloads[with_owner];
		notice->xid = GetCurrentTransactionIdIfAny();
		notices = lappend(notices, notice);
	}
	list_free(watches);
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
send_pending(void)
{
	ListCell   *cell;

	foreach(cell, pending)
	{
		Notice	   *notice = lfirst(cell);

		/* The id of a subtransaction that was rolled back is not among those of the transaction. */
		if (!TransactionIdIsValid(notice->xid) || TransactionIdIsCurrentTransactionId(notice->xid))
			Async_Notify(notice->channel, notice->payload);
	}
}

static void
end_transaction(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT)
		send_pending();
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
		pending = NIL;			/* freed with TopTransactionContext */
}

void
notices_init(void)
{
	RegisterXactCallback(end_transaction, NULL);
}
