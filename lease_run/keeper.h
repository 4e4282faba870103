/*-------------------------------------------------------------------------
 *
 * keeper.h
 *		The process that ends the command in time, whatever happens.
 *
 *-------------------------------------------------------------------------
 */
#ifndef KEEPER_H
#define KEEPER_H

#include "clock.h"

/* When the command gets its signal, and when SIGKILL. */
typedef struct EndTimes
{
	Time		signal_at;
	Time		kill_at;
} EndTimes;

/* What the keeper has done so far. */
typedef enum KeeperState
{
	KEEPER_WATCHES,
	KEEPER_SIGNALLED,
	KEEPER_KILLED
} KeeperState;

extern pid_t keeper_start(pid_t group, int signo, const EndTimes *times);
extern int	keeper_fd(void);
extern KeeperState keeper_listen(void);
extern void keeper_set(const EndTimes *times);
extern void keeper_dismiss(pid_t keeper);

#endif							/* KEEPER_H */
