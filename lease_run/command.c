/*-------------------------------------------------------------------------
 *
 * command.c
 *		The command that runs under the lease, as lease_run sees it.
 *
 * The watchdog runs it, and tells what happens. The lease covers all that the
 * command has started: what the first process leaves behind still works under
 * the lease.
 *
 * At a terminal, the command's group begins in the background. It becomes the
 * foreground group when it asks for the terminal: then the system stops it with
 * SIGTTIN or SIGTTOU. So "lease_run ... | less" leaves the terminal to less,
 * Ctrl-C reaches a shell script that calls lease_run, and an editor works as well.
 * When the command is stopped by Ctrl-Z, lease_run stops itself, as a job of
 * the shell does. Meanwhile the watchdog counts on.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "command.h"
#include "signals.h"

/* How often to look whether all have ended, without a watchdog. */
#define LOOK_AGAIN	(SECOND / 20)

/* When to say what lease_run waits for. */
#define LINGERING	(10 * SECOND)

static const Options *options;
static int	watchdog_fd = -1;
static pid_t command = 0;		/* also the number of its group */
static int	terminal = -1;
static bool first_has_ended = false;
static bool all_have_ended = false;
static bool was_ended = false;
static bool watchdog_is_gone = false;
static int	wait_status = 0;
static int	start_errno = 0;
static Time lingers_since = 0;

static void
give_order(OrderKind kind, int signo, const EndTimes *times)
{
	Order		order = {.kind = kind, .signo = signo};

	if (times != NULL)
		order.times = *times;
	/* If a watchdog that is stopped does not read, the older times stay, which are earlier. */
	if (watchdog_fd >= 0)
		(void) !send(watchdog_fd, &order, sizeof(order), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/*
 * Called by the handler of signals.
 */
static void
forward(int signo)
{
	give_order(ORDER_SIGNAL, signo, NULL);
}

static void
signal_group(int signo)
{
	give_order(ORDER_GROUP_SIGNAL, signo, NULL);
}

/*
 * The command was stopped. Give it the terminal if that is what it wants and
 * lease_run has it to give. Otherwise stop, too, if a terminal did it, and
 * continue together. After a SIGSTOP, the sender must continue it.
 */
static void
command_stopped(int signo)
{
	bool		asks = signo == SIGTTIN || signo == SIGTTOU;

	if (terminal < 0 || (!asks && signo != SIGTSTP))
		return;
	if (asks && tcgetpgrp(terminal) == getpgrp())
		tcsetpgrp(terminal, command);
	else
	{
		/* Some of the group may ignore what stopped the first process. */
		signal_group(SIGSTOP);
		if (!signals_stop_self(signo) && asks)
			signal_group(SIGHUP);	/* as the system does if nobody can give the terminal */
	}
	signal_group(SIGCONT);
}

/*
 * The watchdog has ended before the command. Then lease_run has adopted what is
 * left, and ends it at once: nobody else would do so in time.
 */
static void
end_without_watchdog(void)
{
	pid_t		pid;
	int			status;
	bool		any;

	if (!watchdog_is_gone)
		lease_error("the process that watches the time has ended: ending the command");
	watchdog_is_gone = was_ended = true;
	any = watchdog_kill_descendants(first_has_ended ? 0 : command, !options->allow_daemons);
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
	{
		if (pid == command)
		{
			first_has_ended = true;
			wait_status = status;
		}
	}
	all_have_ended = !any && (pid < 0 || options->allow_daemons);
}

static void
handle_report(const Report *report)
{
	switch (report->kind)
	{
		case REPORT_STARTED:
			command = report->value;
			break;
		case REPORT_NOT_STARTED:
			start_errno = report->value ? report->value : ENOMEM;
			break;
		case REPORT_STOPPED:
			command_stopped(report->value);
			break;
		case REPORT_ENDED:
			first_has_ended = true;
			wait_status = report->value;
			lingers_since = clock_now();
			break;
		case REPORT_SIGNALLED:
		case REPORT_KILLED:
			was_ended = true;
			break;
		case REPORT_ALL_ENDED:
			all_have_ended = true;
			break;
	}
}

/*
 * Read what the watchdog has told.
 */
static void
handle_reports(void)
{
	Report		report;

	while (watchdog_fd >= 0)
	{
		ssize_t		size = recv(watchdog_fd, &report, sizeof(report), MSG_DONTWAIT);

		if (size == sizeof(report))
			handle_report(&report);
		else if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
			break;
		else
		{
			int			fd = watchdog_fd;

			watchdog_fd = -1;
			wait_also_for(-1);
			close(fd);
		}
	}
	if (watchdog_fd < 0 && !all_have_ended && start_errno == 0)
		end_without_watchdog();
}

/*
 * For waits beside the command: it has ended, or is being ended.
 */
bool
command_stop_working(void)
{
	handle_reports();
	if (first_has_ended && lingers_since > 0 && clock_now() >= lingers_since + LINGERING && !was_ended)
	{
		lingers_since = 0;
		lease_warning("the command has ended, but not all that it started: waiting for these processes");
		pg_log_warning_hint("If they are daemons that should stay, use --allow-daemons.");
	}
	return all_have_ended || was_ended;
}

static bool
is_started(void)
{
	handle_reports();
	return command > 0 || start_errno != 0 || watchdog_is_gone;
}

/*
 * Start the command in a process group of its own, and the watchdog that will
 * end it at those times. Returns false if that was not possible.
 */
bool
command_start(const Options *all_options, const EndTimes *times)
{
	pid_t		watchdog;

	options = all_options;
#ifdef __linux__
	prctl(PR_SET_CHILD_SUBREAPER, 1);
#endif
	watchdog = watchdog_start(options, times, &watchdog_fd);
	if (watchdog < 0)
		start_errno = errno;
	else
	{
		terminal = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
		wait_also_for(watchdog_fd);
		(void) wait_until(TIME_FOREVER, is_started);
		signals_forward_by(forward);
	}
	if (start_errno == 0)
		return true;
	errno = start_errno;
	lease_error("could not start a process: %m");
	return false;
}

/*
 * Tell the watchdog when to end the command.
 */
void
command_set_times(const EndTimes *times)
{
	give_order(ORDER_TIMES, 0, times);
}

/*
 * End the command at these times, which are before those the watchdog knows.
 */
void
command_end(const EndTimes *times)
{
	was_ended = true;
	command_set_times(times);
}

static bool
is_over(void)
{
	(void) command_stop_working();
	return all_have_ended;
}

/*
 * Wait until all that the command has started have ended.
 */
void
command_await_end(void)
{
	while (wait_until(clock_now() + (watchdog_fd < 0 ? LOOK_AGAIN : SECOND), is_over) != WAIT_INTERRUPTED)
		;
	if (terminal >= 0 && tcgetpgrp(terminal) == command)
		tcsetpgrp(terminal, getpgrp());
}

/*
 * How it ended, and the exit status of the command as a shell gives it.
 */
CommandEnd
command_result(int *exit_status)
{
	*exit_status = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
	return was_ended ? COMMAND_WAS_ENDED : COMMAND_ENDED;
}
