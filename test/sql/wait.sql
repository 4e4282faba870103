-- Waiting: granted when the lease becomes free in time, false when it does not. The same with and without a queue.

-- without a wake-up, a waiter looks again after this time: too late for this test
SET deadlock_timeout = '100 s';

\getenv source PG_ABS_SRCDIR
\set helpers :source '/sql/include/error_of.sql'
\i :helpers

-- a free lease is granted at once, however long the wait: zero, some time, for ever
SELECT clock_timestamp() AS began \gset
SELECT lease_acquire('door', '1 hour', 'ann', '0');
SELECT lease_acquire('window', '1 hour', 'ann', '1 hour');
SELECT lease_acquire('gate', '1 hour', 'ann', NULL);
SELECT clock_timestamp() - :'began' < '50 seconds' AS at_once;
SELECT resource, owner, state FROM lease_status ORDER BY resource;

-- so is one that was released or has expired
SELECT lease_release('door', 'ann');
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource = 'window';
SELECT lease_acquire('door', '1 hour', 'bob', '1 hour'), lease_acquire('window', '1 hour', 'bob', NULL);

-- a wait of zero is a try
SELECT clock_timestamp() AS began \gset
SELECT lease_acquire('door', '1 hour', 'ann', '0'), lease_acquire('door', '1 hour', 'ann', '1 day -24 hours');
SELECT clock_timestamp() - :'began' < '50 seconds' AS at_once;

-- a refused one changes nothing
SELECT lease_token('door', 'bob') IS NOT NULL AS still_bobs, lease_token('door', 'ann') IS NULL AS not_anns;

-- held for longer than the wait: false, when the wait is over and not before
SELECT clock_timestamp() AS began \gset
SELECT lease_acquire('door', '1 hour', 'ann', '50 ms');
SELECT clock_timestamp() - :'began' BETWEEN '50 ms' AND '50 seconds' AS in_time;
SELECT clock_timestamp() AS began \gset
SELECT lease_acquire('door', '1 hour', 'ann', '1 microsecond');
SELECT clock_timestamp() - :'began' < '50 seconds' AS in_time;

-- also for the owner itself
SELECT lease_acquire('door', '1 hour', 'bob', '50 ms');

-- each call of a statement waits for itself
SELECT clock_timestamp() AS began \gset
SELECT lease_acquire(r, '1 hour', 'carl', '50 ms') FROM unnest('{door,gate,window}'::text[]) AS r;
SELECT clock_timestamp() - :'began' BETWEEN '150 ms' AND '50 seconds' AS in_time;

-- leases that the same transaction acquired are held, and those that it released are free
BEGIN;
SELECT lease_acquire('cellar', '1 hour', 'ann');
SELECT lease_acquire('cellar', '1 hour', 'bob', '50 ms');
SELECT lease_release('cellar', 'ann');
SELECT lease_acquire('cellar', '1 hour', 'bob', '50 ms');
COMMIT;
SELECT owner FROM lease_status WHERE resource = 'cellar';

-- a lease that ends while we wait is taken over, when it ends and not before
SELECT lease_acquire('short', '200 ms', 'ann');
SELECT expires_at AS ends FROM lease_status WHERE resource = 'short' \gset
SELECT lease_acquire('short', '1 hour', 'bob', '1 minute');
SELECT granted_at BETWEEN :'ends'::timestamptz AND :'ends'::timestamptz + interval '50 seconds' AS in_time,
	expires_at - granted_at AS lasts
FROM lease_status WHERE resource = 'short';
SELECT lease_release('short', 'ann'), lease_token('short', 'bob') IS NOT NULL AS bobs;

-- the same for a wait without limit
SELECT lease_acquire('brief', '100 ms', 'ann');
SELECT lease_acquire('brief', '1 hour', 'bob', NULL);

-- also one that the same transaction acquired, whatever its snapshot shows
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT lease_acquire('old', '100 ms', 'ann');
SELECT lease_acquire('old', '1 hour', 'bob', '1 minute');
COMMIT;

-- a negative wait, or one that is too long
\pset expanded on
SELECT * FROM error_of($$ SELECT lease_acquire('door', '1 hour', 'ann', '-1 microsecond') $$);
SELECT * FROM error_of($$ SELECT lease_acquire('door', '1 hour', 'ann', '1 day -25 hours') $$);
SELECT * FROM error_of($$ SELECT lease_acquire('door', '1 hour', 'ann', '100001 years') $$);
SELECT * FROM error_of($$ SELECT lease_acquire('door', '1 hour', 'ann', '178000000 years') $$);
SELECT * FROM error_of($$ SELECT lease_acquire('door', '1 hour', 'ann', '-178000000 years') $$);
-- also when there is nothing to wait for
SELECT * FROM error_of($$ SELECT lease_acquire('free', '1 hour', 'ann', '-1 second') $$);
-- the longest that is allowed
SELECT lease_acquire('longest', '1 hour', 'ann', '100000 years');
-- the other arguments are checked like those of a try
SELECT code, message FROM error_of($$ SELECT lease_acquire(NULL, '1 hour', 'ann', '1 hour') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire('free', NULL, 'ann', '1 hour') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire('free', '1 hour', NULL, '1 hour') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire('', '1 hour', 'ann', '1 hour') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire('free', '0', 'ann', '1 hour') $$);
\pset expanded off
BEGIN READ ONLY;
SELECT lease_acquire('free', '1 hour', 'ann', '1 hour');
ROLLBACK;
SELECT lease_token('free', 'ann') IS NULL AS still_free;

-- statement_timeout ends a wait, and nothing is left behind
BEGIN;
SET LOCAL statement_timeout = '100 ms';
SELECT lease_acquire('door', '1 hour', 'ann', '1 hour');
ROLLBACK;
SET statement_timeout = '3 s';
CALL lease_wait('door', '1 hour', 'ann', NULL);
RESET statement_timeout;
SELECT count(*) FROM lease_waiters;
SELECT count(*) FROM pg_locks WHERE relation = 'lease_lock'::regclass AND pid = pg_backend_pid();
SELECT lease_acquire('door', '1 hour', 'ann', '50 ms');

-- the procedure: the same answers
CALL lease_wait('hall', '1 hour', 'ann', '0') \gset
SELECT :'acquired' AS acquired, :token = lease_token('hall', 'ann') AS token, :'expires_at' = expires_at::text AS expires_at
FROM lease_status WHERE resource = 'hall';
CALL lease_wait('hall', '1 hour', 'bob', '0');
SELECT clock_timestamp() AS began \gset
CALL lease_wait('hall', '1 hour', 'bob', '50 ms');
SELECT clock_timestamp() - :'began' BETWEEN '50 ms' AND '50 seconds' AS in_time;
SELECT lease_release('hall', 'ann');
CALL lease_wait('hall', '1 hour', 'bob', NULL) \gset
SELECT :'acquired' AS acquired, :token = lease_token('hall', 'bob') AS token, :'expires_at' = expires_at::text AS expires_at
FROM lease_status WHERE resource = 'hall';
SELECT owner, state FROM lease_status WHERE resource = 'hall';

-- by name, and whatever acquired and token were before
CALL lease_wait(resource => 'hall', ttl => '1 hour', owner => 'ann', wait => '50 ms', acquired => true, token => 7);

-- it takes over what ends while it waits
SELECT lease_acquire('lamp', '200 ms', 'ann');
SELECT expires_at AS ends FROM lease_status WHERE resource = 'lamp' \gset
CALL lease_wait('lamp', '1 hour', 'bob', '1 minute') \gset
\echo :acquired
SELECT granted_at BETWEEN :'ends'::timestamptz AND :'ends'::timestamptz + interval '50 seconds' AS in_time,
	expires_at - granted_at AS lasts
FROM lease_status WHERE resource = 'lamp';

-- in a procedure: each wait commits what came before it
CREATE TABLE note (what text);
CREATE PROCEDURE visit(resource text, wait interval) LANGUAGE plpgsql AS $$
DECLARE
	began xid8 := pg_current_xact_id();
	acquired boolean;
	token bigint;
	expires_at timestamptz;
BEGIN
	INSERT INTO note VALUES ('before ' || resource);
	CALL lease_wait(resource, '1 hour', 'carl', wait, acquired, token, expires_at);
	RAISE NOTICE '%: acquired %, in the same transaction %', resource, acquired, began = pg_current_xact_id();
	INSERT INTO note VALUES ('after ' || resource);
	ROLLBACK;
END $$;
CALL visit('hall', '50 ms');
CALL visit('hall', '0');
CALL visit('stairs', '1 minute');
TABLE note;
-- the caller commits the grant
SELECT lease_token('stairs', 'carl') IS NULL AS rolled_back;

-- in a DO block, too; the server asks for a variable for each result
DO $$
DECLARE
	acquired boolean;
	token bigint;
	expires_at timestamptz;
BEGIN
	CALL lease_wait('stairs', '1 hour', 'carl', '1 minute', acquired, token, expires_at);
	RAISE NOTICE 'acquired %', acquired;
	CALL lease_wait('stairs', '1 hour', 'carl', '50 ms', acquired, token, expires_at);
	RAISE NOTICE 'acquired %', acquired;
END $$;

-- an error where it cannot commit, even if the lease is free
\set SHOW_CONTEXT never
BEGIN;
CALL lease_wait('roof', '1 hour', 'ann', '50 ms');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
CREATE FUNCTION wait_inside() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	acquired boolean;
	token bigint;
	expires_at timestamptz;
BEGIN
	CALL lease_wait('roof', '1 hour', 'ann', '50 ms', acquired, token, expires_at);
	RETURN acquired;
END $$;
SELECT wait_inside();
\echo :LAST_ERROR_SQLSTATE
DO $$
DECLARE
	acquired boolean;
	token bigint;
	expires_at timestamptz;
BEGIN
	CALL lease_wait('roof', '1 hour', 'ann', '50 ms', acquired, token, expires_at);
	RAISE NOTICE 'not reached';
EXCEPTION WHEN division_by_zero THEN
	NULL;
END $$;
\echo :LAST_ERROR_SQLSTATE
SELECT lease_token('roof', 'ann') IS NULL AS still_free;

-- its arguments are checked like those of the function
CALL lease_wait('roof', '1 hour', 'ann', '-1 second');
CALL lease_wait('roof', '1 hour', 'ann', '100001 years');
CALL lease_wait('roof', '0', 'ann', NULL);
CALL lease_wait(NULL, '1 hour', 'ann', NULL);
CALL lease_wait('roof', '1 hour', '', NULL);
SET default_transaction_read_only = on;
CALL lease_wait('roof', '1 hour', 'ann', NULL);
RESET default_transaction_read_only;

-- nobody waits any more
TABLE lease_waiters;
SELECT * FROM lease_waiters();
SELECT lease_contended('roof') IS NOT TRUE AS nobody;
SELECT lease_contended(NULL);
SELECT lease_contended(repeat('x', 1025));

-- every role may wait, and may see the waiters
CREATE ROLE regress_lease_ann;
SET ROLE regress_lease_ann;
SELECT lease_acquire('barn', '1 hour', 'ann', '1 hour'), lease_acquire('barn', '1 hour', 'ann', '50 ms');
CALL lease_wait('door', '1 hour', 'ann', '50 ms');
SELECT count(*) FROM lease_waiters;
SELECT lease_contended('barn') IS NOT TRUE AS nobody;
RESET ROLE;
SELECT lease_release('barn', 'ann');
DROP ROLE regress_lease_ann;

-- settings
\set VERBOSITY sqlstate
SET lease_lock.poll_interval = 0;
\set VERBOSITY default
SET lease_lock.poll_interval = '10 ms';
SELECT lease_acquire('door', '1 hour', 'ann', '50 ms');
RESET lease_lock.poll_interval;
SET lease_lock.handoff_timeout = '2 s';
SHOW lease_lock.handoff_timeout;

DROP FUNCTION wait_inside;
DROP PROCEDURE visit;
DROP TABLE note;
TRUNCATE lease_lock;
