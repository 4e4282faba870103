/*-------------------------------------------------------------------------
 *
 * signals.c
 *		Signals that lease_run gets: whom they are for.
 *
 * The handler itself forwards a signal to the command, so that no call of a
 * library that hangs can delay it. Before there is a command:
 *
 *	 - before the first request was sent, there is nothing to clean up: the
 *	   signal ends the process;
 *	 - then, a lease may have been granted: the handler only notes the signal,
 *	   and lease_run ends after it released the lease. A second signal ends the
 *	   process.
 *
 * A byte in a pipe wakes poll() after each signal: no signal can get lost
 * between a test and the sleep.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/logging.h"
#include "signals.h"

/* Signals that go to the command; the first four end lease_run while it waits. */
static const int forwarded[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT};

#define NUM_ENDING	4

static int	wakeup[2] = {-1, -1};

/* Shared with the handler. */
static volatile sig_atomic_t command_group = 0;
static volatile sig_atomic_t must_clean_up = false;
static volatile sig_atomic_t caught = 0;
static volatile sig_atomic_t continued = false;
static volatile sig_atomic_t received[NSIG];

static void
set_handler(int signo, void (*handler) (int))
{
	struct sigaction action = {0};

	action.sa_handler = handler;
	action.sa_flags = SA_RESTART;
	sigemptyset(&action.sa_mask);
	sigaction(signo, &action, NULL);
}

/*
 * End this process as the signal does, so that a shell script that got the same
 * Ctrl-C ends, too. The first process of a container is not ended by signals:
 * it exits with the status that a shell would show.
 */
void
signals_die_of(int signo)
{
	sigset_t	set;
	struct rlimit no_core = {0, 0};

	setrlimit(RLIMIT_CORE, &no_core);
	set_handler(signo, SIG_DFL);
	sigemptyset(&set);
	sigaddset(&set, signo);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	(void) raise(signo);
	_exit(128 + signo);
}

static void
handle_signal(int signo)
{
	int			save_errno = errno;

	if (signo == SIGCONT)
		continued = true;
	if (signo != SIGCHLD)
	{
		if (command_group > 0)
			kill(-command_group, signo);
		else if (!must_clean_up || caught)
			signals_die_of(signo);
		else
			caught = signo;
		received[signo] = true;
	}
	/* If the pipe is full, poll() will return all the same. */
	if (write(wakeup[1], "", 1) < 0)
		errno = save_errno;
	errno = save_errno;
}

/*
 * Handle a signal, unless whoever started lease_run ignores it, as nohup does.
 */
static void
handle_unless_ignored(int signo)
{
	struct sigaction old;

	sigaction(signo, NULL, &old);
	if (old.sa_handler != SIG_IGN)
		set_handler(signo, handle_signal);
}

void
signals_install(void)
{
	if (pipe(wakeup) < 0)
		pg_fatal("could not create a pipe: %m");
	for (int i = 0; i < 2; i++)
	{
		fcntl(wakeup[i], F_SETFD, FD_CLOEXEC);
		fcntl(wakeup[i], F_SETFL, O_NONBLOCK);
	}
	set_handler(SIGCHLD, handle_signal);
	for (int i = 0; i < NUM_ENDING; i++)
		handle_unless_ignored(forwarded[i]);

	/* A terminal or reader that is gone must not end lease_run. */
	set_handler(SIGPIPE, SIG_IGN);
}

int
signals_fd(void)
{
	return wakeup[0];
}

/*
 * Empty the pipe. Returns whether there was a signal.
 */
bool
signals_drain(void)
{
	char		buffer[64];
	bool		any = false;

	while (read(wakeup[0], buffer, sizeof(buffer)) > 0)
		any = true;
	return any;
}

/*
 * From now on there may be a lease to release: see the top.
 */
void
signals_do_not_exit(void)
{
	must_clean_up = true;
}

/*
 * The signal that asked lease_run to end before there was a command, or 0.
 */
int
signals_caught(void)
{
	return caught;
}

/*
 * Has lease_run got this signal, to end it or the command?
 */
bool
signals_received(int signo)
{
	return received[signo];
}

void
signals_block(sigset_t *before)
{
	sigset_t	all;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, before);
}

void
signals_restore(const sigset_t *before)
{
	sigprocmask(SIG_SETMASK, before, NULL);
}

/*
 * Forward signals to this process group from now on; 0 when it is gone, since
 * its number may then be used again.
 */
void
signals_forward_to(pid_t group)
{
	bool		first = command_group == 0 && group != 0;

	command_group = group;
	if (first)
	{
		handle_unless_ignored(SIGTSTP);
		set_handler(SIGCONT, handle_signal);
		/* To write to the terminal, and set its foreground group, from the background. */
		set_handler(SIGTTOU, SIG_IGN);
		/* One that came together with the grant is for the command. */
		if (caught != 0)
		{
			received[caught] = true;
			kill(-group, caught);
		}
	}
}

/*
 * Give a new process the signals as lease_run found them. exec() resets those
 * that have handlers.
 */
void
signals_reset_in_child(const sigset_t *mask)
{
	set_handler(SIGCHLD, SIG_DFL);
	for (int i = 0; i < (int) lengthof(forwarded); i++)
	{
		struct sigaction old;

		sigaction(forwarded[i], NULL, &old);
		if (old.sa_handler == handle_signal)
			set_handler(forwarded[i], SIG_DFL);
	}
	set_handler(SIGPIPE, SIG_DFL);
	set_handler(SIGTTOU, SIG_DFL);
	sigprocmask(SIG_SETMASK, mask, NULL);
}

/*
 * Stop this process as the signal does, until somebody continues it. Returns
 * false if it was not stopped: nobody is left who could continue it.
 */
bool
signals_stop_self(int signo)
{
	struct sigaction old;

	sigaction(signo, NULL, &old);
	continued = false;
	set_handler(signo, SIG_DFL);
	(void) raise(signo);
	sigaction(signo, &old, NULL);
	return continued;
}
