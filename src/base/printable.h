/*-------------------------------------------------------------------------
 *
 * printable.h
 *		Texts of users in messages, in the log and in graphs.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_PRINTABLE_H
#define LEASE_LOCK_PRINTABLE_H

#include "lib/stringinfo.h"

extern void append_printable(StringInfo text, const char *name, int length, const char *special);

/* For a message that puts the text in quotes. */
extern char *printable(const text *string);
extern char *printable_string(const char *string);

extern char *role_name(Oid role);

#endif							/* LEASE_LOCK_PRINTABLE_H */
