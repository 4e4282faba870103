/*-------------------------------------------------------------------------
 *
 * command.h
 *		The command that runs under the lease, as lease_run sees it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef COMMAND_H
#define COMMAND_H

#include "watchdog.h"

/* How the command ended, for the exit status of lease_run. */
typedef enum CommandEnd
{
	COMMAND_ENDED,				/* by itself, or by a signal that was not ours */
	COMMAND_WAS_ENDED,			/* since the lease was lost, or might have been */
	COMMAND_NOT_STARTED			/* no process, memory or descriptor is left */
} CommandEnd;

extern bool command_start(const Options *options, const EndTimes *times);
extern void command_set_times(const EndTimes *times);
extern void command_end(const EndTimes *times);
extern bool command_stop_working(void);
extern void command_await_end(void);
extern CommandEnd command_result(int *exit_status);

#endif							/* COMMAND_H */
