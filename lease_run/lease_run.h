/*-------------------------------------------------------------------------
 *
 * lease_run.h
 *		Runs a command while it holds a lease: what the files offer each other, the lowest first.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_RUN_H
#define LEASE_RUN_H

#include "postgres_fe.h"

#include <poll.h>
#include <signal.h>
#include <sys/types.h>

#include "common/logging.h"
#include "libpq-fe.h"

/* Before 18, it has another name. */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

/* Exit statuses besides those of the command; the numbers are those of sysexits.h. */
#define EXIT_USAGE			64
#define EXIT_NO_SERVER		69
#define EXIT_NO_PROCESS		71
#define EXIT_LEASE_LOST		75

typedef int64 Time;				/* a point of time, or a length of time, in microseconds */

#define SECOND			INT64_C(1000000)
#define TIME_FOREVER	INT64_MAX

/* How something went that can take time. */
typedef enum Outcome
{
	DONE,						/* ready, connected, answered, granted, renewed or released */
	REFUSED,					/* taken, or lost */
	TOO_LATE,					/* the time is over, no server, or an error */
	INTERRUPTED					/* by a signal, or since the command has ended */
} Outcome;

/* Handles what has happened meanwhile. Is the caller's work of no use any more? */
typedef bool (*StopWaiting) (void);

/* wait.c: time that nobody can set, and the only place where lease_run sleeps */
extern bool wait_open(void);
extern Time clock_now(void);
extern Time clock_after(Time from, Time length);
extern double clock_seconds(Time length);
extern void wait_wake(void);
extern void wait_look_also(int fd, Time at);
extern Outcome wait_for(struct pollfd *fds, int nfds, Time until, StopWaiting stop);
extern Outcome wait_for_one(int fd, short events, Time until, StopWaiting stop);
extern Outcome wait_until(Time until, StopWaiting stop);

/* signals.c: signals that lease_run gets, and whom they are for */
extern void signals_install(void);
extern void signals_do_not_exit(void);
extern int	signals_caught(void);
extern bool signals_stop(void);
extern bool signals_received(int signo);
extern bool signals_is_ending(int signo);
pg_noreturn extern void signals_die_of(int signo);
extern void signals_forward_by(void (*forward) (int signo));
extern bool signals_stop_self(int signo);
extern pid_t signals_fork(void);
extern void signals_of_watchdog(void);
extern void signals_as_found(void);

/* options.c: the command line, and messages */
typedef struct Options
{
	const char *resource;
	const char *owner;
	char	  **command;
	/* the lease */
	Time		ttl;
	Time		wait;			/* 0: do not wait; TIME_FOREVER: no limit */
	Time		server_wait;	/* how long the server may be away before the command */
	const char *permits;		/* NULL: it is not one of them */
	const char *mode;
	Time		min_hold;		/* -1: none */
	const char *payload;		/* NULL: none */
	const char *conflict;		/* the exit status, as a text */
	/* the command */
	const char *signal;
	Time		kill_after;
	Time		spare;			/* how long before the end of the lease SIGKILL is sent */
	/* connection */
	const char *schema;			/* of the functions, without the extension; NULL: none given */
	const char *dbname;
	const char *host;
	const char *port;
	const char *user;
	/* what the texts say, and flags */
	int			conflict_exit_code;
	int			signo;
	bool		owner_is_unique;	/* nobody else has this name */
	bool		no_wait;
	bool		shared;
	bool		retry_failed;	/* if the command fails, min_hold does not count */
	bool		allow_daemons;	/* processes in sessions of their own may stay */
	bool		quiet;
	bool		verbose;
	bool		show_help;
	bool		show_version;
} Options;

extern Options options_parse(int argc, char **argv);
extern const char *message_resource(void);
extern double message_seconds(void);
extern char *message_name(const char *name);
extern char *message_line(const char *message);
pg_noreturn extern void leave(int status);
extern void leave_if_a_library_exits(void);

/* Many jobs write to one log: each message names the resource. */
#define lease_error(format, ...) \
	pg_log_error("lease on \"%s\": " format, message_resource(), ##__VA_ARGS__)
#define lease_warning(format, ...) \
	pg_log_warning("lease on \"%s\": " format, message_resource(), ##__VA_ARGS__)

/* With --verbose: each step, and when it happened. */
#define lease_step(format, ...) \
	pg_log_info("lease on \"%s\": %.3f s: " format, message_resource(), message_seconds(), \
				##__VA_ARGS__)

/* descendants.c: the processes that descend from this one */
#ifdef __linux__
#define FINDS_DESCENDANTS	true
#else
#define FINDS_DESCENDANTS	false
#endif

typedef struct Process
{
	pid_t		pid;
	pid_t		parent;
	pid_t		group;
	pid_t		session;
	pid_t		parent_group;	/* 0 if the parent is this process */
} Process;

extern void descendants_adopt(void);
extern Process *descendants_find(bool even_daemons, int *n);
extern bool descendants_kill(pid_t group, bool even_daemons);

/* watchdog.c: the process that runs the command, and ends it in time, whatever happens */
typedef struct EndTimes
{
	Time		signal_at;
	Time		kill_at;
} EndTimes;

/* What lease_run tells the watchdog, and the watchdog lease_run, with what value. */
typedef enum MessageKind
{
	ORDER_TIMES,				/* the lease was renewed, or is lost: when to end the command */
	ORDER_SIGNAL,				/* lease_run got this signal */
	ORDER_GROUP_SIGNAL,			/* send this signal to the process group */
	REPORT_STARTED,				/* pid */
	REPORT_NOT_STARTED,			/* errno */
	REPORT_STOPPED,				/* the signal that stopped the first process */
	REPORT_ENDED,				/* wait status of the first process */
	REPORT_SIGNALLED,			/* ended because of the lease: the signal was sent */
	REPORT_KILLED,				/* and SIGKILL */
	REPORT_ALL_ENDED			/* with all processes that it started */
} MessageKind;

typedef struct Message
{
	MessageKind kind;
	int			value;
	EndTimes	times;
} Message;

extern void message_send(int fd, MessageKind kind, int value, const EndTimes *times);
extern bool message_receive(int *fd, Message *message);
extern pid_t watchdog_start(const Options *options, const EndTimes *times, int *fd);

/* command.c: the command that runs under the lease, as lease_run sees it */
extern bool command_start(const Options *options, const EndTimes *times);
extern void command_set_times(const EndTimes *times);
extern void command_end(const EndTimes *times);
extern bool command_stop_working(void);
extern void command_await_end(void);
extern bool command_was_ended(void);
extern int	command_status(void);

/* hosts.c: the addresses to connect to, in order; processes for calls that wait */
typedef struct Address
{
	char		host[256];		/* an empty text is libpq's default */
	char		address[64];
	char		port[16];
	int			silent;			/* number of the last time when it was silent; 0: never */
} Address;

typedef struct Hosts
{
	Address    *list;
	int			n;
	int			silences;		/* how often one was silent */
	char		error[512];		/* why there is none, or not all */
} Hosts;

typedef struct Helper
{
	pid_t		pid;			/* 0: none */
	int			fd;				/* at its end when the process is */
} Helper;

extern Outcome hosts_find(Hosts *hosts, const char *host, const char *address, const char *port,
						  Time until, StopWaiting stop);
extern void hosts_silent(Hosts *hosts, const Address *address);
extern Helper helper_start(void (*work) (void *arg, int fd), void *arg);
extern void helper_end(Helper *helper);

/* connection.c: the connection to the server, without a call that waits for it */
typedef enum ErrorAction
{
	ERROR_AGAIN,				/* nothing was done */
	ERROR_NOT_AGAIN,
	ERROR_UNKNOWN				/* what was asked for may have been done */
} ErrorAction;

/* How long a server may be silent while nothing is at stake. */
#define PATIENCE	(10 * SECOND)

typedef struct Connection
{
	const Options *options;
	PGconn	   *pg;				/* NULL: none */
	PGresult   *rows;			/* of the last statement; NULL: none */
	bool		is_open;
	Hosts		hosts;
	Address		current;		/* of the list of hosts */
	char	   *error;			/* the last one, or those of all hosts, on one line */
	char		sqlstate[6];	/* of it; empty: none */
	ErrorAction action;			/* what to do after it */
	bool		not_replicated; /* the last commit did not wait for a standby, as it should */
	Time		heartbeat;		/* how often a wait sees whether the server is there; 0: never */
} Connection;

extern void connection_note_error(Connection *connection, const char *error, const char *sqlstate,
								  ErrorAction action);
extern Outcome connection_open(Connection *connection, Time until, Time patience, StopWaiting stop);
extern Outcome connection_ask(Connection *connection, const char *sql, int nparams,
							  const char *const *params, Time until, StopWaiting stop);
extern Outcome connection_answer(Connection *connection, Time until, StopWaiting stop);
extern bool connection_says_yes(const Connection *connection);
extern bool connection_is_busy(Connection *connection);
extern Outcome connection_watch(Connection *connection, Time until, StopWaiting stop);
extern void connection_cancel(Connection *connection);
extern void connection_close(Connection *connection);

/* lease.c: the lease, acquired, renewed, released */
typedef struct Lease
{
	const Options *options;
	Connection	connection;
	char	   *schema;			/* of the functions, quoted; NULL: not known yet */
	bool		schema_is_new;	/* looked up after a function was not found */
	char	   *token;			/* of the last grant; NULL: none, or not known */
	char	   *granted_at;
	bool		is_uncertain;	/* an answer got lost, or a wait ended well: it may be held */
	bool		may_be_own;		/* the same, but the owner may have it elsewhere */
	bool		may_be_open;	/* uncertain, and the last refusal does not exclude it */
	Time		sent;			/* the last statement */
	Time		counts_from;	/* at or before the grant or the last renewal */
	char	   *why_taken;		/* what the last refusal said */
	const char *hint;			/* for an error that ends lease_run; NULL: none */
} Lease;

extern Outcome lease_acquire(Lease *lease);
extern Outcome lease_keep(Lease *lease);
extern Outcome lease_release(Lease *lease, bool at_once);
extern Outcome lease_give_up(Lease *lease);
extern EndTimes lease_end_times(const Lease *lease);
extern Time lease_ends_at(const Lease *lease);

#endif							/* LEASE_RUN_H */
