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
#include "lease_run.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/timerfd.h>
#endif

#ifdef __linux__
#define CLOCK	CLOCK_BOOTTIME
#else
#define CLOCK	CLOCK_MONOTONIC
#endif

#define MAX_FDS	2

static int	timer_fd = -1;
static int	wakeup[2] = {-1, -1};
static int	also_fd = -1;
static Time also_at = TIME_FOREVER;

/*
 * Must be called in each process before it sleeps: what it inherits is shared with the parent.
 * Returns false with errno set if there are no descriptors left.
 */
bool
wait_open(void)
{
	wait_look_also(-1, TIME_FOREVER);
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

/* The time so long after the other. TIME_FOREVER stays what it is. */
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

/* Wake this process. For handlers of signals: if the pipe is full, poll() will return as well. */
void
wait_wake(void)
{
	(void) !write(wakeup[1], "", 1);
}

/* From now on, stop functions are also called when this descriptor is readable, and then. */
void
wait_look_also(int fd, Time at)
{
	also_fd = fd;
	also_at = at;
}

/*
 * Until when poll() may sleep, in milliseconds. On Linux, the timer descriptor ends it. Zero would
 * switch that off, so the past is one nanosecond after the machine was booted.
 */
static int
set_timer(Time at)
{
#ifdef __linux__
	struct itimerspec timer = {0};

	if (at != TIME_FOREVER)
	{
		timer.it_value.tv_sec = Max(at, 0) / SECOND;
		timer.it_value.tv_nsec = Max(at, 0) % SECOND * 1000 + 1;
	}
	(void) timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &timer, NULL);
	return -1;
#else
	return at == TIME_FOREVER ? -1 : Min(Max(at - clock_now() + 999, 0) / 1000, 3600 * 1000);
#endif
}

/*
 * Sleep until one of the descriptors is ready, there was a signal or the time has come. Returns
 * whether one of the caller's descriptors is ready.
 */
static bool
sleep_once(struct pollfd *fds, int nfds, Time until, bool look_also)
{
	struct pollfd all[MAX_FDS + 3];
	char		buffer[64];
	bool		ready = false;

	Assert(nfds <= MAX_FDS);
	for (int i = 0; i < nfds; i++)
		all[i] = fds[i];
	all[nfds] = (struct pollfd) {.fd = wakeup[0], .events = POLLIN};
	all[nfds + 1] = (struct pollfd) {.fd = timer_fd, .events = POLLIN};
	all[nfds + 2] = (struct pollfd) {.fd = look_also ? also_fd : -1, .events = POLLIN};
	if (poll(all, nfds + 3, set_timer(look_also ? Min(until, also_at) : until)) < 0)
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
Outcome
wait_for(struct pollfd *fds, int nfds, Time until, StopWaiting stop)
{
	for (;;)
	{
		Time		now = clock_now();

		for (int i = 0; i < nfds; i++)
			fds[i].revents = 0;
		if (stop != NULL && stop())
			return INTERRUPTED;
		if (now >= until)
			return TOO_LATE;
		if (sleep_once(fds, nfds, until, stop != NULL))
			return DONE;
	}
}

Outcome
wait_for_one(int fd, short events, Time until, StopWaiting stop)
{
	struct pollfd one = {.fd = fd, .events = events};

	return wait_for(&one, 1, until, stop);
}

Outcome
wait_until(Time until, StopWaiting stop)
{
	return wait_for(NULL, 0, until, stop);
}
