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

#include "compat.h"

extern void signals_install(void);
extern int	signals_fd(void);
extern bool signals_drain(void);
extern void signals_do_not_exit(void);
extern int	signals_caught(void);
extern bool signals_received(int signo);
pg_noreturn extern void signals_die_of(int signo);
extern void signals_block(sigset_t *before);
extern void signals_restore(const sigset_t *before);
extern void signals_forward_to(pid_t group);
extern void signals_reset_in_child(const sigset_t *mask);
extern bool signals_stop_self(int signo);

#endif							/* SIGNALS_H */
