/*-------------------------------------------------------------------------
 *
 * watchdog.c
 *		The process that runs the command, and ends it in time, whatever happens.
 *
 * lease_run can hang: in a library for TLS or Kerberos, on a terminal, or
 * because it was stopped. It can be killed. The command must have ended before
 * the lease does all the same. So a process of its own watches the time, and
 * does nothing else: it sleeps until the time of the last renewal that it was
 * told of is over.
 *
 *	 - At signal_at it sends the signal, and SIGCONT, so that a stopped process
 *	   can handle it; at kill_at SIGKILL. From the first one on there is no way
 *	   back: only an earlier kill_at is accepted.
 *	 - When lease_run has ended, its end of the socket is closed: SIGKILL at once.
 *
 * The watchdog is the parent of the command, and adopts all descendants. So the
 * command has ended when no child is left. lease_run adopts them in turn if the
 * watchdog ends before them.
 *
 * The watchdog is in a process group of its own, and has blocked all signals,
 * so that neither the terminal nor a signal to the group of lease_run reaches
 * it. It alone sends signals to the command: it knows which processes are left.
 *
 *-------------------------------------------------------------------------
 */
#include "lease_run.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

/* How often to look for processes whose end sends no signal, and to kill again. */
#define LOOK_AGAIN	(SECOND / 20)

typedef enum Stage
{
	WATCHES,
	SIGNALLED,
	KILLED
} Stage;

typedef struct Watch
{
	const Options *options;
	int			fd;				/* to lease_run */
	pid_t		command;		/* the first process; 0 when it has ended */
	pid_t		group;			/* 0 when it is empty: its number may be used again */
	EndTimes	times;
	Stage		stage;
	Time		kill_rest_at;	/* of the processes that the first one has left */
	bool		must_end;		/* lease_run was told to end */
	bool		received[NSIG];
} Watch;

static Watch watch;

/*
 * Does not block: these are few messages. A watchdog that is stopped does not read them: then the
 * older times stay, which are earlier. If the other end is gone, poll() says so.
 */
void
message_send(int fd, MessageKind kind, int value, const EndTimes *times)
{
	Message		message = {.kind = kind, .value = value};

	if (times != NULL)
		message.times = *times;
	(void) !send(fd, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/*
 * Receive a message, if there is one. If the other end is gone, closes the descriptor: it is -1. An
 * end that has not read all messages shows as an error, once, before the messages that it has sent.
 */
bool
message_receive(int *fd, Message *message)
{
	int			open_fd = *fd;
	ssize_t		size = -1;

	if (open_fd < 0)
		return false;
	do
		size = recv(open_fd, message, sizeof(Message), MSG_DONTWAIT);
	while (size < 0 && (errno == ECONNRESET || errno == EINTR));
	if (size == sizeof(Message))
		return true;
	if (size >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
	{
		*fd = -1;				/* before, since a handler of signals may send */
		close(open_fd);
	}
	return false;
}

static void
report(MessageKind kind, int value)
{
	message_send(watch.fd, kind, value, NULL);
}

static void
signal_group(int signo)
{
	if (watch.group > 0)
		kill(-watch.group, signo);
}

/*
 * Ask all to end: the process group, and of those that have left it, the ones whose parent has not.
 * They pass the signal on, as timeout(1) does, and so their children do not get it twice.
 */
static void
ask_to_end(int signo, bool and_continue)
{
	int			n;
	Process    *list = descendants_find(!watch.options->allow_daemons, &n);

	/* The first process before what it waits for, so that it knows why that ends. */
	signal_group(signo);
	if (and_continue)
		signal_group(SIGCONT);
	for (int i = 0; i < n; i++)
	{
		if (list[i].group == watch.group)
			continue;
		if (list[i].parent_group == 0 || list[i].parent_group == watch.group)
			kill(list[i].pid, signo);
		if (and_continue)
			kill(list[i].pid, SIGCONT);
	}
	free(list);
}

/* systemd names the process that it started: descriptors and deadlines are for the command. */
static void
take_place_of(pid_t lease_run)
{
	static const char *const own_pid[] = {"LISTEN_PID", "WATCHDOG_PID"};

	for (int i = 0; i < (int) lengthof(own_pid); i++)
	{
		const char *pid = getenv(own_pid[i]);

		if (pid != NULL && strtol(pid, NULL, 10) == (long) lease_run)
			setenv(own_pid[i], psprintf("%d", (int) getpid()), 1);
	}
}

/* Body of the new process that becomes the command. */
pg_noreturn static void
run_command(pid_t lease_run, pid_t watchdog)
{
	char	  **argv = watch.options->command;
	int			save_errno;

	setpgid(0, 0);
#ifdef __linux__
	prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
	if (getppid() != watchdog)
		_exit(EXIT_FAILURE);
	take_place_of(lease_run);
	signals_as_found();
	execvp(argv[0], argv);
	save_errno = errno;
	lease_error("could not execute command \"%s\": %m", argv[0]);
	_exit(save_errno == ENOENT ? 127 : 126);
}

/* Is nothing left of what the command has started, but daemons that may stay? */
static bool
all_have_ended(bool no_child_is_left)
{
	int			n;

	if (no_child_is_left && (FINDS_DESCENDANTS || watch.group == 0))
		return true;
	if (watch.command > 0 || watch.group > 0 || !watch.options->allow_daemons)
		return false;
	free(descendants_find(false, &n));
	return n == 0;
}

/* If the first process has ended because lease_run was told to, what it has left must end, too. */
static void
first_has_ended(int status)
{
	int			signo = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - 128;

	watch.command = 0;
	report(REPORT_ENDED, status);
	if (signo > 0 && signo < NSIG && signals_is_ending(signo) && watch.received[signo])
		watch.must_end = true;
}

/*
 * Reap what has ended, and see what is left. Ends the watchdog if that is nothing. Returns whether
 * there is something new to wait for.
 */
static bool
look_at_children(void)
{
	bool		had_ended = watch.command == 0;
	int			status;
	pid_t		pid;

	while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0)
	{
		if (pid == watch.command && WIFSTOPPED(status))
			report(REPORT_STOPPED, WSTOPSIG(status));
		else if (pid == watch.command)
			first_has_ended(status);
	}
	if (watch.command == 0 && watch.group > 0 && kill(-watch.group, 0) < 0 && errno == ESRCH)
		watch.group = 0;
	if (all_have_ended(pid < 0))
	{
		report(REPORT_ALL_ENDED, 0);
		_exit(0);
	}
	if (watch.command == 0 && watch.must_end && watch.kill_rest_at == TIME_FOREVER)
	{
		watch.kill_rest_at = clock_now() + watch.options->kill_after;
		ask_to_end(watch.options->signo, true);
		return true;
	}
	return watch.command == 0 && !had_ended;
}

static void
follow_order(const Message *order)
{
	if (order->kind == ORDER_TIMES && watch.stage == WATCHES)
		watch.times = order->times;
	else if (order->kind == ORDER_TIMES)
		watch.times.kill_at = Min(watch.times.kill_at, order->times.kill_at);
	else if (order->kind == ORDER_GROUP_SIGNAL)
		signal_group(order->value);
	else
	{
		watch.received[order->value] = true;
		watch.must_end |= order->value == SIGTERM;
		if (watch.command == 0 && watch.must_end)
			return;				/* look_at_children() ends the rest */
		if (signals_is_ending(order->value))
			ask_to_end(order->value, false);
		else
			signal_group(order->value);
	}
}

/* One that hangs in the kernel, or is another user's, may take its time. */
pg_noreturn static void
kill_all_and_exit(void)
{
	for (;;)
	{
		descendants_kill(watch.group, !watch.options->allow_daemons);
		(void) wait_until(clock_now() + LOOK_AGAIN, look_at_children);
	}
}

/* The command must end by these times. */
static void
act_in_time(void)
{
	Time		now = clock_now();

	if (watch.stage == WATCHES && now >= Min(watch.times.signal_at, watch.times.kill_at))
	{
		watch.stage = SIGNALLED;
		report(REPORT_SIGNALLED, 0);
		ask_to_end(watch.options->signo, true);
	}
	if (watch.stage == SIGNALLED && now >= watch.times.kill_at)
	{
		watch.stage = KILLED;
		report(REPORT_KILLED, 0);
	}
	if (watch.stage == KILLED || now >= watch.kill_rest_at)
		kill_all_and_exit();
}

/* Start the command, or report why not and exit. */
static void
start_command(pid_t lease_run)
{
	bool		is_open = wait_open();
	pid_t		watchdog = getpid();

	setpgid(0, 0);
	descendants_adopt();
	watch.command = is_open ? fork() : -1;
	if (watch.command == 0)
		run_command(lease_run, watchdog);
	if (watch.command < 0)
	{
		report(REPORT_NOT_STARTED, errno);
		_exit(0);
	}
	setpgid(watch.command, watch.command);
	watch.group = watch.command;
	report(REPORT_STARTED, watch.command);
}

/* Body of the watchdog. */
pg_noreturn static void
be_watchdog(pid_t lease_run)
{
	Message		order;

	start_command(lease_run);
	signals_of_watchdog();
	for (;;)
	{
		Time		next = watch.stage == WATCHES ? watch.times.signal_at : watch.times.kill_at;

		/* The end of one that this process could not adopt sends no signal. */
		if (watch.command == 0)
			next = Min(next, clock_now() + LOOK_AGAIN);
		(void) look_at_children();
		next = Min(next, watch.kill_rest_at);
		if (wait_for_one(watch.fd, POLLIN, next, look_at_children) == DONE &&
			message_receive(&watch.fd, &order))
			follow_order(&order);
		if (watch.fd < 0)
			kill_all_and_exit();	/* lease_run is gone */
		act_in_time();
	}
}

/*
 * Start the watchdog, which starts the command and ends it at those times. Returns its pid, or -1
 * with errno set; "fd" is the socket to it.
 */
pid_t
watchdog_start(const Options *options, const EndTimes *times, int *fd)
{
	pid_t		lease_run = getpid();
	int			sockets[2];
	int			save_errno;
	pid_t		pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) < 0)
		return -1;
	for (int i = 0; i < 2; i++)
		fcntl(sockets[i], F_SETFD, FD_CLOEXEC);
	watch = (Watch) {
		.options = options, .fd = sockets[1], .times = *times, .kill_rest_at = TIME_FOREVER
	};
	pid = signals_fork();
	if (pid == 0)
	{
		close(sockets[0]);
		be_watchdog(lease_run);
	}
	save_errno = errno;
	close(sockets[1]);
	*fd = sockets[0];
	errno = save_errno;
	return pid;
}
