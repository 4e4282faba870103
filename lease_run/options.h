/*-------------------------------------------------------------------------
 *
 * options.h
 *		The command line of lease_run, its exit statuses and its messages.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "common/logging.h"
#include "signals.h"
#include "wait.h"

/* Exit statuses besides those of the command; the numbers are those of sysexits.h. */
#define EXIT_USAGE			64
#define EXIT_NO_SERVER		69
#define EXIT_NO_PROCESS		71
#define EXIT_LEASE_LOST		75

typedef enum PasswordPrompt
{
	PROMPT_IF_NEEDED,
	PROMPT_NEVER,
	PROMPT_ALWAYS
} PasswordPrompt;

typedef struct Options
{
	const char *resource;
	const char *owner;
	bool		owner_is_unique;	/* nobody else has this name */
	char	  **command;
	Time		ttl;
	Time		wait;			/* 0: do not wait; TIME_FOREVER: no limit */
	Time		server_wait;	/* how long the server may be away before the command */
	const char *mode;
	const char *permits;		/* NULL unless the mode is "permit" */
	Time		min_hold;		/* -1: none */
	bool		retry_failed;	/* if the command fails, min_hold does not count */
	const char *payload;		/* NULL: none */
	int			conflict_exit_code;
	int			signo;
	Time		kill_after;
	Time		spare;			/* how long before the end of the lease SIGKILL is sent */
	bool		allow_daemons;	/* processes in sessions of their own may stay */
	/* connection */
	const char *schema;			/* of the functions, if there is no extension; NULL: none given */
	const char *dbname;
	const char *host;
	const char *port;
	const char *user;
	PasswordPrompt prompt;
} Options;

extern Options options_parse(int argc, char **argv);

/*
 * Messages about the lease, on standard error. Many jobs write to one log: each message names
 * the resource.
 */
#define lease_error(format, ...) \
	pg_log_error("lease on \"%s\": " format, message_resource(), ##__VA_ARGS__)
#define lease_warning(format, ...) \
	pg_log_warning("lease on \"%s\": " format, message_resource(), ##__VA_ARGS__)

/* With --verbose: each step, and when it happened. */
#define lease_step(format, ...) \
	pg_log_info("lease on \"%s\": %.3f s: " format, message_resource(), message_seconds(), ##__VA_ARGS__)

extern void message_about(const char *resource);
extern const char *message_resource(void);
extern double message_seconds(void);
extern char *message_name(const char *name);
extern char *message_line(const char *message);
pg_noreturn extern void leave(int status);
extern void leave_if_a_library_exits(void);

#endif							/* OPTIONS_H */
