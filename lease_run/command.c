/*-------------------------------------------------------------------------
 *
 * command.c
 *		The command that runs under the lease, and its process group.
 *
 * The lease covers the process group of the command, not only its first
 * process: what that one leaves behind in its group still works under the
 * lease. So it has ended when the group is empty. lease_run adopts processes
 * whose parents have ended (where the system allows it), so that it hears of
 * their end, and so that none remains as a zombie in a container whose first
 * process does not care.
 *
 * The group's number cannot be used again as long as the group has a member.
 * Nobody sends it a signal after command_handle_signals() has seen it empty.
 *
 * At a terminal, the command's group begins in the background. It becomes the
 * foreground group when it asks for the terminal: then the system stops it with
 * SIGTTIN or SIGTTOU. So "lease_run ... | less" leaves the terminal to less,
 * Ctrl-C reaches a shell script that calls lease_run, and an editor works as well.
 * When the command is stopped by Ctrl-Z, lease_run stops itself, as a job of
 * the shell does. Meanwhile the keeper counts on.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "command.h"
#include "message.h"
#include "options.h"
#include "signals.h"

static pid_t command = 0;
static pid_t keeper = 0;
static int	terminal = -1;
static bool ended = false;		/* the first process of the group */
static int	wait_status = 0;
static bool group_is_empty = false;
static KeeperState keeper_state = KEEPER_WATCHES;
static bool was_ended = false;

/*
 * Body of the new process. It must not run the command before there is a keeper: then
 * the parent writes to the pipe. Returns only if it could not.
 */
static void
run_command(char *const *argv, int go, pid_t parent, const sigset_t *mask)
{
	char		byte;
	int			save_errno;

	setpgid(0, 0);
#ifdef __linux__
	prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
	signals_reset_in_child(mask);
	if (read(go, &byte, 1) != 1 || getppid() != parent)
		_exit(EXIT_FAILURE);
	execvp(argv[0], argv);
	save_errno = errno;
	lease_error("could not execute command \"%s\": %m", argv[0]);
	_exit(save_errno == ENOENT ? 127 : 126);
}

/*
 * Start the command in a process group of its own, and the keeper that will
 * end it at those times.
 */
void
command_start(char *const *argv, int signo, const EndTimes *times)
{
	int			go[2];
	pid_t		parent = getpid();
	sigset_t	mask;

#ifdef __linux__
	prctl(PR_SET_CHILD_SUBREAPER, 1);
#endif
	terminal = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (pipe(go) < 0)
		lease_fatal(EXIT_NO_PROCESS, "could not create a pipe: %m");
	fcntl(go[0], F_SETFD, FD_CLOEXEC);
	fcntl(go[1], F_SETFD, FD_CLOEXEC);
	(void) fflush(NULL);

	signals_block(&mask);
	command = fork();
	if (command == 0)
	{
		close(go[1]);
		run_command(argv, go[0], parent, &mask);
	}
	if (command > 0)
	{
		setpgid(command, command);
		signals_forward_to(command);
		keeper = keeper_start(command, signo, times);
	}
	if (command < 0 || keeper < 0)
		lease_fatal(EXIT_NO_PROCESS, "could not start a process: %m");
	(void) !write(go[1], "", 1);
	close(go[0]);
	close(go[1]);
	signals_restore(&mask);
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
		kill(-command, SIGSTOP);
		if (!signals_stop_self(signo) && asks)
			kill(-command, SIGHUP); /* as the system does if nobody can give the terminal */
	}
	kill(-command, SIGCONT);
}

/*
 * After the first process has ended: is the group empty?
 */
static void
look_at_group(void)
{
	if (kill(-command, 0) == 0 || errno != ESRCH)
		return;
	group_is_empty = true;
	signals_forward_to(0);
	keeper_state = Max(keeper_state, keeper_listen());
	if (keeper > 0)
		keeper_dismiss(keeper);
	if (terminal >= 0 && tcgetpgrp(terminal) == command)
		tcsetpgrp(terminal, getpgrp());
}

/*
 * Reap what has ended. Without a keeper, nobody would end the command in time.
 */
void
command_handle_signals(void)
{
	int			status;
	pid_t		pid;

	while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0)
	{
		if (pid == keeper)
		{
			keeper = 0;
			if (!group_is_empty)
			{
				lease_error("the process that watches the time has ended: ending the command");
				was_ended = true;
				kill(-command, SIGKILL);
			}
		}
		else if (pid == command && WIFSTOPPED(status))
			command_stopped(WSTOPSIG(status));
		else if (pid == command)
		{
			ended = true;
			wait_status = status;
		}
	}
	if (ended && !group_is_empty)
		look_at_group();
	keeper_state = Max(keeper_state, keeper_listen());
}

/*
 * Is a process of the group left?
 */
bool
command_is_running(void)
{
	return command > 0 && !group_is_empty;
}

/*
 * Has the first process ended, but others not? The end of one that lease_run could
 * not adopt sends no signal: the caller looks again from time to time.
 */
bool
command_is_lingering(void)
{
	return ended && !group_is_empty;
}

/*
 * Is the command being ended because of the lease?
 */
bool
command_is_being_ended(void)
{
	return was_ended || keeper_state != KEEPER_WATCHES;
}

/*
 * End the command at these times, which are before those the keeper knows.
 */
void
command_end(const EndTimes *times)
{
	was_ended = true;
	keeper_set(times);
}

/*
 * After the group is empty: how it ended, and the exit status of the command as a shell gives
 * it.
 */
CommandEnd
command_result(int *exit_status)
{
	*exit_status = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
	return command_is_being_ended() ? COMMAND_WAS_ENDED : COMMAND_ENDED;
}
