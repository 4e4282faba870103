/*-------------------------------------------------------------------------
 *
 * options.c
 *		The command line of lease_run, its exit statuses and its messages.
 *
 *-------------------------------------------------------------------------
 */
#include "lease_run.h"

#include <limits.h>
#include <math.h>
#include <unistd.h>

#include "fe_utils/option_utils.h"
#include "getopt_long.h"
#include "lib/stringinfo.h"

#define DEFAULT_TTL	(30 * SECOND)
#define MAX_TIME	(INT64_C(1000000) * 86400 * SECOND)	/* a million days */
#define MIN_SPARE	(SECOND / 2)
#define DEFAULT_SERVER_WAIT	(10 * SECOND)	/* with --no-wait */

typedef enum OptionKind
{
	FLAG,						/* bool */
	TEXT,						/* const char * */
	TIME,						/* Time */
	HEADING						/* none, a line of the help */
} OptionKind;

typedef struct OptionSpec
{
	OptionKind	kind;
	char		letter;			/* '\0': none */
	const char *name;
	size_t		offset;			/* in Options */
	const char *argument;
	const char *help;
} OptionSpec;

#define FIELD(name) offsetof(Options, name)
#define HEAD(text) {HEADING, '\0', NULL, 0, NULL, text}

static const OptionSpec specs[] = {
	HEAD("The lease:"),
	{TIME, 't', "ttl", FIELD(ttl), "TIME", "how long it lasts without a renewal (default 30s)"},
	{FLAG, 'n', "no-wait", FIELD(no_wait), NULL, "give up at once if it is taken"},
	{TIME, 0, "wait", FIELD(wait), "TIME", "wait at most this long (default: without limit)"},
	{TIME, 0, "server-wait", FIELD(server_wait), "TIME",
	"wait at most this long for a server\n(default: as --wait; 10s with --no-wait)"},
	{FLAG, 's', "shared", FIELD(shared), NULL, "share it with others who share it"},
	{TEXT, 0, "permits", FIELD(permits), "N", "take one of N permits"},
	{TIME, 0, "min-hold", FIELD(min_hold), "TIME",
	"keep it so long, even if the command ends before"},
	{FLAG, 0, "retry-failed", FIELD(retry_failed), NULL,
	"give it back at once if the command fails"},
	{TEXT, 0, "payload", FIELD(payload), "JSON", "data to store with it"},
	{TEXT, 0, "owner", FIELD(owner), "TEXT", "who holds it (default HOST:PID:RANDOM)"},
	{TEXT, 'E', "conflict-exit-code", FIELD(conflict), "N",
	"exit status if it is taken (default 1)"},
	HEAD("The command:"),
	{TEXT, 0, "signal", FIELD(signal), "SIGNAL",
	"what it gets if the lease is lost (default TERM)"},
	{TIME, 0, "kill-after", FIELD(kill_after), "TIME",
	"how long after that it gets SIGKILL\n(default: a tenth of the ttl)"},
	{FLAG, 0, "allow-daemons", FIELD(allow_daemons), NULL, "daemons that it starts may stay"},
	HEAD("Messages:"),
	{FLAG, 'q', "quiet", FIELD(quiet), NULL, "none if the lease is taken; only errors"},
	{FLAG, 'v', "verbose", FIELD(verbose), NULL, "each step, with times"},
	{FLAG, 'V', "version", FIELD(show_version), NULL, "print the version, then exit"},
	{FLAG, '?', "help", FIELD(show_help), NULL, "print this help, then exit"},
	HEAD("Connection options:"),
	{TEXT, 'd', "dbname", FIELD(dbname), "DBNAME", "database name or connection string"},
	{TEXT, 'h', "host", FIELD(host), "HOSTNAME", "database server host or socket directory"},
	{TEXT, 'p', "port", FIELD(port), "PORT", "database server port"},
	{TEXT, 'U', "username", FIELD(user), "USERNAME", "user name to connect as"},
	{TEXT, 0, "schema", FIELD(schema), "NAME", "where the functions are, without the extension"},
};

#define N_SPECS	((int) lengthof(specs))

static const struct
{
	const char *name;
	Time		length;
}			units[] = {
	{"us", 1}, {"ms", 1000}, {"s", SECOND}, {"min", 60 * SECOND}, {"h", 3600 * SECOND},
	{"d", 86400 * SECOND}
};

static const struct
{
	const char *name;
	int			signo;
}			signal_names[] = {
	{"TERM", SIGTERM}, {"INT", SIGINT}, {"HUP", SIGHUP}, {"QUIT", SIGQUIT}, {"KILL", SIGKILL},
	{"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"ALRM", SIGALRM}, {"ABRT", SIGABRT}
};

/* A line of the help, or two. */
static void
print_option(const OptionSpec *spec)
{
	char		letter[] = {'-', spec->letter, ',', ' ', '\0'};
	char	   *left = psprintf("%4s--%s%s%s", spec->letter ? letter : "", spec->name,
								spec->argument ? "=" : "", spec->argument ? spec->argument : "");
	const char *second = strchr(spec->help, '\n');

	printf("  %-26s %.*s\n", left, (int) strcspn(spec->help, "\n"), spec->help);
	if (second != NULL)
		printf("%29s%s\n", "", second + 1);
	free(left);
}

static void
print_help(void)
{
	printf("lease_run runs a command while it holds a lease of the extension lease_lock.\n\n"
		   "Usage:\n"
		   "  lease_run [OPTION]... RESOURCE [--] COMMAND [ARG]...\n");
	for (int i = 0; i < N_SPECS; i++)
	{
		if (specs[i].kind == HEADING)
			printf("\n%s\n", specs[i].help);
		else
			print_option(&specs[i]);
	}
	printf("\nA TIME has a unit: us, ms, s, min, h or d.\n"
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

/* A time as in postgresql.conf, but with a unit: 30s, 1.5min, "1 h". */
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
	pg_log_error("invalid value \"%s\" for option --%s", text, option);
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

static void
apply_option(Options *options, const OptionSpec *spec, char *value)
{
	void	   *field = (char *) options + spec->offset;

	if (spec->kind == FLAG)
		*(bool *) field = true;
	else if (spec->kind == TEXT)
		*(const char **) field = value;
	else if (spec->kind == TIME)
		*(Time *) field = parse_time(value, spec->name);
}

/* Parse the options. Returns the index of the first argument that is none. */
static int
parse_options(Options *options, int argc, char **argv)
{
	struct option long_options[N_SPECS + 1] = {0};
	char		letters[2 * N_SPECS + 2] = "+"; /* the options of the command are not ours */
	int			n = 0;
	int			option;

	for (int i = 0; i < N_SPECS; i++)
	{
		int			has_argument = specs[i].argument ? required_argument : no_argument;

		if (specs[i].kind == HEADING)
			continue;
		long_options[n++] = (struct option) {specs[i].name, has_argument, NULL, UCHAR_MAX + i};
		if (specs[i].letter && specs[i].letter != '?')
			snprintf(letters + strlen(letters), 3, "%c%s", specs[i].letter,
					 has_argument ? ":" : "");
	}
	while ((option = getopt_long(argc, argv, letters, long_options, NULL)) != -1)
	{
		if (option == '?')
			wrong_usage();		/* getopt_long already emitted a complaint */
		for (int i = 0; i < N_SPECS; i++)
		{
			if (option == UCHAR_MAX + i || (option == specs[i].letter && specs[i].letter))
				apply_option(options, &specs[i], optarg);
		}
	}
	return optind;
}

/* An owner that nobody else has. */
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
choose_mode(Options *options)
{
	int			number;

	if (options->shared && options->permits)
	{
		pg_log_error("--shared and --permits cannot be used together");
		wrong_usage();
	}
	if (options->permits && !option_parse_int(options->permits, "--permits", 1, INT_MAX, &number))
		leave(EXIT_USAGE);
	options->mode = options->shared ? "shared" : options->permits ? "permit" : "exclusive";
}

/* What the status says, lease_run says in no other case. */
static int
parse_conflict_exit_code(const char *text)
{
	static const int own[] = {
		EXIT_USAGE, EXIT_NO_SERVER, EXIT_NO_PROCESS, EXIT_LEASE_LOST, 126, 127
	};
	int			number;

	if (!option_parse_int(text, "-E/--conflict-exit-code", 0, 255, &number))
		leave(EXIT_USAGE);
	for (int i = 0; i < (int) lengthof(own); i++)
	{
		if (number == own[i])
		{
			pg_log_error("the exit status %d for -E/--conflict-exit-code has another meaning",
						 number);
			wrong_usage();
		}
	}
	return number;
}

/*
 * Half of the ttl must pass before the command gets its signal, so that there is time for a
 * renewal, its answer, and another connection.
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
		pg_log_error_detail("SIGKILL is sent %g s before the end of the lease, and the first "
							"signal kill-after before that. Half of the ttl must have passed until "
							"then, so that there is time for renewals.",
							clock_seconds(options->spare));
		wrong_usage();
	}
	if (options->no_wait)
		options->wait = 0;
	if (options->server_wait < 0)
		options->server_wait = options->wait == 0 ? DEFAULT_SERVER_WAIT : TIME_FOREVER;
}

static const char *shown_resource = "";
static Time started;

/* Parse the command line; exits if that is not possible, or all that is asked for. */
Options
options_parse(int argc, char **argv)
{
	Options		options = {
		.ttl = DEFAULT_TTL, .wait = TIME_FOREVER, .min_hold = -1, .conflict = "1",
		.signal = "TERM", .kill_after = -1, .server_wait = -1
	};
	int			first;

	started = clock_now();
	pg_logging_set_level(PG_LOG_WARNING);
	options.show_help = argc > 1 && strcmp(argv[1], "-?") == 0;
	first = options.show_help ? argc : parse_options(&options, argc, argv);
	if (options.show_help)
		print_help();
	else if (options.show_version)
		puts("lease_run (lease_lock) " LEASE_RUN_VERSION);
	if (options.show_help || options.show_version)
		leave(EXIT_SUCCESS);
	if (options.quiet || options.verbose)
		pg_logging_set_level(options.verbose ? PG_LOG_INFO : PG_LOG_ERROR);

	options.resource = argv[first];
	options.command = argv + first + 1;
	if (argc - first > 1 && strcmp(options.command[0], "--") == 0)
		options.command++;
	if (argc == first || options.command[0] == NULL)
	{
		pg_log_error("no %scommand specified", argc == first ? "resource and no " : "");
		wrong_usage();
	}
	shown_resource = message_name(options.resource);
	choose_mode(&options);
	options.signo = parse_signal(options.signal);
	options.conflict_exit_code = parse_conflict_exit_code(options.conflict);
	check_times(&options);
	options.owner_is_unique = options.owner == NULL;
	if (options.owner_is_unique)
		options.owner = default_owner();
	return options;
}

const char *
message_resource(void)
{
	return shown_resource;
}

/* The time since lease_run began. */
double
message_seconds(void)
{
	return clock_seconds(clock_now() - started);
}

/* A name on one line, and without bytes that control a terminal. Allocated. */
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

/* A message of libpq or the server on one line. Allocated. */
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

/* End with this status. */
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
