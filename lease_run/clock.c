/*-------------------------------------------------------------------------
 *
 * clock.c
 *		Time that nobody can set, in microseconds.
 *
 * A lease goes on to end while this machine is suspended. So the clock must
 * count that time, and a sleep must end on time after it. On Linux that is
 * CLOCK_BOOTTIME, for both: the time that poll() takes does not count it, so a
 * timer descriptor of that clock wakes poll(). Elsewhere it is
 * CLOCK_MONOTONIC, which may not count it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <time.h>
#ifdef __linux__
#include <sys/timerfd.h>
#endif

#include "clock.h"
#include "common/logging.h"

#ifdef __linux__
#define CLOCK	CLOCK_BOOTTIME
#else
#define CLOCK	CLOCK_MONOTONIC
#endif

#define MAX_FDS	4

static int	timer_fd = -1;

/*
 * Must be called in each process before it sleeps: a timer descriptor that was
 * inherited is shared with the parent.
 */
void
clock_open(void)
{
#ifdef __linux__
	timer_fd = timerfd_create(CLOCK, TFD_CLOEXEC | TFD_NONBLOCK);
	if (timer_fd < 0)
		pg_fatal("could not create a timer: %m");
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
	if (timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &timer, NULL) < 0)
		pg_fatal("could not set a timer: %m");
}
#endif

/*
 * Wait until one of the descriptors is ready or the time has come. May return
 * early, after a signal. A descriptor of -1 is never ready.
 */
void
clock_poll(struct pollfd *fds, int nfds, Time until)
{
	struct pollfd all[MAX_FDS + 1];
	int			timeout = -1;

	Assert(nfds <= MAX_FDS);
	memcpy(all, fds, nfds * sizeof(struct pollfd));
	all[nfds] = (struct pollfd) {.fd = timer_fd, .events = POLLIN};
#ifdef __linux__
	set_timer(until);
#else
	if (until != TIME_FOREVER)
		timeout = Min(Max(until - clock_now() + 999, 0) / 1000, 3600 * 1000);
#endif
	for (int i = 0; i < nfds; i++)
		all[i].revents = 0;
	if (poll(all, nfds + 1, timeout) < 0)
	{
		if (errno != EINTR)
			pg_fatal("could not wait: %m");
		for (int i = 0; i < nfds; i++)
			all[i].revents = 0;
	}
	memcpy(fds, all, nfds * sizeof(struct pollfd));
}
