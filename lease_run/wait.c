/*-------------------------------------------------------------------------
 *
 * wait.c
 *		Time that nobody can set, and the only place where lease_run sleeps.
 *
 * A lease goes on to end while this machine is suspended. So the clock must
 * count that time, and a sleep must end on time after it. On Linux that is
 * CLOCK_BOOTTIME, for both: the time that poll() takes does not count it, so a
 * timer descriptor of that clock wakes poll(). Elsewhere it is
 * CLOCK_MONOTONIC, which may not count it.
 *
 * Whatever a process waits for, it hears of signals meanwhile: their handler
 * writes to a pipe, so that none can get lost between a test and the sleep. The
 * function that the caller gives is called before each sleep.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/timerfd.h>
#endif

#include "wait.h"

#ifdef __linux__
#define CLOCK	CLOCK_BOOTTIME
#else
#define CLOCK	CLOCK_MONOTONIC
#endif

#define MAX_FDS	4

static int	timer_fd = -1;
static int	wakeup[2] = {-1, -1};
static int	also_fd = -1;

/*
 * Must be called in each process before it sleeps: what it inherits is shared
 * with the parent. Returns false with errno set if there are no descriptors left.
 */
bool
wait_open(void)
{
	also_fd = -1;
	if (pipe(wakeup) < 0)
		return false;
	for (int i = 0; i < 2; i++)
	{
		fcntl(wakeup[i], F_SETFD, FD_CLOEXEC);
		fcntl(wakeup[i], F_SETFL, O_NONBLOCK);
	}
#ifdef __linux__
	timer_fd = timerfd_create(CLOCK, TFD_CLOEXEC | TFD_NONBLOCK);
	return timer_fd >= 0;
#else
	return true;
#endif
}

Time
clock_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK, &now);
	return now.tv_sec * SECOND + now.tv_nsec / 1000;
}

/*
 * The time so long after the other. TIME_FOREVER stays what it is.
 */
Time
clock_after(Time from, Time length)
{
	return length >= TIME_FOREVER - from ? TIME_FOREVER : from + length;
}

double
clock_seconds(Time length)
{
	return (double) length / SECOND;
}

#ifdef __linux__
/*
 * Let the timer descriptor become readable at that time. Zero would switch it
 * off, so the past is one nanosecond after the machine was booted.
 */
static void
set_timer(Time at)
{
	struct itimerspec timer;

	memset(&timer, 0, sizeof(timer));
	if (at != TIME_FOREVER)
	{
		timer.it_value.tv_sec = Max(at, 0) / SECOND;
		timer.it_value.tv_nsec = Max(at, 0) % SECOND * 1000 + 1;
	}
	(void) timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &timer, NULL);
}
#endif

/*
 * Wake this process. For handlers of signals: if the pipe is full, poll() will return all the
 * same.
 */
void
wait_wake(void)
{
	(void) !write(wakeup[1], "", 1);
}

/*
 * From now on each sleep ends when this descriptor is readable, too; -1: none.
 */
void
wait_also_for(int fd)
{
	also_fd = fd;
}

/*
 * Sleep until one of the descriptors is ready, there was a signal or the time has come.
 * Returns whether one of the caller's descriptors is ready.
 */
static bool
sleep_once(struct pollfd *fds, int nfds, Time until)
{
	struct pollfd all[MAX_FDS + 3];
	char		buffer[64];
	int			timeout = -1;
	bool		ready = false;

	Assert(nfds <= MAX_FDS);
	for (int i = 0; i < nfds; i++)
		all[i] = (struct pollfd) {.fd = fds[i].fd, .events = fds[i].events};
	all[nfds] = (struct pollfd) {.fd = wakeup[0], .events = POLLIN};
	all[nfds + 1] = (struct pollfd) {.fd = also_fd, .events = POLLIN};
	all[nfds + 2] = (struct pollfd) {.fd = timer_fd, .events = POLLIN};
#ifdef __linux__
	set_timer(until);
#else
	if (until != TIME_FOREVER)
		timeout = Min(Max(until - clock_now() + 999, 0) / 1000, 3600 * 1000);
#endif
	if (poll(all, nfds + 3, timeout) < 0)
		nfds = 0;				/* a signal */
	while (read(wakeup[0], buffer, sizeof(buffer)) > 0)
		;
	for (int i = 0; i < nfds; i++)
	{
		fds[i].revents = all[i].revents;
		ready |= all[i].revents != 0;
	}
	return ready;
}

/*
 * Wait until a descriptor is ready, the time has come, or "stop" (if any) returns true.
 * A descriptor of -1 is never ready.
 */
WaitResult
wait_for(struct pollfd *fds, int nfds, Time until, StopWaiting stop)
{
	for (;;)
	{
		Time		now = clock_now();

		for (int i = 0; i < nfds; i++)
			fds[i].revents = 0;
		if (stop != NULL && stop())
			return WAIT_INTERRUPTED;
		if (now >= until)
			return WAIT_TIME_OVER;
		if (sleep_once(fds, nfds, until))
			return WAIT_READY;
	}
}

WaitResult
wait_for_one(int fd, short events, Time until, StopWaiting stop)
{
	struct pollfd one = {.fd = fd, .events = events};

	return wait_for(&one, 1, until, stop);
}

WaitResult
wait_until(Time until, StopWaiting stop)
{
	return wait_for(NULL, 0, until, stop);
}
