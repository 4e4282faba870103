-- Purge: removes what ended long enough ago, and nothing that is held.

SELECT lease_acquire(r, '1 hour', 'ann') FROM unnest(ARRAY['held', 'expired', 'released', 'expired long ago', 'released long ago']) AS r;
SELECT lease_release('released', 'ann'), lease_release('released long ago', 'ann');
UPDATE lease_lock SET expires_at = now() - interval '30 seconds' WHERE resource = 'expired';
UPDATE lease_lock SET expires_at = now() - interval '61 seconds' WHERE resource LIKE '%long ago';

SHOW lease_lock.purge_after;
SELECT lease_purge();
SELECT resource FROM lease_lock ORDER BY resource;

SET lease_lock.purge_after = '20s';
SELECT lease_purge();
SELECT resource FROM lease_lock ORDER BY resource;

SET lease_lock.purge_after = 0;
SELECT lease_purge();
SELECT resource FROM lease_lock ORDER BY resource;
SELECT lease_purge();

-- a purged lease can be granted again
SELECT lease_release('expired', 'ann');
SELECT lease_acquire('expired', '1 hour', 'bob');

-- a purge that is rolled back removed nothing
UPDATE lease_lock SET expires_at = now() - interval '1 second';
BEGIN;
SELECT lease_purge();
SELECT count(*) FROM lease_lock;
ROLLBACK;
SELECT count(*) FROM lease_lock;

-- servers word the range in different ways
\set VERBOSITY sqlstate
SET lease_lock.purge_after = -1;
\set VERBOSITY default
RESET lease_lock.purge_after;
TRUNCATE lease_lock;
