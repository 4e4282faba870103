/*-------------------------------------------------------------------------
 *
 * lease.c
 *		The lease: acquired, renewed, released.
 *
 * The server's answer "granted" is about the past. What is certain: the lease does
 * not end before the ttl has passed since the request was sent. So that is what
 * counts, by our own clock. Each renewal begins the count again, from before it
 * was sent.
 *
 * A request does not wait. If the lease is taken, lease_wait() waits for it in
 * the server, without a snapshot, however long that takes. After it has acquired the
 * lease, the request is made again, to begin the count.
 *
 * An answer can get lost after the server has granted the lease. So the request
 * is repeated with the same owner, and "renew": then it is granted to the owner who
 * has it. An owner that the user chose may have it elsewhere, and would run twice
 * that way. Then the request is repeated as the first one, with "refuse": if the
 * lost answer was a grant, that has to end first. What such an owner was granted
 * is known by its token: nothing else is renewed or released.
 *
 * Everything is one statement in a transaction of its own, without session
 * state, so that it works through a pooler of connections.
 *
 *-------------------------------------------------------------------------
 */
#include "lease_run.h"

/* How often a waiter sees whether the server is still there. */
#define HEARTBEAT		(30 * SECOND)

/* Pause after an error. */
#define PAUSE			SECOND

/* How often the answer may come too late to run the command. */
#define MAX_LATE		3

#define FIND_SCHEMA \
	"SELECT pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_extension AS e " \
	"JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace " \
	"WHERE e.extname OPERATOR(pg_catalog.=) 'lease_lock'"

/* Of the parameters of a request, the fourth is the wait. */
#define REQUEST \
	"SELECT granted, token, pg_catalog.to_char((expires_at OPERATOR(pg_catalog.-) $2::interval) " \
	"AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), " \
	"reason, blocked_by, extract(epoch FROM blocked_for) " \
	"FROM %s.lease_request($1::text, $2::interval, $3::text, $4::interval, "

/*
 * Where the role has a statement_timeout, a wait takes half of that at most, so that it is not
 * cancelled.
 */
#define WAIT_IN_LINE \
	"CALL %s.lease_wait($1::text, $2::interval, $3::text, LEAST($4::interval, " \
	"CASE WHEN pg_catalog.current_setting('statement_timeout') OPERATOR(pg_catalog.<>) '0' " \
	"THEN pg_catalog.current_setting('statement_timeout')::interval OPERATOR(pg_catalog./) 2 END), "

#define OTHER_PARAMS \
	"mode => $5::text, permits => $6::integer, if_own => $7::text, min_hold => $8::interval, " \
	"payload => $9::jsonb)"

/* With a token: the lease of an owner that is not unique is renewed only if it has that one. */
#define OTHER_PARAMS_AND_TOKEN \
	"mode => $5::text, permits => $6::integer, if_own => " \
	"CASE WHEN %s.lease_token($1::text, $3::text) OPERATOR(pg_catalog.=) $10::bigint " \
	"THEN $7::text ELSE 'refuse' END, min_hold => $8::interval, payload => $9::jsonb)"

#define RENEW	"SELECT %s.lease_renew($1::text, $2::interval, $3::text, $4::bigint)"

/*
 * Without what is left of min_hold. NULL: that cannot be said now, since an open transaction is in
 * the way, say. If the lease ends meanwhile, the request is granted anew, and that is released.
 */
#define RELEASE_AT_ONCE \
	"SELECT CASE WHEN l.held OPERATOR(pg_catalog.=) coalesce($3::bigint, l.held) THEN (" \
	"SELECT CASE WHEN g.granted AND (g.reason IS NULL OR g.token OPERATOR(pg_catalog.=) l.held) " \
	"THEN %s.lease_release($1::text, $2::text, g.token) " \
	"AND g.token OPERATOR(pg_catalog.=) l.held " \
	"WHEN g.reason OPERATOR(pg_catalog.=) 'open' OR g.reason OPERATOR(pg_catalog.=) 'failover' " \
	"THEN NULL ELSE false END " \
	"FROM %s.lease_request($1::text, $4::interval, $2::text, mode => $5::text, " \
	"permits => $6::integer, if_own => 'renew', min_hold => '0') AS g) ELSE false END " \
	"FROM (SELECT %s.lease_token($1::text, $2::text) AS held OFFSET 0) AS l"

typedef char Interval[40];

static const char *
interval(Time length, Interval buffer)
{
	snprintf(buffer, sizeof(Interval), "%lld microseconds", (long long) length);
	return buffer;
}

EndTimes
lease_end_times(const Lease *lease)
{
	EndTimes	times;

	times.kill_at = lease_ends_at(lease) - lease->options->spare;
	times.signal_at = times.kill_at - lease->options->kill_after;
	return times;
}

/* The lease does not end before. */
Time
lease_ends_at(const Lease *lease)
{
	return lease->counts_from + lease->options->ttl;
}

/*
 * The time between a renewal and the signal to the command, if no other renewal follows. A renewal
 * is sent after a third of it. A silent server is given up after another sixth. So there is time
 * for an outage of a third.
 */
static Time
usable_time(const Options *options)
{
	return options->ttl - options->spare - options->kill_after;
}

static Time
renewal_due(const Lease *lease)
{
	return lease->counts_from + usable_time(lease->options) / 3;
}

/* How long the server may be silent while the lease is held. */
static Time
patience(const Lease *lease)
{
	return Min(usable_time(lease->options) / 6, PATIENCE);
}

/* There is the extension, and --schema, or neither. */
static Outcome
has_no_schema(Lease *lease)
{
	const char *given = lease->options->schema;
	const char *what = given ? "has the extension lease_lock, and --schema names other functions"
		: "does not have the extension lease_lock";
	char	   *error = psprintf("the database \"%s\" %s", PQdb(lease->connection.pg), what);

	connection_note_error(&lease->connection, error, "", ERROR_NOT_AGAIN);
	lease->hint = given ? "Leases of both do not exclude each other. Omit --schema."
		: "Run CREATE EXTENSION lease_lock there, choose another database with --dbname, or name "
		"the schema of the portable edition with --schema.";
	free(error);
	return TOO_LATE;
}

/*
 * The schema of the extension: it need not be in the search_path. Without the extension, the one
 * that the user names. Never one that anybody else can make.
 */
static Outcome
find_schema(Lease *lease, Time until, StopWaiting stop)
{
	Connection *connection = &lease->connection;
	const char *given = lease->options->schema;
	Outcome		outcome = connection_ask(connection, FIND_SCHEMA, 0, NULL, until, stop);

	if (outcome != DONE)
		return outcome;
	if ((PQntuples(connection->rows) > 0) == (given != NULL))
		return has_no_schema(lease);
	if (given == NULL)
		lease->schema = pg_strdup(PQgetvalue(connection->rows, 0, 0));
	else
		lease->schema = PQescapeIdentifier(connection->pg, given, strlen(given));
	if (lease->schema != NULL)
		return DONE;
	connection_note_error(connection, PQerrorMessage(connection->pg), "", ERROR_NOT_AGAIN);
	return TOO_LATE;
}

/* After an error: has the extension moved to another schema? That is looked up once. */
static bool
may_have_moved(Lease *lease)
{
	const char *state = lease->connection.sqlstate;

	if (strcmp(state, "42883") != 0 && strcmp(state, "3F000") != 0)
		return false;
	if (lease->schema_is_new)
	{
		lease->connection.action = ERROR_NOT_AGAIN;
		return false;
	}
	free(lease->schema);
	lease->schema = NULL;
	lease->schema_is_new = true;
	return true;
}

/*
 * Ask the server, over a new connection if there is none. In the statement, %s is the schema. The
 * server may take until that time, but each step "patience" at most.
 */
static Outcome
ask(Lease *lease, const char *statement, int nparams, const char *const *params, Time until,
	Time patience, StopWaiting stop)
{
	Connection *connection = &lease->connection;
	Time		how_patient = Min(patience, PATIENCE);
	Outcome		outcome = DONE;
	char	   *sql;

	if (connection_is_busy(connection))
		connection_close(connection);
	if (!connection->is_open)
		outcome = connection_open(connection, until, how_patient, stop);
	if (outcome == DONE && lease->schema == NULL)
		outcome = find_schema(lease, clock_now() + how_patient, stop);
	if (outcome != DONE)
		return outcome;

	sql = psprintf(statement, lease->schema, lease->schema, lease->schema);
	signals_do_not_exit();
	lease->sent = clock_now();
	until = Min(clock_after(lease->sent, patience), Max(until, lease->sent + SECOND));
	outcome = connection_ask(connection, sql, nparams, params, until, stop);
	free(sql);
	if (outcome == DONE)
		lease->schema_is_new = false;
	return outcome;
}

static void
forget_token(Lease *lease)
{
	free(lease->token);
	lease->token = NULL;
}

/*
 * The lease may be held, and that is not known: of a unique owner, under any token; of another
 * one, in this process or elsewhere.
 */
static void
note_uncertainty(Lease *lease)
{
	if (!lease->options->owner_is_unique)
	{
		lease->may_be_own = true;
		return;
	}
	lease->is_uncertain = true;
	forget_token(lease);
}

/* Ask for the lease, or wait for it. Not all statements have the last parameter. */
static Outcome
request(Lease *lease, const char *statement, int nparams, Time wait, Time until, Time patience)
{
	const Options *options = lease->options;
	Interval	ttl,
				how_long,
				min_hold;
	const char *params[] = {
		options->resource, interval(options->ttl, ttl), options->owner,
		wait == TIME_FOREVER ? NULL : interval(wait, how_long),
		options->mode, options->permits, lease->is_uncertain ? "renew" : "refuse",
		options->min_hold >= 0 ? interval(options->min_hold, min_hold) : NULL, options->payload,
		lease->token
	};
	Outcome		outcome = ask(lease, statement, nparams, params, until, patience, signals_stop);

	if (outcome == DONE && !connection_says_yes(&lease->connection))
		return REFUSED;
	if (outcome == TOO_LATE && lease->connection.action == ERROR_UNKNOWN)
		note_uncertainty(lease);
	return outcome == TOO_LATE && signals_caught() != 0 ? INTERRUPTED : outcome;
}

static void
note_why_taken(Lease *lease)
{
	const PGresult *rows = lease->connection.rows;
	const char *reason = PQgetvalue(rows, 0, 3);
	char	   *owner = message_name(PQgetvalue(rows, 0, 4));
	const char *left = PQgetvalue(rows, 0, 5);

	free(lease->why_taken);
	lease->may_be_own &= strcmp(reason, "own") == 0;
	/* A request without an answer may be open, or its grant be that of a former primary. */
	lease->is_uncertain &= lease->options->owner_is_unique &&
		(strcmp(reason, "open") == 0 || strcmp(reason, "failover") == 0);
	lease->may_be_open = lease->is_uncertain;
	if (strcmp(reason, "failover") == 0)
		lease->why_taken = pg_strdup("not granted yet: the server became the primary a short time "
									 "ago (lease_lock.failover_wait)");
	else if (strcmp(reason, "queue") == 0)
		lease->why_taken = pg_strdup("taken: others have waited for it for longer");
	else if (lease->may_be_own)
		lease->why_taken = pg_strdup("taken by the same owner; that may be a grant whose answer "
									 "was lost, which ends after its ttl");
	else if (strcmp(reason, "own") == 0)
		lease->why_taken = pg_strdup("taken by the same owner; choose another name with --owner");
	else if (owner[0] != '\0' && left[0] != '\0')
		lease->why_taken = psprintf("taken by \"%s\", for another %s s unless that renews or "
									"releases it", owner, left);
	else
		lease->why_taken = owner[0] ? psprintf("taken by \"%s\"", owner) : pg_strdup("taken");
	free(owner);
}

/* A request and a wait both answer with the token in the second column. */
static void
note_token(Lease *lease)
{
	free(lease->token);
	lease->token = pg_strdup(PQgetvalue(lease->connection.rows, 0, 1));
}

/* Was a lease renewed that another process of this owner was granted meanwhile? */
static bool
is_of_another(const Lease *lease)
{
	const PGresult *rows = lease->connection.rows;

	return !PQgetisnull(rows, 0, 3) && strcmp(PQgetvalue(rows, 0, 1), lease->token) != 0;
}

static void
note_grant(Lease *lease)
{
	note_token(lease);
	free(lease->granted_at);
	lease->granted_at = pg_strdup(PQgetvalue(lease->connection.rows, 0, 2));
	lease->counts_from = lease->sent;
	lease->may_be_open = false;
	lease_step("granted, token %s, ends in %.3f s unless it is renewed", lease->token,
			   clock_seconds(lease_ends_at(lease) - clock_now()));
}

/* No command has run: the lease is not kept for its min_hold. */
static Outcome
give_back(Lease *lease)
{
	lease->counts_from = clock_now();
	return lease_release(lease, lease->options->min_hold > 0);
}

/*
 * A grant that did not wait for the standby is none: a failover may lose it. It is released, and
 * the caller asks again.
 */
static Outcome
undo_grant(Lease *lease)
{
	char	   *error = pg_strdup(lease->connection.error);

	(void) give_back(lease);
	forget_token(lease);
	lease->is_uncertain = false;
	note_uncertainty(lease);
	connection_note_error(&lease->connection, error, "", ERROR_AGAIN);
	free(error);
	return signals_caught() != 0 ? INTERRUPTED : TOO_LATE;
}

/* Ask for the lease, without waiting for it. The server may take until about that time. */
static Outcome
ask_for_lease(Lease *lease, Time limit)
{
	bool		by_token = lease->token != NULL && !lease->options->owner_is_unique;
	Outcome		outcome;

	lease_step("asking, for %g s", clock_seconds(lease->options->ttl));
	outcome = request(lease, by_token ? REQUEST OTHER_PARAMS_AND_TOKEN : REQUEST OTHER_PARAMS,
					  by_token ? 10 : 9, 0, Max(limit, clock_now() + SECOND), PATIENCE);
	if (outcome == DONE && by_token && is_of_another(lease))
		outcome = REFUSED;
	if (outcome == REFUSED)
		note_why_taken(lease);
	if (outcome != DONE)
		return outcome;
	note_grant(lease);
	return lease->connection.not_replicated ? undo_grant(lease) : DONE;
}

/*
 * Wait for the lease in the server, until that time. DONE if it was acquired; REFUSED if the caller
 * must come again.
 */
static Outcome
wait_in_line(Lease *lease, Time limit)
{
	Time		wait = limit == TIME_FOREVER ? TIME_FOREVER : Max(limit - clock_now(), 0);
	Outcome		outcome;

	lease_step("waiting: %s", lease->why_taken);
	lease->connection.heartbeat = Min(lease->options->ttl, HEARTBEAT);
	outcome = request(lease, WAIT_IN_LINE OTHER_PARAMS, 9, wait, clock_after(limit, PATIENCE),
					  clock_after(wait, PATIENCE));
	lease->connection.heartbeat = 0;
	if (outcome != DONE)
		return outcome;
	/* The request that follows renews it, and waits for the standby if this one did not. */
	note_token(lease);
	lease->is_uncertain = true;
	return DONE;
}

pg_noreturn static void
fail_request(Lease *lease)
{
	char	   *state = pg_strdup(lease->connection.sqlstate);

	if (strcmp(state, "42501") == 0)
		lease->hint = "Connect as a role that may call lease_request(), lease_wait() and "
			"lease_token().";
	else if (lease->hint == NULL &&
			 (state[0] == '\0' || strncmp(state, "28", 2) == 0 || strncmp(state, "3D", 2) == 0))
		lease->hint = "The command was not run. Check the connection options.";
	lease_error("%s", lease->connection.error);
	if (lease->hint != NULL)
		pg_log_error_hint("%s", lease->hint);
	if (lease->token != NULL || lease->is_uncertain)
		(void) give_back(lease);
	leave(strncmp(state, "22", 2) == 0 ? EXIT_USAGE : EXIT_NO_SERVER);
}

/* The server answers, but too late for this ttl: the lease is given back. */
pg_noreturn static void
fail_late(Lease *lease, Time took)
{
	(void) give_back(lease);
	lease_error("the server takes %.1f s for an answer, which is too long for a ttl of %g s",
				clock_seconds(took), clock_seconds(lease->options->ttl));
	pg_log_error_hint("The command was not run. Use a longer --ttl.");
	leave(EXIT_NO_SERVER);
}

/* Once for each reason: in a long outage, the same one comes again and again. */
static void
warn_once(Lease *lease, const char *before, const char *after)
{
	static char *last = NULL;
	const char *error = lease->connection.error ? lease->connection.error : "";

	if (last == NULL || strcmp(last, error) != 0)
		lease_warning("%s (%s): %s", before, error, after);
	else
		lease_step("%s (%s)", before, error);
	free(last);
	last = pg_strdup(error);
}

/* A pause that is not the same on all hosts: they all lost the same server. */
static Outcome
pause_for(Time length, StopWaiting stop)
{
	return wait_until(clock_now() + length / 2 + clock_now() % Max(length, 1), stop);
}

/* Until when to wait for a server. "answered" is when one did. */
static Time
server_limit(const Options *options, Time answered, Time give_up_at)
{
	Time		limit = clock_after(answered, options->server_wait);

	return options->wait > 0 ? Min(limit, give_up_at) : limit;
}

/* After an error: pause, and DONE if the caller may ask again. */
static Outcome
try_again(Lease *lease, Time limit)
{
	if (may_have_moved(lease))
		return DONE;
	if (lease->connection.action == ERROR_NOT_AGAIN)
		fail_request(lease);
	if (clock_now() >= limit)
		return TOO_LATE;
	warn_once(lease, "no answer", "asking again");
	return pause_for(PAUSE, signals_stop) == INTERRUPTED ? INTERRUPTED : DONE;
}

/* The lease is taken when there is no time left. */
static Outcome
give_up_taken(Lease *lease)
{
	if (!lease->may_be_own)
		return REFUSED;
	connection_note_error(&lease->connection, lease->why_taken, "", ERROR_UNKNOWN);
	return TOO_LATE;
}

/* Acquire the lease, and wait for it and for the server as the options say. */
Outcome
lease_acquire(Lease *lease)
{
	const Options *options = lease->options;
	Time		give_up_at = clock_after(clock_now(), options->wait);
	Time		answered = clock_now();
	int			late = 0;

	for (;;)
	{
		Time		asked = clock_now();
		Outcome		outcome = ask_for_lease(lease, server_limit(options, answered, give_up_at));

		if (outcome == DONE && signals_caught() != 0)
			return INTERRUPTED;
		/* If the answer came late, renew the lease before the command begins. */
		if (outcome == DONE && clock_now() < renewal_due(lease))
			return DONE;
		if (outcome == DONE)
		{
			if (++late == MAX_LATE)
				fail_late(lease, clock_now() - asked);
			lease->is_uncertain = true;
		}
		if (outcome == REFUSED)
		{
			forget_token(lease);	/* a grant that came late is over */
			if (clock_now() >= give_up_at)
				return give_up_taken(lease);
			outcome = wait_in_line(lease, give_up_at);
			answered = clock_now();
		}
		if (outcome == TOO_LATE)
			outcome = try_again(lease, server_limit(options, answered, give_up_at));
		if (outcome == TOO_LATE || outcome == INTERRUPTED)
			return outcome;
	}
}

/* Renew the lease once. */
static Outcome
renew(Lease *lease)
{
	const Options *options = lease->options;
	Interval	ttl;
	const char *params[] = {
		options->resource, interval(options->ttl, ttl), options->owner, lease->token
	};
	Outcome		outcome = ask(lease, RENEW, lengthof(params), params,
							  lease_end_times(lease).signal_at, patience(lease),
							  command_stop_working);

	if (outcome != DONE)
		return outcome;
	if (!connection_says_yes(&lease->connection))
		return REFUSED;
	if (lease->connection.not_replicated)
		return TOO_LATE;
	lease->counts_from = lease->sent;
	lease_step("renewed, ends in %.3f s", clock_seconds(lease_ends_at(lease) - clock_now()));
	return DONE;
}

/*
 * Wait until a renewal is due, or the connection is lost, and renew the lease. If that does not
 * work, wait for a moment: the caller calls again.
 */
Outcome
lease_keep(Lease *lease)
{
	Outcome		outcome;
	char	   *left;

	if (lease->connection.is_open && connection_watch(&lease->connection, renewal_due(lease),
													  command_stop_working) == INTERRUPTED)
		return INTERRUPTED;
	outcome = renew(lease);
	if (outcome != TOO_LATE || may_have_moved(lease))
		return outcome;
	left = psprintf("trying again; it ends in %.1f s",
					clock_seconds(lease_ends_at(lease) - clock_now()));
	warn_once(lease, "not renewed", left);
	free(left);
	pause_for(Min(lease->options->ttl / 30, PAUSE), command_stop_working);
	return outcome;
}

/* Release the lease with one statement. With "at_once", min_hold does not count. */
static Outcome
release_once(Lease *lease, bool at_once, Time until)
{
	const Options *options = lease->options;
	Interval	ttl;
	const char *params[] = {
		options->resource, options->owner, lease->token, interval(options->ttl, ttl), options->mode,
		options->permits
	};
	const char *statement = lease->token ? "SELECT %s.lease_release($1::text, $2::text, $3::bigint)"
		: "SELECT %s.lease_release($1::text, $2::text)";
	Outcome		outcome;

	if (at_once)
		statement = RELEASE_AT_ONCE;
	outcome = ask(lease, statement, at_once ? 6 : lease->token ? 3 : 2, params, until,
				  patience(lease), NULL);
	if (outcome == DONE && PQgetisnull(lease->connection.rows, 0, 0))
	{
		connection_note_error(&lease->connection, "an open transaction is in the way", "",
							  ERROR_AGAIN);
		return TOO_LATE;
	}
	return outcome == DONE && !connection_says_yes(&lease->connection) ? REFUSED : outcome;
}

/*
 * Release the lease. Tries for a moment only: it ends by itself. Without a token, which may be if
 * the owner is unique, that of any token.
 */
Outcome
lease_release(Lease *lease, bool at_once)
{
	Time		until = Min(clock_now() + PATIENCE, lease_ends_at(lease));
	Outcome		outcome = TOO_LATE;
	bool		is_repeated = false;	/* an answer may have got lost after the release */

	/* The answer to a renewal that was on its way when the command ended. */
	if (connection_is_busy(&lease->connection))
		(void) connection_answer(&lease->connection, clock_now() + patience(lease), NULL);

	while (outcome == TOO_LATE && clock_now() < until)
	{
		outcome = release_once(lease, at_once, until);
		if (outcome != TOO_LATE || may_have_moved(lease))
			continue;
		if (lease->connection.action == ERROR_NOT_AGAIN)
			break;
		is_repeated |= lease->connection.action == ERROR_UNKNOWN;
		wait_until(Min(clock_now() + PAUSE, until), NULL);
	}
	if (outcome == REFUSED && is_repeated)
		outcome = DONE;
	if (outcome == DONE)
		lease_step("released");
	return outcome;
}

/* The grant of a request without an answer may still be open: look for it for a while. */
static Outcome
give_back_when_granted(Lease *lease)
{
	Time		until = clock_now() + patience(lease);
	Outcome		outcome;

	while ((outcome = give_back(lease)) == REFUSED && clock_now() < until)
		wait_until(clock_now() + SECOND / 10, NULL);
	return outcome == REFUSED ? TOO_LATE : outcome;
}

/* Does the answer to a request or to a wait say so? Others have one column. */
static bool
was_granted(Lease *lease)
{
	if (PQnfields(lease->connection.rows) == 1 || !connection_says_yes(&lease->connection))
		return false;
	note_token(lease);
	return true;
}

/*
 * A signal ends lease_run while it waits for the lease, or it has given up: leave the queue, and
 * release what may have been granted. TOO_LATE if that is not known.
 */
Outcome
lease_give_up(Lease *lease)
{
	Connection *connection = &lease->connection;
	bool		is_held = lease->token != NULL || lease->is_uncertain;
	Outcome		outcome = REFUSED;

	if (connection_is_busy(connection))
	{
		connection_cancel(connection);
		if (connection_answer(connection, clock_now() + PATIENCE, NULL) == DONE)
			is_held |= was_granted(lease);
		else if (connection->action == ERROR_UNKNOWN)
			note_uncertainty(lease);
		is_held |= lease->is_uncertain;
	}
	if (is_held)
		outcome = lease->may_be_open ? give_back_when_granted(lease) : give_back(lease);
	return outcome == REFUSED && lease->may_be_own ? TOO_LATE : outcome;
}
