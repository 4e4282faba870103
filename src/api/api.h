/*-------------------------------------------------------------------------
 *
 * api.h
 *		Types and functions that the files of this folder share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_API_H
#define LEASE_LOCK_API_H

#include "fmgr.h"
#include "utils/timestamp.h"

#include "server/server.h"

/* Resources, in the order given and sorted. */
typedef struct Resources
{
	int			number;
	text	  **given;
	text	  **sorted;
} Resources;

/* arguments.c */
extern int	errcode_argument(bool is_null);
extern void require_writable(const char *function);
extern text *resource_arg(FunctionCallInfo fcinfo, int argno);
extern text *owner_arg(FunctionCallInfo fcinfo, int argno);
extern text *new_owner_arg(FunctionCallInfo fcinfo, int argno);
extern int64 ttl_arg(FunctionCallInfo fcinfo, int argno, const text *resource);
extern int64 wait_arg(FunctionCallInfo fcinfo, int argno, const text *resource);
extern int64 grace_arg(FunctionCallInfo fcinfo, int argno, const text *resource);
extern int64 token_arg(FunctionCallInfo fcinfo, int argno, const text *resource);
extern int	permits_arg(FunctionCallInfo fcinfo, int argno, const text *resource);
extern Resources resources_arg(FunctionCallInfo fcinfo, int argno);
extern Datum payload_arg(FunctionCallInfo fcinfo, int argno);
extern int64 request_args(FunctionCallInfo fcinfo, int argno, LeaseRequest *request);

static inline Datum
usecs_to_interval(int64 usecs)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = usecs;
	return IntervalPGetDatum(interval);
}

#endif							/* LEASE_LOCK_API_H */
