/*-------------------------------------------------------------------------
 *
 * compat.h
 *		What differs between versions of PostgreSQL, in the shape of the newest.
 *
 *-------------------------------------------------------------------------
 */
#ifndef COMPAT_H
#define COMPAT_H

/* Before 18, it has another name. */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

#endif							/* COMPAT_H */
