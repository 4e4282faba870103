/*-------------------------------------------------------------------------
 *
 * command.c
 *		The command that runs under the lease, as lease_run sees it.
 *
 * The watchdog runs it, and tells what happens. The lease covers all that the
 * command has started: what the first process leaves behind still works under
 * the lease. If the watchdog ends, or is stopped beyond its time, lease_run ends
 * the command itself.
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
#include "lease_run.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

/* How often to look whether all have ended, without a watchdog. */
#define LOOK_AGAIN	(SECOND / 20)

/* When to say what lease_run waits for. */
#define LINGERING	(10 * SECOND)

static const Options *options;
static pid_t watchdog = 0;		/* 0 when it is gone */
static int	watchdog_fd = -1;
static Time late_at = TIME_FOREVER; /* the watchdog must have ended the command before */
static pid_t command = 0;		/* also the number of its group */
static int	terminal = -1;
static bool terminal_is_given = false;
static bool first_has_ended = false;
static bool all_have_ended = false;
static bool was_ended = false;
static bool watchdog_kills = false;
static int	wait_status = 0;
static int	start_errno = 0;
static Time lingers_since = TIME_FOREVER;

/* Called by the handler of signals. */
static void
forward(int signo)
{
	message_send(watchdog_fd, ORDER_SIGNAL, signo, NULL);
}

static void
signal_group(int signo)
{
	message_send(watchdog_fd, ORDER_GROUP_SIGNAL, signo, NULL);
}

/*
 * The command was stopped. Give it the terminal if that is what it wants and lease_run has it to
 * give. Otherwise stop, too, if a terminal did it, and continue together. After a SIGSTOP, the
 * sender must continue it.
 */
static void
command_stopped(int signo)
{
	bool		asks = signo == SIGTTIN || signo == SIGTTOU;
	pid_t		foreground;

	if (terminal < 0 || (!asks && signo != SIGTSTP))
		return;
	foreground = tcgetpgrp(terminal);
	if (asks && foreground == getpgrp())
		terminal_is_given = tcsetpgrp(terminal, command) == 0;
	/* A command that was continued before it was given the terminal has asked twice. */
	else if (!asks || foreground != command)
	{
		/* Some of the group may ignore what stopped the first process. */
		signal_group(SIGSTOP);
		if (!signals_stop_self(signo) && asks)
			signal_group(SIGHUP);	/* as the system does if nobody can give the terminal */
	}
	signal_group(SIGCONT);
}

/*
 * The watchdog has ended before the command. Then lease_run has adopted what is left, and ends it
 * at once: nobody else would do so in time.
 */
static void
end_without_watchdog(void)
{
	pid_t		pid;
	int			status;
	bool		any;

	was_ended = true;
	any = descendants_kill(first_has_ended ? 0 : command, !options->allow_daemons);
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
	{
		if (pid == command)
		{
			first_has_ended = true;
			wait_status = status;
		}
	}
	all_have_ended = !any && (pid < 0 || options->allow_daemons);
	/* Only now: who reads the messages may keep us waiting. */
	if (watchdog != 0)
		lease_error("the process that watches the time has ended: ending the command");
	watchdog = 0;
}

static void
handle_report(const Message *report)
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
			was_ended = true;
			break;
		case REPORT_KILLED:
			watchdog_kills = true;
			break;
		default:
			all_have_ended = true;
	}
}

/* Read what the watchdog has told. If it does not do its work, do that instead. */
static void
handle_reports(void)
{
	Message		report;

	while (message_receive(&watchdog_fd, &report))
		handle_report(&report);
	if (watchdog_fd < 0 || clock_now() >= late_at)
	{
		if (watchdog_fd >= 0 && !watchdog_kills && !all_have_ended)
			kill(watchdog, SIGKILL);
		late_at = TIME_FOREVER;
	}
	wait_look_also(watchdog_fd, late_at);
	if (watchdog_fd < 0 && !all_have_ended && start_errno == 0)
		end_without_watchdog();
}

/* For waits beside the command: it has ended, or is being ended. */
bool
command_stop_working(void)
{
	handle_reports();
	if (!was_ended && clock_now() >= clock_after(lingers_since, LINGERING))
	{
		lingers_since = TIME_FOREVER;
		lease_warning("the command has ended, but not all that it started: "
					  "waiting for these processes");
		pg_log_warning_hint("If they are daemons that should stay, use --allow-daemons.");
	}
	return all_have_ended || was_ended;
}

static bool
is_started(void)
{
	handle_reports();
	return command > 0 || start_errno != 0 || watchdog == 0;
}

static void
set_late_at(const EndTimes *times)
{
	late_at = times->kill_at + options->spare / 2;
	wait_look_also(watchdog_fd, late_at);
}

/*
 * Start the command in a process group of its own, and the watchdog that will end it at those
 * times. Returns false if that was not possible.
 */
bool
command_start(const Options *all_options, const EndTimes *times)
{
	options = all_options;
	descendants_adopt();
	watchdog = watchdog_start(options, times, &watchdog_fd);
	if (watchdog < 0)
		start_errno = errno;
	else
	{
		terminal = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
		set_late_at(times);
		/* The report of the start may come together with one that the command was stopped. */
		signals_forward_by(forward);
		(void) wait_until(TIME_FOREVER, is_started);
	}
	if (start_errno == 0)
		return true;
	errno = start_errno;
	lease_error("could not start a process: %m");
	return false;
}

/* Tell the watchdog when to end the command. */
void
command_set_times(const EndTimes *times)
{
	set_late_at(times);
	message_send(watchdog_fd, ORDER_TIMES, 0, times);
}

/* End the command at these times, which are before those the watchdog knows. */
void
command_end(const EndTimes *times)
{
	was_ended = true;
	command_set_times(times);
}

/*
 * Take the terminal back from the command, or from a job to which the command has passed it on,
 * and which has ended. The shell has taken it if lease_run goes on in the background.
 */
static void
take_terminal_back(void)
{
	pid_t		foreground = terminal_is_given ? tcgetpgrp(terminal) : -1;

	if (foreground > 0 && (foreground == command || (kill(-foreground, 0) < 0 && errno == ESRCH)))
		tcsetpgrp(terminal, getpgrp());
}

static bool
is_over(void)
{
	(void) command_stop_working();
	return all_have_ended;
}

/* Wait until all that the command has started have ended. */
void
command_await_end(void)
{
	while (!is_over())
		(void) wait_until(clock_now() + (watchdog_fd < 0 ? LOOK_AGAIN : SECOND), is_over);
	take_terminal_back();
}

/* Was it ended since the lease was lost, or might have been? */
bool
command_was_ended(void)
{
	return was_ended;
}

/* The exit status of the command, as a shell gives it. */
int
command_status(void)
{
	return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}
