/*-------------------------------------------------------------------------
 *
 * tokens.c
 *		Fencing tokens.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/sequence.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "store/store.h"

/*
 * Get the next fencing token, which has to be above the last one of the
 * resource. It is used up even when the transaction fails.
 */
int64
store_next_token(LeaseStore *store, int64 last_token)
{
	int64		token = nextval_internal(store->token_sequence, false);

	if (token <= last_token)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("token sequence of the lock table \"%s\" was set back",
						RelationGetRelationName(store->table)),
				 errdetail("Token " INT64_FORMAT " was granted before.", last_token),
				 errhint("Set the sequence above every token that was granted, with setval().")));
	return token;
}
