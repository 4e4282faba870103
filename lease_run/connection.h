/*-------------------------------------------------------------------------
 *
 * connection.h
 *		The connection to the server, without a call that waits for it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef CONNECTION_H
#define CONNECTION_H

#include "libpq-fe.h"
#include "options.h"
#include "wait.h"

typedef struct Connection
{
	const Options *options;
	PGconn	   *pg;				/* NULL: none */
	char	   *password;		/* from a prompt */
	char	   *error;			/* of the last attempt or statement, on one line */
	bool		is_open;
	/* Host names, addresses and ports as given; which one of them comes first. */
	char	   *hosts[3];
	int			first_host;
} Connection;

extern WaitResult connection_open(Connection *connection, Time patience, WaitUntil useful);
extern bool connection_next_host(Connection *connection);
extern bool connection_needs_password(Connection *connection);
extern PGresult *connection_ask(Connection *connection, const char *sql, int nparams,
								const char *const *params, Time until, WaitUntil useful);
extern PGresult *connection_answer(Connection *connection, Time until, WaitUntil useful);
extern WaitResult connection_watch(Connection *connection, Time until, WaitUntil useful);
extern bool connection_is_busy(Connection *connection);
extern void connection_cancel(Connection *connection);
extern void connection_close(Connection *connection);

#endif							/* CONNECTION_H */
