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
 * The watchdog is the parent of the command, and adopts all descendants whose
 * parents have ended (Linux). So it knows them all, even those that have left the
 * process group, and the command has ended when no child is left. lease_run
 * adopts them in turn if the watchdog ends before them. Elsewhere only the
 * process group is known.
 *
 * The watchdog is in a process group of its own, and has blocked all signals,
 * so that neither the terminal nor a signal to the group of lease_run reaches
 * it. It alone sends signals to the command: it knows which processes are left.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "signals.h"
#include "watchdog.h"

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
	bool		got_term;
	bool		received[NSIG];
} Watch;

static Watch watch;

typedef struct Process
{
	pid_t		pid;
	pid_t		parent;
	pid_t		group;
	pid_t		session;
	bool		is_ours;
} Process;

#ifdef __linux__
/*
 * Read a process from /proc. Its name may contain anything, so what follows is behind the last ")".
 */
static bool
read_process(const char *pid, Process *process)
{
	char		path[64];
	char		line[512];
	char	   *rest;
	ssize_t		size;
	int			fd;

	snprintf(path, sizeof(path), "/proc/%s/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	size = read(fd, line, sizeof(line) - 1);
	close(fd);
	line[Max(size, 0)] = '\0';
	rest = strrchr(line, ')');
	process->pid = (pid_t) strtol(pid, NULL, 10);
	process->is_ours = false;
	if (rest == NULL || strlen(rest) < 4 || rest[2] == 'Z' || rest[2] == 'X')
		return false;
	/* Behind the name: the state, then these numbers. */
	process->parent = (pid_t) strtol(rest + 3, &rest, 10);
	process->group = (pid_t) strtol(rest, &rest, 10);
	process->session = (pid_t) strtol(rest, &rest, 10);
	return true;
}

/*
 * All processes that can be seen. The list is malloc'd.
 */
static Process *
read_processes(int *n)
{
	DIR		   *folder = opendir("/proc");
	struct dirent *entry;
	Process    *list = NULL;
	int			size = 0;

	*n = 0;
	while (folder != NULL && (entry = readdir(folder)) != NULL)
	{
		if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
			continue;
		if (*n == size)
		{
			Process    *larger = realloc(list, (size + 256) * sizeof(Process));

			if (larger == NULL)
				break;
			list = larger;
			size += 256;
		}
		if (read_process(entry->d_name, &list[*n]))
			(*n)++;
	}
	if (folder != NULL)
		closedir(folder);
	return list;
}
#else
static Process *
read_processes(int *n)
{
	*n = 0;
	return NULL;
}
#endif

static int
compare_pids(const void *a, const void *b)
{
	pid_t		left = ((const Process *) a)->pid;
	pid_t		right = ((const Process *) b)->pid;

	return left < right ? -1 : left > right;
}

static Process *
find_process(Process *list, int n, pid_t pid)
{
	Process		wanted = {.pid = pid};

	return n > 0 ? bsearch(&wanted, list, n, sizeof(Process), compare_pids) : NULL;
}

/*
 * The descendants of this process are marked as ours. The list is malloc'd.
 */
static Process *
find_descendants(int *n)
{
	Process    *list = read_processes(n);
	bool		again = *n > 0;

	if (again)
		qsort(list, *n, sizeof(Process), compare_pids);
	while (again)
	{
		again = false;
		for (int i = 0; i < *n; i++)
		{
			Process    *parent;

			if (list[i].is_ours)
				continue;
			parent = find_process(list, *n, list[i].parent);
			list[i].is_ours = list[i].parent == getpid() || (parent != NULL && parent->is_ours);
			again |= list[i].is_ours;
		}
	}
	return list;
}

/*
 * Is it one that must end? Daemons that may stay are in a session of their own.
 */
static bool
must_end(const Process *process, bool even_daemons)
{
	return process->is_ours && (even_daemons || process->session == getsid(0));
}

/*
 * SIGKILL to all descendants. Returns whether there were any. One that is just being created may
 * be missed: the caller calls again until none is left.
 */
bool
watchdog_kill_descendants(pid_t group, bool even_daemons)
{
	int			n;
	bool		any = group > 0 && kill(-group, SIGKILL) == 0;
	Process    *list = find_descendants(&n);

	for (int i = 0; i < n; i++)
	{
		if (!must_end(&list[i], even_daemons))
			continue;
		any = true;
		kill(list[i].pid, SIGKILL);
	}
	free(list);
	return any;
}

/*
 * Ask all to end: the process group, and of those that have left it, the ones whose parent has not.
 * They pass the signal on, as timeout(1) does, and so their children do not get it twice.
 */
static void
ask_to_end(int signo, bool and_continue)
{
	int			n;
	Process    *list = find_descendants(&n);

	/* The first process before what it waits for, so that it knows why that ends. */
	if (watch.group > 0)
		kill(-watch.group, signo);
	if (watch.group > 0 && and_continue)
		kill(-watch.group, SIGCONT);
	for (int i = 0; i < n; i++)
	{
		Process    *parent = find_process(list, n, list[i].parent);

		if (!must_end(&list[i], !watch.options->allow_daemons) || list[i].group == watch.group)
			continue;
		if (list[i].parent == getpid() || (parent != NULL && parent->group == watch.group))
			kill(list[i].pid, signo);
		if (and_continue)
			kill(list[i].pid, SIGCONT);
	}
	free(list);
}

/*
 * Tell lease_run. Does not block: these are few messages. If it is gone, poll() says so.
 */
static void
report(ReportKind kind, int value)
{
	Report		message = {.kind = kind, .value = value};

	(void) !send(watch.fd, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/*
 * Body of the new process that becomes the command.
 */
pg_noreturn static void
run_command(pid_t lease_run, pid_t watchdog)
{
	static const char *const own_pid[] = {"LISTEN_PID", "WATCHDOG_PID"};
	char	  **argv = watch.options->command;
	int			save_errno;

	setpgid(0, 0);
#ifdef __linux__
	prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
	if (getppid() != watchdog)
		_exit(EXIT_FAILURE);
	/* systemd names the process that it started: descriptors and deadlines are for the command. */
	for (int i = 0; i < (int) lengthof(own_pid); i++)
	{
		const char *pid = getenv(own_pid[i]);

		if (pid != NULL && strtol(pid, NULL, 10) == (long) lease_run)
			setenv(own_pid[i], psprintf("%d", (int) getpid()), 1);
	}
	signals_as_found();
	execvp(argv[0], argv);
	save_errno = errno;
	lease_error("could not execute command \"%s\": %m", argv[0]);
	_exit(save_errno == ENOENT ? 127 : 126);
}

/*
 * Is nothing left of what the command has started, but daemons that may stay?
 */
static bool
all_have_ended(bool no_child_is_left)
{
	int			n;
	Process    *list;
	bool		any = false;

#ifdef __linux__
	/* All processes of the group were adopted. */
	if (no_child_is_left)
		return true;
#endif
	if (watch.command > 0 || watch.group > 0)
		return false;
	if (no_child_is_left || !watch.options->allow_daemons)
		return no_child_is_left;
	list = find_descendants(&n);
	for (int i = 0; i < n; i++)
		any |= must_end(&list[i], false);
	free(list);
	return !any;
}

/*
 * The first process has ended. If that was because lease_run was told to end, what it has left must end, too.
 */
static void
first_has_ended(int status)
{
	int			signo = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - 128;

	watch.command = 0;
	report(REPORT_ENDED, status);
	if (signo > 0 && signo < NSIG && signals_is_ending(signo) && watch.received[signo])
		watch.got_term = true;
}

/*
 * Reap what has ended, and see what is left. Ends the watchdog if that is nothing. Returns whether the first process has
 * just ended.
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
	if (watch.command == 0 && watch.got_term && watch.kill_rest_at == TIME_FOREVER)
	{
		watch.kill_rest_at = clock_now() + watch.options->kill_after;
		ask_to_end(watch.options->signo, true);
		return true;
	}
	return watch.command == 0 && !had_ended;
}

static void
follow_order(const Order *order)
{
	switch (order->kind)
	{
		case ORDER_TIMES:
			if (watch.stage == WATCHES)
				watch.times = order->times;
			else
				watch.times.kill_at = Min(watch.times.kill_at, order->times.kill_at);
			break;
		case ORDER_SIGNAL:
			watch.received[order->signo] = true;
			watch.got_term |= order->signo == SIGTERM;
			if (watch.command == 0 && watch.got_term)
				break;			/* look_at_children() ends the rest */
			if (signals_is_ending(order->signo))
				ask_to_end(order->signo, false);
			else if (watch.group > 0)
				kill(-watch.group, order->signo);
			break;
		case ORDER_GROUP_SIGNAL:
			if (watch.group > 0)
				kill(-watch.group, order->signo);
			break;
	}
}

/*
 * Read an order. Returns false if lease_run is gone.
 */
static bool
read_order(void)
{
	Order		order;
	ssize_t		size = recv(watch.fd, &order, sizeof(order), MSG_DONTWAIT);

	if (size < 0)
		return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
	if (size != sizeof(order))
		return false;
	follow_order(&order);
	return true;
}

/*
 * Kill all until none is left. One that hangs in the kernel, or is another user's, may take its time.
 */
pg_noreturn static void
kill_all_and_exit(void)
{
	for (;;)
	{
		watchdog_kill_descendants(watch.group, !watch.options->allow_daemons);
		(void) wait_until(clock_now() + LOOK_AGAIN, look_at_children);
	}
}

/*
 * The command must end by these times.
 */
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

/*
 * Body of the watchdog.
 */
pg_noreturn static void
be_watchdog(pid_t lease_run)
{
	bool		is_open = wait_open();
	pid_t		watchdog = getpid();

	setpgid(0, 0);
#ifdef __linux__
	prctl(PR_SET_CHILD_SUBREAPER, 1);
#endif
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
	signals_of_watchdog();

	for (;;)
	{
		Time		next = Min(watch.kill_rest_at,
							   watch.stage == WATCHES ? watch.times.signal_at : watch.times.kill_at);

		/* The end of one that this process could not adopt sends no signal. */
		if (watch.command == 0)
			next = Min(next, clock_now() + LOOK_AGAIN);
		(void) look_at_children();
		if (wait_for_one(watch.fd, POLLIN, next, look_at_children) == WAIT_READY && !read_order())
			kill_all_and_exit();
		act_in_time();
	}
}

/*
 * Start the watchdog, which starts the command and ends it at those times. Returns its pid, or -1 with errno set; "fd"
 * is the socket to it.
 */
pid_t
watchdog_start(const Options *options, const EndTimes *times, int *fd)
{
	pid_t		lease_run = getpid();
	int			sockets[2];
	int			save_errno;
	sigset_t	mask;
	pid_t		pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) < 0)
		return -1;
	for (int i = 0; i < 2; i++)
		fcntl(sockets[i], F_SETFD, FD_CLOEXEC);
	watch = (Watch) {.options = options, .fd = sockets[1], .times = *times, .kill_rest_at = TIME_FOREVER};
	(void) fflush(NULL);

	signals_block(&mask);
	pid = fork();
	save_errno = errno;
	if (pid == 0)
	{
		close(sockets[0]);
		be_watchdog(lease_run);
	}
	signals_restore(&mask);
	close(sockets[1]);
	*fd = sockets[0];
	errno = save_errno;
	return pid;
}
