-- Transfer: handed over by its owner. Break: ended by an administrator.

\getenv source PG_ABS_SRCDIR
\set helpers :source '/sql/include/error_of.sql'
\i :helpers

-- a lease of any mode goes to its new owner with a new token, and lasts as long as before
SELECT lease_acquire('x', '1 hour', 'ann'), lease_acquire_shared('s', '1 hour', 'ann'), lease_acquire_permit('p', 1, '1 hour', 'ann');
CREATE TABLE before AS SELECT * FROM lease_status;
SELECT r, lease_transfer(r, 'ann', 'bob') > b.token AS new_token FROM unnest(ARRAY['x', 's', 'p']) AS r JOIN before AS b ON b.resource = r;
SELECT s.resource, s.owner, s.mode, s.slot = b.slot AS same_slot, s.expires_at = b.expires_at AS same_end, s.token > b.token AS new_token, s.token = lease_token(resource, 'bob') AS token, s.granted_at > b.granted_at AS new_grant
FROM lease_status AS s JOIN before AS b USING (resource) ORDER BY resource;
-- the old owner has no lease after that
SELECT r, lease_token(r, 'ann') AS token, lease_release(r, 'ann') AS released, lease_renew(r, '1 hour', 'ann') AS renewed, lease_transfer(r, 'ann', 'carl') AS transferred FROM unnest(ARRAY['x', 's', 'p']) AS r;
-- only the holder can transfer it: not another owner, and not after expiry or release
SELECT lease_transfer('x', 'carl', 'dora'), lease_transfer('nothing', 'ann', 'bob');
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource = 'x';
SELECT lease_transfer('x', 'bob', 'ann'), lease_release('x', 'bob'), lease_transfer('x', 'bob', 'ann');
-- to itself: a new token
SELECT lease_token('s', 'bob') AS before \gset
SELECT lease_transfer('s', 'bob', 'bob') > :before AS new_token, lease_token('s', 'bob') > :before AS held;
-- an owner with a lease on the resource cannot get another one; a former owner can
SELECT lease_acquire_shared('s', '1 hour', 'carl');
\pset expanded on
SELECT * FROM error_of($$ SELECT lease_transfer('s', 'bob', 'carl') $$);
\pset expanded off
SELECT lease_release('s', 'carl'), lease_transfer('s', 'bob', 'carl') IS NOT NULL AS transferred;
SELECT lease_acquire_shared('s', '1 hour', 'bob');
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource = 's' AND owner = 'bob';
SELECT lease_transfer('s', 'carl', 'bob') IS NOT NULL AS transferred, lease_token('s', 'bob') IS NOT NULL AS held;
-- rolled back with its transaction
SELECT lease_acquire('x', '1 hour', 'ann'), lease_token('x', 'ann') AS before \gset
BEGIN;
SELECT lease_transfer('x', 'ann', 'bob') > :before AS new_token, lease_token('x', 'ann') AS ann;
ROLLBACK;
SELECT lease_token('x', 'ann') = :before AS as_before, lease_token('x', 'bob') AS bob;
-- if the sequence was set back, there is no new token, and the transfer fails
SELECT last_value FROM lease_token_seq \gset
SELECT setval('lease_token_seq', 1) AS set_back;
\pset expanded on
SELECT code, message, hint FROM error_of($$ SELECT lease_transfer('x', 'ann', 'bob') $$);
\pset expanded off
SELECT setval('lease_token_seq', :last_value) IS NOT NULL AS set_again;

-- it needs the privileges of the role that acquired the lease, which stays its role
CREATE ROLE regress_lease_ann;
CREATE ROLE regress_lease_bob IN ROLE regress_lease_ann;
SET ROLE regress_lease_ann;
SELECT lease_acquire('hers', '1 hour', 'ann'), lease_acquire_shared('ours', '1 hour', 'ann');
SET ROLE regress_lease_bob;
SELECT lease_acquire('mine', '1 hour', 'bob'), lease_acquire_shared('ours', '1 hour', 'bob');
SELECT lease_transfer('hers', 'ann', 'carl') IS NOT NULL AS transferred, lease_transfer('ours', 'ann', 'carl') IS NOT NULL AS transferred_shared;
SET ROLE regress_lease_ann;
SELECT lease_renew('hers', '2 hours', 'carl'), lease_release('hers', 'carl'), lease_release('ours', 'carl');
\pset expanded on
SELECT * FROM error_of($$ SELECT lease_transfer('mine', 'bob', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_transfer('ours', 'bob', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_release('ours', 'bob') $$);

-- break is for administrators, and for roles with EXECUTE
SELECT * FROM error_of($$ SELECT lease_break('mine') $$);
\pset expanded off
RESET ROLE;
SELECT lease_token('mine', 'bob') IS NOT NULL AS still_held;
GRANT EXECUTE ON FUNCTION lease_break TO regress_lease_ann;
SET ROLE regress_lease_ann;
SELECT lease_break('mine'), lease_break('mine'), lease_break('ours');
RESET ROLE;
SELECT count(*) FROM lease_status WHERE resource IN ('mine', 'ours');
REVOKE EXECUTE ON FUNCTION lease_break FROM regress_lease_ann;
DROP ROLE regress_lease_bob, regress_lease_ann;

-- it ends the leases of all holders, of any mode, and says whether there were any
TRUNCATE lease_lock;
SELECT lease_acquire('x', '1 hour', 'ann'), lease_break('x'), lease_token('x', 'ann') AS token, lease_renew('x', '1 hour', 'ann') AS renewed, lease_release('x', 'ann') AS released;
SELECT count(*) FROM generate_series(1, 50) AS i WHERE lease_acquire_shared('s', '1 hour', 'reader ' || i);
SELECT count(*) FROM generate_series(1, 50) AS i WHERE lease_acquire_permit('s', 100, '1 hour', 'permit ' || i);
SELECT lease_break('s'), lease_break('s');
SELECT count(*) FROM lease_status;
SELECT lease_acquire('s', '1 hour', 'ann'), lease_acquire_permit('x', 1, '1 hour', 'ann');
SELECT lease_break('nothing');
-- not expired leases, which block nobody
UPDATE lease_lock SET expires_at = now() - interval '1 second';
SELECT lease_break('s'), lease_break('x');
-- however often it was acquired
SELECT granted FROM lease_request('again', '1 hour', 'ann', if_own => 'count') UNION ALL SELECT granted FROM lease_request('again', '1 hour', 'ann', if_own => 'count');
SELECT lease_break('again'), lease_acquire('again', '1 hour', 'bob'), lease_break('again');
-- with a grace, the resource stays taken for that long, or until the lease would have ended, so that its holder has stopped before the next begins
SELECT lease_acquire('grace', '1 hour', 'ann'), lease_break('grace', '10 minutes'), lease_token('grace', 'ann') AS token, lease_renew('grace', '1 hour', 'ann') AS renewed, lease_release('grace', 'ann') AS released;
SELECT owner, state, expires_in BETWEEN '9 minutes' AND '10 minutes' AS kept, payload FROM lease_status WHERE resource = 'grace';
SELECT granted, reason, blocked_by, blocked_for BETWEEN '9 minutes' AND '10 minutes' AS blocked_for FROM lease_request('grace', '1 hour', 'bob');
SELECT lease_acquire('ending', '1 minute', 'ann'), lease_break('ending', '1 day');
SELECT expires_in <= '1 minute' AS not_longer FROM lease_status WHERE resource = 'ending';
-- a second break can shorten it, and not prolong it; without a grace, the resource is free at once
SELECT lease_break('grace', '1 day'), expires_in <= '10 minutes' AS not_longer FROM lease_status WHERE resource = 'grace';
SELECT lease_break('grace', '200 ms');
SELECT count(*) FROM lease_status WHERE resource = 'grace' AND expires_in > '200 ms';
SELECT lease_break('ending'), lease_break('ending'), lease_acquire('ending', '1 hour', 'bob');
-- it counts for nobody, and nobody holds it: a waiter waits for its end
SELECT owner, kept_for, hold_until FROM lease_lock WHERE resource = 'grace';
SELECT lease_acquire('grace', '1 hour', 'bob', '1 minute');
-- every mode and slot; what is free stays free
SELECT lease_acquire_shared('slots', '1 hour', 'ann'), lease_acquire_permit('slots', 3, '1 hour', 'bob'), lease_acquire_permit('slots', 3, '1 hour', 'carl'), lease_release('slots', 'carl');
SELECT lease_break('slots', '10 minutes'), lease_acquire_permit('slots', 2, '1 hour', 'dora') AS two, lease_acquire_permit('slots', 3, '1 hour', 'dora') AS three;
-- what min_hold keeps, too
SELECT granted FROM lease_request('held', '1 minute', 'ann', min_hold => '1 hour');
SELECT lease_release('held', 'ann'), lease_break('held', '10 minutes');
SELECT expires_in BETWEEN '9 minutes' AND '10 minutes' AS kept FROM lease_status WHERE resource = 'held';
-- the grace of a break that is rolled back
SELECT lease_acquire('back', '1 hour', 'ann');
BEGIN;
SELECT lease_break('back', '10 minutes');
ROLLBACK;
SELECT lease_token('back', 'ann') > 0 AS held;
-- rolled back with its transaction
SELECT lease_acquire_shared('undone', '1 hour', 'ann'), lease_acquire_shared('undone', '1 hour', 'bob');
BEGIN;
SELECT lease_break('undone'), lease_acquire('undone', '1 hour', 'carl');
ROLLBACK;
SELECT owner FROM lease_status WHERE resource = 'undone' ORDER BY owner;
-- what the same transaction granted, too
BEGIN;
SELECT lease_acquire_shared('own', '1 hour', 'ann'), lease_break('own'), lease_acquire('own', '1 hour', 'bob'), lease_break('own');
COMMIT;
SELECT count(*) FROM lease_status WHERE resource = 'own';

\pset expanded on
\pset null '(null)'
SELECT * FROM error_of($$ SELECT lease_transfer('x', 'ann', NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_transfer('x', 'ann', '') $$);
SELECT code, message FROM error_of($$ SELECT lease_transfer('x', 'ann', repeat('x', 1025)) $$);
SELECT code, message FROM error_of($$ SELECT lease_transfer('x', NULL, 'bob') $$);
SELECT code, message FROM error_of($$ SELECT lease_transfer(NULL, 'ann', 'bob') $$);
SELECT code, message FROM error_of($$ SELECT lease_transfer('', 'ann', 'bob') $$);
SELECT code, message FROM error_of($$ SELECT lease_break(NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_break('') $$);
SELECT * FROM error_of($$ SELECT lease_break('x', NULL) $$);
SELECT * FROM error_of($$ SELECT lease_break('x', '-1 us') $$);
SELECT * FROM error_of($$ SELECT lease_break('x', '100001 years') $$);
SELECT code, message FROM error_of($$ SELECT lease_break('x', '178000000 years') $$);
\pset expanded off
BEGIN READ ONLY;
SELECT lease_transfer('x', 'ann', 'bob');
ROLLBACK;
BEGIN READ ONLY;
SELECT lease_break('x');
ROLLBACK;

DROP TABLE before;
TRUNCATE lease_lock;
