/*-------------------------------------------------------------------------
 *
 * connection.c
 *		The connection to the server, without a call that waits for it.
 *
 * Each step has a time by which it must be done. A connection that is silent
 * until then is closed, and the caller opens another one. Of several hosts,
 * libpq tries the next one only when one has refused; if one is silent, the
 * list is turned, so that the next attempt begins with the next host.
 *
 * libpq may still wait for a name server in connection_open(). Nothing of the promise
 * depends on it: the keeper watches the time, and signals go to the command from
 * the handler.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <signal.h>
#include <unistd.h>

#include "connection.h"
#include "message.h"
#include "signals.h"

#define MAX_PARAMS	16

static const char *const host_keywords[] = {"host", "hostaddr", "port"};

static void
remember_error(Connection *connection, const char *error)
{
	free(connection->error);
	connection->error = message_line(error);
}

/*
 * A notice of the server is a step, too.
 */
static void
show_notice(void *arg, const char *message)
{
	char	   *line = message_line(message);

	lease_step("%s", line);
	free(line);
}

/*
 * A list "a,b,c" that begins with the element of this number. Allocated.
 */
static char *
turn_list(const char *list, int first)
{
	const char *rest = list;

	for (int i = 0; i < first && rest != NULL; i++)
		rest = (rest = strchr(rest, ',')) ? rest + 1 : NULL;
	if (rest == NULL || rest == list)
		return pg_strdup(list);
	return psprintf("%s,%.*s", rest, (int) (rest - list - 1), list);
}

static int
list_length(const char *list)
{
	int			length = 1;

	for (; *list != '\0'; list++)
		length += *list == ',';
	return length;
}

/*
 * What libpq found on the command line, in the environment and in a service file.
 */
static void
remember_hosts(Connection *connection)
{
	PQconninfoOption *all = PQconninfo(connection->pg);

	for (PQconninfoOption *option = all; option != NULL && option->keyword != NULL; option++)
	{
		for (int i = 0; i < (int) lengthof(host_keywords); i++)
		{
			if (strcmp(option->keyword, host_keywords[i]) == 0 && option->val && option->val[0])
				connection->hosts[i] = pg_strdup(option->val);
		}
	}
	PQconninfoFree(all);
}

/*
 * How many hosts there are.
 */
static int
number_of_hosts(Connection *connection)
{
	const char *hosts = connection->hosts[1] ? connection->hosts[1] : connection->hosts[0];

	return hosts ? list_length(hosts) : 1;
}

/*
 * Begin with the next one the next time.
 */
static void
host_is_silent(Connection *connection)
{
	remember_error(connection, "the server does not answer");
	connection->first_host = (connection->first_host + 1) % number_of_hosts(connection);
}

/*
 * Begin to connect. As in other client programs, a connection string overrides what comes
 * before it; here, these are also our own defaults.
 */
static void
start_to_connect(Connection *connection, Time patience)
{
	const Options *options = connection->options;
	const char *keywords[MAX_PARAMS + 1];
	const char *values[MAX_PARAMS + 1];
	char	   *timeout = psprintf("%lld", (long long) patience / 1000);
	int			n = 0;

#define ADD(keyword, value) \
	(keywords[n] = (keyword), values[n++] = (value))

	if (getenv("PGTARGETSESSIONATTRS") == NULL)
		ADD("target_session_attrs", "read-write");
	ADD("tcp_user_timeout", timeout);
	ADD("keepalives_idle", "30");
	ADD("keepalives_interval", "10");
	ADD("keepalives_count", "3");
	ADD("host", options->host);
	ADD("port", options->port);
	ADD("user", options->user);
	ADD("password", connection->password);
	ADD("dbname", options->dbname);
	ADD("fallback_application_name", "lease_run");
	for (int i = 0; connection->first_host > 0 && i < (int) lengthof(host_keywords); i++)
	{
		/* A single port is that of all hosts. */
		if (connection->hosts[i] != NULL)
			ADD(host_keywords[i], turn_list(connection->hosts[i], connection->first_host));
	}
	ADD(NULL, NULL);
	Assert(n <= MAX_PARAMS + 1);

	connection->pg = PQconnectStartParams(keywords, values, true);
	if (connection->pg == NULL)
		lease_fatal(EXIT_NO_SERVER, "out of memory");
	free(timeout);
}

/*
 * Connect. Returns WAIT_READY if that worked; otherwise connection->error says why not, and
 * connection->pg keeps what connection_needs_password() wants to know.
 */
WaitResult
connection_open(Connection *connection, Time patience, WaitUntil useful)
{
	PostgresPollingStatusType next = PGRES_POLLING_WRITING;
	Time		until = clock_now() + patience;
	WaitResult	result = WAIT_READY;

	connection_close(connection);
	start_to_connect(connection, patience);
	if (connection->hosts[0] == NULL && connection->hosts[1] == NULL)
		remember_hosts(connection);
	if (PQstatus(connection->pg) == CONNECTION_BAD)
		next = PGRES_POLLING_FAILED;

	while (next != PGRES_POLLING_OK && next != PGRES_POLLING_FAILED && result == WAIT_READY)
	{
		result = wait_for(PQsocket(connection->pg), next == PGRES_POLLING_READING ? POLLIN : POLLOUT,
						  until, useful);
		if (result == WAIT_READY)
			next = PQconnectPoll(connection->pg);
	}

	if (next == PGRES_POLLING_OK)
	{
		PQsetnonblocking(connection->pg, 1);
		PQsetNoticeProcessor(connection->pg, show_notice, NULL);
		connection->is_open = true;
		return WAIT_READY;
	}
	if (next == PGRES_POLLING_FAILED)
		remember_error(connection, PQerrorMessage(connection->pg));
	else if (result == WAIT_TIME_OVER)
		host_is_silent(connection);
	return result == WAIT_INTERRUPTED ? WAIT_INTERRUPTED : WAIT_TIME_OVER;
}

/*
 * After a host was silent: is there another one that was not tried yet?
 */
bool
connection_next_host(Connection *connection)
{
	return connection->first_host != 0;
}

bool
connection_needs_password(Connection *connection)
{
	return connection->pg != NULL && PQconnectionNeedsPassword(connection->pg);
}

static bool
has_failed(Connection *connection)
{
	remember_error(connection, PQerrorMessage(connection->pg));
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
			   Time until, WaitUntil useful)
{
	if (!PQsendQueryParams(connection->pg, sql, nparams, NULL, params, NULL, NULL, 0))
	{
		has_failed(connection);
		connection_close(connection);
		return NULL;
	}
	return connection_answer(connection, until, useful);
}

/*
 * The result of the statement that was sent. NULL if there is none: the
 * connection was lost, or was silent until then, and is closed now; or the
 * answer is of no use any more, and the connection stays busy.
 */
PGresult *
connection_answer(Connection *connection, Time until, WaitUntil useful)
{
	PGresult   *last = NULL;
	short		events;

	if (!exchange(connection, &events))
	{
		connection_close(connection);
		return NULL;
	}
	for (;;)
	{
		WaitResult	result;
		PGresult   *next;

		while (!PQisBusy(connection->pg))
		{
			next = PQgetResult(connection->pg);
			if (next == NULL)
				return last;
			PQclear(last);
			last = next;
		}
		result = wait_for(PQsocket(connection->pg), events, until, useful);
		if (result == WAIT_READY && exchange(connection, &events))
			continue;
		if (result == WAIT_TIME_OVER)
			host_is_silent(connection);
		PQclear(last);
		if (result != WAIT_INTERRUPTED)
			connection_close(connection);
		return NULL;
	}
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
connection_watch(Connection *connection, Time until, WaitUntil useful)
{
	for (;;)
	{
		WaitResult	result = wait_for(PQsocket(connection->pg), POLLIN, until, useful);

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
 * Ask the server to cancel the statement, in a process of its own, since
 * PQcancel() waits. Whoever reaps children reaps that one.
 */
void
connection_cancel(Connection *connection)
{
	PGcancel   *cancel = PQgetCancel(connection->pg);
	sigset_t	mask;

	(void) fflush(NULL);
	signals_block(&mask);
	if (cancel != NULL && fork() == 0)
	{
		char		error[256];

		signals_reset_in_child(&mask);
		alarm(5);
		PQcancel(cancel, error, sizeof(error));
		_exit(0);
	}
	signals_restore(&mask);
	PQfreeCancel(cancel);
}

void
connection_close(Connection *connection)
{
	PQfinish(connection->pg);
	connection->pg = NULL;
	connection->is_open = false;
}
