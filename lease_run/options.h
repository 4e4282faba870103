/*-------------------------------------------------------------------------
 *
 * options.h
 *		The command line of lease_run.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "clock.h"

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
	const char *mode;
	const char *permits;		/* NULL unless the mode is "permit" */
	Time		min_hold;		/* -1: none */
	const char *payload;		/* NULL: none */
	int			conflict_exit_code;
	int			signo;
	Time		kill_after;
	Time		spare;			/* how long before the end of the lease SIGKILL is sent */
	/* connection */
	const char *dbname;
	const char *host;
	const char *port;
	const char *user;
	PasswordPrompt prompt;
} Options;

extern Options options_parse(int argc, char **argv);

#endif							/* OPTIONS_H */
