/*-------------------------------------------------------------------------
 *
 * hosts.h
 *		The addresses to connect to, in order; processes for calls that wait.
 *
 *-------------------------------------------------------------------------
 */
#ifndef HOSTS_H
#define HOSTS_H

#include <sys/types.h>

#include "wait.h"

/* A host, or one of the addresses of its name. */
typedef struct Address
{
	char	   *host;			/* NULL: the default */
	char	   *address;		/* NULL: libpq needs none */
	char	   *port;			/* NULL: the default */
	int			silent;			/* number of the last time when it was silent; 0: never */
} Address;

typedef struct Hosts
{
	Address    *list;
	int			n;
	int			silences;		/* how often one was silent */
	char	   *error;			/* why there is none, or not all */
} Hosts;

/* A process that makes a call which waits. The descriptor is at its end when the process is. */
typedef struct Helper
{
	pid_t		pid;			/* 0: none */
	int			fd;
} Helper;

extern WaitResult hosts_find(Hosts *hosts, const char *host, const char *address, const char *port,
							 Time until, StopWaiting stop);
extern void hosts_silent(Hosts *hosts, const Address *address);
extern Helper helper_start(void (*work) (void *arg, int fd), void *arg);
extern void helper_end(Helper *helper);

#endif							/* HOSTS_H */
