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
 * Each backend keeps the watches in memory, ordered by length and bytes of the
 * prefix. For each length that occurs, an event looks up the beginning of the
 * name of its resource. A change to the table sends an invalidation to all
 * backends. While there are no watches, an event only tests a flag.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/async.h"
#include "lib/stringinfo.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/json.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/privileges.h"
#include "monitor/watches.h"

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

static int
compare_prefixes(const char *a, int alength, const char *b, int blength)
{
	return alength != blength ? alength - blength : memcmp(a, b, alength);
}

/* For qsort. */
static int
compare_watches(const void *a, const void *b)
{
	const Watch *x = a;
	const Watch *y = b;

	return compare_prefixes(x->prefix, x->length, y->prefix, y->length);
}

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

	qsort(read, nread, sizeof(Watch), compare_watches);
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

/*
 * The first watch whose prefix is not below this one or, without one, is not
 * shorter than the length.
 */
static int
first_from(const char *prefix, int length)
{
	int			low = 0;
	int			high = nwatches;

	while (low < high)
	{
		int			middle = (low + high) / 2;
		const Watch *watch = &watches[middle];

		if (prefix == NULL ? watch->length < length :
			compare_prefixes(watch->prefix, watch->length, prefix, length) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static const char *
mode_name(LeaseMode mode)
{
	return mode == MODE_EXCLUSIVE ? "exclusive" : mode == MODE_SHARED ? "shared" : "permit";
}

static bool
creator_sees_owner(const Watch *watch, const Lease *lease)
{
	return OidIsValid(watch->creator) && lease->owner != NULL && role_sees_owner(watch->creator, lease->role);
}

static void
append_json(StringInfo json, const text *string)
{
	char	   *copy = text_to_cstring(string);

	escape_json(json, copy);
	pfree(copy);
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

/* List the notices of an event. */
List *
find_notices(LeaseEvent event, const Lease *lease)
{
	const char *resource = VARDATA_ANY(lease->resource);
	int			resource_length = VARSIZE_ANY_EXHDR(lease->resource);
	char	   *payloads[2] = {NULL, NULL};	/* without and with owner */
	List	   *notices = NIL;
	int			i = 0;

	if (!event_is_watched(event))
		return NIL;
	while (i < nwatches && watches[i].length <= resource_length)
	{
		int			length = watches[i].length;

		for (i = first_from(resource, length);
			 i < nwatches && compare_prefixes(watches[i].prefix, watches[i].length, resource, length) == 0;
			 i++)
		{
			Notice	   *notice;
			bool		with_owner;

			if ((watches[i].events & EVENT_BIT(event)) == 0)
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

		i = first_from(NULL, length + 1);
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
