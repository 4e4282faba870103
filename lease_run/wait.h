/*-------------------------------------------------------------------------
 *
 * wait.h
 *		The only place where lease_run sleeps.
 *
 *-------------------------------------------------------------------------
 */
#ifndef WAIT_H
#define WAIT_H

#include "clock.h"

typedef enum WaitResult
{
	WAIT_READY,					/* the descriptor is ready */
	WAIT_TIME_OVER,
	WAIT_INTERRUPTED			/* the caller's work is of no use any more */
} WaitResult;

/* What makes work useless. */
typedef enum WaitUntil
{
	UNTIL_SIGNALLED,			/* before the command: a signal that ends lease_run */
	UNTIL_COMMAND_ENDS,			/* beside the command: it has ended, or is being ended */
	UNTIL_GROUP_IS_EMPTY,		/* after the command: its whole group has ended */
	UNTIL_DONE					/* nothing */
} WaitUntil;

extern WaitResult wait_for(int fd, short events, Time until, WaitUntil useful);

#endif							/* WAIT_H */
