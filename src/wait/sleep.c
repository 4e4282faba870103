/*-------------------------------------------------------------------------
 *
 * sleep.c
 *		Sleeping until a time, a wake-up, or a lost connection of the client.
 *
 * A waiter whose client is gone would be granted a lease that nobody knows of.
 * The server checks the connection only if client_connection_check_interval is
 * set. So the sleep watches the client's socket itself, where the platform
 * supports that.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

/* The headers of these libraries may be missing, and are not needed. */
#undef ENABLE_GSS
#undef USE_OPENSSL
#undef USE_SSL
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"

#include "wait/queue.h"

/* Can the server detect that a client has closed its connection during a wait? */
static bool
client_reports_closed(void)
{
	return MyProcPort != NULL && WaitEventSetCanReportClosed();
}

/* At the next check for interrupts. */
static void
end_for_lost_client(void)
{
	ClientConnectionLost = true;
	InterruptPending = true;
}

/* Sleep until the latch is set, or until the given time. */
void
sleep_until(MonotonicTime until)
{
	/* Round up, since a look that is too early would have to be repeated. */
	long		timeout = (long) ((mono_until(until) + 999) / 1000);
	uint32		wait_event = WaitEventExtensionNew("LeaseLockWait");

	if (client_reports_closed())
	{
		WaitEvent	events[FeBeWaitSetNEvents];
		int			n;

		ModifyWaitEvent(FeBeWaitSet, FeBeWaitSetSocketPos, WL_SOCKET_CLOSED, NULL);
		n = WaitEventSetWait(FeBeWaitSet, timeout, events, lengthof(events), wait_event);
		for (int i = 0; i < n; i++)
		{
			if (events[i].events & WL_LATCH_SET)
				ResetLatch(MyLatch);
			if (events[i].events & WL_SOCKET_CLOSED)
				end_for_lost_client();
			if (events[i].events & WL_POSTMASTER_DEATH)
				proc_exit(1);
		}
	}
	else if (WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					   timeout, wait_event) & WL_LATCH_SET)
		ResetLatch(MyLatch);

	CHECK_FOR_INTERRUPTS();
}

/* End the session if its client is gone. */
void
check_client(void)
{
	if (client_reports_closed() && !pq_check_connection())
		end_for_lost_client();
	CHECK_FOR_INTERRUPTS();
}
