/*-------------------------------------------------------------------------
 *
 * lease_run.c
 *		Runs a command while it holds a lease.
 *
 * The promise: the command, with all processes of its process group, has ended
 * before anybody else can be granted the lease. It is kept by a process of its
 * own (keeper.c), which is told the time of each renewal and otherwise
 * depends on nothing. This process acquires, renews and releases the lease
 * (lease.c, connection.c), runs the command (command.c) and forwards signals
 * (signals.c). It sleeps in one place (wait.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <unistd.h>

#include "command.h"
#include "common/string.h"
#include "lease.h"
#include "message.h"
#include "signals.h"

static void
ask_for_password(Connection *connection)
{
	connection->password = simple_prompt("Password: ", false);
}

/*
 * A prompt needs a terminal; without one it would read the standard input, which is that of the command.
 */
static bool
may_ask_for_password(Connection *connection)
{
	return connection->password == NULL && connection->options->prompt != PROMPT_NEVER &&
		connection_needs_password(connection) && access("/dev/tty", R_OK | W_OK) == 0;
}

/*
 * Acquire the lease, or exit.
 */
static void
acquire_or_exit(Lease *lease)
{
	LeaseAnswer answer;

	if (lease->options->prompt == PROMPT_ALWAYS)
		ask_for_password(&lease->connection);
	while ((answer = lease_acquire(lease)) == LEASE_NO_ANSWER && may_ask_for_password(&lease->connection))
		ask_for_password(&lease->connection);

	switch (answer)
	{
		case LEASE_GRANTED:
			return;
		case LEASE_REFUSED:
			connection_close(&lease->connection);
			exit(lease->options->conflict_exit_code);
		case LEASE_NO_ANSWER:
			lease_error("%s", lease->connection.error);
			pg_log_error_hint("The command was not run. Check the connection options and that the server is running.");
			exit(EXIT_NO_SERVER);
		case LEASE_INTERRUPTED:
			if (lease_give_up(lease) == LEASE_NO_ANSWER)
				lease_warning("the server does not answer; if it was granted in the last moment, it ends after its ttl");
			signals_die_of(signals_caught());
	}
}

/*
 * Renew the lease until the command, with its process group, has ended. Returns why it was
 * ended, if it was: LEASE_REFUSED if the lease is lost, LEASE_NO_ANSWER if that cannot be excluded.
 */
static LeaseAnswer
keep_until_end(Lease *lease)
{
	LeaseAnswer answer = LEASE_GRANTED;

	while (command_is_running() && !command_is_being_ended())
	{
		EndTimes	times;

		answer = lease_keep(lease);
		times = lease_end_times(lease);
		if (answer == LEASE_GRANTED)
			keeper_set(&times);
		else if (answer == LEASE_REFUSED)
		{
			lease_error("lost: it was broken or taken over; ending the command");
			times.signal_at = clock_now();
			times.kill_at = Min(times.kill_at, times.signal_at + lease->options->kill_after);
			command_end(&times);
			return answer;
		}
	}
	return answer;
}

/*
 * Release the lease after the command. If that does not work, it is only kept for longer than
 * needed.
 */
static void
release_and_report(Lease *lease, CommandEnd end)
{
	switch (lease_release(lease))
	{
		case LEASE_REFUSED:
			if (end == COMMAND_ENDED)
			{
				lease_warning("was lost before the command ended");
				pg_log_warning_hint("It was broken, or the server has lost it. What the command wrote in the end may be refused by fences.");
			}
			break;
		case LEASE_NO_ANSWER:
			if (clock_now() < lease_ends_at(lease))
			{
				lease_warning("not released: %s", lease->connection.error);
				pg_log_warning_hint("It ends by itself, in %.1f s at most.",
									clock_seconds(lease_ends_at(lease) - clock_now()));
			}
			break;
		default:
			break;
	}
}

/*
 * Run the command under the lease. Returns the exit status.
 */
static int
run_under(Lease *lease)
{
	const Options *options = lease->options;
	EndTimes	times = lease_end_times(lease);
	LeaseAnswer why;
	CommandEnd	end;
	int			status;

	setenv("LEASE_RESOURCE", options->resource, 1);
	setenv("LEASE_OWNER", options->owner, 1);
	setenv("LEASE_TOKEN", lease->token, 1);
	command_start(options->command, options->signo, &times);
	lease_step("started %s", options->command[0]);
	why = keep_until_end(lease);
	wait_for(-1, 0, TIME_FOREVER, UNTIL_GROUP_IS_EMPTY);
	end = command_result(&status);
	lease_step("the command has ended, exit status %d", status);

	if (end == COMMAND_WAS_ENDED && why != LEASE_REFUSED)
	{
		lease_error("the command was ended, since the lease could not be renewed in time");
		pg_log_error_detail("%s", lease->connection.error ? lease->connection.error : "lease_run was stopped.");
	}
	if (why != LEASE_REFUSED)
		release_and_report(lease, end);
	return end == COMMAND_WAS_ENDED ? EXIT_LEASE_LOST : status;
}

int
main(int argc, char **argv)
{
	Options		options;
	Lease		lease = {0};
	int			status;

	pg_logging_init(argv[0]);
	options = options_parse(argc, argv);
	lease.options = lease.connection.options = &options;

	clock_open();
	message_about(options.resource);
	signals_install();
	acquire_or_exit(&lease);
	status = run_under(&lease);
	connection_close(&lease.connection);
	if (status > 128 && status < 128 + NSIG && signals_received(status - 128))
		signals_die_of(status - 128);
	return status;
}
