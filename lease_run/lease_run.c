/*-------------------------------------------------------------------------
 *
 * lease_run.c
 *		Runs a command while it holds a lease.
 *
 * The promise: the command, with all that it started, has ended before anybody
 * else can be granted the lease. It is kept by a process of its own
 * (watchdog.c), which runs the command, is told the time of each renewal and
 * otherwise depends on nothing. It ends all descendants (descendants.c). This
 * process acquires, renews and releases the lease (lease.c, by connection.c to
 * one of hosts.c), hears of the command (command.c) and forwards signals
 * (signals.c). It sleeps in one place (wait.c).
 *
 *-------------------------------------------------------------------------
 */
#include "lease_run.h"

#include <fcntl.h>
#include <unistd.h>

/* Leave nothing behind on the server: no waiter, and no lease of a request without an answer. */
static void
give_up(Lease *lease)
{
	if (lease_give_up(lease) == TOO_LATE)
		lease_warning("it is not known whether it was granted in the last moment; if it was, it "
					  "ends after its ttl");
	connection_close(&lease->connection);
}

/* Acquire the lease, or exit. */
static void
acquire_or_exit(Lease *lease)
{
	char	   *error;

	switch (lease_acquire(lease))
	{
		case DONE:
			return;
		case REFUSED:
			lease_warning("%s", lease->why_taken);
			if (lease->is_uncertain)
				give_up(lease);
			connection_close(&lease->connection);
			leave(lease->options->conflict_exit_code);
		case TOO_LATE:
			error = pg_strdup(lease->connection.error);
			if (lease->is_uncertain)
				give_up(lease);
			lease_error("%s", error);
			pg_log_error_hint("The command was not run. Check the connection options and that the "
							  "server is running.");
			leave(EXIT_NO_SERVER);
		case INTERRUPTED:
			give_up(lease);
			signals_die_of(signals_caught());
	}
}

/*
 * Renew the lease until the command, with all that it started, has ended. Returns why it was
 * ended, if it was: REFUSED if the lease is lost, TOO_LATE if that cannot be excluded.
 */
static Outcome
keep_until_end(Lease *lease)
{
	Outcome		outcome = DONE;

	while (!command_stop_working())
	{
		EndTimes	times;

		outcome = lease_keep(lease);
		times = lease_end_times(lease);
		if (outcome == DONE)
			command_set_times(&times);
		else if (outcome == REFUSED)
		{
			times.signal_at = clock_now();
			times.kill_at = Min(times.kill_at, times.signal_at + lease->options->kill_after);
			command_end(&times);
			/* Only now: who reads the messages may keep us waiting. */
			lease_error("lost: it was broken or taken over; ending the command");
			return outcome;
		}
	}
	return outcome;
}

/*
 * Release the lease after the command. Returns REFUSED if it was lost before. If it cannot be
 * released, it is only kept for longer than needed.
 */
static Outcome
release_and_report(Lease *lease, bool at_once)
{
	Outcome		outcome = lease_release(lease, at_once);

	if (outcome == TOO_LATE && clock_now() < lease_ends_at(lease))
	{
		lease_warning("not released: %s", lease->connection.error);
		pg_log_warning_hint("It ends by itself, in %.1f s at most.",
							clock_seconds(lease_ends_at(lease) - clock_now()));
	}
	return outcome;
}

/* After the command has ended: release the lease, and return the exit status. */
static int
finish(Lease *lease, Outcome why)
{
	int			status = command_status();

	lease_step("the command has ended, exit status %d", status);
	if (why == REFUSED)
		return EXIT_LEASE_LOST;
	if (command_was_ended())
	{
		lease_error("the command was ended, since the lease could not be renewed in time");
		pg_log_error_detail("%s", lease->connection.error ? lease->connection.error
							: "lease_run was stopped.");
		(void) release_and_report(lease, lease->options->retry_failed);
		return EXIT_LEASE_LOST;
	}
	if (release_and_report(lease, lease->options->retry_failed && status != 0) == REFUSED)
	{
		lease_error("was lost before the command ended");
		pg_log_error_hint("It was broken, or the server has lost it. What the command wrote in the "
						  "end may be refused by fences.");
		return EXIT_LEASE_LOST;
	}
	return status;
}

/* Run the command under the lease. Returns the exit status. */
static int
run_under(Lease *lease)
{
	const Options *options = lease->options;
	EndTimes	times = lease_end_times(lease);
	Outcome		why;

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

/*
 * A descriptor below 3 that the caller has closed must not become one of a connection, to which
 * messages would be written. The command finds it closed, too.
 */
static bool
keep_standard_descriptors(void)
{
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
	{
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR | O_CLOEXEC) < 0)
			return false;
	}
	return true;
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

	if (!keep_standard_descriptors() || !wait_open())
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
