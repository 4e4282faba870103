-- lease_request: all of it in one call, and a row as its answer.

\getenv source PG_ABS_SRCDIR
\set helpers :source '/sql/include/error_of.sql'
\i :helpers
\pset null '(null)'

-- granted: the token and the end are those of the lease
SELECT granted, token, expires_at, waited < '50 s' AS at_once, blocked_by, blocked_for FROM lease_request('door', '1 hour', 'ann') \gset r_
SELECT :'r_granted' AS granted, token = :r_token AS token, expires_at = :'r_expires_at' AS expires_at, :'r_at_once' AS at_once, mode, holds FROM lease_status;
-- no blocker: \gset does not set a variable from a null
\echo :r_blocked_by, :r_blocked_for
-- refused: who holds the lease, and for how long
SELECT granted, token, expires_at, waited < '50 s' AS at_once, blocked_by, blocked_for BETWEEN '59 minutes' AND '1 hour' AS blocked_for FROM lease_request('door', '1 hour', 'bob');
-- the time that it waited
SELECT granted, waited BETWEEN '50 ms' AND '50 s' AS waited, blocked_by FROM lease_request('door', '1 hour', 'bob', '50 ms');
-- every mode, by name
SELECT granted FROM lease_request(resource => 's', ttl => '1 hour', owner => 'ann', mode => 'shared');
SELECT granted FROM lease_request('s', '1 hour', 'bob', mode => 'shared', wait => NULL);
SELECT granted, blocked_by IN ('ann', 'bob') AS by_one_of_them, blocked_for > '59 minutes' AS blocked_for FROM lease_request('s', '1 hour', 'carl');
SELECT granted FROM lease_request('p', '1 hour', 'ann', mode => 'permit', permits => 2);
SELECT granted FROM lease_request('p', '2 hours', 'bob', mode => 'permit', permits => 2);
-- the first permit that will come back
SELECT granted, blocked_by IN ('ann', 'bob') AS by_one_of_them, blocked_for BETWEEN '59 minutes' AND '1 hour' AS blocked_for FROM lease_request('p', '1 hour', 'carl', mode => 'permit', permits => 2);
-- all readers will have gone
SELECT granted, blocked_for BETWEEN '119 minutes' AND '2 hours' AS blocked_for FROM lease_request('p', '1 hour', 'carl');
SELECT resource, owner, mode FROM lease_status ORDER BY resource, owner;

-- the blocking owner is shown only to roles that may act for it
CREATE ROLE regress_lease_ann;
SET ROLE regress_lease_ann;
SELECT granted, blocked_by, blocked_for > '50 minutes' AS blocked_for FROM lease_request('door', '1 hour', 'bob');
SELECT granted, blocked_by, blocked_for > '50 minutes' AS blocked_for FROM lease_request('s', '1 hour', 'bob');
-- using the same owner name does not make the lease the caller's own
SELECT granted, blocked_by FROM lease_request('door', '1 hour', 'ann', if_own => 'count');
SELECT granted, blocked_by FROM lease_request('s', '1 hour', 'ann', mode => 'shared', if_own => 'count');
RESET ROLE;
DROP ROLE regress_lease_ann;

-- count: granted again to its owner in the same mode, with the same token; it must be released as many times
TRUNCATE lease_lock;
CREATE FUNCTION twice(m text, p int) RETURNS TABLE (first boolean, refused boolean, again boolean, same_token boolean, extended boolean, other_owner boolean) LANGUAGE plpgsql AS $$
DECLARE
	a record;
	b record;
BEGIN
	SELECT * INTO a FROM lease_request(m, '1 hour', 'ann', mode => m, permits => p, if_own => 'count');
	first := a.granted;
	refused := NOT (lease_request(m, '1 hour', 'ann', mode => m, permits => p)).granted;
	SELECT * INTO b FROM lease_request(m, '2 hours', 'ann', mode => m, permits => p, if_own => 'count');
	again := b.granted;
	same_token := b.token = a.token AND a.token = lease_token(m, 'ann');
	extended := b.expires_at > a.expires_at + interval '50 minutes';
	other_owner := (lease_request(m, '1 hour', 'bob', if_own => 'count')).granted;
	RETURN NEXT;
END $$;
SELECT m, t.* FROM unnest(ARRAY['exclusive', 'shared', 'permit'], ARRAY[NULL, NULL, 1]) AS a(m, p), twice(m, p) AS t;
SELECT resource, owner, mode, holds FROM lease_status ORDER BY resource;
SELECT m, lease_release(m, 'ann') AS first, lease_token(m, 'ann') IS NOT NULL AS still_held, lease_release(m, 'ann') AS second, lease_token(m, 'ann') IS NULL AS gone, lease_release(m, 'ann') AS third
FROM unnest(ARRAY['exclusive', 'shared', 'permit']) AS m;
-- it does not shorten the lease
SELECT granted FROM lease_request('door', '2 hours', 'ann', if_own => 'count');
SELECT expires_at > clock_timestamp() + interval '1 hour' AS not_shortened FROM lease_request('door', '1 second', 'ann', if_own => 'count');
-- not in another mode
SELECT granted, blocked_by FROM lease_request('door', '1 hour', 'ann', mode => 'shared', if_own => 'count');
SELECT granted, blocked_by FROM lease_request('door', '1 hour', 'ann', mode => 'permit', permits => 5, if_own => 'count');
SELECT lease_acquire_shared('hall', '1 hour', 'ann');
SELECT granted, blocked_by FROM lease_request('hall', '1 hour', 'ann', if_own => 'count');
SELECT granted, blocked_by FROM lease_request('hall', '1 hour', 'ann', mode => 'permit', permits => 5, if_own => 'count');
-- a lease that was acquired by other means counts as once; release_all and a transfer forget how often
SELECT lease_acquire('once', '1 hour', 'ann'), granted FROM lease_request('once', '1 hour', 'ann', if_own => 'count');
SELECT holds FROM lease_status WHERE resource = 'once';
SELECT lease_release_all('ann');
SELECT granted FROM lease_request('once', '1 hour', 'ann', if_own => 'count') UNION ALL SELECT granted FROM lease_request('once', '1 hour', 'ann', if_own => 'count');
SELECT holds, lease_transfer('once', 'ann', 'bob') IS NOT NULL AS transferred FROM lease_status WHERE resource = 'once';
SELECT holds FROM lease_status WHERE resource = 'once';
SELECT lease_release('once', 'bob'), lease_release('once', 'bob');
-- an expired lease cannot be counted: a new one begins, and one release ends an expired lease
SELECT granted FROM lease_request('exp', '1 hour', 'ann', if_own => 'count') UNION ALL SELECT granted FROM lease_request('exp', '1 hour', 'ann', if_own => 'count');
SELECT token AS before FROM lease_status WHERE resource = 'exp' \gset
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource = 'exp';
SELECT granted, token > :before AS new_token FROM lease_request('exp', '1 hour', 'ann', if_own => 'count');
SELECT holds FROM lease_status WHERE resource = 'exp';
UPDATE lease_lock SET holds = 5, expires_at = now() - interval '1 second' WHERE resource = 'exp';
SELECT lease_release('exp', 'ann'), lease_release('exp', 'ann');
-- a rollback to a savepoint undoes it
BEGIN;
SELECT granted FROM lease_request('sp', '1 hour', 'ann', if_own => 'count');
SAVEPOINT s;
SELECT granted FROM lease_request('sp', '1 hour', 'ann', if_own => 'count');
ROLLBACK TO s;
SELECT lease_release('sp', 'ann'), lease_token('sp', 'ann') IS NULL AS gone;
COMMIT;
-- too many times
SELECT granted FROM lease_request('often', '1 hour', 'ann', if_own => 'count');
UPDATE lease_lock SET holds = 2147483647 WHERE resource = 'often';
\pset expanded on
SELECT * FROM error_of($$ SELECT lease_request('often', '1 hour', 'ann', if_own => 'count') $$);
\pset expanded off

-- min_hold: a release before keeps the lease until then, whoever asks; a release after does not
TRUNCATE lease_lock;
SELECT granted FROM lease_request('job', '1 hour', 'ann', min_hold => '30 minutes');
SELECT lease_release('job', 'ann'), lease_release('job', 'ann') AS again, lease_token('job', 'ann');
SELECT owner, state, expires_in BETWEEN '29 minutes' AND '30 minutes' AS kept, payload FROM lease_status WHERE resource = 'job';
SELECT granted, blocked_by, blocked_for BETWEEN '29 minutes' AND '30 minutes' AS blocked_for FROM lease_request('job', '1 hour', 'ann', if_own => 'count');
SELECT lease_acquire('job', '1 hour', 'bob'), lease_acquire_shared('job', '1 hour', 'bob'), lease_acquire_permit('job', 9, '1 hour', 'bob'), lease_renew('job', '1 hour', 'ann');
SET lease_lock.purge_after = 0;
SELECT lease_purge();
UPDATE lease_lock SET expires_at = now() - interval '1 second';
SELECT count(*) FROM lease_status WHERE resource = 'job';
SELECT lease_acquire('job', '1 hour', 'bob');
-- a lease that is held for longer than that is free when it is released
SELECT granted FROM lease_request('long', '1 hour', 'ann', min_hold => '30 minutes');
UPDATE lease_lock SET hold_until = now() - interval '1 second' WHERE resource = 'long';
SELECT lease_release('long', 'ann'), lease_acquire('long', '1 hour', 'bob');
-- it may be longer than the ttl: kept after a release in time, but not after the lease has expired
SELECT granted FROM lease_request('hourly', '1 minute', 'ann', min_hold => '1 hour');
SELECT lease_release('hourly', 'ann'), lease_acquire('hourly', '1 hour', 'bob');
SELECT owner, state, expires_in BETWEEN '59 minutes' AND '1 hour' AS kept FROM lease_status WHERE resource = 'hourly';
SELECT granted FROM lease_request('crashed', '1 minute', 'ann', min_hold => '1 hour');
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource = 'crashed';
SELECT lease_acquire('crashed', '1 hour', 'bob');
SELECT granted FROM lease_request('late', '1 minute', 'ann', min_hold => '1 hour');
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource = 'late';
SELECT lease_release('late', 'ann'), lease_acquire('late', '1 hour', 'bob');
-- a renewal that moves the end before it does not forget it; nor do a transfer and a downgrade
SELECT granted FROM lease_request('moved', '1 hour', 'ann', min_hold => '30 minutes');
SELECT granted, reason FROM lease_request('moved', '1 minute', 'ann', if_own => 'renew');
SELECT lease_transfer('moved', 'ann', 'bob') > 0 AS transferred, lease_downgrade('moved', 'bob') > 0 AS downgraded, lease_release('moved', 'bob');
SELECT mode, state, expires_in BETWEEN '29 minutes' AND '30 minutes' AS kept FROM lease_status WHERE resource = 'moved';
SELECT lease_acquire('moved', '1 hour', 'carl');
-- counted: only the last release keeps it
SELECT granted FROM lease_request('counted', '1 minute', 'ann', min_hold => '30 minutes');
SELECT granted, reason FROM lease_request('counted', '1 minute', 'ann', min_hold => '1 hour', if_own => 'count');
SELECT lease_release('counted', 'ann') AS first, lease_token('counted', 'ann') > 0 AS held, lease_release('counted', 'ann') AS second;
SELECT state, expires_in BETWEEN '59 minutes' AND '1 hour' AS kept FROM lease_status WHERE resource = 'counted';
-- a failed run gives its lease back at once, in one statement; not a lease that is kept already, nor that of another owner
SELECT granted FROM lease_request('failed', '1 minute', 'ann', min_hold => '1 hour');
SELECT lease_release('failed', 'ann') FROM lease_request('failed', '1 minute', 'ann', if_own => 'renew', min_hold => '0') AS g WHERE g.granted;
SELECT lease_acquire('failed', '1 hour', 'bob');
SELECT lease_release('failed', 'ann') FROM lease_request('failed', '1 minute', 'ann', if_own => 'renew', min_hold => '0') AS g WHERE g.granted;
SELECT lease_release('hourly', 'ann') FROM lease_request('hourly', '1 minute', 'ann', if_own => 'renew', min_hold => '0') AS g WHERE g.granted;
-- a release that is rolled back keeps nothing
BEGIN;
SELECT granted FROM lease_request('undone', '1 minute', 'ann', min_hold => '1 hour');
SAVEPOINT s;
SELECT lease_release('undone', 'ann'), lease_token('undone', 'ann');
ROLLBACK TO s;
SELECT lease_token('undone', 'ann') > 0 AS held;
COMMIT;
-- whose it is stands in the row, for the quota, until the lease is granted again
SELECT resource, owner, kept_for, hold_until IS NULL AS done FROM lease_lock WHERE resource IN ('hourly', 'late', 'failed') ORDER BY resource;
UPDATE lease_lock SET expires_at = now() WHERE resource = 'hourly';
SELECT lease_acquire('hourly', '1 hour', 'bob');
SELECT owner, kept_for FROM lease_lock WHERE resource = 'hourly';
-- the slot of a permit or a reader is kept as well
SELECT granted FROM lease_request('pool', '1 hour', 'ann', mode => 'permit', permits => 1, min_hold => '30 minutes');
SELECT lease_release('pool', 'ann'), lease_acquire_permit('pool', 1, '1 hour', 'bob') AS one, lease_acquire_permit('pool', 2, '1 hour', 'bob') AS two, lease_acquire('pool', '1 hour', 'carl') AS exclusive;
SELECT owner, mode, state FROM lease_status WHERE resource = 'pool' ORDER BY state;
-- that is also true for the owner itself: it has no lease, but the slot is not free
SELECT granted, blocked_by FROM lease_request('pool', '1 hour', 'ann', mode => 'permit', permits => 2);
-- a waiter waits for that as for a lease
SELECT granted FROM lease_request('soon', '1 hour', 'ann', min_hold => '100 ms');
SELECT expires_at - granted_at AS before, granted_at + interval '100 ms' AS until FROM lease_status WHERE resource = 'soon' \gset
SELECT lease_release('soon', 'ann'), lease_acquire('soon', '1 hour', 'bob', '1 minute');
SELECT granted_at >= :'until' AS not_before FROM lease_status WHERE resource = 'soon';
-- lease_release_all keeps to min_hold, and lease_break does not
SELECT granted FROM lease_request('forced', '1 hour', 'zoe', min_hold => '30 minutes');
SELECT lease_release_all('zoe'), lease_acquire('forced', '1 hour', 'bob') AS kept, lease_break('forced'), lease_acquire('forced', '1 hour', 'bob');

-- the longest
SELECT granted, expires_at FROM lease_request('longest', '100000 years', 'ann', min_hold => '100000 years');
SELECT state, expires_in > '90000 years' AS expires_in, expires_at FROM lease_status WHERE resource = 'longest';
RESET lease_lock.purge_after;

-- payload: kept with the lease, through renewals, until it is released; shown to those who have the privileges of its role
TRUNCATE lease_lock;
SELECT granted FROM lease_request('note', '1 hour', 'ann', payload => '{"step": 1}');
SELECT lease_renew('note', '2 hours', 'ann');
SELECT payload FROM lease_status WHERE resource = 'note';
SELECT granted FROM lease_request('note', '1 hour', 'ann', if_own => 'count');
SELECT payload FROM lease_status WHERE resource = 'note';
SELECT granted FROM lease_request('note', '1 hour', 'ann', if_own => 'count', payload => '[2]');
SELECT payload, holds FROM lease_status WHERE resource = 'note';
SELECT lease_transfer('note', 'ann', 'bob') > 0 AS transferred;
SELECT owner, payload FROM lease_status WHERE resource = 'note';
CREATE ROLE regress_lease_ann;
SET ROLE regress_lease_ann;
SELECT owner, payload FROM lease_status WHERE resource = 'note';
RESET ROLE;
DROP ROLE regress_lease_ann;
SELECT lease_release('note', 'bob');
SELECT payload FROM lease_lock WHERE resource = 'note';
SELECT granted FROM lease_request('note', '1 hour', 'ann', payload => 'null');
SELECT payload, payload IS NULL AS nothing FROM lease_status WHERE resource = 'note';

-- a large one, in every mode; it is copied neither by a renewal nor by a release
CREATE TABLE large AS SELECT m, p, jsonb_agg(md5(m || i)) AS payload FROM unnest(ARRAY['exclusive', 'shared', 'permit'], ARRAY[NULL, NULL, 3]) AS a(m, p), generate_series(1, 3000) AS i GROUP BY m, p;
SELECT m, pg_column_size(payload) > 10000 AS large, r.granted FROM large, lease_request('large ' || m, '1 hour', 'ann', mode => m, permits => p, payload => payload) AS r ORDER BY m;
SELECT format('SELECT count(DISTINCT chunk_id) AS stored, max(chunk_id) AS last FROM %s', reltoastrelid::regclass) AS look FROM pg_class WHERE oid = 'lease_lock'::regclass \gset
:look \gset
SELECT bool_and(lease_renew('large ' || m, '2 hours', 'ann')) FROM large, generate_series(1, 5);
\set before :last
:look \gset
SELECT :stored AS stored, :last = :before AS the_same;
SELECT bool_and(s.payload = l.payload) AS unchanged, count(*) FROM large AS l JOIN lease_status AS s ON s.resource = 'large ' || m;
SELECT bool_and(lease_transfer('large ' || m, 'ann', 'bob') > 0) FROM large;
SELECT bool_and(s.payload = l.payload) AS unchanged, count(*) FROM large AS l JOIN lease_status AS s ON s.resource = 'large ' || m;
BEGIN;
SELECT bool_and(lease_release('large ' || m, 'bob')) FROM large;
ROLLBACK;
SELECT bool_and(s.payload = l.payload) AS unchanged, count(*) FROM large AS l JOIN lease_status AS s ON s.resource = 'large ' || m;
SELECT bool_and(lease_release('large ' || m, 'bob')) FROM large;
SELECT count(*) FROM lease_lock WHERE payload IS NOT NULL AND resource LIKE 'large%';
-- replaced by that of the next owner
SELECT bool_and((lease_request('large ' || m, '1 microsecond', 'ann', mode => m, permits => p, payload => payload)).granted) FROM large;
SELECT bool_and((lease_request('large ' || m, '1 hour', 'bob', mode => m, permits => p)).granted) FROM large;
SELECT resource, payload FROM lease_status WHERE owner = 'bob' ORDER BY resource;

\pset expanded on
-- options that must not be null, or are out of range
SELECT code, message FROM error_of($$ SELECT lease_request(NULL, '1 hour', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_request('door', NULL, 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_request('door', '1 hour', NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_request('door', '1 hour', '') $$);
SELECT code, message FROM error_of($$ SELECT lease_request('door', '0', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', '-1 s') $$);
SELECT * FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', mode => NULL) $$);
SELECT * FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', mode => 'read "only"') $$);
SELECT message FROM error_of($$ SELECT lease_request(E'do\nor', '1 hour', 'ann', mode => E'read\r\n\x1Bonly') $$);
SELECT length(message) < 2000 AS short, message ~ 'xxx[.][.][.]"$' AS cut FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', mode => repeat('x', 1000000)) $$);
SELECT code, message FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', mode => '') $$);
SELECT code, message FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', mode => 'Shared') $$);
SELECT * FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', mode => 'permit') $$);
SELECT * FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', mode => 'permit', permits => 0) $$);
SELECT code, message FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', mode => 'permit', permits => 32768) $$);
SELECT * FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', permits => 3) $$);
SELECT code, message FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', mode => 'shared', permits => 3) $$);
SELECT * FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', if_own => NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', session => NULL) $$);
SELECT * FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', min_hold => '-1 s') $$);
SELECT * FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', min_hold => '100001 years') $$);
SELECT code, message FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', min_hold => '178000000 years') $$);
SET lease_lock.max_ttl = '1h';
SELECT * FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', min_hold => '61 minutes') $$);
RESET lease_lock.max_ttl;
SELECT count(*) FROM lease_lock WHERE resource = 'door';
-- NULL is the same as leaving an option out
SELECT granted FROM lease_request('door', '1 hour', 'ann', min_hold => NULL, payload => NULL, permits => NULL);
SELECT granted FROM lease_request('zero', '1 hour', 'ann', min_hold => '0', wait => '0');
\pset expanded off
BEGIN READ ONLY;
SELECT lease_request('free', '1 hour', 'ann');
ROLLBACK;

DROP TABLE large;
DROP FUNCTION twice;
TRUNCATE lease_lock;
