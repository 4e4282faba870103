/*-------------------------------------------------------------------------
 *
 * api_watch.c
 *		The functions that set up and remove watches.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "api/api.h"
#include "monitor/monitor.h"

PG_FUNCTION_INFO_V1(lease_watch);
PG_FUNCTION_INFO_V1(lease_unwatch);

/* Get a prefix of names of resources from argument number argno. */
static text *
prefix_arg(FunctionCallInfo fcinfo, int argno)
{
	text	   *prefix = PG_ARGISNULL(argno) ? NULL : PG_GETARG_TEXT_PP(argno);

	if (prefix == NULL || VARSIZE_ANY_EXHDR(prefix) > MAX_NAME_LENGTH)
		ereport(ERROR,
				(errcode_argument(prefix == NULL),
				 prefix == NULL ? errmsg("prefix to watch must not be null") :
				 errmsg("prefix to watch must not be longer than %d bytes", MAX_NAME_LENGTH),
				 errhint("Give the beginning of the names of resources, or '' for all of them.")));
	return prefix;
}

/* Get a channel for NOTIFY from argument number argno. */
static text *
channel_arg(FunctionCallInfo fcinfo, int argno)
{
	text	   *channel = PG_ARGISNULL(argno) ? NULL : PG_GETARG_TEXT_PP(argno);

	if (channel == NULL || VARSIZE_ANY_EXHDR(channel) == 0 ||
		VARSIZE_ANY_EXHDR(channel) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode_argument(channel == NULL),
				 channel == NULL ? errmsg("channel of a watch must not be null") :
				 errmsg("channel of a watch is empty or too long: \"%s\"", printable(channel)),
				 errhint("Give the name of a channel, as in LISTEN: 1 to %d bytes.",
						 NAMEDATALEN - 1)));
	return channel;
}

/* Maximum number of events in an array: each of them may be there several times. */
#define MAX_EVENTS	100

/* Get the events to watch from argument number argno. */
static uint32
events_arg(FunctionCallInfo fcinfo, int argno)
{
	uint32		events = 0;
	ArrayType  *array;
	Datum	   *names;
	bool	   *isnull;
	int			count;

	if (PG_ARGISNULL(argno))
	{
		for (LeaseEvent event = 0; event < NUM_EVENTS; event++)
			events |= event_is_default(event) ? EVENT_BIT(event) : 0;
		return events;
	}

	array = PG_GETARG_ARRAYTYPE_P(argno);
	if (ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) > MAX_EVENTS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("more than %d events to watch are given", MAX_EVENTS),
				 errhint("Name each event once.")));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &names, &isnull, &count);
	for (int i = 0; i < count; i++)
	{
		const char *name = isnull[i] ? "NULL" : TextDatumGetCString(names[i]);
		LeaseEvent	event = event_by_name(name);

		if (event == EVENT_NONE)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("event to watch is unknown: \"%s\"", printable_string(name)),
					 errhint("The events are granted, taken_over, renewed, released, transferred, "
							 "downgraded, broken and expired.")));
		events |= EVENT_BIT(event);
	}
	if (events == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no event to watch is given"),
				 errhint("Give the names of events, or NULL for all events except renewed.")));
	return events;
}

/* lease_watch(prefix text, channel text, events text[]) returns void */
Datum
lease_watch(PG_FUNCTION_ARGS)
{
	text	   *prefix = prefix_arg(fcinfo, 0);
	text	   *channel = channel_arg(fcinfo, 1);
	uint32		events = events_arg(fcinfo, 2);

	require_writable("lease_watch()");
	set_watch(prefix, channel, events);
	PG_RETURN_VOID();
}

/* lease_unwatch(prefix text, channel text) returns boolean */
Datum
lease_unwatch(PG_FUNCTION_ARGS)
{
	text	   *prefix = prefix_arg(fcinfo, 0);
	text	   *channel = channel_arg(fcinfo, 1);

	require_writable("lease_unwatch()");
	PG_RETURN_BOOL(set_watch(prefix, channel, 0));
}
