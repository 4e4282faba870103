/*-------------------------------------------------------------------------
 *
 * postgres.c
 *		Leases, advisory locks and row locks, by libpq and prepared statements.
 *
 * Where the server is, and settings of the session, come from the environment
 * (PGHOST, PGDATABASE, PGOPTIONS).
 *
 *-------------------------------------------------------------------------
 */
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "service.h"

typedef struct Connection
{
	PGconn	   *conn;
	char		owner[NAME_LENGTH];
} Connection;

static const struct
{
	const char *name;
	const char *sql;
}			statements[] = {
	{"noop", "SELECT 1"},
	{"acquire", "SELECT lease_acquire($1, '1 minute', $2)"},
	{"wait", "SELECT lease_acquire($1, '1 minute', $2, '1 minute')"},
	{"release", "SELECT lease_release($1, $2)"},
	{"acquire_each", "SELECT bool_and(lease_acquire(r, '1 minute', $2)) FROM unnest($1::text[]) AS r"},
	{"acquire_all", "SELECT lease_acquire_all($1::text[], '1 minute', $2)"},
	{"renew_several", "SELECT lease_renew_several($1::text[], '1 minute', $2)"},
	{"release_each", "SELECT bool_and(lease_release(r, $2)) FROM unnest($1::text[]) AS r"},
	{"advisory_try", "SELECT pg_try_advisory_lock(hashtextextended($1, 0))"},
	{"advisory_wait", "SELECT pg_advisory_lock(hashtextextended($1, 0)) IS NOT NULL"},
	{"advisory_release", "SELECT pg_advisory_unlock(hashtextextended($1, 0))"},
	{"row_try", "SELECT true FROM bench_row WHERE resource = $1 FOR UPDATE SKIP LOCKED"},
	{"row_wait", "SELECT true FROM bench_row WHERE resource = $1 FOR UPDATE"},
};

static PGresult *
check(Connection *self, PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		fail("%s", PQerrorMessage(self->conn));
	return result;
}

static void
execute(Connection *self, const char *sql)
{
	PQclear(check(self, PQexec(self->conn, sql)));
}

static void *
pg_open(int client)
{
	Connection *self = calloc(1, sizeof(Connection));

	self->conn = PQconnectdb("");
	if (PQstatus(self->conn) != CONNECTION_OK)
		fail("%s", PQerrorMessage(self->conn));
	snprintf(self->owner, NAME_LENGTH, "client-%d", client);
	for (size_t i = 0; i < sizeof(statements) / sizeof(statements[0]); i++)
		PQclear(check(self, PQprepare(self->conn, statements[i].name, statements[i].sql, 0, NULL)));
	return self;
}

static void
pg_close(void *conn)
{
	PQfinish(((Connection *) conn)->conn);
	free(conn);
}

/* Run a prepared statement with one or two parameters; did it return true? */
static bool
answers_true(Connection *self, const char *statement, const char *resource, bool with_owner)
{
	const char *values[] = {resource, self->owner};
	PGresult   *result = check(self, PQexecPrepared(self->conn, statement, with_owner ? 2 : 1, values, NULL, NULL, 0));
	bool		answer = PQntuples(result) == 1 && strcmp(PQgetvalue(result, 0, 0), "t") == 0;

	PQclear(result);
	return answer;
}

static void
must(bool answer, const char *what)
{
	if (!answer)
		fail("%s was refused", what);
}

static void
pg_noop(void *conn)
{
	Connection *self = conn;

	PQclear(check(self, PQexecPrepared(self->conn, "noop", 0, NULL, NULL, NULL, 0)));
}

static bool
lease_try(void *conn, const char *resource)
{
	return answers_true(conn, "acquire", resource, true);
}

static void
lease_wait(void *conn, const char *resource)
{
	must(answers_true(conn, "wait", resource, true), "a wait");
}

static void
lease_release(void *conn, const char *resource)
{
	must(answers_true(conn, "release", resource, true), "a release");
}

static void
on_batch(Connection *self, const char *statement, char (*resources)[NAME_LENGTH])
{
	char		array[BATCH * (NAME_LENGTH + 1) + 2];
	char	   *end = array;

	for (int i = 0; i < BATCH; i++)
		end += sprintf(end, "%c%s", i == 0 ? '{' : ',', resources[i]);
	strcpy(end, "}");
	must(answers_true(self, statement, array, true), statement);
}

static void
acquire_each(void *conn, char (*resources)[NAME_LENGTH])
{
	on_batch(conn, "acquire_each", resources);
}

static void
acquire_all(void *conn, char (*resources)[NAME_LENGTH])
{
	on_batch(conn, "acquire_all", resources);
}

static void
renew_several(void *conn, char (*resources)[NAME_LENGTH])
{
	on_batch(conn, "renew_several", resources);
}

static void
release_each(void *conn, char (*resources)[NAME_LENGTH])
{
	on_batch(conn, "release_each", resources);
}

static bool
advisory_try(void *conn, const char *resource)
{
	return answers_true(conn, "advisory_try", resource, false);
}

static void
advisory_wait(void *conn, const char *resource)
{
	must(answers_true(conn, "advisory_wait", resource, false), "a wait");
}

static void
advisory_release(void *conn, const char *resource)
{
	must(answers_true(conn, "advisory_release", resource, false), "a release");
}

/* The row stays locked until the transaction ends. A refusal ends it at once. */
static bool
row_try(void *conn, const char *resource)
{
	execute(conn, "BEGIN");
	if (answers_true(conn, "row_try", resource, false))
		return true;
	execute(conn, "COMMIT");
	return false;
}

static void
row_wait(void *conn, const char *resource)
{
	execute(conn, "BEGIN");
	must(answers_true(conn, "row_wait", resource, false), "a wait");
}

static void
row_release(void *conn, const char *resource)
{
	(void) resource;
	execute(conn, "COMMIT");
}

const Service postgres_lease = {
	"lease", pg_open, pg_close, pg_noop, lease_try, lease_wait, lease_release, acquire_each, renew_several, release_each
};

const Service postgres_lease_all = {
	"lease_all", pg_open, pg_close, pg_noop, lease_try, lease_wait, lease_release, acquire_all, renew_several, release_each
};

const Service postgres_advisory = {
	.name = "advisory", .open = pg_open, .close = pg_close, .noop = pg_noop,
	.acquire = advisory_try, .wait = advisory_wait, .release = advisory_release
};

const Service postgres_row = {
	.name = "row", .open = pg_open, .close = pg_close, .noop = pg_noop,
	.acquire = row_try, .wait = row_wait, .release = row_release
};
