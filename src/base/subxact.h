/*-------------------------------------------------------------------------
 *
 * subxact.h
 *		Work in a subtransaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_SUBXACT_H
#define LEASE_LOCK_SUBXACT_H

#include "utils/elog.h"

/* Work that may have to be undone; true keeps it. */
typedef bool (*SubtransactionWork) (void *arg);

extern bool run_subtransaction(SubtransactionWork work, void *arg, ErrorData **error);

#endif							/* LEASE_LOCK_SUBXACT_H */
