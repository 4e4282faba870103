-- Assert: fails unless the lease is held, and keeps it from being lost until the transaction ends.

\getenv source PG_ABS_SRCDIR
\set helpers :source '/sql/include/error_of.sql'
\i :helpers
CREATE FUNCTION expire(resource text) RETURNS void LANGUAGE sql
	AS $$ UPDATE lease_lock SET expires_at = clock_timestamp() - interval '1 second' WHERE resource = expire.resource $$;
\pset null '(null)'

SELECT lease_acquire('door', '1 hour', 'ann');
SELECT lease_assert('door', 'ann') = lease_token('door', 'ann') AS by_owner;
SELECT lease_assert_token('door', lease_token('door', 'ann')) = lease_token('door', 'ann') AS by_token;

-- the error of an assertion says why it failed
\pset expanded on
SELECT * FROM error_of($$ SELECT lease_assert('door', 'bob') $$);
SELECT * FROM error_of($$ SELECT lease_assert_token('door', 0) $$);
SELECT * FROM error_of($$ SELECT lease_assert('window', 'ann') $$);
SELECT expire('door');
SELECT * FROM error_of($$ SELECT lease_assert('door', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_assert('door', 'bob') $$);
SELECT code, regexp_replace(message, 'token \d+', 'token N') AS message, detail, hint FROM error_of($$ SELECT lease_assert_token('door', token) FROM lease_lock $$);
SELECT lease_release('door', 'ann');
SELECT * FROM error_of($$ SELECT lease_assert('door', 'ann') $$);

-- arguments
SELECT * FROM error_of($$ SELECT lease_assert(NULL, 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_assert('door', NULL) $$);
SELECT * FROM error_of($$ SELECT lease_assert_token('door', NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_assert('', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_assert('door', repeat('x', 1025)) $$);
SELECT code, message FROM error_of($$ SELECT lease_release('door', 'ann', NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_renew('door', '1 hour', 'ann', NULL) $$);
\pset expanded off

-- a row lock is a write
BEGIN READ ONLY;
SELECT lease_assert('door', 'ann');
ROLLBACK;

-- a grant of the same transaction, not committed yet
BEGIN;
SELECT lease_acquire('door', '1 hour', 'ann');
SELECT lease_assert('door', 'ann') = lease_token('door', 'ann') AS own_grant;
SAVEPOINT s;
SELECT lease_release('door', 'ann');
SELECT lease_acquire('door', '1 hour', 'bob');
SELECT lease_assert('door', 'bob') = lease_token('door', 'bob') AS own_takeover;
SELECT code FROM error_of($$ SELECT lease_assert('door', 'ann') $$);
ROLLBACK TO s;
SELECT code FROM error_of($$ SELECT lease_assert('door', 'bob') $$);
SELECT lease_assert('door', 'ann') = lease_token('door', 'ann') AS own_grant;
ROLLBACK;
SELECT code FROM error_of($$ SELECT lease_assert('door', 'ann') $$);

-- an asserted lease cannot be lost, even if it expires
SELECT lease_acquire('door', '1 hour', 'ann');
BEGIN;
SELECT lease_assert('door', 'ann') IS NOT NULL AS asserted;
SELECT expire('door');
SELECT lease_assert('door', 'ann') IS NOT NULL AS still_asserted;
SELECT lease_assert_token('door', token) IS NOT NULL AS by_token_too FROM lease_lock;
SELECT code FROM error_of($$ SELECT lease_assert('door', 'bob') $$);
SELECT code FROM error_of($$ SELECT lease_assert_token('door', 0) $$);
COMMIT;
SELECT code FROM error_of($$ SELECT lease_assert('door', 'ann') $$);

-- except by what the transaction itself does: takeover, release, release_all, purge
BEGIN;
UPDATE lease_lock SET expires_at = 'infinity';
SELECT lease_assert('door', 'ann') IS NOT NULL AS asserted;
SELECT expire('door');
SELECT lease_acquire('door', '1 hour', 'bob') AS taken_over;
SELECT code FROM error_of($$ SELECT lease_assert('door', 'ann') $$);
ROLLBACK;
UPDATE lease_lock SET expires_at = 'infinity';
BEGIN;
SELECT lease_assert('door', 'ann') IS NOT NULL AS asserted;
SELECT lease_release('door', 'ann');
SELECT code FROM error_of($$ SELECT lease_assert('door', 'ann') $$);
ROLLBACK;
BEGIN;
SELECT lease_assert('door', 'ann') IS NOT NULL AS asserted;
SELECT lease_release_all('ann');
SELECT code FROM error_of($$ SELECT lease_assert('door', 'ann') $$);
ROLLBACK;
BEGIN;
SELECT lease_assert('door', 'ann') IS NOT NULL AS asserted;
SELECT expire('door');
SET LOCAL lease_lock.purge_after = 0;
SELECT lease_purge();
SELECT code FROM error_of($$ SELECT lease_assert('door', 'ann') $$);
ROLLBACK;
BEGIN;
SELECT lease_assert('door', 'ann') IS NOT NULL AS asserted;
SELECT lease_renew('door', '2 hours', 'ann');
SELECT lease_assert('door', 'ann') IS NOT NULL AS still_asserted;
ROLLBACK;

-- savepoints: a rollback to an earlier savepoint ends the assertion
BEGIN;
SAVEPOINT a;
SELECT lease_assert('door', 'ann') IS NOT NULL AS asserted;
ROLLBACK TO a;
SELECT expire('door');
SELECT code FROM error_of($$ SELECT lease_assert('door', 'ann') $$) AS assertion_was_rolled_back;
ROLLBACK;
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT lease_assert('door', 'ann') IS NOT NULL AS asserted;
RELEASE b;
SAVEPOINT c;
ROLLBACK TO c;
RELEASE c;
SELECT expire('door');
SELECT lease_assert('door', 'ann') IS NOT NULL AS still_asserted;
ROLLBACK TO a;
SELECT expire('door');
SELECT code FROM error_of($$ SELECT lease_assert('door', 'ann') $$) AS assertion_was_rolled_back;
ROLLBACK;
BEGIN;
SELECT lease_assert('door', 'ann') IS NOT NULL AS asserted;
SAVEPOINT a;
SELECT lease_assert('door', 'ann') IS NOT NULL AS again;
ROLLBACK TO a;
SELECT expire('door');
SELECT lease_assert('door', 'ann') IS NOT NULL AS still_asserted;
ROLLBACK;
BEGIN;
SELECT lease_assert('door', 'ann') IS NOT NULL AS asserted;
COMMIT AND CHAIN;
SELECT expire('door');
SELECT code FROM error_of($$ SELECT lease_assert('door', 'ann') $$) AS assertion_ended_with_its_transaction;
ROLLBACK;

-- more leases than the cache holds: an assertion is in the row
BEGIN;
SET LOCAL lease_lock.durable = off;
SELECT count(*) FILTER (WHERE lease_acquire(repeat('x', 500) || n, '1 hour', repeat('o', 1000)))
FROM generate_series(1, 15000) AS n;
SELECT count(lease_assert(repeat('x', 500) || n, repeat('o', 1000))) FROM generate_series(1, 15000) AS n;
SELECT sum(total_bytes) BETWEEN 1e5 AND 4e6 AS bounded FROM pg_backend_memory_contexts WHERE name = 'lease assertions';
SELECT expire(repeat('x', 500) || n) FROM generate_series(1, 3) AS n;
SELECT count(lease_assert(repeat('x', 500) || n, repeat('o', 1000))) FROM generate_series(1, 1000) AS n;
SAVEPOINT a;
SELECT count(lease_assert(repeat('x', 500) || n, repeat('o', 1000))) FROM generate_series(1, 1000) AS n;
ROLLBACK TO a;
SELECT count(lease_assert(repeat('x', 500) || n, repeat('o', 1000))) FROM generate_series(1, 1000) AS n;
ROLLBACK;

-- the lease of another role, under the same owner name
CREATE ROLE regress_lease_ann;
CREATE ROLE regress_lease_bob;
SET ROLE regress_lease_ann;
SELECT lease_acquire('safe', '1 hour', 'ann');
SET ROLE regress_lease_bob;
\pset expanded on
SELECT * FROM error_of($$ SELECT lease_assert('safe', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_assert('safe', 'bob') $$);
RESET ROLE;
GRANT pg_read_all_stats TO regress_lease_bob;
SET ROLE regress_lease_bob;
SELECT detail AS who_may_see_owners FROM error_of($$ SELECT lease_assert('safe', 'bob') $$);
SELECT code FROM error_of($$ SELECT lease_release('safe', 'ann', (SELECT token FROM lease_status WHERE resource = 'safe')) $$);
\pset expanded off
-- also when another role asserted it in the same transaction
BEGIN;
SET LOCAL ROLE regress_lease_ann;
SELECT lease_assert('safe', 'ann') IS NOT NULL AS asserted;
SET LOCAL ROLE regress_lease_bob;
SELECT code FROM error_of($$ SELECT lease_assert('safe', 'ann') $$);
ROLLBACK;
RESET ROLE;
SELECT lease_assert('safe', 'ann') IS NOT NULL AS a_superuser_may;

DROP ROLE regress_lease_ann, regress_lease_bob;
DROP FUNCTION expire;
TRUNCATE lease_lock;
