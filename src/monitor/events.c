/*-------------------------------------------------------------------------
 *
 * events.c
 *		What happens to leases: counted and logged.
 *
 * Events count when they happen, not at commit: at commit there is no good
 * place to fail, and what a transaction did would have to be kept until then.
 * A grant that was logged and rolled back left no lease; its token is never
 * seen again.
 *
 * The lines contain owner names, which other roles must not see. So they go to
 * the server's log only: a session could have messages of that level sent to
 * itself.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "monitor/monitor.h"

typedef enum LogEvents
{
	LOG_EVENTS_NONE,
	LOG_EVENTS_TAKEOVER,
	LOG_EVENTS_ALL,
	LOG_EVENTS_NEVER			/* not a setting: the event is not logged */
} LogEvents;

/* All events. */
static const struct
{
	const char *name;			/* in notices */
	StatsCounter counter;
	LogEvents	logged_from;	/* least lease_lock.log_events that logs it */
	const char *log_text;		/* follows the resource, and precedes the owner */
	bool		by_default;		/* in notices of a watch that names no events; renewals are
								 * frequent */
}			events[NUM_EVENTS] = {
	[EVENT_GRANTED] = {"granted", STATS_GRANTED, LOG_EVENTS_ALL, "granted to", true},
	[EVENT_TAKEN_OVER] = {"taken_over", STATS_TAKEOVERS, LOG_EVENTS_TAKEOVER, "taken over by",
						  true},
	[EVENT_RENEWED] = {"renewed", STATS_RENEWALS, LOG_EVENTS_ALL, "renewed by", false},
	[EVENT_RELEASED] = {"released", STATS_RELEASES, LOG_EVENTS_ALL, "released by", true},
	[EVENT_TRANSFERRED] = {"transferred", STATS_NO_COUNTER, LOG_EVENTS_ALL, "handed over to", true},
	[EVENT_DOWNGRADED] = {"downgraded", STATS_NO_COUNTER, LOG_EVENTS_ALL, "downgraded to shared by",
						  true},
	[EVENT_BROKEN] = {"broken", STATS_BREAKS, LOG_EVENTS_TAKEOVER, "of", true},
	[EVENT_EXPIRED] = {"expired", STATS_NO_COUNTER, LOG_EVENTS_NEVER, NULL, true},
};

static const struct config_enum_entry log_events_options[] = {
	{"none", LOG_EVENTS_NONE, false},
	{"takeover", LOG_EVENTS_TAKEOVER, false},
	{"all", LOG_EVENTS_ALL, false},
	{NULL, 0, false}
};

static int	log_events = LOG_EVENTS_TAKEOVER;

static void
define_setting(void)
{
	DefineCustomEnumVariable("lease_lock.log_events",
							 "Which events of leases are written to the server's log.",
							 NULL,
							 &log_events,
							 LOG_EVENTS_TAKEOVER,
							 log_events_options,
							 PGC_SUSET,
							 0,
							 NULL, NULL, NULL);
}

/* A session that hid what the superuser wants to have logged has all logged. */
void
events_init(void)
{
	static const char *const names[] = {"lease_lock.log_events"};

	if (define_superuser_settings(define_setting, names, lengthof(names)))
		SetConfigOption(names[0], "all", PGC_SUSET, PGC_S_OVERRIDE);
}

const char *
event_name(LeaseEvent event)
{
	return events[event].name;
}

LeaseEvent
event_by_name(const char *name)
{
	LeaseEvent	event = 0;

	while (event < NUM_EVENTS && strcmp(name, events[event].name) != 0)
		event++;
	return event;
}

bool
event_is_default(LeaseEvent event)
{
	return events[event].by_default;
}

static char *
owner_and_role(const Lease *lease)
{
	/* cppcheck-suppress ctunullpointer; events that follow a lease have it */
	return lease->owner == NULL ? "nobody" :
		psprintf("owner \"%s\" of role \"%s\"", printable(lease->owner),
				 printable_string(role_name(lease->role)));
}

/* Milliseconds from the end of the lease until a time. */
static double
ms_late(const Lease *lease, TimestampTz time)
{
	return (time - lease->expires_at) / 1000.0;
}

/* Append what the line of this event says besides owner and tokens. */
static void
append_circumstances(StringInfo line, LeaseEvent event, const Lease *lease, const Lease *former)
{
	double		late;

	switch (event)
	{
		case EVENT_GRANTED:
		case EVENT_RENEWED:
			appendStringInfo(line, " until %s",
							 timestamptz_to_str(clock_wall_time(lease->expires_at)));
			break;
		case EVENT_TAKEN_OVER:
			appendStringInfo(line, " from %s", owner_and_role(former));
			if (former->session == SESSION_ENDED)
				appendStringInfoString(line, ", whose session ended");
			else
				appendStringInfo(line, " %.3f ms after it expired",
								 ms_late(former, lease->granted_at));
			break;
		case EVENT_RELEASED:
			late = ms_late(lease, clock_now());
			if (lease->expires_at != DT_NOEND)
				appendStringInfo(line, " %.3f ms %s it expired", fabs(late),
								 late < 0 ? "before" : "after");
			break;
		case EVENT_TRANSFERRED:
			appendStringInfo(line, " from %s", owner_and_role(former));
			break;
		case EVENT_BROKEN:
			appendStringInfo(line, " broken by role \"%s\"",
							 printable_string(role_name(GetUserId())));
			break;
		default:
			break;
	}
}

/* Write one line to the server's log. */
static void
log_event(LeaseEvent event, const Lease *lease, const Lease *former)
{
	StringInfoData line;

	initStringInfo(&line);
	appendStringInfo(&line, "lease on \"%s\" %s %s", printable(lease->resource),
					 events[event].log_text, owner_and_role(lease));
	append_circumstances(&line, event, lease, former);
	appendStringInfo(&line, ", token " INT64_FORMAT, lease->token);
	if (former != NULL && former->token != lease->token)
		appendStringInfo(&line, " after " INT64_FORMAT, former->token);
	if (event == EVENT_GRANTED || event == EVENT_TAKEN_OVER || event == EVENT_BROKEN)
		appendStringInfo(&line, ", process %d, application \"%s\"", MyProcPid,
						 printable_string(application_name));

	ereport(LOG_SERVER_ONLY,
			(errmsg_internal("%s", line.data),
			 errhidestmt(true),
			 errhidecontext(true)));
	pfree(line.data);
}

void
note_event(LeaseEvent event, const Lease *lease, const Lease *former)
{
	if (events[event].counter != STATS_NO_COUNTER)
		stats_count(events[event].counter);
	if (event == EVENT_TAKEN_OVER)
		stats_count(STATS_GRANTED);
	if (events[event].logged_from <= (LogEvents) log_events)
		log_event(event, lease, former);
}
