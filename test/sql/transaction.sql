-- Leases in a transaction: rolled back with it, and seen by its next call at once.

-- a rollback undoes a grant
BEGIN;
SELECT lease_acquire('door', '1 hour', 'ann');
ROLLBACK;
SELECT lease_token('door', 'ann');
SELECT lease_acquire('door', '1 hour', 'bob');

-- and a release
BEGIN;
SELECT lease_release('door', 'bob');
ROLLBACK;
SELECT lease_acquire('door', '1 hour', 'ann');
SELECT lease_token('door', 'bob') IS NOT NULL AS held;

-- back to a savepoint
BEGIN;
SELECT lease_acquire('window', '1 hour', 'ann');
SAVEPOINT s;
SELECT lease_acquire('gate', '1 hour', 'ann'), lease_release('window', 'ann'), lease_release('door', 'bob');
ROLLBACK TO s;
SELECT lease_acquire('gate', '1 hour', 'bob'), lease_acquire('window', '1 hour', 'bob'), lease_acquire('door', '1 hour', 'ann');
COMMIT;
SELECT resource, owner FROM lease_status ORDER BY resource;

-- and again, in the same subtransaction depth and deeper
BEGIN;
SAVEPOINT a;
SELECT lease_acquire('deep', '1 hour', 'ann');
SAVEPOINT b;
SELECT lease_release('deep', 'ann'), lease_acquire('deep', '1 hour', 'bob');
ROLLBACK TO b;
SELECT lease_token('deep', 'ann') IS NOT NULL AS ann_again;
RELEASE SAVEPOINT b;
ROLLBACK TO a;
SELECT lease_token('deep', 'ann'), lease_acquire('deep', '1 hour', 'bob');
COMMIT;

-- an exception block in a procedure is a savepoint too
DO $$
BEGIN
	PERFORM lease_acquire('block', '1 hour', 'ann');
	RAISE EXCEPTION 'stop';
EXCEPTION WHEN raise_exception THEN
	RAISE NOTICE 'granted to the next one: %', lease_acquire('block', '1 hour', 'bob');
END $$;

-- calls in one statement see each other
SELECT lease_acquire('one', '1 hour', 'ann') AS granted,
	lease_acquire('one', '1 hour', 'bob') AS refused,
	lease_token('one', 'ann') IS NOT NULL AS held,
	lease_release('one', 'ann') AS released,
	lease_acquire('one', '1 hour', 'bob') AS granted_again,
	lease_renew('one', '2 hours', 'bob') AS renewed,
	lease_release_all('bob') > 0 AS all_released;
SELECT i, lease_acquire('same', '1 hour', 'owner ' || i) FROM generate_series(1, 4) AS i;
SELECT i, lease_release('same', 'owner 1'), lease_acquire('same', '1 hour', 'owner 1') FROM generate_series(1, 3) AS i;

-- a REPEATABLE READ transaction writes and reads its own leases
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT lease_acquire('rr', '1 hour', 'ann'), lease_release('rr', 'ann'), lease_acquire('rr', '1 hour', 'bob');
SELECT resource, owner FROM lease_status WHERE resource = 'rr';
COMMIT;

-- a read-only transaction gets that error before any other
BEGIN READ ONLY;
SELECT lease_token('rr', 'bob') IS NOT NULL AS held;
SAVEPOINT s;
SELECT lease_acquire('rr', '1 hour', 'ann');
ROLLBACK TO s;
SELECT lease_release('rr', 'bob');
ROLLBACK TO s;
SELECT lease_release_all('bob');
ROLLBACK TO s;
SELECT lease_release_all('nobody');
ROLLBACK TO s;
SELECT lease_renew_all('1 hour', 'nobody');
ROLLBACK TO s;
SELECT lease_transfer('rr', 'nobody', 'ann');
ROLLBACK TO s;
SELECT lease_renew('rr', '1 hour', 'bob');
ROLLBACK TO s;
SELECT lease_purge();
ROLLBACK;
\echo :LAST_ERROR_SQLSTATE

TRUNCATE lease_lock;
