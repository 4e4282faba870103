/*-------------------------------------------------------------------------
 *
 * connection.c
 *		The connection to the server, without a call that waits for it.
 *
 * Each step has a time by which it must be done. A connection that is silent
 * until then is closed, and the caller opens another one, which begins with the
 * next address (hosts.c). While a statement waits in the server for long, a
 * process of its own connects to the same address from time to time: a server
 * that does not even refuse it is silent, too.
 *
 * libpq may still wait for a library, such as Kerberos. Nothing of the promise
 * depends on it: the watchdog watches the time, and signals go to the command
 * from the handler.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <unistd.h>

#include "connection.h"

#define MAX_PARAMS	20

/*
 * What to do after an error: the table of all clients, clients/conformance/errors.tsv. A key is
 * a SQLSTATE or its beginning, of which the longest counts. After 42883 and 3F000, once.
 */
static const struct
{
	const char *key;
	ErrorAction action;
}			error_table[] = {
	{"08", ERROR_UNKNOWN},
	{"08P01", ERROR_NOT_AGAIN},
	{"25006", ERROR_AGAIN},
	{"28", ERROR_NOT_AGAIN},
	{"3D", ERROR_NOT_AGAIN},
	{"3F000", ERROR_AGAIN},
	{"40", ERROR_AGAIN},
	{"40003", ERROR_UNKNOWN},
	{"42", ERROR_NOT_AGAIN},
	{"42883", ERROR_AGAIN},
	{"53", ERROR_AGAIN},
	{"53400", ERROR_NOT_AGAIN},
	{"55000", ERROR_NOT_AGAIN},
	{"55P03", ERROR_AGAIN},
	{"57014", ERROR_AGAIN},
	{"57P", ERROR_AGAIN},
	{"57P04", ERROR_NOT_AGAIN},
	{"57P05", ERROR_AGAIN},
	{"58", ERROR_AGAIN}
};

/* Without a SQLSTATE. */
static const ErrorAction not_connected = ERROR_AGAIN;
static const ErrorAction no_answer = ERROR_UNKNOWN;
static const ErrorAction any_other = ERROR_NOT_AGAIN;

static ErrorAction
action_after(const char *sqlstate)
{
	ErrorAction action = any_other;
	size_t		longest = 0;

	for (int i = 0; i < (int) lengthof(error_table); i++)
	{
		size_t		length = strlen(error_table[i].key);

		if (length > longest && strncmp(sqlstate, error_table[i].key, length) == 0)
		{
			longest = length;
			action = error_table[i].action;
		}
	}
	return action;
}

static void
remember_error(Connection *connection, const char *error, const char *sqlstate, ErrorAction action)
{
	free(connection->error);
	connection->error = message_line(error);
	strlcpy(connection->sqlstate, sqlstate, sizeof(connection->sqlstate));
	connection->action = action;
}

static void
host_is_silent(Connection *connection)
{
	hosts_silent(&connection->hosts, &connection->current);
	remember_error(connection, "the server does not answer", "", no_answer);
}

/*
 * A notice of the server is a step, too. One says that the transaction has committed here, but not
 * waited for the standby. Its text can be in any language.
 */
static void
receive_notice(void *arg, const PGresult *notice)
{
	Connection *connection = arg;
	const char *function = PQresultErrorField(notice, PG_DIAG_SOURCE_FUNCTION);
	char	   *line = message_line(PQresultErrorMessage(notice));

	if (function != NULL && strcmp(function, "SyncRepWaitForLSN") == 0)
	{
		connection->not_replicated = true;
		remember_error(connection, line, "", ERROR_AGAIN);
	}
	lease_step("%s", line);
	free(line);
}

typedef struct Params
{
	const char *keywords[MAX_PARAMS + 1];
	const char *values[MAX_PARAMS + 1];
	int			n;
} Params;

static void
add(Params *params, const char *keyword, const char *value)
{
	Assert(params->n < MAX_PARAMS);
	params->keywords[params->n] = keyword;
	params->values[params->n] = value;
	params->n++;
	params->keywords[params->n] = params->values[params->n] = NULL;
}

/*
 * As in other client programs, a connection string overrides what comes before it; here, these are
 * also our own defaults. "timeout" is in milliseconds.
 */
static Params
connection_params(const Connection *connection, const char *timeout)
{
	const Options *options = connection->options;
	Params		params = {.n = 0};

	if (getenv("PGTARGETSESSIONATTRS") == NULL)
		add(&params, "target_session_attrs", "read-write");
	add(&params, "tcp_user_timeout", timeout);
	add(&params, "keepalives_idle", "30");
	add(&params, "keepalives_interval", "10");
	add(&params, "keepalives_count", "3");
	add(&params, "host", options->host);
	add(&params, "port", options->port);
	add(&params, "user", options->user);
	add(&params, "password", connection->password);
	add(&params, "dbname", options->dbname);
	add(&params, "fallback_application_name", "lease_run");
	return params;
}

static void
add_address_params(Params *params, const Address *address)
{
	add(params, "host", address->host ? address->host : "");
	add(params, "hostaddr", address->address ? address->address : "");
	add(params, "port", address->port ? address->port : "");
}

/*
 * The hosts on the command line, in the environment and in a service file, as libpq finds them. It only tells that of
 * a connection, so one is made with a setting that libpq refuses before it connects.
 */
static WaitResult
find_hosts(Connection *connection, Time until, StopWaiting stop)
{
	static const char *const keywords[] = {"host", "hostaddr", "port"};
	const char *values[lengthof(keywords)] = {NULL};
	Params		params = connection_params(connection, "0");
	PQconninfoOption *all;
	PGconn	   *pg;
	WaitResult	result;

	add(&params, "sslmode", "none of them");
	pg = PQconnectStartParams(params.keywords, params.values, true);
	all = PQconninfo(pg);
	for (PQconninfoOption *option = all; option != NULL && option->keyword != NULL; option++)
	{
		for (int i = 0; i < (int) lengthof(keywords); i++)
		{
			if (strcmp(option->keyword, keywords[i]) == 0 && option->val && option->val[0])
				values[i] = option->val;
		}
	}
	result = hosts_find(&connection->hosts, values[0], values[1], values[2], until, stop);
	PQconninfoFree(all);
	PQfinish(pg);
	return result;
}

/*
 * libpq gives no SQLSTATE for a connection that failed, but shows it in the message ("FATAL:  28000: ..."). Take it out
 * of there, with the line that names the place in the server's source.
 */
static void
take_sqlstate(char *message, char *sqlstate)
{
	char	   *place = strstr(message, "\nLOCATION:");

	sqlstate[0] = '\0';
	if (place != NULL)
		*place = '\0';
	for (char *code = strstr(message, ":  "); code != NULL; code = strstr(code + 1, ":  "))
	{
		if (strspn(code + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 && strncmp(code + 8, ": ", 2) == 0)
		{
			memcpy(sqlstate, code + 3, 5);
			sqlstate[5] = '\0';
			memmove(code + 3, code + 10, strlen(code + 10) + 1);
			return;
		}
	}
}

/*
 * A connection could not be made. Without a SQLSTATE, and without the address in the message, the options are wrong.
 */
static void
has_not_connected(Connection *connection)
{
	char	   *message = pg_strdup(PQerrorMessage(connection->pg));
	const char *address = connection->current.address ? connection->current.address
		: connection->current.host ? connection->current.host : ".s.PGSQL.";
	char		sqlstate[6];
	ErrorAction action;

	take_sqlstate(message, sqlstate);
	if (PQconnectionNeedsPassword(connection->pg))
	{
		connection->needs_password = true;
		action = ERROR_NOT_AGAIN;
	}
	else if (sqlstate[0] != '\0')
		action = action_after(sqlstate) == ERROR_UNKNOWN ? not_connected : action_after(sqlstate);
	else
		action = strstr(message, address) != NULL ? not_connected : any_other;
	remember_error(connection, message, sqlstate, action);
	free(message);
}

/*
 * Connect to the current address.
 */
static WaitResult
connect_to_address(Connection *connection, Time until, StopWaiting stop)
{
	PostgresPollingStatusType next = PGRES_POLLING_WRITING;
	WaitResult	result = WAIT_READY;
	char		timeout[32];
	Params		params;

	snprintf(timeout, sizeof(timeout), "%lld", (long long) Max(until - clock_now(), SECOND) / 1000);
	params = connection_params(connection, timeout);
	add_address_params(&params, &connection->current);
	connection->pg = PQconnectStartParams(params.keywords, params.values, true);
	if (connection->pg == NULL)
		leave(EXIT_NO_PROCESS);
	PQsetErrorVerbosity(connection->pg, PQERRORS_VERBOSE);
	if (PQstatus(connection->pg) == CONNECTION_BAD)
		next = PGRES_POLLING_FAILED;
	while (next != PGRES_POLLING_OK && next != PGRES_POLLING_FAILED && result == WAIT_READY)
	{
		result = wait_for_one(PQsocket(connection->pg), next == PGRES_POLLING_READING ? POLLIN : POLLOUT, until, stop);
		if (result == WAIT_READY)
			next = PQconnectPoll(connection->pg);
	}
	if (next == PGRES_POLLING_FAILED)
		has_not_connected(connection);
	else if (result == WAIT_TIME_OVER)
	{
		host_is_silent(connection);
		connection->action = not_connected;
	}
	if (result == WAIT_INTERRUPTED || next == PGRES_POLLING_OK)
		return result;
	connection_close(connection);
	return WAIT_TIME_OVER;
}

static void
remember_address(Connection *connection, const Address *address)
{
	free(connection->current.host);
	free(connection->current.address);
	free(connection->current.port);
	connection->current.host = address->host ? pg_strdup(address->host) : NULL;
	connection->current.address = address->address ? pg_strdup(address->address) : NULL;
	connection->current.port = address->port ? pg_strdup(address->port) : NULL;
}

/*
 * Before the first host is tried: what is wrong with those that were not found.
 */
static char *
begin_errors(Connection *connection)
{
	connection->needs_password = false;
	remember_error(connection, connection->hosts.error ? connection->hosts.error : "there is no time left to connect",
				   "", not_connected);
	return pg_strdup(connection->hosts.error ? connection->error : "");
}

/*
 * The errors of all hosts, one after the other. If one host can be tried again, all can.
 */
static void
add_error(Connection *connection, char **errors, bool *again)
{
	char	   *both = psprintf("%s%s%s", *errors, (*errors)[0] ? "; " : "", connection->error);

	*again |= connection->action == ERROR_AGAIN;
	free(*errors);
	*errors = both;
	free(connection->error);
	connection->error = pg_strdup(both);
	if (*again)
		connection->action = ERROR_AGAIN;
}

/*
 * Connect by that time; an address that is silent gets "patience", or half of it if there are more. Returns
 * WAIT_READY if that worked; otherwise connection->error says why not.
 */
WaitResult
connection_open(Connection *connection, Time until, Time patience, StopWaiting stop)
{
	WaitResult	result;
	char	   *errors;
	bool		again;

	connection_close(connection);
	/* The addresses of the last time are good enough if the name server is slow. */
	result = find_hosts(connection, Min(until, clock_now() + (connection->hosts.n > 0 ? patience / 4 : patience)), stop);
	errors = begin_errors(connection);
	again = connection->hosts.error != NULL;
	if (result != WAIT_INTERRUPTED)
		result = WAIT_TIME_OVER;
	for (int left = connection->hosts.n; left > 0 && result == WAIT_TIME_OVER && clock_now() < until; left--)
	{
		Time		share = Min(connection->hosts.n > 1 ? patience / 2 : patience, (until - clock_now()) / left);

		remember_address(connection, &connection->hosts.list[connection->hosts.n - left]);
		result = connect_to_address(connection, clock_now() + share, stop);
		if (result == WAIT_TIME_OVER)
			add_error(connection, &errors, &again);
		if (connection->needs_password)
			break;
	}
	free(errors);
	if (result == WAIT_READY)
	{
		PQsetErrorVerbosity(connection->pg, PQERRORS_DEFAULT);
		PQsetnonblocking(connection->pg, 1);
		PQsetNoticeReceiver(connection->pg, receive_notice, connection);
		connection->is_open = true;
	}
	return result;
}

static bool
has_failed(Connection *connection)
{
	remember_error(connection, PQerrorMessage(connection->pg), "", no_answer);
	return false;
}

/*
 * Send what libpq has not sent yet and read what there is. Returns false if the connection is lost;
 * otherwise "events" is what to wait for: a long statement is not sent all at once.
 */
static bool
exchange(Connection *connection, short *events)
{
	int			unsent = PQconsumeInput(connection->pg) ? PQflush(connection->pg) : -1;

	*events = unsent > 0 ? POLLIN | POLLOUT : POLLIN;
	return unsent < 0 ? has_failed(connection) : true;
}

/*
 * Send a statement and return its result, or NULL, as connection_answer() does.
 */
PGresult *
connection_ask(Connection *connection, const char *sql, int nparams, const char *const *params,
			   Time until, StopWaiting stop)
{
	connection->not_replicated = false;
	if (!PQsendQueryParams(connection->pg, sql, nparams, NULL, params, NULL, NULL, 0))
	{
		has_failed(connection);
		connection_close(connection);
		return NULL;
	}
	return connection_answer(connection, until, stop);
}

/*
 * Body of the process that sees whether a server is there: an error is an answer, too.
 */
static void
knock(void *arg, int fd)
{
	const Connection *connection = arg;
	Params		params = connection_params(connection, "0");

	add_address_params(&params, &connection->current);
	add(&params, "target_session_attrs", "any");
	PQfinish(PQconnectdbParams(params.keywords, params.values, true));
}

/*
 * Wait for the socket; meanwhile see from time to time whether the server is there. Returns WAIT_TIME_OVER if it is not.
 */
static WaitResult
wait_for_server(Connection *connection, short events, Time until, StopWaiting stop)
{
	Helper		helper = {.pid = 0, .fd = -1};
	WaitResult	result = WAIT_TIME_OVER;

	for (;;)
	{
		struct pollfd fds[2] = {
			{.fd = PQsocket(connection->pg), .events = events},
			{.fd = helper.fd, .events = POLLIN}
		};
		Time		next = until;

		if (connection->heartbeat > 0)
			next = Min(until, clock_now() + (helper.pid > 0 ? connection->heartbeat_patience : connection->heartbeat));
		result = wait_for(fds, lengthof(fds), next, stop);
		if (result == WAIT_INTERRUPTED || fds[0].revents != 0)
			break;
		if (result == WAIT_READY)
			helper_end(&helper);	/* it has ended: the server is there */
		else if (helper.pid > 0 || clock_now() >= until)
			break;
		else
			helper = helper_start(knock, connection);
	}
	helper_end(&helper);
	return result;
}

/*
 * Read all results of a statement, and return the one that counts: the first that has a SQLSTATE, which
 * says more than the end of the connection behind it, or the last. NULL: there are more to come.
 */
static bool
read_results(Connection *connection, PGresult **kept)
{
	while (!PQisBusy(connection->pg))
	{
		PGresult   *next = PQgetResult(connection->pg);

		if (next == NULL)
			return true;
		if (*kept != NULL && PQresultErrorField(*kept, PG_DIAG_SQLSTATE) != NULL)
			PQclear(next);
		else
		{
			PQclear(*kept);
			*kept = next;
		}
	}
	return false;
}

/*
 * The result of the statement that was sent. NULL if there is none: the
 * connection was lost, or was silent until then, and is closed now; or the
 * answer is of no use any more, and the connection stays busy.
 */
PGresult *
connection_answer(Connection *connection, Time until, StopWaiting stop)
{
	PGresult   *kept = NULL;
	short		events;
	bool		is_lost = !exchange(connection, &events);

	while (!is_lost)
	{
		WaitResult	result;

		if (read_results(connection, &kept))
			return kept;
		result = wait_for_server(connection, events, until, stop);
		if (result == WAIT_INTERRUPTED)
		{
			PQclear(kept);
			return NULL;
		}
		if (result == WAIT_TIME_OVER)
			host_is_silent(connection);
		is_lost = result == WAIT_TIME_OVER || !exchange(connection, &events);
	}
	/* What came before the end of the connection, such as "terminating connection". */
	if (PQstatus(connection->pg) == CONNECTION_BAD)
		(void) read_results(connection, &kept);
	connection_close(connection);
	if (kept != NULL && PQresultErrorField(kept, PG_DIAG_SQLSTATE) != NULL)
		return kept;
	PQclear(kept);
	return NULL;
}

/*
 * Whether the result is rows, and not an error. An error is remembered.
 */
bool
connection_has_rows(Connection *connection, PGresult *result)
{
	const char *sqlstate;

	if (result == NULL)
		return false;
	if (PQresultStatus(result) == PGRES_TUPLES_OK)
		return true;
	sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	remember_error(connection, PQresultErrorMessage(result), sqlstate ? sqlstate : "",
				   sqlstate ? action_after(sqlstate) : no_answer);
	return false;
}

/*
 * Is a statement without an answer yet?
 */
bool
connection_is_busy(Connection *connection)
{
	return connection->is_open && PQtransactionStatus(connection->pg) == PQTRANS_ACTIVE;
}

/*
 * Wait on an idle connection. Returns WAIT_READY if it was lost, and closes it.
 */
WaitResult
connection_watch(Connection *connection, Time until, StopWaiting stop)
{
	for (;;)
	{
		WaitResult	result = wait_for_one(PQsocket(connection->pg), POLLIN, until, stop);

		if (result != WAIT_READY)
			return result;
		if (!PQconsumeInput(connection->pg))
		{
			has_failed(connection);
			connection_close(connection);
			return WAIT_READY;
		}
		(void) PQisBusy(connection->pg);	/* shows notices */
	}
}

/*
 * Body of the process that asks the server to cancel a statement.
 */
static void
cancel(void *arg, int fd)
{
	char		error[256];

	PQcancel(arg, error, sizeof(error));
}

/*
 * Ask the server to cancel the statement, in a process of its own, since
 * PQcancel() waits.
 */
void
connection_cancel(Connection *connection)
{
	PGcancel   *handle = PQgetCancel(connection->pg);

	if (handle != NULL)
		(void) helper_start(cancel, handle);
	PQfreeCancel(handle);
}

void
connection_close(Connection *connection)
{
	PQfinish(connection->pg);
	connection->pg = NULL;
	connection->is_open = false;
}
