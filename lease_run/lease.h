/*-------------------------------------------------------------------------
 *
 * lease.h
 *		The lease: acquired, renewed, released.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_H
#define LEASE_H

#include "connection.h"
#include "watchdog.h"

typedef struct Lease
{
	const Options *options;
	Connection	connection;
	char	   *schema;			/* of the functions, quoted; NULL: not known yet */
	bool		schema_is_new;	/* looked up after a function was not found */
	char	   *token;			/* NULL: not granted */
	char	   *granted_at;
	bool		is_uncertain;	/* an answer got lost, or a wait ended well: it may be held */
	Time		counts_from;	/* at or before the grant or the last renewal */
	char	   *why_taken;		/* what the last refusal said */
} Lease;

typedef enum LeaseAnswer
{
	LEASE_GRANTED,				/* or renewed */
	LEASE_REFUSED,				/* taken, or lost */
	LEASE_NO_ANSWER,			/* no server, or an error; lease->connection.error says more */
	LEASE_INTERRUPTED			/* by a signal, or since the command has ended */
} LeaseAnswer;

extern LeaseAnswer lease_acquire(Lease *lease);
extern LeaseAnswer lease_keep(Lease *lease);
extern LeaseAnswer lease_release(Lease *lease, bool at_once);
extern LeaseAnswer lease_give_up(Lease *lease);
extern EndTimes lease_end_times(const Lease *lease);
extern Time lease_ends_at(const Lease *lease);

#endif							/* LEASE_H */
