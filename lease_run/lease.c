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
 * has it. The first request says "refuse", since an owner that the user chose
 * may have the lease elsewhere.
 *
 * Everything is one statement in a transaction of its own, without session
 * state, so that it works through a pooler of connections.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "command.h"
#include "lease.h"

/* How long the server may be silent while nothing is at stake. */
#define PATIENCE		(10 * SECOND)

/* How often a waiter sees whether the server is still there. */
#define HEARTBEAT		(30 * SECOND)

/* Pause after an error. */
#define PAUSE			SECOND

/* How often the answer may come too late to run the command. */
#define MAX_LATE		3

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

/*
 * The lease does not end before.
 */
Time
lease_ends_at(const Lease *lease)
{
	return lease->counts_from + lease->options->ttl;
}

/*
 * The time between a renewal and the signal to the command, if no other renewal follows. A renewal is sent after a third
 * of it. A silent server is given up after another sixth. So there is time for an outage of a third.
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

/*
 * How long the server may be silent while the lease is held.
 */
static Time
patience(const Lease *lease)
{
	return Min(usable_time(lease->options) / 6, PATIENCE);
}

/*
 * The schema of the extension: it need not be in the search_path. Without the extension, the one that the user names.
 * Never one that anybody else can make.
 */
static LeaseAnswer
find_schema(Lease *lease, Time until, StopWaiting stop)
{
	const char *given = lease->options->schema;
	PGresult   *result = connection_ask(&lease->connection,
										"SELECT pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_extension AS e "
										"JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace "
										"WHERE e.extname OPERATOR(pg_catalog.=) 'lease_lock'",
										0, NULL, until, stop);
	bool		found = connection_has_rows(&lease->connection, result);
	const char *database = lease->connection.pg ? PQdb(lease->connection.pg) : "";

	if (found && PQntuples(result) == 0 && given == NULL)
	{
		lease_error("the database \"%s\" does not have the extension lease_lock", database);
		pg_log_error_hint("Run CREATE EXTENSION lease_lock there, choose another database with --dbname, or name the "
						  "schema of the portable edition with --schema.");
		leave(EXIT_NO_SERVER);
	}
	if (found && PQntuples(result) > 0 && given != NULL)
	{
		lease_error("the database \"%s\" has the extension lease_lock, and --schema names other functions", database);
		pg_log_error_hint("Leases of both do not exclude each other. Omit --schema to use the extension.");
		leave(EXIT_NO_SERVER);
	}
	if (found && given != NULL)
	{
		char	   *quoted = PQescapeIdentifier(lease->connection.pg, given, strlen(given));

		lease->schema = quoted ? pg_strdup(quoted) : NULL;
		PQfreemem(quoted);
	}
	else if (found)
		lease->schema = pg_strdup(PQgetvalue(result, 0, 0));
	PQclear(result);
	if (lease->schema == NULL && connection_is_busy(&lease->connection))
		return LEASE_INTERRUPTED;
	return lease->schema ? LEASE_GRANTED : LEASE_NO_ANSWER;
}

/*
 * After an error: has the extension moved to another schema? That is looked up once.
 */
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
 * Have an open connection by that time. LEASE_GRANTED if there is one.
 */
static LeaseAnswer
need_connection(Lease *lease, Time until, Time how_patient, StopWaiting stop)
{
	Connection *connection = &lease->connection;

	if (connection->is_open && connection_is_busy(connection))
		connection_close(connection);
	if (!connection->is_open)
	{
		WaitResult	result = connection_open(connection, until, how_patient, stop);

		if (result == WAIT_INTERRUPTED)
			return LEASE_INTERRUPTED;
		if (result != WAIT_READY)
		{
			lease_step("not connected: %s", connection->error);
			return LEASE_NO_ANSWER;
		}
		lease_step("connected to server %s, port %s, process %d", PQhost(connection->pg),
				   PQport(connection->pg), PQbackendPID(connection->pg));
	}
	if (lease->schema == NULL)
		return find_schema(lease, Min(until, clock_now() + how_patient), stop);
	return LEASE_GRANTED;
}

static void
remember_why_taken(Lease *lease, PGresult *result)
{
	const char *reason = PQgetvalue(result, 0, 3);
	char	   *owner = PQgetisnull(result, 0, 4) ? NULL : message_name(PQgetvalue(result, 0, 4));

	free(lease->why_taken);
	if (strcmp(reason, "failover") == 0)
		lease->why_taken = pg_strdup("not granted yet: the server became the primary a short time ago (lease_lock.failover_wait)");
	else if (strcmp(reason, "queue") == 0)
		lease->why_taken = pg_strdup("taken: others have waited for it for longer");
	else if (strcmp(reason, "own") == 0)
		lease->why_taken = pg_strdup("taken by the same owner; choose another name with --owner");
	else if (owner != NULL && !PQgetisnull(result, 0, 5))
		lease->why_taken = psprintf("taken by \"%s\", for another %s s unless that renews or releases it", owner,
									PQgetvalue(result, 0, 5));
	else
		lease->why_taken = owner != NULL ? psprintf("taken by \"%s\"", owner) : pg_strdup("taken");
	free(owner);
}

static void
note_grant(Lease *lease, PGresult *result, Time sent)
{
	free(lease->token);
	free(lease->granted_at);
	lease->token = pg_strdup(PQgetvalue(result, 0, 1));
	lease->granted_at = pg_strdup(PQgetvalue(result, 0, 2));
	lease->counts_from = sent;
	lease_step("granted, token %s, ends in %.3f s unless it is renewed", lease->token,
			   clock_seconds(lease_ends_at(lease) - clock_now()));
}

/*
 * How long the server may take for an answer before the command, if lease_run gives up at that time.
 */
static Time
answer_until(Time limit)
{
	return Min(Max(limit, clock_now() + SECOND), clock_now() + PATIENCE);
}

/*
 * After a request without rows.
 */
static LeaseAnswer
has_no_answer(Lease *lease)
{
	if (signals_caught() != 0)
		return LEASE_INTERRUPTED;
	lease->is_uncertain |= lease->connection.action == ERROR_UNKNOWN;
	return LEASE_NO_ANSWER;
}

/*
 * A grant that did not wait for the standby is none: a failover may lose it. It is released, and the caller
 * asks again.
 */
static LeaseAnswer
undo_grant(Lease *lease)
{
	char	   *error = pg_strdup(lease->connection.error);

	(void) lease_release(lease, false);
	free(lease->token);
	lease->token = NULL;
	lease->is_uncertain = lease->options->owner_is_unique;
	free(lease->connection.error);
	lease->connection.error = error;
	lease->connection.action = ERROR_AGAIN;
	return signals_caught() != 0 ? LEASE_INTERRUPTED : LEASE_NO_ANSWER;
}

/*
 * Ask for the lease, without waiting for it.
 */
static LeaseAnswer
ask_for_lease(Lease *lease, Time limit)
{
	const Options *options = lease->options;
	Interval	ttl,
				min_hold;
	const char *params[] = {
		options->resource, interval(options->ttl, ttl), options->owner, options->mode, options->permits,
		lease->is_uncertain ? "renew" : "refuse",
		options->min_hold >= 0 ? interval(options->min_hold, min_hold) : NULL, options->payload
	};
	LeaseAnswer answer = need_connection(lease, Max(limit, clock_now() + SECOND), PATIENCE, signals_stop);
	Time		sent;
	PGresult   *result;
	char	   *sql;

	if (answer != LEASE_GRANTED)
		return answer;
	sql = psprintf("SELECT granted, token, pg_catalog.to_char((expires_at OPERATOR(pg_catalog.-) $2::interval) "
				   "AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), "
				   "reason, blocked_by, extract(epoch FROM blocked_for) "
				   "FROM %s.lease_request($1::text, $2::interval, $3::text, mode => $4::text, permits => $5::integer, "
				   "if_own => $6::text, min_hold => $7::interval, payload => $8::jsonb)", lease->schema);
	signals_do_not_exit();
	lease_step("asking, for %g s", clock_seconds(options->ttl));
	sent = clock_now();
	result = connection_ask(&lease->connection, sql, lengthof(params), params, answer_until(limit), signals_stop);
	free(sql);
	if (!connection_has_rows(&lease->connection, result))
	{
		PQclear(result);
		return has_no_answer(lease);
	}
	lease->schema_is_new = false;
	answer = PQgetvalue(result, 0, 0)[0] == 't' ? LEASE_GRANTED : LEASE_REFUSED;
	if (answer == LEASE_GRANTED)
		note_grant(lease, result, sent);
	else
		remember_why_taken(lease, result);
	PQclear(result);
	return answer == LEASE_GRANTED && lease->connection.not_replicated ? undo_grant(lease) : answer;
}

/*
 * Wait for the lease in the server, until that time. LEASE_GRANTED if it was acquired. Where the role has a statement_timeout, it waits
 * for half of that at most, so that the wait is not cancelled; LEASE_REFUSED then, and the caller comes again.
 */
static LeaseAnswer
wait_in_line(Lease *lease, Time limit)
{
	const Options *options = lease->options;
	Connection *connection = &lease->connection;
	Time		wait = limit == TIME_FOREVER ? TIME_FOREVER : Max(limit - clock_now(), 0);
	Interval	ttl,
				how_long,
				min_hold;
	const char *params[] = {
		options->resource, interval(options->ttl, ttl), options->owner,
		wait == TIME_FOREVER ? NULL : interval(wait, how_long), options->mode, options->permits,
		lease->is_uncertain ? "renew" : "refuse",
		options->min_hold >= 0 ? interval(options->min_hold, min_hold) : NULL, options->payload
	};
	char	   *sql = psprintf("CALL %s.lease_wait($1::text, $2::interval, $3::text, "
							   "LEAST($4::interval, CASE WHEN pg_catalog.current_setting('statement_timeout') "
							   "OPERATOR(pg_catalog.<>) '0' THEN pg_catalog.current_setting('statement_timeout')::interval "
							   "OPERATOR(pg_catalog./) 2 END), "
							   "mode => $5::text, permits => $6::integer, if_own => $7::text, "
							   "min_hold => $8::interval, payload => $9::jsonb)", lease->schema);
	PGresult   *result;
	LeaseAnswer answer;

	if (wait == TIME_FOREVER)
		lease_step("waiting: %s", lease->why_taken);
	else
		lease_step("waiting, for %g s: %s", clock_seconds(wait), lease->why_taken);
	connection->heartbeat = Min(options->ttl, HEARTBEAT);
	connection->heartbeat_patience = PATIENCE;
	result = connection_ask(connection, sql, lengthof(params), params,
							clock_after(clock_now(), clock_after(wait, PATIENCE)), signals_stop);
	connection->heartbeat = 0;
	free(sql);
	if (connection_has_rows(connection, result))
		answer = PQgetvalue(result, 0, 0)[0] == 't' ? LEASE_GRANTED : LEASE_REFUSED;
	else
		answer = has_no_answer(lease);
	PQclear(result);
	/* The request that follows renews it, and waits for the standby if this one did not. */
	lease->is_uncertain |= answer == LEASE_GRANTED;
	return answer;
}

pg_noreturn static void
fail_request(Lease *lease)
{
	const char *state = lease->connection.sqlstate;

	lease_error("%s", lease->connection.error);
	if (strcmp(state, "42501") == 0)
		pg_log_error_hint("Connect as a role that may call lease_request().");
	else if (state[0] == '\0' || strncmp(state, "28", 2) == 0 || strncmp(state, "3D", 2) == 0)
		pg_log_error_hint("The command was not run. Check the connection options.");
	leave(strncmp(state, "22", 2) == 0 ? EXIT_USAGE : EXIT_NO_SERVER);
}

/*
 * The server answers, but too late for this ttl: the lease would be over soon, and is given back.
 */
pg_noreturn static void
fail_late(Lease *lease, Time took)
{
	(void) lease_release(lease, false);
	lease_error("the server takes %.1f s for an answer, which is too long for a ttl of %g s", clock_seconds(took),
				clock_seconds(lease->options->ttl));
	pg_log_error_hint("The command was not run. Use a longer --ttl.");
	leave(EXIT_NO_SERVER);
}

/*
 * Once for each reason: in a long outage, the same one comes again and again.
 */
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

/*
 * A pause that is not the same on all hosts: they all lost the same server.
 */
static WaitResult
pause_for(Time length, StopWaiting stop)
{
	return wait_until(clock_now() + length / 2 + clock_now() % Max(length, 1), stop);
}

/*
 * Until when to wait for a server. "answered" is when one did.
 */
static Time
server_limit(const Options *options, Time answered, Time give_up_at)
{
	Time		limit = clock_after(answered, options->server_wait);

	return options->wait > 0 ? Min(limit, give_up_at) : limit;
}

/*
 * Acquire the lease, and wait for it and for the server as the options say.
 */
LeaseAnswer
lease_acquire(Lease *lease)
{
	const Options *options = lease->options;
	Time		give_up_at = clock_after(clock_now(), options->wait);
	Time		answered = clock_now();
	int			late = 0;

	for (;;)
	{
		Time		asked = clock_now();
		LeaseAnswer answer = ask_for_lease(lease, server_limit(options, answered, give_up_at));

		if (answer == LEASE_GRANTED && signals_caught() != 0)
			return LEASE_INTERRUPTED;
		/* If the answer came late, renew the lease before the command begins. */
		if (answer == LEASE_GRANTED && clock_now() < renewal_due(lease))
			return LEASE_GRANTED;
		if (answer == LEASE_GRANTED)
		{
			if (++late == MAX_LATE)
				fail_late(lease, clock_now() - asked);
			lease->is_uncertain = true;
			continue;
		}
		if (answer == LEASE_REFUSED)
		{
			lease->is_uncertain = false;
			if (clock_now() >= give_up_at)
				return LEASE_REFUSED;
			answer = wait_in_line(lease, give_up_at);
			answered = clock_now();
		}
		if (answer == LEASE_INTERRUPTED)
			return LEASE_INTERRUPTED;
		if (answer != LEASE_NO_ANSWER || may_have_moved(lease))
			continue;
		if (lease->connection.needs_password)
			return LEASE_NO_ANSWER;
		if (lease->connection.action == ERROR_NOT_AGAIN)
			fail_request(lease);
		if (clock_now() >= server_limit(options, answered, give_up_at))
			return LEASE_NO_ANSWER;
		warn_once(lease, "no answer", "asking again");
		if (pause_for(PAUSE, signals_stop) == WAIT_INTERRUPTED)
			return LEASE_INTERRUPTED;
	}
}

/*
 * Renew the lease once.
 */
static LeaseAnswer
renew(Lease *lease)
{
	const Options *options = lease->options;
	Interval	ttl;
	const char *params[] = {options->resource, interval(options->ttl, ttl), options->owner, lease->token};
	LeaseAnswer answer = need_connection(lease, lease_end_times(lease).signal_at, patience(lease), command_stop_working);
	Time		sent = clock_now();
	PGresult   *result;
	char	   *sql;

	if (answer != LEASE_GRANTED)
		return answer;
	sql = psprintf("SELECT %s.lease_renew($1::text, $2::interval, $3::text, $4::bigint)", lease->schema);
	result = connection_ask(&lease->connection, sql, lengthof(params), params,
							sent + patience(lease), command_stop_working);
	free(sql);
	if (connection_has_rows(&lease->connection, result))
	{
		answer = PQgetvalue(result, 0, 0)[0] == 't' ? LEASE_GRANTED : LEASE_REFUSED;
		lease->schema_is_new = false;
		if (answer == LEASE_GRANTED && lease->connection.not_replicated)
			answer = LEASE_NO_ANSWER;
		else if (answer == LEASE_GRANTED)
			lease->counts_from = sent;
	}
	else
		answer = connection_is_busy(&lease->connection) ? LEASE_INTERRUPTED : LEASE_NO_ANSWER;
	PQclear(result);
	return answer;
}

/*
 * Wait until a renewal is due, or the connection is lost, and renew the lease. If that does not
 * work, wait for a moment: the caller calls again.
 */
LeaseAnswer
lease_keep(Lease *lease)
{
	LeaseAnswer answer;

	if (lease->connection.is_open &&
		connection_watch(&lease->connection, renewal_due(lease), command_stop_working) == WAIT_INTERRUPTED)
		return LEASE_INTERRUPTED;
	answer = renew(lease);
	if (answer == LEASE_GRANTED)
		lease_step("renewed, ends in %.3f s", clock_seconds(lease_ends_at(lease) - clock_now()));
	else if (answer == LEASE_NO_ANSWER && !may_have_moved(lease))
	{
		char	   *left = psprintf("trying again; it ends in %.1f s", clock_seconds(lease_ends_at(lease) - clock_now()));

		warn_once(lease, "not renewed", left);
		free(left);
		pause_for(Min(lease->options->ttl / 30, PAUSE), command_stop_working);
	}
	return answer;
}

/*
 * Release the lease with one statement. With "at_once", min_hold does not count.
 */
static LeaseAnswer
release_once(Lease *lease, bool at_once, Time until)
{
	const Options *options = lease->options;
	Interval	ttl;
	const char *params[] = {
		options->resource, options->owner, lease->token, interval(options->ttl, ttl), options->mode, options->permits
	};
	int			nparams = at_once ? 6 : lease->token ? 3 : 2;
	LeaseAnswer answer = LEASE_NO_ANSWER;
	PGresult   *result;
	char	   *sql;

	if (at_once)
		sql = psprintf("SELECT %s.lease_release($1::text, $2::text) AND g.token OPERATOR(pg_catalog.=) $3::bigint "
					   "FROM %s.lease_request($1::text, $4::interval, $2::text, mode => $5::text, permits => $6::integer, "
					   "if_own => 'renew', min_hold => '0') AS g WHERE g.granted", lease->schema, lease->schema);
	else
		sql = psprintf("SELECT %s.lease_release($1::text, $2::text%s)", lease->schema, lease->token ? ", $3::bigint" : "");
	result = connection_ask(&lease->connection, sql, nparams, params, until, NULL);
	free(sql);
	if (connection_has_rows(&lease->connection, result))
		answer = PQntuples(result) > 0 && PQgetvalue(result, 0, 0)[0] == 't' ? LEASE_GRANTED : LEASE_REFUSED;
	PQclear(result);
	return answer;
}

/*
 * Release the lease, of any token if none is known. Tries for a moment only: it ends by itself.
 */
LeaseAnswer
lease_release(Lease *lease, bool at_once)
{
	Time		until = Min(clock_now() + PATIENCE, lease_ends_at(lease));
	LeaseAnswer answer = LEASE_NO_ANSWER;
	bool		is_repeated = false;	/* the first answer may have got lost after the release */

	/* The answer to a renewal that was on its way when the command ended. */
	if (connection_is_busy(&lease->connection))
		PQclear(connection_answer(&lease->connection, clock_now() + patience(lease), NULL));

	while (answer == LEASE_NO_ANSWER && clock_now() < until)
	{
		if (need_connection(lease, until, patience(lease), NULL) == LEASE_GRANTED)
		{
			answer = release_once(lease, at_once, Min(clock_now() + patience(lease), until));
			if (answer == LEASE_REFUSED && is_repeated)
				answer = LEASE_GRANTED;
			is_repeated |= lease->connection.action == ERROR_UNKNOWN;
		}
		if (answer == LEASE_NO_ANSWER && lease->connection.action == ERROR_NOT_AGAIN)
			break;
		if (answer == LEASE_NO_ANSWER && !may_have_moved(lease))
			wait_until(Min(clock_now() + PAUSE, until), NULL);
	}
	if (answer == LEASE_GRANTED)
		lease_step("released");
	return answer;
}

/*
 * A signal ends lease_run while it waits for the lease, or it has given up: leave the queue, and release what may
 * have been granted. Returns LEASE_NO_ANSWER if that is not known.
 */
LeaseAnswer
lease_give_up(Lease *lease)
{
	Connection *connection = &lease->connection;
	bool		is_held = lease->token != NULL || (lease->is_uncertain && lease->options->owner_is_unique);

	if (connection_is_busy(connection))
	{
		PGresult   *result;

		connection_cancel(connection);
		result = connection_answer(connection, clock_now() + PATIENCE, NULL);
		if (result == NULL)
			is_held |= lease->options->owner_is_unique;
		else if (connection_has_rows(connection, result) && PQnfields(result) > 1)
			is_held |= PQgetvalue(result, 0, 0)[0] == 't';
		PQclear(result);
	}
	if (!is_held)
		return LEASE_REFUSED;
	lease->counts_from = clock_now();
	return lease_release(lease, false);
}
