-- A lock table of :rows leases: one half released, one half held.

INSERT INTO lease_lock (resource, owner, token, granted_at, expires_at, role, xid, mode, holds)
SELECT 'free:' || n, NULL, 0, t, t, current_user::text::regrole, pg_current_xact_id(), 'x', 0
FROM generate_series(1, :rows / 2) AS n, clock_timestamp() AS t;

INSERT INTO lease_lock (resource, owner, token, granted_at, expires_at, role, xid, mode, holds)
SELECT 'held:' || n, 'somebody else', 0, t, t + interval '1 day', current_user::text::regrole, pg_current_xact_id(), 'x', 1
FROM generate_series(1, :rows / 2) AS n, clock_timestamp() AS t;

VACUUM ANALYZE lease_lock;
