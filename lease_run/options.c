/*-------------------------------------------------------------------------
 *
 * options.c
 *		The command line of lease_run, its exit statuses and its messages.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <unistd.h>

#include "fe_utils/option_utils.h"
#include "getopt_long.h"
#include "lib/stringinfo.h"
#include "options.h"

#define DEFAULT_TTL	(30 * SECOND)
#define MAX_TIME	(INT64_C(1000000) * 86400 * SECOND)	/* a million days */
#define MIN_SPARE	(SECOND / 2)
#define DEFAULT_SERVER_WAIT	(10 * SECOND)	/* with --no-wait */

static const struct
{
	const char *name;
	Time		length;
}			units[] = {
	{"us", 1},
	{"ms", 1000},
	{"s", SECOND},
	{"min", 60 * SECOND},
	{"h", 3600 * SECOND},
	{"d", 86400 * SECOND}
};

static const struct
{
	const char *name;
	int			signo;
}			signal_names[] = {
	{"TERM", SIGTERM},
	{"INT", SIGINT},
	{"HUP", SIGHUP},
	{"QUIT", SIGQUIT},
	{"KILL", SIGKILL},
	{"USR1", SIGUSR1},
	{"USR2", SIGUSR2},
	{"ALRM", SIGALRM},
	{"ABRT", SIGABRT}
};

enum LongOption
{
	OPTION_WAIT = 1000,
	OPTION_SERVER_WAIT,
	OPTION_PERMITS,
	OPTION_MIN_HOLD,
	OPTION_RETRY_FAILED,
	OPTION_PAYLOAD,
	OPTION_OWNER,
	OPTION_SIGNAL,
	OPTION_KILL_AFTER,
	OPTION_ALLOW_DAEMONS,
	OPTION_SCHEMA,
	OPTION_HELP
};

static const struct option long_options[] = {
	{"ttl", required_argument, NULL, 't'},
	{"no-wait", no_argument, NULL, 'n'},
	{"wait", required_argument, NULL, OPTION_WAIT},
	{"server-wait", required_argument, NULL, OPTION_SERVER_WAIT},
	{"shared", no_argument, NULL, 's'},
	{"permits", required_argument, NULL, OPTION_PERMITS},
	{"min-hold", required_argument, NULL, OPTION_MIN_HOLD},
	{"retry-failed", no_argument, NULL, OPTION_RETRY_FAILED},
	{"payload", required_argument, NULL, OPTION_PAYLOAD},
	{"owner", required_argument, NULL, OPTION_OWNER},
	{"conflict-exit-code", required_argument, NULL, 'E'},
	{"signal", required_argument, NULL, OPTION_SIGNAL},
	{"kill-after", required_argument, NULL, OPTION_KILL_AFTER},
	{"allow-daemons", no_argument, NULL, OPTION_ALLOW_DAEMONS},
	{"quiet", no_argument, NULL, 'q'},
	{"verbose", no_argument, NULL, 'v'},
	{"schema", required_argument, NULL, OPTION_SCHEMA},
	{"dbname", required_argument, NULL, 'd'},
	{"host", required_argument, NULL, 'h'},
	{"port", required_argument, NULL, 'p'},
	{"username", required_argument, NULL, 'U'},
	{"no-password", no_argument, NULL, 'w'},
	{"password", no_argument, NULL, 'W'},
	{"help", no_argument, NULL, OPTION_HELP},
	{"version", no_argument, NULL, 'V'},
	{NULL, 0, NULL, 0}
};

static void
print_help(void)
{
	printf("lease_run runs a command while it holds a lease of the extension lease_lock.\n\n"
		   "Usage:\n"
		   "  lease_run [OPTION]... RESOURCE [--] COMMAND [ARG]...\n"
		   "\nThe lease:\n"
		   "  -t, --ttl=TIME             how long it lasts without a renewal (default 30s)\n"
		   "  -n, --no-wait              give up at once if it is taken\n"
		   "      --wait=TIME            wait at most this long (default: without limit)\n"
		   "      --server-wait=TIME     wait at most this long for a server\n"
		   "                             (default: as --wait; 10s with --no-wait)\n"
		   "  -s, --shared               share it with others who share it\n"
		   "      --permits=N            take one of N permits\n"
		   "      --min-hold=TIME        keep it so long, even if the command ends before\n"
		   "      --retry-failed         give it back at once if the command fails\n"
		   "      --payload=JSON         data to store with it\n"
		   "      --owner=TEXT           who holds it (default HOST:PID:RANDOM)\n"
		   "  -E, --conflict-exit-code=N exit status if it is taken (default 1)\n"
		   "\nThe command:\n"
		   "      --signal=SIGNAL        what it gets if the lease is lost (default TERM)\n"
		   "      --kill-after=TIME      how long after that it gets SIGKILL\n"
		   "                             (default: a tenth of the ttl)\n"
		   "      --allow-daemons        daemons that it starts may stay\n"
		   "\nMessages:\n"
		   "  -q, --quiet                none if the lease is taken; only errors\n"
		   "  -v, --verbose              each step, with times\n"
		   "  -V, --version              print the version, then exit\n"
		   "  -?, --help                 print this help, then exit\n"
		   "\nConnection options:\n"
		   "  -d, --dbname=DBNAME        database name or connection string\n"
		   "  -h, --host=HOSTNAME        database server host or socket directory\n"
		   "  -p, --port=PORT            database server port\n"
		   "  -U, --username=USERNAME    user name to connect as\n"
		   "  -w, --no-password          never prompt for password\n"
		   "  -W, --password             force password prompt\n"
		   "      --schema=NAME          where the functions are, without the extension\n"
		   "\nA TIME has a unit: us, ms, s, min, h or d.\n"
		   "The command sees LEASE_RESOURCE, LEASE_OWNER, LEASE_TOKEN and LEASE_GRANTED_AT.\n"
		   "\nExit status: that of the command; 128 + N if signal N ended it; 1 (see -E) if\n"
		   "the lease is taken; 64 wrong usage, 69 no server, 71 no process or memory left,\n"
		   "75 the lease was lost, 126 and 127 the command cannot be executed or found.\n");
}

pg_noreturn static void
wrong_usage(void)
{
	pg_log_error_hint("Try \"lease_run --help\" for more information.");
	leave(EXIT_USAGE);
}

/*
 * A time as in postgresql.conf, but with a unit: 30s, 1.5min, "1 h".
 */
static Time
parse_time(const char *text, const char *option)
{
	char	   *end;
	double		number;

	errno = 0;
	number = strtod(text, &end);
	while (isspace((unsigned char) *end))
		end++;
	for (int i = 0; i < (int) lengthof(units); i++)
	{
		if (end != text && strcmp(end, units[i].name) == 0 && errno == 0 &&
			number >= 0 && number * units[i].length <= MAX_TIME)
			return (Time) rint(number * units[i].length);
	}
	pg_log_error("invalid value \"%s\" for option %s", text, option);
	pg_log_error_hint("Valid units are \"us\", \"ms\", \"s\", \"min\", \"h\", and \"d\".");
	leave(EXIT_USAGE);
}

static int
parse_signal(const char *text)
{
	const char *name = pg_strncasecmp(text, "SIG", 3) == 0 ? text + 3 : text;
	char	   *end;
	long		number = strtol(text, &end, 10);

	for (int i = 0; i < (int) lengthof(signal_names); i++)
	{
		if (pg_strcasecmp(name, signal_names[i].name) == 0)
			return signal_names[i].signo;
	}
	if (*end != '\0' || number <= 0 || number >= NSIG)
	{
		pg_log_error("invalid value \"%s\" for option %s", text, "--signal");
		wrong_usage();
	}
	return (int) number;
}

static int
parse_number(const char *text, const char *option, int min, int max)
{
	int			number;

	if (!option_parse_int(text, option, min, max, &number))
		leave(EXIT_USAGE);
	return number;
}

/*
 * What it says, lease_run says in no other case.
 */
static int
parse_conflict_exit_code(const char *text)
{
	static const int own[] = {EXIT_USAGE, EXIT_NO_SERVER, EXIT_NO_PROCESS, EXIT_LEASE_LOST, 126, 127};
	int			number = parse_number(text, "-E/--conflict-exit-code", 0, 255);

	for (int i = 0; i < (int) lengthof(own); i++)
	{
		if (number == own[i])
		{
			pg_log_error("the exit status %d for -E/--conflict-exit-code has another meaning", number);
			wrong_usage();
		}
	}
	return number;
}

/*
 * An owner that nobody else has.
 */
static const char *
default_owner(void)
{
	char		host[256] = "localhost";
	uint64		random;

	gethostname(host, sizeof(host) - 1);
	if (getentropy(&random, sizeof(random)) < 0)
	{
		pg_log_error("could not generate a random number: %m");
		leave(EXIT_NO_PROCESS);
	}
	return psprintf("%s:%d:%016llx", host, (int) getpid(), (unsigned long long) random);
}

static void
set_mode(Options *options, const char *mode)
{
	if (strcmp(options->mode, "exclusive") != 0 && strcmp(options->mode, mode) != 0)
	{
		pg_log_error("--shared and --permits cannot be used together");
		wrong_usage();
	}
	options->mode = mode;
}

/* An option that the server's own programs have as well. */
static void
apply_common_option(Options *options, int option, char *value)
{
	switch (option)
	{
		case 'd':
			options->dbname = value;
			break;
		case 'h':
			options->host = value;
			break;
		case 'p':
			options->port = value;
			break;
		case 'U':
			options->user = value;
			break;
		case OPTION_SCHEMA:
			options->schema = value;
			break;
		case 'w':
			options->prompt = PROMPT_NEVER;
			break;
		case 'W':
			options->prompt = PROMPT_ALWAYS;
			break;
		case OPTION_HELP:
			print_help();
			leave(EXIT_SUCCESS);
		case 'V':
			puts("lease_run (lease_lock) " LEASE_RUN_VERSION);
			leave(EXIT_SUCCESS);
		default:
			wrong_usage();		/* getopt_long already emitted a complaint */
	}
}

static void
apply_option(Options *options, int option, char *value)
{
	switch (option)
	{
		case 't':
			options->ttl = parse_time(value, "-t/--ttl");
			break;
		case 'n':
			options->wait = 0;
			break;
		case OPTION_WAIT:
			options->wait = parse_time(value, "--wait");
			break;
		case OPTION_SERVER_WAIT:
			options->server_wait = parse_time(value, "--server-wait");
			break;
		case 's':
			set_mode(options, "shared");
			break;
		case OPTION_PERMITS:
			set_mode(options, "permit");
			options->permits = psprintf("%d", parse_number(value, "--permits", 1, INT_MAX));
			break;
		case OPTION_MIN_HOLD:
			options->min_hold = parse_time(value, "--min-hold");
			break;
		case OPTION_RETRY_FAILED:
			options->retry_failed = true;
			break;
		case OPTION_PAYLOAD:
			options->payload = value;
			break;
		case OPTION_OWNER:
			options->owner = value;
			break;
		case 'E':
			options->conflict_exit_code = parse_conflict_exit_code(value);
			break;
		case OPTION_SIGNAL:
			options->signo = parse_signal(value);
			break;
		case OPTION_KILL_AFTER:
			options->kill_after = parse_time(value, "--kill-after");
			break;
		case OPTION_ALLOW_DAEMONS:
			options->allow_daemons = true;
			break;
		case 'q':
			pg_logging_set_level(PG_LOG_ERROR);
			break;
		case 'v':
			pg_logging_set_level(PG_LOG_INFO);
			break;
		default:
			apply_common_option(options, option, value);
	}
}

/*
 * Half of the ttl must pass before the command gets its signal, so that there is time
 * for a renewal, its answer, and another connection.
 */
static void
check_times(Options *options)
{
	options->spare = Max(options->ttl / 10, MIN_SPARE);
	if (options->kill_after < 0)
		options->kill_after = options->ttl / 10;
	if (options->kill_after + options->spare > options->ttl / 2)
	{
		pg_log_error("a ttl of %g s is too short for a kill-after of %g s",
					 clock_seconds(options->ttl), clock_seconds(options->kill_after));
		pg_log_error_detail("SIGKILL is sent %g s before the end of the lease, and the first signal kill-after before that. "
							"Half of the ttl must have passed until then, so that there is time for renewals.",
							clock_seconds(options->spare));
		wrong_usage();
	}
	if (options->server_wait < 0)
		options->server_wait = options->wait == 0 ? DEFAULT_SERVER_WAIT : TIME_FOREVER;
}

/*
 * Parse the command line; exits if that is not possible, or all that is asked for.
 */
Options
options_parse(int argc, char **argv)
{
	Options		options = {
		.ttl = DEFAULT_TTL, .wait = TIME_FOREVER, .mode = "exclusive", .min_hold = -1,
		.conflict_exit_code = 1, .signo = SIGTERM, .kill_after = -1, .server_wait = -1
	};
	int			option;

	if (argc > 1 && strcmp(argv[1], "-?") == 0)
	{
		print_help();
		leave(EXIT_SUCCESS);
	}
	pg_logging_set_level(PG_LOG_WARNING);
	/* "+": the options of the command are not ours. */
	while ((option = getopt_long(argc, argv, "+t:nsE:qvd:h:p:U:wWV", long_options, NULL)) != -1)
		apply_option(&options, option, optarg);

	if (argc - optind > 1 && strcmp(argv[optind + 1], "--") == 0)
	{
		argv[optind + 1] = argv[optind];
		optind++;
	}
	if (argc - optind < 2)
	{
		pg_log_error(argc == optind ? "no resource and no command specified" : "no command specified");
		wrong_usage();
	}
	options.resource = argv[optind];
	options.command = argv + optind + 1;
	check_times(&options);
	options.owner_is_unique = options.owner == NULL;
	if (options.owner == NULL)
		options.owner = default_owner();
	return options;
}

static const char *shown_resource = "";
static Time started;

/*
 * Name this resource in all messages, and count their times from now.
 */
void
message_about(const char *resource)
{
	shown_resource = message_name(resource);
	started = clock_now();
}

const char *
message_resource(void)
{
	return shown_resource;
}

double
message_seconds(void)
{
	return clock_seconds(clock_now() - started);
}

/*
 * A name on one line, and without bytes that control a terminal. Allocated.
 */
char *
message_name(const char *name)
{
	StringInfoData line;

	initStringInfo(&line);
	for (const char *byte = name; *byte != '\0'; byte++)
	{
		if ((unsigned char) *byte < 0x20 || *byte == 0x7f)
			appendStringInfo(&line, "\\x%02x", (unsigned char) *byte);
		else
			appendStringInfoChar(&line, *byte);
	}
	return line.data;
}

/*
 * A message of libpq or the server on one line. Allocated.
 */
char *
message_line(const char *message)
{
	StringInfoData line;

	initStringInfo(&line);
	for (const char *byte = message; *byte != '\0'; byte++)
	{
		if ((unsigned char) *byte > 0x20)
			appendStringInfoChar(&line, *byte);
		else if (line.len > 0 && line.data[line.len - 1] != ' ')
			appendStringInfoChar(&line, ' ');
	}
	while (line.len > 0 && line.data[line.len - 1] == ' ')
		line.data[--line.len] = '\0';
	return line.data;
}

/*
 * End with this status.
 */
void
leave(int status)
{
	(void) fflush(NULL);
	_exit(status);
}

/*
 * A function of the C library or of libpq has called exit(). They do so if there is no memory left,
 * with a status that may mean that the lease is taken.
 */
static void
end_for_a_library(void)
{
	leave(EXIT_NO_PROCESS);
}

void
leave_if_a_library_exits(void)
{
	(void) atexit(end_for_a_library);
}
