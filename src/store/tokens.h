/*-------------------------------------------------------------------------
 *
 * tokens.h
 *		Fencing tokens.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_TOKENS_H
#define LEASE_LOCK_TOKENS_H

/* Watch for changes of the token sequence. */
extern void tokens_init(void);

/*
 * Get the next token of this sequence: higher than any before, in this era and
 * in earlier ones. It is used up even when the transaction fails.
 */
extern int64 tokens_next(Oid token_sequence);

#endif							/* LEASE_LOCK_TOKENS_H */
