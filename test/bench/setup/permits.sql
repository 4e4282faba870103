-- A resource of which :holders permits are taken.

INSERT INTO lease_lock (resource, slot, owner, token, granted_at, expires_at, role, xid, mode, holds)
SELECT 'permits:' || :holders, n, 'somebody ' || n, 0, t, t + interval '1 day', current_user::text::regrole, pg_current_xact_id(), 'p', 1
FROM generate_series(1, :holders) AS n, clock_timestamp() AS t;
VACUUM ANALYZE lease_lock;
