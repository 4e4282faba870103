/*-------------------------------------------------------------------------
 *
 * wait.c
 *		The only place where lease_run sleeps.
 *
 * Whatever it waits for, the server or the time, lease_run hears of signals, of
 * the command and of the keeper meanwhile.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "command.h"
#include "signals.h"
#include "wait.h"

/* How often to look for processes of the command's group whose end sends no signal. */
#define LINGERING_CHECK	(SECOND / 10)

static bool
is_useless(WaitUntil useful)
{
	switch (useful)
	{
		case UNTIL_SIGNALLED:
			return signals_caught() != 0;
		case UNTIL_COMMAND_ENDS:
			return !command_is_running() || command_is_being_ended();
		case UNTIL_GROUP_IS_EMPTY:
			return !command_is_running();
		case UNTIL_DONE:
			return false;
	}
	return false;
}

/*
 * Wait until the descriptor is ready, the time has come, or the caller's work is
 * of no use. A descriptor of -1 is never ready.
 */
WaitResult
wait_for(int fd, short events, Time until, WaitUntil useful)
{
	for (;;)
	{
		struct pollfd fds[3] = {
			{.fd = fd, .events = events},
			{.fd = signals_fd(), .events = POLLIN},
			{.fd = keeper_fd(), .events = POLLIN}
		};
		Time		now = clock_now();

		command_handle_signals();
		if (is_useless(useful))
			return WAIT_INTERRUPTED;
		if (now >= until)
			return WAIT_TIME_OVER;
		clock_poll(fds, lengthof(fds),
				   command_is_lingering() ? Min(until, now + LINGERING_CHECK) : until);
		signals_drain();
		if (fds[0].revents != 0)
			return WAIT_READY;
	}
}
