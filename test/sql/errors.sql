-- Every error: code, message, detail, hint. A refusal is not an error.

\getenv source PG_ABS_SRCDIR
\set helpers :source '/sql/include/error_of.sql'
\i :helpers
\pset expanded on
\pset null '(null)'

-- NULL is an error, not an answer
SELECT * FROM error_of($$ SELECT lease_acquire(NULL, '1 hour', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire('door', NULL, 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire('door', '1 hour', NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_release(NULL, 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_release('door', NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_release_all(NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_renew(NULL, '1 hour', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_renew('door', NULL, 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_renew('door', '1 hour', NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_token(NULL, 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_token('door', NULL) $$);

-- empty and over-long names
SELECT * FROM error_of($$ SELECT lease_acquire('', '1 hour', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire('door', '1 hour', '') $$);
SELECT * FROM error_of($$ SELECT lease_acquire(repeat('x', 1025), '1 hour', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_release('door', repeat('x', 1025)) $$);
SELECT code, message FROM error_of($$ SELECT lease_release_all('') $$);
SELECT code, message FROM error_of($$ SELECT lease_token('', 'ann') $$);

-- a ttl that is no positive time, or too long
SELECT * FROM error_of($$ SELECT lease_acquire('door', '0', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire('door', '-1 second', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire('door', '1 day -24 hours', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire('door', '100001 years', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire('door', '178000000 years', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire('door', '-178000000 years', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_renew('door', '0', 'ann') $$);

-- a hostile name is only a name, in messages too
SELECT * FROM error_of($$ SELECT lease_acquire(E'%s %n "\n''; DROP TABLE lease_lock', '0', 'ann') $$);

-- the lease of another role, under the same owner name
CREATE ROLE regress_lease_ann;
CREATE ROLE regress_lease_bob;
SET ROLE regress_lease_ann;
SELECT lease_acquire('door', '1 hour', 'ann');
SET ROLE regress_lease_bob;
SELECT * FROM error_of($$ SELECT lease_release('door', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_renew('door', '1 hour', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_release_all('ann') $$);
SELECT lease_release_all('ann');
SELECT * FROM error_of($$ SELECT lease_purge() $$);
SELECT * FROM error_of($$ SELECT * FROM lease_lock $$);
RESET ROLE;

-- the lease is still there after all these errors
SELECT resource, owner, state FROM lease_status;

DROP ROLE regress_lease_ann, regress_lease_bob;
TRUNCATE lease_lock;
