/*-------------------------------------------------------------------------
 *
 * events.c
 *		What happened to a lease, counted and, if asked for, logged.
 *
 * An event is one when it happens, not when it is committed: at commit there
 * is no good place to fail, and what a transaction did would have to be kept
 * until then. A grant that was logged and rolled back left no lease; its
 * token is never seen again.
 *
 * The lines name owners, which release leases, so they go to the server's log
 * only: a session could have messages of that level sent to itself.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/superuser_settings.h"
#include "monitor/events.h"
#include "monitor/printable.h"
#include "monitor/stats.h"
#include "monitor/watches.h"

typedef enum LogEvents
{
	LOG_EVENTS_NONE,
	LOG_EVENTS_TAKEOVER,
	LOG_EVENTS_ALL
} LogEvents;

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

/* "owner "x" of role "y"", with nothing in it that could forge a line */
static char *
owner_and_role(const Lease *lease)
{
	return psprintf("owner %s of role %s", quote_name(lease->owner),
					quote_name(cstring_to_text(role_name(lease->role))));
}

/* Write one line to the server's log. */
static void
log_line(char *line)
{
	ereport(LOG_SERVER_ONLY,
			(errmsg_internal("%s", line),
			 errhidestmt(true),
			 errhidecontext(true)));
	pfree(line);
}

/* Milliseconds from the end of the lease until a time. */
static double
ms_late(const Lease *lease, TimestampTz time)
{
	return (time - lease->expires_at) / 1000.0;
}

static void
log_takeover(const Lease *granted, const Lease *former)
{
	if (former->session == SESSION_ENDED)
	{
		log_line(psprintf("lease on %s taken over by %s from %s, whose session ended, token " INT64_FORMAT
						  " after " INT64_FORMAT,
						  quote_name(granted->resource), owner_and_role(granted), owner_and_role(former),
						  granted->token, former->token));
		return;
	}
	log_line(psprintf("lease on %s taken over by %s from %s %.3f ms after it expired, token " INT64_FORMAT
					  " after " INT64_FORMAT,
					  quote_name(granted->resource), owner_and_role(granted), owner_and_role(former),
					  ms_late(former, granted->granted_at), granted->token, former->token));
}

/* Called with the lease that the grant takes over, if there is one: it expired and was not released. */
void
note_grant(const Lease *granted, const Lease *former)
{
	stats_count(STATS_GRANTED);
	if (former != NULL)
		stats_count(STATS_TAKEOVERS);
	tell_watchers(former != NULL ? EVENT_TAKEN_OVER : EVENT_GRANTED, granted);

	if (former != NULL && log_events >= LOG_EVENTS_TAKEOVER)
		log_takeover(granted, former);
	else if (log_events >= LOG_EVENTS_ALL)
		log_line(psprintf("lease on %s granted to %s until %s, token " INT64_FORMAT,
						  quote_name(granted->resource), owner_and_role(granted),
						  timestamptz_to_str(granted->expires_at), granted->token));
}

void
note_renewal(const Lease *renewed)
{
	stats_count(STATS_RENEWALS);
	tell_watchers(EVENT_RENEWED, renewed);
	if (log_events >= LOG_EVENTS_ALL)
		log_line(psprintf("lease on %s renewed by %s until %s, token " INT64_FORMAT,
						  quote_name(renewed->resource), owner_and_role(renewed),
						  timestamptz_to_str(renewed->expires_at), renewed->token));
}

/* Called with the lease as it was. */
void
note_release(const Lease *released)
{
	double		late = ms_late(released, clock_now());

	stats_count(STATS_RELEASES);
	tell_watchers(EVENT_RELEASED, released);
	if (log_events >= LOG_EVENTS_ALL && released->expires_at == DT_NOEND)
		log_line(psprintf("lease on %s released by %s, token " INT64_FORMAT,
						  quote_name(released->resource), owner_and_role(released), released->token));
	else if (log_events >= LOG_EVENTS_ALL)
		log_line(psprintf("lease on %s released by %s %.3f ms %s it expired, token " INT64_FORMAT,
						  quote_name(released->resource), owner_and_role(released),
						  fabs(late), late < 0 ? "before" : "after", released->token));
}

/* Called with the leases after and before. */
void
note_transfer(const Lease *transferred, const Lease *former)
{
	tell_watchers(EVENT_TRANSFERRED, transferred);
	if (log_events >= LOG_EVENTS_ALL)
		log_line(psprintf("lease on %s handed over to %s from %s, token " INT64_FORMAT " after " INT64_FORMAT,
						  quote_name(transferred->resource), owner_and_role(transferred),
						  owner_and_role(former), transferred->token, former->token));
}

/* Called with the leases after and before. */
void
note_downgrade(const Lease *shared, const Lease *exclusive)
{
	tell_watchers(EVENT_DOWNGRADED, shared);
	if (log_events >= LOG_EVENTS_ALL)
		log_line(psprintf("lease on %s downgraded to shared by %s, token " INT64_FORMAT " after " INT64_FORMAT,
						  quote_name(shared->resource), owner_and_role(shared),
						  shared->token, exclusive->token));
}

/*
 * Called with what was in the way, be it a lease or what was left of one. An
 * operator wants to see it like a takeover: somebody may have lost a lease.
 */
void
note_break(const Lease *broken)
{
	stats_count(STATS_BREAKS);
	tell_watchers(EVENT_BROKEN, broken);
	if (log_events >= LOG_EVENTS_TAKEOVER)
		log_line(psprintf("lease on %s of %s broken by role %s, token " INT64_FORMAT,
						  quote_name(broken->resource),
						  broken->owner == NULL ? "nobody" : owner_and_role(broken),
						  quote_name(cstring_to_text(role_name(GetUserId()))), broken->token));
}
