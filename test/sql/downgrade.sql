-- lease_downgrade: from exclusive to shared without letting go.

\pset null '(null)'
SELECT granted, token AS first FROM lease_request('r', '1 hour', 'ann', payload => '"kept"', min_hold => '10 minutes') \gset
SELECT lease_acquire_shared('r', '1 hour', 'bob') AS reader_before;
SELECT lease_downgrade('r', 'bob') AS of_another_owner, lease_downgrade('none', 'ann') AS of_nothing;
SELECT lease_downgrade('r', 'ann') AS second \gset
SELECT :second > :first AS new_token, lease_token('r', 'ann') = :second AS is_mine;
SELECT slot, mode, owner, state, payload, expires_in > '59 minutes' AS end_kept FROM lease_status ORDER BY slot;
-- the token of the exclusive lease is no longer valid
SELECT lease_renew('r', '1 hour', 'ann', :first) AS exclusive, lease_renew('r', '1 hour', 'ann', :second) AS shared;
-- readers join, a writer does not get in
SELECT lease_acquire_shared('r', '1 hour', 'bob') AS reader, lease_acquire('r', '1 hour', 'carl') AS writer;
-- it already is shared
SELECT lease_downgrade('r', 'ann') AS again;
SELECT lease_release('r', 'ann'), lease_release('r', 'bob');
TRUNCATE lease_lock;
-- a rollback to a savepoint undoes it
SELECT lease_acquire('r', '1 hour', 'ann');
BEGIN;
SAVEPOINT s;
SELECT lease_downgrade('r', 'ann') IS NOT NULL AS downgraded;
ROLLBACK TO s;
SELECT slot, mode, owner FROM lease_status;
COMMIT;
SELECT lease_acquire_shared('r', '1 hour', 'bob') AS reader;
-- what expired is not held
UPDATE lease_lock SET expires_at = now() - interval '1 second';
SELECT lease_downgrade('r', 'ann');
-- rows of released readers are used again
SELECT lease_acquire('r', '1 hour', 'ann'), lease_downgrade('r', 'ann') IS NOT NULL AS downgraded;
SELECT lease_release('r', 'ann'), lease_acquire('r', '1 hour', 'bob'), lease_downgrade('r', 'bob') IS NOT NULL AS downgraded;
SELECT slot, owner, mode FROM lease_lock ORDER BY slot;
-- the transaction's own assertion does not block the downgrade
BEGIN;
SELECT lease_release('r', 'bob'), lease_acquire('r', '1 hour', 'ann'), lease_assert('r', 'ann') > 0 AS exclusive;
SELECT lease_downgrade('r', 'ann') = lease_assert('r', 'ann') AS shared;
COMMIT;
-- the owner name alone is not enough
CREATE ROLE regress_lease_other;
SET ROLE regress_lease_other;
\set VERBOSITY terse
SELECT lease_downgrade('r', 'ann');
\set VERBOSITY default
RESET ROLE;
DROP ROLE regress_lease_other;
SELECT lease_downgrade(NULL, 'ann');
SELECT lease_downgrade('r', NULL);

-- lease_set_payload: the payload of a lease can be changed
TRUNCATE lease_lock;
SELECT lease_acquire('r', '1 hour', 'ann'), lease_acquire_shared('s', '1 hour', 'ann'), lease_acquire_shared('s', '1 hour', 'bob');
SELECT lease_set_payload('r', 'ann', '{"step": 1}'), lease_set_payload('s', 'bob', '[2]'), lease_set_payload('r', 'bob', '3'), lease_set_payload('none', 'ann', '4');
SELECT resource, owner, payload FROM lease_status ORDER BY resource, owner;
SELECT lease_set_payload('r', 'ann', 'null');
SELECT payload, payload IS NULL AS nothing FROM lease_status WHERE resource = 'r';
SELECT lease_set_payload('r', 'ann', NULL);
SELECT payload FROM lease_status WHERE resource = 'r';
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource = 'r';
SELECT lease_set_payload('r', 'ann', '5') AS of_expired;
SELECT lease_set_payload('r', NULL, '5');
TRUNCATE lease_lock;
