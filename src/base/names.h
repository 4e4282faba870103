/*-------------------------------------------------------------------------
 *
 * names.h
 *		Names of resources and owners, compared by their bytes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_NAMES_H
#define LEASE_LOCK_NAMES_H

#include "common/hashfn.h"

#include "base/compat.h"		/* varatt.h from 16 on */

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
	int			order = memcmp(VARDATA_ANY(a), VARDATA_ANY(b), Min(VARSIZE_ANY_EXHDR(a), VARSIZE_ANY_EXHDR(b)));

	return order != 0 ? order : (int) VARSIZE_ANY_EXHDR(a) - (int) VARSIZE_ANY_EXHDR(b);
}

static inline uint64
hash_text(const text *string, uint64 seed)
{
	return hash_bytes_extended((const unsigned char *) VARDATA_ANY(string), VARSIZE_ANY_EXHDR(string), seed);
}

#endif							/* LEASE_LOCK_NAMES_H */
