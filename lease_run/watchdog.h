/*-------------------------------------------------------------------------
 *
 * watchdog.h
 *		The process that runs the command, and ends it in time, whatever happens.
 *
 *-------------------------------------------------------------------------
 */
#ifndef WATCHDOG_H
#define WATCHDOG_H

#include <sys/types.h>

#include "options.h"
#include "wait.h"

/* When the command gets its signal, and when SIGKILL. */
typedef struct EndTimes
{
	Time		signal_at;
	Time		kill_at;
} EndTimes;

/* What lease_run tells the watchdog. */
typedef enum OrderKind
{
	ORDER_TIMES,				/* the lease was renewed, or is lost: when to end the command */
	ORDER_SIGNAL,				/* lease_run got this signal */
	ORDER_GROUP_SIGNAL			/* send this signal to the process group */
} OrderKind;

typedef struct Order
{
	OrderKind	kind;
	int			signo;
	EndTimes	times;
} Order;

/* What the watchdog tells. */
typedef enum ReportKind
{
	REPORT_STARTED,				/* the value is the pid */
	REPORT_NOT_STARTED,			/* errno */
	REPORT_STOPPED,				/* the signal that stopped the first process */
	REPORT_ENDED,				/* wait status of the first process */
	REPORT_SIGNALLED,			/* ended because of the lease: the signal was sent */
	REPORT_KILLED,				/* and SIGKILL */
	REPORT_ALL_ENDED			/* with all processes that it started */
} ReportKind;

typedef struct Report
{
	ReportKind	kind;
	int			value;
} Report;

extern pid_t watchdog_start(const Options *options, const EndTimes *times, int *fd);
extern bool watchdog_kill_descendants(pid_t group, bool even_daemons);

#endif							/* WATCHDOG_H */
