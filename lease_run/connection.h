/*-------------------------------------------------------------------------
 *
 * connection.h
 *		The connection to the server, without a call that waits for it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef CONNECTION_H
#define CONNECTION_H

#include "hosts.h"
#include "libpq-fe.h"
#include "options.h"

/* What to do after an error. */
typedef enum ErrorAction
{
	ERROR_AGAIN,				/* nothing was done */
	ERROR_NOT_AGAIN,
	ERROR_UNKNOWN				/* what was asked for may have been done */
} ErrorAction;

typedef struct Connection
{
	const Options *options;
	PGconn	   *pg;				/* NULL: none */
	bool		is_open;
	char	   *password;		/* from a prompt */
	bool		needs_password;
	Hosts		hosts;
	Address		current;		/* of the list of hosts */
	/* The last error, or those of all hosts, on one line; and what to do. */
	char	   *error;
	char		sqlstate[6];	/* empty: none */
	ErrorAction action;
	bool		not_replicated; /* the last commit did not wait for a standby, as it should */
	/* While a statement waits: is the server still there? */
	Time		heartbeat;		/* how often to ask; 0: never */
	Time		heartbeat_patience;
} Connection;

extern WaitResult connection_open(Connection *connection, Time until, Time patience, StopWaiting stop);
extern PGresult *connection_ask(Connection *connection, const char *sql, int nparams,
								const char *const *params, Time until, StopWaiting stop);
extern PGresult *connection_answer(Connection *connection, Time until, StopWaiting stop);
extern bool connection_has_rows(Connection *connection, PGresult *result);
extern WaitResult connection_watch(Connection *connection, Time until, StopWaiting stop);
extern bool connection_is_busy(Connection *connection);
extern void connection_cancel(Connection *connection);
extern void connection_close(Connection *connection);

#endif							/* CONNECTION_H */
