/*-------------------------------------------------------------------------
 *
 * command.h
 *		The command that runs under the lease, and its process group.
 *
 *-------------------------------------------------------------------------
 */
#ifndef COMMAND_H
#define COMMAND_H

#include "keeper.h"

/* How the command ended, for the exit status of lease_run. */
typedef enum CommandEnd
{
	COMMAND_ENDED,				/* by itself, or by a signal that was not ours */
	COMMAND_WAS_ENDED,			/* since the lease was lost, or might have been */
} CommandEnd;

extern void command_start(char *const *argv, int signo, const EndTimes *times);
extern void command_handle_signals(void);
extern bool command_is_running(void);
extern bool command_is_lingering(void);
extern bool command_is_being_ended(void);
extern void command_end(const EndTimes *times);
extern CommandEnd command_result(int *exit_status);

#endif							/* COMMAND_H */
