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
#include "keeper.h"

typedef struct Lease
{
	const Options *options;
	Connection	connection;
	char	   *schema;			/* of the extension, quoted; NULL: not known yet */
	char	   *token;			/* NULL: not granted */
	bool		is_uncertain;	/* an answer got lost: it may have been granted */
	Time		counts_from;	/* at or before the grant or the last renewal */
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
extern LeaseAnswer lease_release(Lease *lease);
extern LeaseAnswer lease_give_up(Lease *lease);
extern EndTimes lease_end_times(const Lease *lease);
extern Time lease_ends_at(const Lease *lease);

#endif							/* LEASE_H */
