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

-- the row stays as a tombstone with the time of the release
SELECT lease_release('door', 'bob');
SELECT owner, slot, expires_at BETWEEN granted_at AND clock_timestamp() AS ended FROM lease_lock;
SELECT count(*) FROM lease_status;

-- all leases of an owner, expired ones included, and none of others
SELECT lease_acquire('r' || i, '1 hour', CASE WHEN i % 3 = 0 THEN 'bob' ELSE 'ann' END) FROM generate_series(1, 9) AS i;
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource IN ('r1', 'r2');
SELECT lease_release_all('ann');
SELECT lease_release_all('ann');
SELECT resource, owner FROM lease_status ORDER BY resource;
SELECT lease_release_all('nobody');

-- an owner name that begins with another owner name is another owner
SELECT lease_release_all('bo'), lease_release_all('bob ');

TRUNCATE lease_lock;

-- The session remembers where it wrote a row last. Another row may be there by
-- now: here the table is rewritten, without the older version of the first row.
SELECT lease_acquire('moved ' || n, '1 hour', 'ann') FROM generate_series(1, 3) AS n;
UPDATE lease_lock SET granted_at = granted_at WHERE resource = 'moved 1';
VACUUM FULL lease_lock;
SELECT lease_release('moved 3', 'ann');
SELECT resource FROM lease_status WHERE resource LIKE 'moved %' ORDER BY resource;
SELECT lease_release_all('ann');

-- A row that was deleted there is not found, either.
SELECT lease_acquire('gone', '1 hour', 'ann');
DELETE FROM lease_lock WHERE resource = 'gone';
SELECT lease_release('gone', 'ann'), lease_acquire('gone', '1 hour', 'bob'), lease_release('gone', 'bob');

TRUNCATE lease_lock;
