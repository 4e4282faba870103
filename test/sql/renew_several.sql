-- One statement for the heartbeat of a holder of many leases.

\pset null '(null)'
SELECT lease_acquire('a', '1 hour', 'ann'), lease_acquire_shared('b', '1 hour', 'ann'), lease_acquire_permit('c', 3, '1 hour', 'ann'), lease_acquire('d', '1 hour', 'bob');

-- all of the named, or none
SELECT lease_renew_several(ARRAY['a', 'b', 'c'], '5 hours', 'ann');
SELECT resource, expires_in > '4 hours' AS renewed FROM lease_status ORDER BY resource;
SELECT lease_renew_several(ARRAY['a', 'd'], '9 hours', 'ann') AS one_of_another, lease_renew_several(ARRAY['a', 'none'], '9 hours', 'ann') AS one_of_nobody;
SELECT resource, expires_in > '8 hours' AS renewed FROM lease_status ORDER BY resource;
-- earlier work of the transaction stays
BEGIN;
SELECT lease_renew('b', '9 hours', 'ann'), lease_renew_several(ARRAY['a', 'd'], '9 hours', 'ann');
COMMIT;
SELECT resource, expires_in > '8 hours' AS renewed FROM lease_status ORDER BY resource;
-- a single name is not taken for an array
SELECT lease_renew('a', '1 hour', 'ann'), lease_renew('{a,d}', '1 hour', 'ann');

-- all leases of the owner
SELECT lease_renew_all('20 hours', 'ann') AS ann, lease_renew_all('20 hours', 'bob') AS bob, lease_renew_all('20 hours', 'carl') AS carl;
SELECT resource, expires_in > '19 hours' AS renewed FROM lease_status ORDER BY resource;
-- not expired ones
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource = 'a';
SELECT lease_renew_all('20 hours', 'ann');
SELECT state FROM lease_status WHERE resource = 'a';
-- leases of other roles are skipped
CREATE ROLE regress_lease_renewer;
SET ROLE regress_lease_renewer;
SELECT lease_acquire('e', '1 hour', 'ann');
SELECT lease_renew_all('40 hours', 'ann');
\set VERBOSITY terse
SELECT lease_renew_several(ARRAY['b', 'e'], '40 hours', 'ann');
\set VERBOSITY default
RESET ROLE;
SELECT resource, expires_in > '39 hours' AS renewed FROM lease_status ORDER BY resource;
DROP ROLE regress_lease_renewer;

SELECT lease_renew_several(NULL::text[], '1 hour', 'ann');
SELECT lease_renew_several(ARRAY['a', 'a'], '1 hour', 'ann');
SELECT lease_renew_several('{}'::text[], '1 hour', 'ann');
SELECT lease_renew_all(NULL, 'ann');
SELECT lease_renew_all('0', 'ann');
SELECT lease_renew_all('1 hour', NULL);
SET lease_lock.max_ttl = '1min';
SELECT lease_renew_all('1 hour', 'ann');
RESET lease_lock.max_ttl;
TRUNCATE lease_lock;
