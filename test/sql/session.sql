-- lease_request with session => true: a lease that ends with its session. See also t/server/session.pl.

\getenv source PG_ABS_SRCDIR
\set helpers :source '/sql/include/error_of.sql'
\i :helpers
CREATE PROCEDURE until_ended() LANGUAGE plpgsql AS $$
BEGIN
	WHILE EXISTS (SELECT FROM lease_status WHERE session_pid <> pg_backend_pid()) LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
\pset null '(null)'
SELECT setval('lease_token_seq', 100);

-- without a ttl it has no other end; pid and end are shown
SELECT granted, token > 0 AS token, expires_at FROM lease_request('door', NULL, 'ann', session => true);
-- a server before 17 that does not preload the library has no such leases
SELECT :'SQLSTATE' = '0A000' AS unsupported \gset
\if :unsupported
\pset expanded on
SELECT * FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', session => true) $$);
SELECT granted FROM lease_request('door', '1 hour', 'ann');
TRUNCATE lease_lock;
DROP PROCEDURE until_ended;
\quit
\endif
SELECT state, expires_in, expires_at, session_pid = pg_backend_pid() AS mine FROM lease_status;
-- others are refused, and cannot tell for how long
SELECT granted, blocked_by, blocked_for, reason FROM lease_request('door', '1 hour', 'bob');
-- neither an error nor the release of all advisory locks ends it
SELECT 1 / 0;
SELECT pg_advisory_unlock_all();
DISCARD ALL;
BEGIN;
SELECT pg_advisory_unlock_all();
SELECT 1 / 0;
ROLLBACK;
SELECT state, lease_token('door', 'ann') > 0 AS token, lease_assert('door', 'ann') > 0 AS asserted FROM lease_status;
-- renewed, it still has no end; with a ttl, it has one
SELECT lease_renew('door', '1 hour', 'ann');
SELECT expires_at FROM lease_status;
SELECT granted, reason, expires_at < now() + interval '61 minutes' AS ends FROM lease_request('door', '1 hour', 'ann', session => true, if_own => 'renew');
SELECT session_pid = pg_backend_pid() AS mine FROM lease_status;
-- a release counts when it is committed
BEGIN;
SELECT lease_release('door', 'ann');
ROLLBACK;
SELECT state FROM lease_status;
BEGIN;
SAVEPOINT s;
SELECT lease_release('door', 'ann');
ROLLBACK TO s;
COMMIT;
SELECT state FROM lease_status;
SELECT lease_release('door', 'ann');
SELECT string_agg(resource, ',' ORDER BY resource) AS held FROM lease_status WHERE state = 'held';
-- a grant that is rolled back leaves nothing
BEGIN;
SELECT granted FROM lease_request('door', NULL, 'ann', session => true);
SAVEPOINT s;
SELECT granted FROM lease_request('window', NULL, 'ann', session => true);
ROLLBACK TO s;
SELECT string_agg(resource, ',' ORDER BY resource) AS held FROM lease_status WHERE state = 'held';
ROLLBACK;
SELECT string_agg(resource, ',' ORDER BY resource) AS held FROM lease_status WHERE state = 'held';
BEGIN;
SAVEPOINT s;
SELECT granted FROM lease_request('window', NULL, 'ann', session => true);
RELEASE s;
COMMIT;
SELECT string_agg(resource, ',' ORDER BY resource) AS held FROM lease_status WHERE state = 'held';
SELECT lease_break('window');
-- every mode
SELECT m, granted FROM unnest(ARRAY['exclusive', 'shared', 'permit'], ARRAY[NULL, NULL, 1]) AS a(m, p), lease_request(m, NULL, 'ann', mode => m, permits => p, session => true) ORDER BY m;
SELECT granted, reason FROM lease_request('permit', '1 hour', 'bob', mode => 'permit', permits => 1);
SELECT granted FROM lease_request('shared', '1 hour', 'bob', mode => 'shared');
-- downgraded, it ends with its session as before
SELECT lease_downgrade('exclusive', 'ann') IS NOT NULL AS downgraded;
SELECT mode, session_pid = pg_backend_pid() AS mine FROM lease_status WHERE resource = 'exclusive';
SELECT lease_release_all('ann');
SELECT string_agg(resource, ',' ORDER BY resource) AS held FROM lease_status WHERE state = 'held';
-- a transaction that fails leaves no lease
SELECT 1 / (token - token) FROM lease_request('door', NULL, 'ann', session => true);
BEGIN;
SELECT granted FROM lease_request('door', NULL, 'ann', session => true);
SELECT lease_release('door', 'ann');
ROLLBACK;
BEGIN;
SELECT granted FROM lease_request('door', NULL, 'ann', session => true);
SELECT pg_advisory_unlock_all();
SELECT 1 / 0;
ROLLBACK;
DO $$
BEGIN
	PERFORM lease_request('door', NULL, 'ann', session => true);
	ROLLBACK;
	BEGIN
		PERFORM lease_request('door', NULL, 'ann', session => true);
		PERFORM 1 / 0;
	EXCEPTION WHEN division_by_zero THEN
	END;
END $$;
CREATE TABLE one (i int UNIQUE DEFERRABLE INITIALLY DEFERRED);
BEGIN;
INSERT INTO one VALUES (1), (1);
SELECT granted FROM lease_request('door', NULL, 'ann', session => true);
COMMIT;
DROP TABLE one;
SELECT string_agg(resource, ',' ORDER BY resource) AS held FROM lease_status WHERE state = 'held';
-- a lease without session cannot become a session lease, and a session lease cannot be transferred
SELECT granted FROM lease_request('plain', '1 hour', 'ann');
SELECT granted, reason FROM lease_request('plain', '1 hour', 'ann', session => true, if_own => 'renew');
SELECT granted FROM lease_request('bound', '1 hour', 'ann', session => true);
\pset expanded on
SELECT * FROM error_of($$ SELECT lease_transfer('bound', 'ann', 'bob') $$);
-- combinations that are refused
SELECT code, message FROM error_of($$ SELECT lease_request('door', NULL, 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', session => NULL) $$);
SET lease_lock.max_ttl = '1min';
SELECT code, message FROM error_of($$ SELECT lease_request('door', NULL, 'ann', session => true) $$);
RESET lease_lock.max_ttl;
\pset expanded off
-- the session ends
SELECT state, session_pid IS NOT NULL AS pid FROM lease_status WHERE resource = 'bound';
\c
\pset null '(null)'
CALL until_ended();
SELECT state, session_pid IS NOT NULL AS pid FROM lease_status WHERE resource = 'bound';
SELECT lease_token('bound', 'ann') AS token, lease_renew('bound', '1 hour', 'ann') AS renewed;
SELECT message, detail FROM error_of($$ SELECT lease_assert('bound', 'ann') $$);
SELECT granted, reason FROM lease_request('bound', '1 hour', 'bob');
-- what a session left is purged
SELECT granted FROM lease_request('left', NULL, 'ann', session => true);
\c
CALL until_ended();
SELECT lease_purge();
SELECT count(*) FROM lease_lock WHERE resource = 'left';
DROP PROCEDURE until_ended;
TRUNCATE lease_lock;
