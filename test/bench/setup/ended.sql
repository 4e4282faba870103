-- So many leases that expired long ago, beside those that are there.

INSERT INTO lease_lock (resource, owner, token, granted_at, expires_at, role, xid, mode, holds)
SELECT 'ended:' || n, 'forgotten', 0, t, t, current_user::text::regrole, pg_current_xact_id(), 'x', 1
FROM generate_series(1, :rows) AS n, CAST('2000-01-01' AS timestamptz) AS t;

VACUUM ANALYZE lease_lock;
