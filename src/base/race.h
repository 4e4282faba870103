/*-------------------------------------------------------------------------
 *
 * race.h
 *		Points of the code at which races with other sessions are likely.
 *
 * With -DLEASE_LOCK_RACES, each race point sometimes waits for a random time.
 * So a race that otherwise takes days to happen happens within minutes. A test
 * can also stop a session at a point that it names. scripts/check-races builds
 * and tests that way. In other builds, race points do nothing.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_RACE_H
#define LEASE_LOCK_RACE_H

#ifdef LEASE_LOCK_RACES
#define RACE_POINT(name) race_point(name)
#define RACE_INIT() race_init()
extern void race_init(void);	/* at load time */
extern void race_point(const char *name);
#else
#define RACE_POINT(name) ((void) 0)
#define RACE_INIT() ((void) 0)
#endif

#endif							/* LEASE_LOCK_RACE_H */
