/*-------------------------------------------------------------------------
 *
 * lease_run.c
 *		Runs a command while it holds a lease.
 *
 * The promise: the command, with all that it started, has ended before anybody
 * else can be granted the lease. It is kept by a process of its own
 * (watchdog.c), which runs the command, is told the time of each renewal and
 * otherwise depends on nothing. This process acquires, renews and releases the
 * lease (lease.c, by connection.c to one of hosts.c), hears of the command
 * (command.c) and forwards signals (signals.c). It sleeps in one place (wait.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <unistd.h>

#include "command.h"
#include "common/string.h"
#include "lease.h"

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
		connection->needs_password && access("/dev/tty", R_OK | W_OK) == 0;
}

/*
 * Leave nothing behind on the server: no waiter, and no lease of a request without an answer.
 */
static void
give_up(Lease *lease)
{
	if (lease_give_up(lease) == LEASE_NO_ANSWER)
		lease_warning("the server does not answer; if it was granted in the last moment, it ends after its ttl");
	connection_close(&lease->connection);
}

/*
 * Acquire the lease, or exit.
 */
static void
acquire_or_exit(Lease *lease)
{
	LeaseAnswer answer;
	char	   *error;

	if (lease->options->prompt == PROMPT_ALWAYS)
		ask_for_password(&lease->connection);
	while ((answer = lease_acquire(lease)) == LEASE_NO_ANSWER && may_ask_for_password(&lease->connection))
		ask_for_password(&lease->connection);

	switch (answer)
	{
		case LEASE_GRANTED:
			return;
		case LEASE_REFUSED:
			lease_warning("%s", lease->why_taken);
			connection_close(&lease->connection);
			leave(lease->options->conflict_exit_code);
		case LEASE_NO_ANSWER:
			error = pg_strdup(lease->connection.error);
			if (lease->is_uncertain)
				give_up(lease);
			lease_error("%s", error);
			pg_log_error_hint("The command was not run. Check the connection options and that the server is running.");
			leave(EXIT_NO_SERVER);
		case LEASE_INTERRUPTED:
			give_up(lease);
			signals_die_of(signals_caught());
	}
}

/*
 * Renew the lease until the command, with all that it started, has ended. Returns why it was
 * ended, if it was: LEASE_REFUSED if the lease is lost, LEASE_NO_ANSWER if that cannot be excluded.
 */
static LeaseAnswer
keep_until_end(Lease *lease)
{
	LeaseAnswer answer = LEASE_GRANTED;

	while (!command_stop_working())
	{
		EndTimes	times;

		answer = lease_keep(lease);
		times = lease_end_times(lease);
		if (answer == LEASE_GRANTED)
			command_set_times(&times);
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
 * Release the lease after the command. Returns LEASE_REFUSED if it was lost before. If it cannot be released, it is only
 * kept for longer than needed.
 */
static LeaseAnswer
release_and_report(Lease *lease, bool at_once)
{
	LeaseAnswer answer = lease_release(lease, at_once);

	if (answer == LEASE_NO_ANSWER && clock_now() < lease_ends_at(lease))
	{
		lease_warning("not released: %s", lease->connection.error);
		pg_log_warning_hint("It ends by itself, in %.1f s at most.",
							clock_seconds(lease_ends_at(lease) - clock_now()));
	}
	return answer;
}

/*
 * After the command has ended: release the lease, and return the exit status.
 */
static int
finish(Lease *lease, LeaseAnswer why)
{
	int			status;
	CommandEnd	end = command_result(&status);

	lease_step("the command has ended, exit status %d", status);
	if (why == LEASE_REFUSED)
		return EXIT_LEASE_LOST;
	if (end == COMMAND_WAS_ENDED)
	{
		lease_error("the command was ended, since the lease could not be renewed in time");
		pg_log_error_detail("%s", lease->connection.error ? lease->connection.error : "lease_run was stopped.");
		(void) release_and_report(lease, false);
		return EXIT_LEASE_LOST;
	}
	if (release_and_report(lease, lease->options->retry_failed && status != 0) == LEASE_REFUSED)
	{
		lease_error("was lost before the command ended");
		pg_log_error_hint("It was broken, or the server has lost it. What the command wrote in the end may be refused by fences.");
		return EXIT_LEASE_LOST;
	}
	return status;
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

	setenv("LEASE_RESOURCE", options->resource, 1);
	setenv("LEASE_OWNER", options->owner, 1);
	setenv("LEASE_TOKEN", lease->token, 1);
	setenv("LEASE_GRANTED_AT", lease->granted_at, 1);
	if (!command_start(options, &times))
	{
		(void) release_and_report(lease, true);
		return EXIT_NO_PROCESS;
	}
	lease_step("started %s", options->command[0]);
	why = keep_until_end(lease);
	command_await_end();
	return finish(lease, why);
}

int
main(int argc, char **argv)
{
	Options		options;
	Lease		lease = {0};
	int			status;

	leave_if_a_library_exits();
	pg_logging_init(argv[0]);
	options = options_parse(argc, argv);
	lease.options = lease.connection.options = &options;

	message_about(options.resource);
	if (!wait_open())
	{
		lease_error("could not open a descriptor: %m");
		leave(EXIT_NO_PROCESS);
	}
	signals_install();
	acquire_or_exit(&lease);
	status = run_under(&lease);
	connection_close(&lease.connection);
	if (status > 128 && signals_is_ending(status - 128) && signals_received(status - 128))
		signals_die_of(status - 128);
	leave(status);
}
