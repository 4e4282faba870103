/*-------------------------------------------------------------------------
 *
 * service.h
 *		A lock service, as the load generator sees it.
 *
 * Every service is driven in the same way: one thread and one connection for
 * each client, one blocking call after the other. So the generator costs the
 * same for all of them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SERVICE_H
#define SERVICE_H

#include <stdbool.h>

#define BATCH		100			/* resources of one statement or pipeline */
#define NAME_LENGTH 64

/* A lock service, or one way to use it. Functions that a service lacks are NULL. */
typedef struct Service
{
	const char *name;
	void	   *(*open) (int client);	/* a connection */
	void		(*close) (void *conn);
	void		(*noop) (void *conn);	/* the cheapest call that the service answers */
	bool		(*acquire) (void *conn, const char *resource);	/* a try; was it granted? */
	void		(*wait) (void *conn, const char *resource); /* acquire, however long it takes */
	void		(*release) (void *conn, const char *resource);
	void		(*acquire_batch) (void *conn, char (*resources)[NAME_LENGTH]);
	void		(*renew_batch) (void *conn, char (*resources)[NAME_LENGTH]);
	void		(*release_batch) (void *conn, char (*resources)[NAME_LENGTH]);
} Service;

extern const Service postgres_lease;	/* leases, one statement for each call */
extern const Service postgres_lease_all;	/* the same, a batch by lease_acquire_all() */
extern const Service postgres_advisory; /* session-level advisory locks */
extern const Service postgres_row;		/* SELECT ... FOR UPDATE in a transaction */
extern const Service redis_polled;		/* SET NX PX; a waiter sleeps 10 ms between tries */
extern const Service redis_blpop;		/* a list with one element: no ttl */
extern const Service etcd;				/* lease, transaction, revocation */
extern const Service zookeeper;			/* ephemeral sequential nodes */

/* Print a message and end the program: a failed call makes all figures worthless. */
extern void fail(const char *format,...) __attribute__((format(printf, 1, 2), noreturn));

#endif							/* SERVICE_H */
