/*-------------------------------------------------------------------------
 *
 * Names that an operator reads.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_PRINTABLE_H
#define LEASE_LOCK_PRINTABLE_H

#include "lib/stringinfo.h"

extern void append_printable(StringInfo text, const char *name, int length, const char *special);
extern char *quote_name(const text *name);
extern char *role_name(Oid role);

#endif							/* LEASE_LOCK_PRINTABLE_H */
