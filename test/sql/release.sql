-- Release: by the owner that took the lease, also when it has expired.

SELECT lease_acquire('door', '1 hour', 'ann');
SELECT lease_release('door', 'bob');
SELECT lease_release('door', 'ann');

-- only once
SELECT lease_release('door', 'ann');
SELECT lease_release('never there', 'ann');

-- expired, but nobody took it over
SELECT lease_acquire('door', '1 hour', 'ann');
UPDATE lease_lock SET expires_at = now() - interval '1 second';
SELECT lease_release('door', 'bob');
SELECT lease_release('door', 'ann');

-- expired, and taken over
SELECT lease_acquire('door', '1 hour', 'ann');
UPDATE lease_lock SET expires_at = now() - interval '1 second';
SELECT lease_acquire('door', '1 hour', 'bob');
SELECT lease_release('door', 'ann');
SELECT lease_token('door', 'bob') IS NOT NULL AS still_held;

-- what stays is a tombstone that says when it ended
SELECT lease_release('door', 'bob');
SELECT owner, slot, expires_at BETWEEN granted_at AND clock_timestamp() AS ended FROM lease_lock;
SELECT count(*) FROM lease_status;

-- everything that an owner took, expired leases included, and nothing of others
SELECT lease_acquire('r' || i, '1 hour', CASE WHEN i % 3 = 0 THEN 'bob' ELSE 'ann' END) FROM generate_series(1, 9) AS i;
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource IN ('r1', 'r2');
SELECT lease_release_all('ann');
SELECT lease_release_all('ann');
SELECT resource, owner FROM lease_status ORDER BY resource;
SELECT lease_release_all('nobody');

-- the same owner name with more behind it is another owner
SELECT lease_release_all('bo'), lease_release_all('bob ');

TRUNCATE lease_lock;
