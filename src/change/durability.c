/*-------------------------------------------------------------------------
 *
 * durability.c
 *		What a commit waits for when its transaction changed leases.
 *
 * If a grant or renewal is lost after its holder was told, the lease can have
 * two holders. So the commit waits for the disk, and for the synchronous
 * standbys, even if synchronous_commit of the session would not.
 *
 * A lost release only keeps the lease until it expires, unless min_hold would
 * keep it for longer: such a release counts as a grant does. So the commit of a
 * transaction that did nothing but release leases does not wait, even if
 * synchronous_commit of the session would. The transaction did nothing else if
 *
 * - it had no transaction id when its first release began. Every change that
 *   must survive a crash assigns one, even nextval().
 * - the last WAL record before each later release, and before the commit, is
 *   that of the release before.
 *
 * WAL that a release writes on its way, for example when it prunes a page,
 * belongs to the release. WAL of a read after the release does not: then the
 * commit waits, which does no harm. NOTIFY and changes of temporary and
 * unlogged tables write no WAL, and do not survive a crash anyway.
 *
 * Both are done by setting synchronous_commit, for this transaction only, right
 * before the commit. The server puts it back, however the transaction ends.
 *
 * A transaction that is prepared is flushed anyway; its state waits for the
 * standbys as a commit does. COMMIT PREPARED waits for the standbys as the
 * session that runs it says. That loses no lease: a server that lacks the
 * commit record still has the prepared transaction, which blocks every other
 * request for the lease.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "utils/guc.h"

#include "change/change.h"

static const struct config_enum_entry durabilities[] = {
	{"on", SYNCHRONOUS_COMMIT_ON, false},
	{"local", SYNCHRONOUS_COMMIT_LOCAL_FLUSH, false},
	{"off", SYNCHRONOUS_COMMIT_OFF, false},
	{"true", SYNCHRONOUS_COMMIT_ON, true},
	{"false", SYNCHRONOUS_COMMIT_OFF, true},
	{"yes", SYNCHRONOUS_COMMIT_ON, true},
	{"no", SYNCHRONOUS_COMMIT_OFF, true},
	{"1", SYNCHRONOUS_COMMIT_ON, true},
	{"0", SYNCHRONOUS_COMMIT_OFF, true},
	{NULL, 0, false}
};

static int	durable = SYNCHRONOUS_COMMIT_ON;
static bool flush_releases = false;

/* What the current transaction did. */
static int	wanted = SYNCHRONOUS_COMMIT_OFF; /* highest level that a write asked for */
static XLogRecPtr release_end = InvalidXLogRecPtr;	/* of the last release */
static bool only_releases = false;	/* nothing but releases up to that point */

/* Has the transaction written no WAL so far but that of releases? */
static bool
released_only(void)
{
	return only_releases && release_end != InvalidXLogRecPtr && release_end == XactLastRecEnd;
}

/* Set synchronous_commit for the rest of the transaction. */
static void
commit_with(int level)
{
	const char *name = level == SYNCHRONOUS_COMMIT_OFF ? "off" :
		level == SYNCHRONOUS_COMMIT_ON ? "on" : "local";

	if (level != synchronous_commit)
		(void) set_config_option("synchronous_commit", name, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
}

static void
before_end(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (released_only() && !flush_releases)
				commit_with(SYNCHRONOUS_COMMIT_OFF);
			else
				commit_with(Max(synchronous_commit, wanted));
			break;

		case XACT_EVENT_PRE_PREPARE:
			commit_with(Max(synchronous_commit, wanted));
			break;

		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			wanted = SYNCHRONOUS_COMMIT_OFF;
			release_end = InvalidXLogRecPtr;
			only_releases = false;
			break;

		default:
			break;
	}
}

void
durability_init(void)
{
	DefineCustomEnumVariable("lease_lock.durable",
							 "Sets what grants and renewals survive, whatever synchronous_commit "
							 "says.",
							 "\"on\": a crash, and a failover to a synchronous standby. \"local\": "
							 "a crash. \"off\": what synchronous_commit says.",
							 &durable,
							 SYNCHRONOUS_COMMIT_ON,
							 durabilities,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("lease_lock.flush_releases",
							 "Makes the commit of a transaction that only releases leases wait as "
							 "synchronous_commit says.",
							 NULL,
							 &flush_releases,
							 false,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	RegisterXactCallback(before_end, NULL);
}

void
durable_write(void)
{
	wanted = Max(wanted, durable);
	only_releases = false;
}

void
durable_action_begins(void)
{
	only_releases = !TransactionIdIsValid(GetTopTransactionIdIfAny()) || released_only();
}

void
durable_release(void)
{
	release_end = XactLastRecEnd;
}
