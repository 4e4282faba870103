/*-------------------------------------------------------------------------
 *
 * wait.h
 *		Time that nobody can set, and the only place where lease_run sleeps.
 *
 *-------------------------------------------------------------------------
 */
#ifndef WAIT_H
#define WAIT_H

#include <poll.h>
#include <stdint.h>

typedef int64 Time;				/* a point of time, or a length of time, in microseconds */

#define SECOND			INT64_C(1000000)
#define TIME_FOREVER	INT64_MAX

typedef enum WaitResult
{
	WAIT_READY,					/* a descriptor is ready */
	WAIT_TIME_OVER,
	WAIT_INTERRUPTED			/* the caller's work is of no use any more */
} WaitResult;

/* Handles what has happened meanwhile. Is the caller's work of no use any more? */
typedef bool (*StopWaiting) (void);

extern bool wait_open(void);
extern Time clock_now(void);
extern Time clock_after(Time from, Time length);
extern double clock_seconds(Time length);
extern void wait_wake(void);
extern void wait_also_for(int fd);
extern WaitResult wait_for(struct pollfd *fds, int nfds, Time until, StopWaiting stop);
extern WaitResult wait_for_one(int fd, short events, Time until, StopWaiting stop);
extern WaitResult wait_until(Time until, StopWaiting stop);

#endif							/* WAIT_H */
