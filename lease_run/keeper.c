/*-------------------------------------------------------------------------
 *
 * keeper.c
 *		The process that ends the command in time, whatever happens.
 *
 * lease_run can hang: in a name server's answer, in a library for TLS or
 * Kerberos, on a terminal, or because it was stopped. It can be killed. The
 * command must have ended before the lease does all the same. So a process of
 * its own watches the time, and does nothing else: it sleeps until the time of
 * the last renewal that it was told of is over.
 *
 *	 - At signal_at it sends the signal to the command's process group, and
 *	   SIGCONT, so that a stopped process can handle it; at kill_at SIGKILL.
 *	   From the first one on there is no way back: only an earlier kill_at is
 *	   accepted.
 *	 - When lease_run has ended without saying so, its end of the socket is
 *	   closed: SIGKILL at once.
 *
 * The keeper is in a session of its own, so that neither the terminal nor a
 * signal to the process group of lease_run reaches it.
 *
 * lease_run dismisses the keeper when the process group is empty. Until then
 * the group's number belongs to the group.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/logging.h"
#include "keeper.h"
#include "signals.h"

/* Connects lease_run to the keeper: EndTimes go there, KeeperState comes back. */
static int	keeper_socket = -1;

static void
tell_lease_run(int fd, KeeperState state)
{
	/* Does not block: two messages at most. If lease_run is gone, poll() says so. */
	(void) !send(fd, &state, sizeof(state), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/*
 * Read new times. Returns false if lease_run is gone.
 */
static bool
read_times(int fd, KeeperState state, EndTimes *times)
{
	EndTimes	new_times;
	ssize_t		size = recv(fd, &new_times, sizeof(new_times), MSG_DONTWAIT);

	if (size < 0)
		return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
	if (size != sizeof(new_times))
		return false;
	if (state == KEEPER_WATCHES)
		*times = new_times;
	else
		times->kill_at = Min(times->kill_at, new_times.kill_at);
	return true;
}

/*
 * Body of the keeper. Never returns.
 */
static void
keep(pid_t group, int signo, EndTimes times, int fd)
{
	KeeperState state = KEEPER_WATCHES;

	clock_open();
	for (;;)
	{
		struct pollfd from_lease_run = {.fd = fd, .events = POLLIN};
		Time		next = state == KEEPER_WATCHES ? Min(times.signal_at, times.kill_at)
			: state == KEEPER_SIGNALLED ? times.kill_at : TIME_FOREVER;

		clock_poll(&from_lease_run, 1, next);
		if (from_lease_run.revents != 0 && !read_times(fd, state, &times))
		{
			kill(-group, SIGKILL);
			_exit(0);
		}
		if (state == KEEPER_WATCHES && clock_now() >= times.signal_at)
		{
			state = KEEPER_SIGNALLED;
			tell_lease_run(fd, state);
			kill(-group, signo);
			kill(-group, SIGCONT);
		}
		if (state != KEEPER_KILLED && clock_now() >= times.kill_at)
		{
			state = KEEPER_KILLED;
			tell_lease_run(fd, state);
			kill(-group, SIGKILL);
		}
	}
}

/*
 * Start the keeper for a process group. Signals must be blocked, and stay so in
 * the keeper. Returns its pid, or -1 with errno set.
 */
pid_t
keeper_start(pid_t group, int signo, const EndTimes *times)
{
	int			sockets[2];
	pid_t		pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) < 0)
		return -1;
	for (int i = 0; i < 2; i++)
		fcntl(sockets[i], F_SETFD, FD_CLOEXEC);

	pid = fork();
	if (pid == 0)
	{
		close(sockets[0]);
		setsid();
		keep(group, signo, *times, sockets[1]);
	}
	close(sockets[1]);
	if (pid < 0)
		close(sockets[0]);
	else
		keeper_socket = sockets[0];
	return pid;
}

int
keeper_fd(void)
{
	return keeper_socket;
}

/*
 * What the keeper has done so far, as far as it has told.
 */
KeeperState
keeper_listen(void)
{
	static KeeperState last = KEEPER_WATCHES;
	KeeperState state;

	while (keeper_socket >= 0)
	{
		ssize_t		size = recv(keeper_socket, &state, sizeof(state), MSG_DONTWAIT);

		if (size == sizeof(state))
			last = state;
		else if (size == 0)
		{
			/* It is gone. Whoever reaps it acts. */
			close(keeper_socket);
			keeper_socket = -1;
		}
		else
			break;
	}
	return last;
}

/*
 * Tell the keeper when to end the command. If a keeper that is stopped does not
 * read, the older times stay, which are earlier.
 */
void
keeper_set(const EndTimes *times)
{
	if (keeper_socket >= 0)
		(void) !send(keeper_socket, times, sizeof(*times), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/*
 * The process group is empty: there is nothing left to kill. Only SIGKILL
 * reaches the keeper, which has blocked the others. The caller reaps it.
 */
void
keeper_dismiss(pid_t keeper)
{
	kill(keeper, SIGKILL);
	keeper_listen();
	if (keeper_socket >= 0)
		close(keeper_socket);
	keeper_socket = -1;
}
