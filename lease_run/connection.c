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
#include "lease_run.h"

#include "lib/stringinfo.h"

/*
 * What to do after an error: the table of all clients, clients/conformance/errors.tsv. A key is
 * a SQLSTATE or its beginning, of which the longest counts. After 42883 and 3F000, once.
 */
static const struct
{
	const char *key;
	ErrorAction action;
}			error_table[] = {
	{"not connected", ERROR_AGAIN}, {"no answer", ERROR_UNKNOWN}, {"any other", ERROR_NOT_AGAIN},
	{"synchronous wait cancelled", ERROR_AGAIN},
	{"08", ERROR_UNKNOWN}, {"25006", ERROR_AGAIN}, {"28", ERROR_NOT_AGAIN}, {"3D", ERROR_NOT_AGAIN},
	{"40", ERROR_AGAIN}, {"40003", ERROR_UNKNOWN}, {"42", ERROR_NOT_AGAIN}, {"42883", ERROR_AGAIN},
	{"3F000", ERROR_AGAIN}, {"53", ERROR_AGAIN}, {"53400", ERROR_NOT_AGAIN}, {"55P03", ERROR_AGAIN},
	{"55000", ERROR_NOT_AGAIN}, {"57014", ERROR_AGAIN}, {"57P", ERROR_UNKNOWN},
	{"57P03", ERROR_AGAIN}, {"57P04", ERROR_NOT_AGAIN}, {"58", ERROR_AGAIN}
};

static ErrorAction
action_after(const char *error)
{
	ErrorAction action = ERROR_NOT_AGAIN;
	size_t		longest = 0;

	for (int i = 0; i < (int) lengthof(error_table); i++)
	{
		size_t		length = strlen(error_table[i].key);

		if (length > longest && strncmp(error, error_table[i].key, length) == 0)
		{
			longest = length;
			action = error_table[i].action;
		}
	}
	return action;
}

/* Note an error, on one line, and what to do after it. */
void
connection_note_error(Connection *connection, const char *error, const char *sqlstate,
					  ErrorAction action)
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
	connection_note_error(connection, "the server does not answer", "", action_after("no answer"));
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
		connection_note_error(connection, line, "", action_after("synchronous wait cancelled"));
	}
	lease_step("%s", line);
	free(line);
}

/*
 * Begin to connect, or connect, to an address. As in other client programs, a connection string
 * overrides what comes before it; here, these are also our own defaults. "timeout" is in
 * milliseconds. The keyword is one more setting.
 */
static PGconn *
begin_connection(const Connection *connection, const Address *address, const char *timeout,
				 const char *keyword, const char *value,
				 PGconn *(*begin) (const char *const *, const char *const *, int))
{
	const Options *options = connection->options;
	const char *const keywords[] = {
		"target_session_attrs", "tcp_user_timeout", "keepalives_idle", "keepalives_interval",
		"keepalives_count", "host", "port", "user", "dbname", "fallback_application_name",
		"host", "hostaddr", "port", keyword, NULL
	};
	const char *const values[] = {
		getenv("PGTARGETSESSIONATTRS") ? NULL : "read-write", timeout, "30", "10",
		"3", options->host, options->port, options->user, options->dbname, "lease_run",
		address->host, address->address, address->port, value, NULL
	};
	PGconn	   *pg = begin(keywords, values, true);

	if (pg == NULL)
		leave(EXIT_NO_PROCESS);
	return pg;
}

static const char *
setting(const PQconninfoOption *all, const char *keyword)
{
	for (; all != NULL && all->keyword != NULL; all++)
	{
		if (strcmp(all->keyword, keyword) == 0 && all->val && all->val[0])
			return all->val;
	}
	return NULL;
}

/*
 * The hosts on the command line, in the environment and in a service file, as libpq finds them. It
 * only tells those of a connection, so one is made with a setting that it refuses at first.
 */
static Outcome
find_hosts(Connection *connection, Time until, StopWaiting stop)
{
	const Address none = {.silent = 0};
	PGconn	   *pg = begin_connection(connection, &none, "0", "sslmode", "none of them",
									  PQconnectStartParams);
	PQconninfoOption *all = PQconninfo(pg);
	Outcome		outcome = hosts_find(&connection->hosts, setting(all, "host"),
									 setting(all, "hostaddr"), setting(all, "port"), until, stop);

	PQconninfoFree(all);
	PQfinish(pg);
	return outcome;
}

/*
 * libpq gives no SQLSTATE for a connection that failed, but shows it in the message ("FATAL:
 * 28000: ..."). Take it out of there, with the line that names the place in the server's source.
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
		if (strspn(code + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 &&
			strncmp(code + 8, ": ", 2) == 0)
		{
			strlcpy(sqlstate, code + 3, 6);
			memmove(code + 3, code + 10, strlen(code + 10) + 1);
			return;
		}
	}
}

/*
 * A connection could not be made. Without a SQLSTATE, and without the address in the message, the
 * options are wrong.
 */
static void
has_not_connected(Connection *connection)
{
	const Address *current = &connection->current;
	const char *shown = current->address[0] ? current->address
		: current->host[0] ? current->host : ".s.PGSQL.";
	char	   *message = pg_strdup(PQerrorMessage(connection->pg));
	char		sqlstate[6];
	ErrorAction action;

	take_sqlstate(message, sqlstate);
	action = action_after(sqlstate[0] ? sqlstate
						  : strstr(message, shown) ? "not connected" : "any other");
	if (action == ERROR_UNKNOWN)
		action = action_after("not connected");
	if (PQconnectionNeedsPassword(connection->pg))
		action = action_after("any other");
	connection_note_error(connection, message, sqlstate, action);
	free(message);
}

/* Connect to the current address. */
static Outcome
connect_to_address(Connection *connection, Time until, StopWaiting stop)
{
	PostgresPollingStatusType next = PGRES_POLLING_WRITING;
	Outcome		outcome = DONE;
	char		timeout[32];

	snprintf(timeout, sizeof(timeout), "%lld", (long long) Max(until - clock_now(), SECOND) / 1000);
	connection->pg = begin_connection(connection, &connection->current, timeout, NULL, NULL,
									  PQconnectStartParams);
	PQsetErrorVerbosity(connection->pg, PQERRORS_VERBOSE);
	if (PQstatus(connection->pg) == CONNECTION_BAD)
		next = PGRES_POLLING_FAILED;
	while (next != PGRES_POLLING_OK && next != PGRES_POLLING_FAILED && outcome == DONE)
	{
		outcome = wait_for_one(PQsocket(connection->pg),
							   next == PGRES_POLLING_READING ? POLLIN : POLLOUT, until, stop);
		if (outcome == DONE)
			next = PQconnectPoll(connection->pg);
	}
	if (outcome == INTERRUPTED || next == PGRES_POLLING_OK)
		return outcome;
	if (outcome == DONE)
		has_not_connected(connection);
	else
	{
		host_is_silent(connection);
		connection->action = action_after("not connected");
	}
	connection_close(connection);
	return TOO_LATE;
}

/*
 * Connect to one host after the other; one that is silent gets "patience", or half of it if there
 * are more. If none works, the error is that of all. If one can be tried again, all can.
 */
static Outcome
try_hosts(Connection *connection, Time until, Time patience, StopWaiting stop)
{
	const Hosts *hosts = &connection->hosts;
	bool		again = hosts->error[0] != '\0';
	Outcome		outcome = TOO_LATE;
	StringInfoData errors;

	initStringInfo(&errors);
	appendStringInfoString(&errors, hosts->error);
	for (int i = 0; i < hosts->n && outcome == TOO_LATE && clock_now() < until; i++)
	{
		Time		share = (until - clock_now()) / (hosts->n - i);

		connection->current = hosts->list[i];
		share = Min(share, hosts->n > 1 ? patience / 2 : patience);
		outcome = connect_to_address(connection, clock_now() + share, stop);
		if (outcome != TOO_LATE)
			continue;
		again |= connection->action == ERROR_AGAIN;
		appendStringInfo(&errors, "%s%s", errors.len > 0 ? "; " : "", connection->error);
	}
	if (outcome == TOO_LATE)
	{
		if (again || errors.len == 0)
			connection->action = action_after("not connected");
		free(connection->error);
		connection->error = message_line(errors.len > 0 ? errors.data
										 : "there is no time left to connect");
	}
	free(errors.data);
	return outcome;
}

/* Connect by that time. If that does not work, connection->error says why. */
Outcome
connection_open(Connection *connection, Time until, Time patience, StopWaiting stop)
{
	/* The addresses of the last time are good enough if the name server is slow. */
	Time		share = connection->hosts.n > 0 ? patience / 4 : patience;
	Outcome		outcome;

	connection_close(connection);
	connection->sqlstate[0] = '\0';
	outcome = find_hosts(connection, Min(until, clock_now() + share), stop);
	if (outcome != INTERRUPTED)
		outcome = try_hosts(connection, until, patience, stop);
	if (outcome == DONE)
	{
		PQsetErrorVerbosity(connection->pg, PQERRORS_DEFAULT);
		PQsetnonblocking(connection->pg, 1);
		PQsetNoticeReceiver(connection->pg, receive_notice, connection);
		connection->is_open = true;
		lease_step("connected to server %s, port %s, process %d", PQhost(connection->pg),
				   PQport(connection->pg), PQbackendPID(connection->pg));
	}
	else if (outcome == TOO_LATE)
		lease_step("not connected: %s", connection->error);
	return outcome;
}

static bool
has_failed(Connection *connection)
{
	connection_note_error(connection, PQerrorMessage(connection->pg), "",
						  action_after("no answer"));
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

/* Send a statement, and await its answer. */
Outcome
connection_ask(Connection *connection, const char *sql, int nparams, const char *const *params,
			   Time until, StopWaiting stop)
{
	connection->not_replicated = false;
	if (PQsendQueryParams(connection->pg, sql, nparams, NULL, params, NULL, NULL, 0))
		return connection_answer(connection, until, stop);
	has_failed(connection);
	connection_close(connection);
	return TOO_LATE;
}

/* Body of the process that sees whether a server is there: an error is an answer, too. */
static void
knock(void *arg, int fd)
{
	const Connection *connection = arg;

	PQfinish(begin_connection(connection, &connection->current, "0", "target_session_attrs", "any",
							  PQconnectdbParams));
}

/* Wait for the socket; meanwhile see from time to time whether the server is there. */
static Outcome
wait_for_server(Connection *connection, short events, Time until, StopWaiting stop)
{
	Helper		helper = {.pid = 0, .fd = -1};
	Outcome		outcome = TOO_LATE;

	for (;;)
	{
		struct pollfd fds[2] = {
			{.fd = PQsocket(connection->pg), .events = events},
			{.fd = helper.fd, .events = POLLIN}
		};
		Time		next = until;

		if (connection->heartbeat > 0)
			next = Min(until, clock_now() + (helper.pid > 0 ? PATIENCE : connection->heartbeat));
		outcome = wait_for(fds, lengthof(fds), next, stop);
		if (outcome == INTERRUPTED || fds[0].revents != 0)
			break;
		if (outcome == DONE)
			helper_end(&helper);	/* it has ended: the server is there */
		else if (helper.pid > 0 || clock_now() >= until)
			break;
		else
			helper = helper_start(knock, connection);
	}
	helper_end(&helper);
	return outcome;
}

static const char *
sqlstate_of(const PGresult *result)
{
	return result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
}

/*
 * Read all results of a statement, and keep the one that counts: the first that has a SQLSTATE,
 * which says more than the end of the connection behind it, or the last. False: more are to come.
 */
static bool
read_results(Connection *connection)
{
	while (!PQisBusy(connection->pg))
	{
		PGresult   *next = PQgetResult(connection->pg);

		if (next == NULL)
			return true;
		if (sqlstate_of(connection->rows) != NULL)
			PQclear(next);
		else
		{
			PQclear(connection->rows);
			connection->rows = next;
		}
	}
	return false;
}

/* Does the answer consist of rows? If not, note the error. */
static Outcome
judge_answer(Connection *connection)
{
	const char *sqlstate = sqlstate_of(connection->rows);

	if (PQresultStatus(connection->rows) == PGRES_TUPLES_OK)
		return DONE;
	connection_note_error(connection, PQresultErrorMessage(connection->rows),
						  sqlstate ? sqlstate : "",
						  action_after(sqlstate ? sqlstate : "no answer"));
	return TOO_LATE;
}

/*
 * Await the answer to the statement that was sent. TOO_LATE: there was an error; or the connection
 * was lost, or was silent until then, and is closed now. INTERRUPTED: it stays busy.
 */
Outcome
connection_answer(Connection *connection, Time until, StopWaiting stop)
{
	short		events;
	bool		is_lost = !exchange(connection, &events);

	PQclear(connection->rows);
	connection->rows = NULL;
	while (!is_lost)
	{
		Outcome		outcome;

		if (read_results(connection))
			return judge_answer(connection);
		outcome = wait_for_server(connection, events, until, stop);
		if (outcome == INTERRUPTED)
			return outcome;
		if (outcome == TOO_LATE)
			host_is_silent(connection);
		is_lost = outcome == TOO_LATE || !exchange(connection, &events);
	}
	/* What came before the end of the connection, such as "terminating connection". */
	if (PQstatus(connection->pg) == CONNECTION_BAD)
		(void) read_results(connection);
	if (sqlstate_of(connection->rows) != NULL)
		(void) judge_answer(connection);
	connection_close(connection);
	return TOO_LATE;
}

/* Is the first column of the answer true? */
bool
connection_says_yes(const Connection *connection)
{
	return PQntuples(connection->rows) > 0 && PQgetvalue(connection->rows, 0, 0)[0] == 't';
}

/* Is a statement without an answer yet? */
bool
connection_is_busy(Connection *connection)
{
	return connection->is_open && PQtransactionStatus(connection->pg) == PQTRANS_ACTIVE;
}

/* Wait on an idle connection. Returns DONE if it was lost, and closes it. */
Outcome
connection_watch(Connection *connection, Time until, StopWaiting stop)
{
	for (;;)
	{
		Outcome		outcome = wait_for_one(PQsocket(connection->pg), POLLIN, until, stop);

		if (outcome != DONE)
			return outcome;
		if (!PQconsumeInput(connection->pg))
		{
			has_failed(connection);
			connection_close(connection);
			return DONE;
		}
		(void) PQisBusy(connection->pg);	/* shows notices */
	}
}

/* Body of the process that asks the server to cancel a statement. */
static void
cancel(void *arg, int fd)
{
	char		error[256];

	PQcancel(arg, error, sizeof(error));
}

/* Ask the server to cancel the statement, in a process of its own, since PQcancel() waits. */
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
