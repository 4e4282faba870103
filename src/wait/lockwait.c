/*-------------------------------------------------------------------------
 *
 * lockwait.c
 *		A wait in the lock manager with a time limit.
 *
 * A waiter waits for a transaction in the lock manager, so that the server's
 * deadlock detector, pg_locks, pg_blocking_pids() and log_lock_waits know of
 * the wait. The wait must end without an error when the caller's time is over.
 * It must not swallow a cancel, statement_timeout or lock_timeout that arrives
 * at the same moment.
 *
 * ProcSleep() sleeps until it has the lock, finds a deadlock, or
 * ProcessInterrupts() raises an error. Of the errors that ProcessInterrupts()
 * can raise in a session of a primary server, an extension can request only
 * one: the cancel, with QueryCancelPending. So our own timeout sets this flag,
 * and the error is caught here. The server uses the same flag, but always
 * after a SIGINT: pg_cancel_backend() and the client send the signal, and the
 * handlers of statement_timeout and lock_timeout raise it. So a handler around
 * the server's own SIGINT handler tells the two kinds of request apart. It stays
 * from the first wait of a session on. The handler can run at any moment, also
 * inside of our timeout's handler. So each of the two sets a variable of its
 * own, and neither resets the other's.
 *
 *		what comes first	then			flag	so
 *		our timeout			consumed		false	the error is ours: drop it
 *		our timeout			lock granted	true	no error: clear the flag
 *		our timeout			deadlock		true	the server's error goes on; clear the flag
 *		our timeout			SIGINT					the error is the server's
 *		SIGINT				our timeout				our timeout does nothing
 *		ours, consumed		SIGINT			true	the error goes on as the server's
 *
 * The error needs no subtransaction. ProcessInterrupts() calls
 * LockErrorCleanup() before it raises the error, and the abort of a
 * transaction does no more about an awaited lock. ProcSleep() holds nothing
 * else. If the lock was granted at that moment, LockErrorCleanup() keeps it,
 * and the caller may release it.
 *
 * If the server finds a deadlock and our timeout comes at the same moment, the
 * error is ours, and the deadlock is found again in the next wait.
 *
 * The server's LockTimeout would bound the wait without all this. But not every
 * bound is the end of the wait: often it is the time to check for a deadlock
 * that the server cannot see, and then the wait goes on. The server sets one
 * flag for lock_timeout and for a cancel, and the error of lock_timeout clears
 * it, with the indicator of statement_timeout. So a cancel or statement_timeout
 * that comes before that error is raised would be lost, and the call would wait
 * on. On a busy machine that is no matter of microseconds: the signals of a
 * process that does not run arrive together. The test cancel_at_check shows it.
 *
 * On Windows signals are emulated, and there is no handler to wrap. There, a
 * cancel that comes in the microseconds between our timeout and its error is
 * lost.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "utils/timeout.h"

#include "wait/queue.h"

static volatile sig_atomic_t timed_out = false;	/* our timeout set the flag */
static volatile sig_atomic_t cancelled = false;	/* SIGINT came */
static TimeoutId bound = MAX_TIMEOUTS;

/* Timeout handler; runs in the SIGALRM handler, which also sets the latch. */
static void
bound_reached(void)
{
	if (!QueryCancelPending && !cancelled)
	{
		timed_out = true;
		QueryCancelPending = true;
		InterruptPending = true;
	}
}

#ifndef WIN32
static struct sigaction server_handler;

static void
note_cancel(int signo, siginfo_t *info, void *context)
{
	cancelled = true;
	if (server_handler.sa_flags & SA_SIGINFO)
		server_handler.sa_sigaction(signo, info, context);
	else if (server_handler.sa_handler != SIG_IGN && server_handler.sa_handler != SIG_DFL)
		server_handler.sa_handler(signo);
}

static void
watch_cancels(void)
{
	struct sigaction action;

	sigaction(SIGINT, NULL, &server_handler);
	action = server_handler;
	action.sa_flags |= SA_SIGINFO;
	action.sa_sigaction = note_cancel;
	sigaction(SIGINT, &action, NULL);
}
#else
#define watch_cancels()
#endif

/* Disable the timeout. Returns whether it raised the error, if there was one. */
static bool
end_bound(void)
{
	bool		pending;
	bool		ours;

	disable_timeout(bound, false);
	pending = QueryCancelPending;
	ours = timed_out && !cancelled;
	if (pending && ours)
	{
		QueryCancelPending = false;
		if (cancelled)			/* just now */
			QueryCancelPending = InterruptPending = true;
	}
	return ours && !pending;
}

/*
 * Do work that waits in the lock manager, but no longer than until the given
 * time of the monotonic clock; false if the time came first. While it waits,
 * the work must not hold anything that only the end of a transaction releases.
 */
bool
lock_wait_until(MonotonicTime until, void (*work) (void *arg), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	int64		usecs;
	volatile bool done = true;

	if (bound == MAX_TIMEOUTS)
	{
		bound = RegisterTimeout(USER_TIMEOUT, bound_reached);
		watch_cancels();
	}

	CHECK_FOR_INTERRUPTS();
	usecs = mono_until(until);
	if (usecs == 0)
		return false;

	timed_out = cancelled = false;
	enable_timeout_after(bound, (int) Min((usecs + 999) / 1000, INT_MAX));
	PG_TRY();
	{
		work(arg);
		end_bound();
	}
	PG_CATCH();
	{
		if (!end_bound())
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		done = false;
	}
	PG_END_TRY();

	CHECK_FOR_INTERRUPTS();
	return done;
}
