/*-------------------------------------------------------------------------
 *
 * sessions.h
 *		Numbers of sessions, for leases that end with their session.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_SESSIONS_H
#define LEASE_LOCK_SESSIONS_H

#include "base/types.h"

extern void sessions_init(void);	/* at load time */

/* Raise an error if this server cannot number its sessions. */
extern void require_session_numbers(void);

/* The number of this session, which it keeps until it ends. */
extern int64 session_number(void);

/* State of the session with this number; 0 is none. */
extern LeaseSession session_state(int64 number);

/* End the session, as far as leases are concerned. */
extern void session_end(void);

#endif							/* LEASE_LOCK_SESSIONS_H */
