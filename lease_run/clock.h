/*-------------------------------------------------------------------------
 *
 * clock.h
 *		Time that nobody can set, in microseconds.
 *
 *-------------------------------------------------------------------------
 */
#ifndef CLOCK_H
#define CLOCK_H

#include <poll.h>
#include <stdint.h>

typedef int64 Time;				/* a point of time, or a length of time */

#define SECOND			INT64_C(1000000)
#define TIME_FOREVER	INT64_MAX

extern void clock_open(void);
extern Time clock_now(void);
extern Time clock_after(Time from, Time length);
extern double clock_seconds(Time length);
extern void clock_poll(struct pollfd *fds, int nfds, Time until);

#endif							/* CLOCK_H */
