/*-------------------------------------------------------------------------
 *
 * lease.c
 *		The lease: acquired, renewed, released.
 *
 * The server's answer "granted" is about the past. What is certain: the lease does
 * not end before the ttl has passed since the request was sent; after a wait,
 * since the time that the server says to have waited. So that is what counts,
 * by our own clock. Each renewal begins the count again, from before it was sent.
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

#include <math.h>

#include "lease.h"
#include "message.h"
#include "signals.h"

/* How long one wait in the server lasts. Then lease_run asks again, so that a dead network is noticed. */
#define LONGEST_WAIT	(300 * SECOND)

/* How long the server may be silent while nothing is at stake. */
#define PATIENCE		(10 * SECOND)

/* Pause after an error, while nothing is at stake. */
#define PAUSE			SECOND

static const char *
interval(Time length)
{
	return psprintf("%lld microseconds", (long long) length);
}

/*
 * How long the server may be silent while the lease is held: then there is time
 * for another connection or two before the command must be ended.
 */
static Time
patience(const Lease *lease)
{
	return Min(lease->options->ttl / 6, PATIENCE);
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

static Time
renewal_due(const Lease *lease)
{
	return lease->counts_from + lease->options->ttl / 3;
}

/*
 * Whether the result is rows, and not an error. An error is remembered.
 */
static bool
has_rows(Lease *lease, PGresult *result)
{
	if (result == NULL)
		return false;
	if (PQresultStatus(result) == PGRES_TUPLES_OK)
		return true;
	free(lease->connection.error);
	lease->connection.error = message_line(PQresultErrorMessage(result));
	return false;
}

/*
 * SQLSTATE of an error; empty if there is none.
 */
static const char *
sqlstate(const PGresult *result)
{
	const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;

	return state ? state : "";
}

/*
 * Find the schema of the extension: it need not be in the search_path.
 */
static LeaseAnswer
find_schema(Lease *lease, Time until, WaitUntil useful)
{
	PGresult   *result = connection_ask(&lease->connection,
										"SELECT pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_extension AS e "
										"JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace "
										"WHERE e.extname OPERATOR(pg_catalog.=) 'lease_lock'",
										0, NULL, until, useful);
	bool		found = has_rows(lease, result);

	if (found && PQntuples(result) == 0)
	{
		lease_error("the database \"%s\" does not have the extension lease_lock",
					PQdb(lease->connection.pg));
		pg_log_error_hint("Run CREATE EXTENSION lease_lock there, or choose another database with --dbname.");
		exit(EXIT_NO_SERVER);
	}
	if (found)
		lease->schema = pg_strdup(PQgetvalue(result, 0, 0));
	PQclear(result);
	return found ? LEASE_GRANTED : LEASE_NO_ANSWER;
}

/*
 * Have an open connection. LEASE_GRANTED if there is one.
 */
static LeaseAnswer
need_connection(Lease *lease, Time how_long, WaitUntil useful)
{
	Connection *connection = &lease->connection;

	if (!connection->is_open)
	{
		WaitResult	result = connection_open(connection, how_long, useful);

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
		return find_schema(lease, clock_now() + how_long, useful);
	return LEASE_GRANTED;
}

/*
 * Send a request that waits so long, and return the answer. Where the role has a statement_timeout,
 * it waits for half of that at most, and is sent again, so that the wait is not cancelled.
 */
static PGresult *
send_request(Lease *lease, Time wait)
{
	const Options *options = lease->options;
	const char *params[] = {
		options->resource, interval(options->ttl), options->owner, interval(wait), options->mode,
		options->permits, lease->is_uncertain ? "renew" : "refuse",
		options->min_hold >= 0 ? interval(options->min_hold) : NULL, options->payload
	};
	char	   *sql = psprintf("SELECT granted, token, extract(epoch FROM waited), reason, blocked_by, "
							   "extract(epoch FROM blocked_for) "
							   "FROM %s.lease_request($1::text, $2::interval, $3::text, "
							   "wait => LEAST($4::interval, CASE WHEN pg_catalog.current_setting('statement_timeout') "
							   "OPERATOR(pg_catalog.<>) '0' THEN pg_catalog.current_setting('statement_timeout')::interval "
							   "OPERATOR(pg_catalog./) 2 END), "
							   "mode => $5::text, permits => $6::integer, if_own => $7::text, "
							   "min_hold => $8::interval, payload => $9::jsonb)", lease->schema);
	PGresult   *result;

	signals_do_not_exit();
	lease_step("%s, for %g s", wait > 0 ? "waiting" : "asking", clock_seconds(wait > 0 ? wait : options->ttl));
	result = connection_ask(&lease->connection, sql, lengthof(params), params,
							clock_now() + wait + PATIENCE, UNTIL_SIGNALLED);
	free(sql);
	return result;
}

static void
note_grant(Lease *lease, PGresult *result, Time sent)
{
	Time		waited = (Time) floor(strtod(PQgetvalue(result, 0, 2), NULL) * SECOND);

	lease->token = pg_strdup(PQgetvalue(result, 0, 1));
	lease->counts_from = Min(sent + Max(waited, 0), clock_now());
	lease_step("granted after %.3f s, token %s, ends in %.3f s unless it is renewed", clock_seconds(waited),
			   lease->token, clock_seconds(lease_ends_at(lease) - clock_now()));
}

static void
warn_taken(PGresult *result)
{
	const char *reason = PQgetvalue(result, 0, 3);
	const char *owner = PQgetisnull(result, 0, 4) ? NULL : message_name(PQgetvalue(result, 0, 4));

	if (strcmp(reason, "failover") == 0)
		lease_warning("not granted yet: the server became the primary a short time ago (lease_lock.failover_wait)");
	else if (strcmp(reason, "queue") == 0)
		lease_warning("taken: others have waited for it for longer");
	else if (strcmp(reason, "own") == 0)
		lease_warning("taken by the same owner; choose another name with --owner");
	else if (owner != NULL && !PQgetisnull(result, 0, 5))
		lease_warning("taken by \"%s\", for another %s s unless that renews or releases it", owner,
					  PQgetvalue(result, 0, 5));
	else if (owner != NULL)
		lease_warning("taken by \"%s\"", owner);
	else
		lease_warning("taken");
}

/*
 * Can the same request have another outcome after a moment? The answer got lost, or
 * the server is shutting down or not writable, or another session had changed the lease.
 */
static bool
is_transient(const char *state)
{
	static const char *const transient[] = {"08", "25006", "40", "55P03", "57"};

	for (int i = 0; i < (int) lengthof(transient); i++)
	{
		if (strncmp(state, transient[i], strlen(transient[i])) == 0)
			return true;
	}
	return state[0] == '\0';
}

pg_noreturn static void
fail_request(Lease *lease, const char *state)
{
	lease_error("%s", lease->connection.error);
	if (strncmp(state, "42501", 5) == 0)
		pg_log_error_hint("Connect as a role that may call lease_request().");
	exit(strncmp(state, "22", 2) == 0 ? EXIT_USAGE : EXIT_NO_SERVER);
}

/*
 * Acquire the lease, and wait for it as the options say. A lost connection is opened again as long as
 * an answer that got lost may have granted the lease, that is, for a ttl.
 */
LeaseAnswer
lease_acquire(Lease *lease)
{
	const Options *options = lease->options;
	Time		give_up_at = clock_after(clock_now(), options->wait);
	Time		answered = clock_now();

	for (;;)
	{
		LeaseAnswer connected = need_connection(lease, PATIENCE, UNTIL_SIGNALLED);
		Time		sent = clock_now();
		PGresult   *result = NULL;
		bool		asked = connected == LEASE_GRANTED;

		if (asked)
			result = send_request(lease, Min(Max(give_up_at - sent, 0), LONGEST_WAIT));
		if (has_rows(lease, result))
		{
			bool		granted = PQgetvalue(result, 0, 0)[0] == 't';

			answered = clock_now();
			if (granted)
				note_grant(lease, result, sent);
			else if (clock_now() >= give_up_at)
				warn_taken(result);
			PQclear(result);
			if (!granted && clock_now() >= give_up_at)
				return LEASE_REFUSED;
			/* If the answer came late, renew the lease before the command begins. */
			if (granted && clock_now() < renewal_due(lease))
				return LEASE_GRANTED;
			lease->is_uncertain = granted;
			continue;
		}
		lease->is_uncertain |= asked && !connection_is_busy(&lease->connection);
		if (signals_caught() != 0)
			return LEASE_INTERRUPTED;
		if (!is_transient(sqlstate(result)))
			fail_request(lease, sqlstate(result));
		PQclear(result);
		if (!lease->is_uncertain && !connection_next_host(&lease->connection))
			return LEASE_NO_ANSWER;
		if (clock_now() >= answered + options->ttl + PATIENCE)
			return LEASE_NO_ANSWER;
		if (lease->is_uncertain)
			lease_warning("no answer (%s): asking again", lease->connection.error);
		if (wait_for(-1, 0, clock_now() + PAUSE, UNTIL_SIGNALLED) == WAIT_INTERRUPTED)
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
	const char *params[] = {options->resource, interval(options->ttl), options->owner, lease->token};
	LeaseAnswer answer = need_connection(lease, patience(lease), UNTIL_COMMAND_ENDS);
	Time		sent = clock_now();
	PGresult   *result;
	char	   *sql;

	if (answer != LEASE_GRANTED)
		return answer;
	sql = psprintf("SELECT %s.lease_renew($1::text, $2::interval, $3::text, $4::bigint)", lease->schema);
	result = connection_ask(&lease->connection, sql, lengthof(params), params,
							sent + patience(lease), UNTIL_COMMAND_ENDS);
	free(sql);
	if (has_rows(lease, result))
	{
		answer = PQgetvalue(result, 0, 0)[0] == 't' ? LEASE_GRANTED : LEASE_REFUSED;
		if (answer == LEASE_GRANTED)
			lease->counts_from = sent;
	}
	else
		answer = connection_is_busy(&lease->connection) ? LEASE_INTERRUPTED : LEASE_NO_ANSWER;
	PQclear(result);
	return answer;
}

/*
 * Once for each reason: in a long outage, the same one comes again and again.
 */
static void
warn_not_renewed(Lease *lease)
{
	static char *last = NULL;
	const char *error = lease->connection.error;

	if (last == NULL || strcmp(last, error) != 0)
		lease_warning("not renewed (%s): trying again; it ends in %.1f s", error,
					  clock_seconds(lease_ends_at(lease) - clock_now()));
	else
		lease_step("not renewed (%s)", error);
	free(last);
	last = pg_strdup(error);
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
		connection_watch(&lease->connection, renewal_due(lease), UNTIL_COMMAND_ENDS) == WAIT_INTERRUPTED)
		return LEASE_INTERRUPTED;
	answer = renew(lease);
	if (answer == LEASE_GRANTED)
		lease_step("renewed, ends in %.3f s", clock_seconds(lease_ends_at(lease) - clock_now()));
	else if (answer == LEASE_NO_ANSWER)
	{
		warn_not_renewed(lease);
		wait_for(-1, 0, clock_now() + Min(lease->options->ttl / 30, PAUSE), UNTIL_COMMAND_ENDS);
	}
	return answer;
}

/*
 * Release the lease, of any token if none is known. Tries for a moment only: it ends by itself.
 */
LeaseAnswer
lease_release(Lease *lease)
{
	const Options *options = lease->options;
	const char *params[] = {options->resource, options->owner, lease->token};
	Time		until = Min(clock_now() + PATIENCE, lease_ends_at(lease));
	LeaseAnswer answer = LEASE_NO_ANSWER;
	bool		is_repeated = false;	/* the first answer may have got lost after the release */

	/* The answer to a renewal that was on its way when the command ended. */
	if (connection_is_busy(&lease->connection))
		PQclear(connection_answer(&lease->connection, clock_now() + patience(lease), UNTIL_DONE));

	while (answer == LEASE_NO_ANSWER && clock_now() < until)
	{
		char	   *sql;
		PGresult   *result;

		if (need_connection(lease, patience(lease), UNTIL_DONE) != LEASE_GRANTED)
		{
			wait_for(-1, 0, clock_now() + PAUSE, UNTIL_DONE);
			continue;
		}
		sql = psprintf("SELECT %s.lease_release($1::text, $2::text%s)", lease->schema,
					   lease->token ? ", $3::bigint" : "");
		result = connection_ask(&lease->connection, sql, lease->token ? 3 : 2, params,
								clock_now() + patience(lease), UNTIL_DONE);
		free(sql);
		if (has_rows(lease, result))
			answer = PQgetvalue(result, 0, 0)[0] == 't' || is_repeated ? LEASE_GRANTED : LEASE_REFUSED;
		PQclear(result);
		is_repeated = true;
	}
	if (answer == LEASE_GRANTED)
		lease_step("released");
	return answer;
}

/*
 * A signal ends lease_run while it waits for the lease: leave the queue, and release what may have been granted.
 * Returns LEASE_NO_ANSWER if that is not known.
 */
LeaseAnswer
lease_give_up(Lease *lease)
{
	Connection *connection = &lease->connection;

	if (connection_is_busy(connection))
	{
		PGresult   *result;

		connection_cancel(connection);
		result = connection_answer(connection, clock_now() + PATIENCE, UNTIL_DONE);
		if (result == NULL)
			return LEASE_NO_ANSWER;
		if (has_rows(lease, result) && PQnfields(result) > 1 && PQgetvalue(result, 0, 0)[0] == 't')
			note_grant(lease, result, clock_now());
		PQclear(result);
	}
	if (lease->token == NULL && (!lease->is_uncertain || !lease->options->owner_is_unique))
		return LEASE_REFUSED;
	lease->counts_from = clock_now();
	return lease_release(lease);
}
