/*-------------------------------------------------------------------------
 *
 * signals.h
 *		Signals that lease_run gets: whom they are for.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SIGNALS_H
#define SIGNALS_H

#include <signal.h>

/* Before 18, it has another name. */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

extern void signals_install(void);
extern void signals_do_not_exit(void);
extern int	signals_caught(void);
extern bool signals_stop(void);
extern bool signals_received(int signo);
extern bool signals_is_ending(int signo);
pg_noreturn extern void signals_die_of(int signo);
extern void signals_block(sigset_t *before);
extern void signals_restore(const sigset_t *before);
extern void signals_forward_by(void (*forward) (int signo));
extern void signals_of_watchdog(void);
extern void signals_as_found(void);
extern bool signals_stop_self(int signo);

#endif							/* SIGNALS_H */
