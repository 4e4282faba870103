/*-------------------------------------------------------------------------
 *
 * server.h
 *		What the extension uses of the server, wrapped for all of its parts.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_SERVER_H
#define LEASE_LOCK_SERVER_H

#include "model/text.h"
#include "model/types.h"
#include "server/compat.h"
#include "server/monotonic.h"

/* clock.c: lease time and wall time; monotonic.h has the clock of waits */
extern void clock_init(void);
extern TimestampTz clock_now(void); /* lease time, which leases are dated by */
extern TimestampTz clock_wall_time(TimestampTz lease_time); /* what the wall clock says at that
															 * moment */
extern int64 clock_difference(void);	/* how far the wall clock is ahead of lease time, in
										 * microseconds */
extern void clock_report_step(void);	/* to the log, once for each step */
extern int64 clock_used(void);	/* processor time of this process, in microseconds */

/* sessions.c: numbers of sessions, for leases that end with their session */
extern void sessions_init(void);
extern void require_session_numbers(void);	/* an error if this server cannot number its sessions */
extern int64 session_number(void);	/* of this session, which keeps it until it ends */
extern LeaseSession session_state(int64 number);	/* 0 is none */
extern void session_end(void);	/* as far as leases are concerned */

/* shared_memory.c: the area of shared memory that the processes of a server share */
typedef struct SharedPart
{
	const char *name;			/* its number changes with the layout, because two builds of the
								 * library may be in use */
	Size		(*size) (void);
	void		(*create) (void *memory, int tranche);	/* fills it once; tranche is for its
														 * locks */
	void	  **memory;			/* set in each process that attaches; NULL before */
} SharedPart;

extern void add_shared_part(const SharedPart *part);	/* at load time; the part must be a
														 * constant */
extern bool attach_shared_area(void);	/* false if the server has no such area */

/* subxact.c: work that may have to be undone; true keeps it */
typedef bool (*SubtransactionWork) (void *arg);

extern bool run_subtransaction(SubtransactionWork work, void *arg, ErrorData **error);

/* background.c: background workers */
extern void describe_worker(BackgroundWorker *worker, const char *type, const char *function);
extern bool worker_nap(int64 usecs);
extern bool may_stay_in_database(void); /* no other session is about to drop, copy or rename it */
extern bool lock_database(Oid database);
extern void unlock_database(Oid database);

/* superuser_settings.c: settings that only a superuser may change */
extern bool define_superuser_settings(void (*define) (void), const char *const *names, int count);

/* privileges.c: which role may act on a lease, and what errors may show */
extern bool may_act(const Lease *lease);
extern bool role_sees_owner(Oid viewer, Oid role);
extern bool may_see_owner(Oid role);
extern bool error_may_show_owner(Oid role);
pg_noreturn extern void refuse_permission(const Lease *lease);
extern bool column_is_visible(Relation table, AttrNumber column);
extern char *role_name(Oid role);

/*
 * race.c: points of the code at which races with other sessions are likely.
 * With -DLEASE_LOCK_RACES, each of them sometimes waits for a random time, and
 * a test can stop a session at one that it names. scripts/check-races builds
 * and tests that way. In other builds, race points do nothing.
 */
#ifdef LEASE_LOCK_RACES
#define RACE_POINT(name) race_point(name)
#define RACE_INIT() race_init()
#define RACE_HASHES race_hashes
extern int	race_hashes;		/* of the wait queue: so few different ones; 0: all */
extern void race_init(void);
extern void race_point(const char *name);
#else
#define RACE_POINT(name) ((void) 0)
#define RACE_INIT() ((void) 0)
#define RACE_HASHES 0
#endif

#endif							/* LEASE_LOCK_SERVER_H */
