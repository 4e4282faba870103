/*-------------------------------------------------------------------------
 *
 * text.h
 *		Texts: how names compare, and how they are shown.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_TEXT_H
#define LEASE_LOCK_TEXT_H

#include "common/hashfn.h"
#include "lib/stringinfo.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"				/* no longer part of postgres.h */
#endif

/* printable.c: texts of users in messages, in the log and in graphs */
extern void append_printable(StringInfo text, const char *name, int length, const char *special);
extern char *printable(const text *string); /* for a message that puts the text in quotes */
extern char *printable_string(const char *string);

/* Names of resources and owners are compared by their bytes. */
static inline bool
same_text(const text *a, const text *b)
{
	return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

/* The order of a and b: negative, 0 or positive. */
static inline int
compare_texts(const text *a, const text *b)
{
	int			order = memcmp(VARDATA_ANY(a), VARDATA_ANY(b),
							   Min(VARSIZE_ANY_EXHDR(a), VARSIZE_ANY_EXHDR(b)));

	return order != 0 ? order : (int) VARSIZE_ANY_EXHDR(a) - (int) VARSIZE_ANY_EXHDR(b);
}

static inline uint64
hash_text(const text *string, uint64 seed)
{
	return hash_bytes_extended((const unsigned char *) VARDATA_ANY(string),
							   VARSIZE_ANY_EXHDR(string), seed);
}

#endif							/* LEASE_LOCK_TEXT_H */
