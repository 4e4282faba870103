/*-------------------------------------------------------------------------
 *
 * columns.c
 *		How a lease is stored in the columns of a row.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "base/compat.h"
#include "base/sessions.h"
#include "store/columns.h"

/* Read the columns of a row. The lease points into the values. */
void
lease_from_columns(Lease *lease, const Datum *values, const bool *isnull)
{
	lease->resource = DatumGetTextPP(values[Anum_resource - 1]);
	lease->slot = DatumGetInt16(values[Anum_slot - 1]);
	lease->owner = isnull[Anum_owner - 1] ? NULL : DatumGetTextPP(values[Anum_owner - 1]);
	lease->token = DatumGetInt64(values[Anum_token - 1]);
	lease->granted_at = DatumGetTimestampTz(values[Anum_granted_at - 1]);
	lease->expires_at = DatumGetTimestampTz(values[Anum_expires_at - 1]);
	lease->role = DatumGetObjectId(values[Anum_role - 1]);
	lease->xid = DatumGetFullTransactionId(values[Anum_xid - 1]);
	lease->mode = DatumGetChar(values[Anum_mode - 1]);
	lease->holds = DatumGetInt32(values[Anum_holds - 1]);
	lease->lock_delay = DatumGetInt64(values[Anum_lock_delay - 1]);
	lease->hold_until = isnull[Anum_hold_until - 1] ? DT_NOBEGIN :
		DatumGetTimestampTz(values[Anum_hold_until - 1]);
	lease->session_pid = isnull[Anum_session_pid - 1] ? 0 : DatumGetInt32(values[Anum_session_pid - 1]);
	lease->session_number = isnull[Anum_session_number - 1] ? 0 : DatumGetInt64(values[Anum_session_number - 1]);
	lease->session = lease->owner == NULL ? SESSION_NONE : session_state(lease->session_number);
	lease->payload = isnull[Anum_payload - 1] ? (Datum) 0 : values[Anum_payload - 1];
}

/* Build a row to write. */
TupleTableSlot *
row_from_lease(LeaseStore *store, const Lease *lease)
{
	TupleTableSlot *row = MakeSingleTupleTableSlot(RelationGetDescr(store->table), &TTSOpsVirtual);

	row->tts_values[Anum_resource - 1] = PointerGetDatum(lease->resource);
	row->tts_values[Anum_slot - 1] = Int16GetDatum(lease->slot);
	row->tts_values[Anum_owner - 1] = PointerGetDatum(lease->owner);
	row->tts_values[Anum_token - 1] = Int64GetDatum(lease->token);
	row->tts_values[Anum_granted_at - 1] = TimestampTzGetDatum(lease->granted_at);
	row->tts_values[Anum_expires_at - 1] = TimestampTzGetDatum(lease->expires_at);
	row->tts_values[Anum_role - 1] = ObjectIdGetDatum(lease->role);
	row->tts_values[Anum_xid - 1] = FullTransactionIdGetDatum(lease->xid);
	row->tts_values[Anum_mode - 1] = CharGetDatum(lease->mode);
	row->tts_values[Anum_holds - 1] = Int32GetDatum(lease->holds);
	row->tts_values[Anum_lock_delay - 1] = Int64GetDatum(lease->lock_delay);
	row->tts_values[Anum_hold_until - 1] = TimestampTzGetDatum(lease->hold_until);
	row->tts_values[Anum_session_pid - 1] = Int32GetDatum(lease->session_pid);
	row->tts_values[Anum_session_number - 1] = Int64GetDatum(lease->session_number);
	row->tts_values[Anum_payload - 1] = lease->payload;

	memset(row->tts_isnull, false, Natts_lease_lock * sizeof(bool));
	row->tts_isnull[Anum_owner - 1] = lease->owner == NULL;
	row->tts_isnull[Anum_hold_until - 1] = lease->hold_until == DT_NOBEGIN;
	row->tts_isnull[Anum_session_pid - 1] = lease->session_pid == 0;
	row->tts_isnull[Anum_session_number - 1] = lease->session_number == 0;
	row->tts_isnull[Anum_payload - 1] = lease->payload == (Datum) 0;
	for (int i = Natts_lease_lock; i < row->tts_tupleDescriptor->natts; i++)
		row->tts_isnull[i] = true;	/* a dropped column */

	return ExecStoreVirtualTuple(row);
}
