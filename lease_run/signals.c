/*-------------------------------------------------------------------------
 *
 * signals.c
 *		Signals that lease_run gets: whom they are for.
 *
 * All that can be caught are for the command, and none ends lease_run beside
 * it. The handler itself forwards them, so that no call of a library that
 * hangs can delay it. Before there is a command, SIGTERM, SIGINT, SIGHUP and
 * SIGQUIT are for lease_run, and the others have no effect:
 *
 *	 - before the first request was sent, there is nothing to clean up: the
 *	   signal ends the process;
 *	 - then, a lease may have been granted: the handler only notes the signal,
 *	   and lease_run ends after it released the lease. A second signal ends the
 *	   process.
 *
 * What the caller blocks or ignores, as nohup does, the command finds so, too.
 * lease_run itself blocks nothing: a caller that reads its signals from a
 * descriptor leaves them blocked for its children.
 *
 *-------------------------------------------------------------------------
 */
#include "lease_run.h"

#include <sys/resource.h>
#include <unistd.h>

/* How the signals were when lease_run began. */
static struct sigaction found[NSIG];
static sigset_t found_mask;

/* Shared with the handler. */
static void (*volatile forward_signal) (int signo) = NULL;
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

/* Does it ask a process to end? */
bool
signals_is_ending(int signo)
{
	return signo == SIGTERM || signo == SIGINT || signo == SIGHUP || signo == SIGQUIT;
}

/*
 * Signals that are not for the command: those that cannot be caught, that a fault of lease_run
 * itself causes, or that the system sends to it because of what it does.
 */
static bool
is_own(int signo)
{
	static const int own[] = {
		SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGCHLD, SIGPIPE,
		SIGTTIN, SIGTTOU
	};

	for (int i = 0; i < (int) lengthof(own); i++)
	{
		if (own[i] == signo)
			return true;
	}
	return false;
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
	if (forward_signal != NULL)
		forward_signal(signo);
	else if (signals_is_ending(signo))
	{
		if (!must_clean_up || caught)
			signals_die_of(signo);
		caught = signo;
	}
	received[signo] = true;
	wait_wake();
	errno = save_errno;
}

static void
wake_only(int signo)
{
	int			save_errno = errno;

	wait_wake();
	errno = save_errno;
}

static void
handle_unless_ignored(int signo)
{
	if (found[signo].sa_handler != SIG_IGN)
		set_handler(signo, handle_signal);
}

void
signals_install(void)
{
	sigset_t	none;

	for (int signo = 1; signo < NSIG; signo++)
	{
		if (sigaction(signo, NULL, &found[signo]) < 0)
			found[signo].sa_handler = SIG_IGN;	/* one of the C library's own */
		else if (!is_own(signo) && signo != SIGTSTP && signo != SIGCONT)
			handle_unless_ignored(signo);
	}
	/* A terminal or reader that is gone must not end lease_run. */
	set_handler(SIGPIPE, SIG_IGN);
	set_handler(SIGCHLD, wake_only);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, &found_mask);
}

/* From now on there may be a lease to release: see the top. */
void
signals_do_not_exit(void)
{
	must_clean_up = true;
}

/* The signal that asked lease_run to end before there was a command, or 0. */
int
signals_caught(void)
{
	return caught;
}

/* For waits before there is a command. */
bool
signals_stop(void)
{
	return caught != 0;
}

/* Has lease_run got this signal, to end it or the command? */
bool
signals_received(int signo)
{
	return received[signo];
}

/* fork(), with all signals blocked in the child. */
pid_t
signals_fork(void)
{
	sigset_t	all;
	sigset_t	before;
	pid_t		pid;
	int			save_errno;

	(void) fflush(NULL);
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	pid = fork();
	save_errno = errno;
	if (pid != 0)
		sigprocmask(SIG_SETMASK, &before, NULL);
	errno = save_errno;
	return pid;
}

/* There is a command: the handler calls this function for each signal from now on. */
void
signals_forward_by(void (*forward) (int signo))
{
	forward_signal = forward;
	handle_unless_ignored(SIGTSTP);
	set_handler(SIGCONT, handle_signal);
	/* To write to the terminal, and set its foreground group, from the background. */
	set_handler(SIGTTOU, SIG_IGN);
	/* One that came together with the grant is for the command. */
	if (caught != 0)
		forward(caught);
}

/* In the watchdog: nothing but the end of a child reaches it. */
void
signals_of_watchdog(void)
{
	sigset_t	all_others;

	set_handler(SIGCHLD, wake_only);
	sigfillset(&all_others);
	sigdelset(&all_others, SIGCHLD);
	sigprocmask(SIG_SETMASK, &all_others, NULL);
}

/* Give a new process the signals as lease_run found them. They must be blocked before. */
void
signals_as_found(void)
{
	for (int signo = 1; signo < NSIG; signo++)
	{
		if (signo != SIGKILL && signo != SIGSTOP)
			sigaction(signo, &found[signo], NULL);
	}
	sigprocmask(SIG_SETMASK, &found_mask, NULL);
}

/*
 * Stop this process as the signal does, until somebody continues it, and with it
 * its group, as a terminal does: a script that runs lease_run is the shell's job.
 * Returns false if it was not stopped: nobody is left who could continue it.
 */
bool
signals_stop_self(int signo)
{
	struct sigaction old;

	sigaction(signo, NULL, &old);
	continued = false;
	set_handler(signo, SIG_DFL);
	(void) kill(0, signo);
	sigaction(signo, &old, NULL);
	return continued;
}
