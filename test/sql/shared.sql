-- Shared leases: many readers, or one exclusive owner.

-- several readers, each with a token of its own, keep an exclusive lease out
SELECT lease_acquire_shared('doc', '1 hour', 'ann'), lease_acquire_shared('doc', '1 hour', 'bob'), lease_acquire_shared('doc', '1 hour', 'carl');
SELECT lease_acquire('doc', '1 hour', 'dora');
SELECT owner, mode, slot > 0 AS has_slot, state, holds FROM lease_status WHERE resource = 'doc' ORDER BY owner;
SELECT count(DISTINCT token), count(DISTINCT slot) FROM lease_status WHERE resource = 'doc';
SELECT lease_token('doc', o) = token AS token_of_the_owner FROM lease_status AS s, unnest(ARRAY['ann', 'bob', 'carl']) AS o WHERE s.owner = o;

-- an owner has at most one lease on a resource, whichever way it asks
SELECT lease_acquire_shared('doc', '1 hour', 'ann'), lease_acquire_permit('doc', 10, '1 hour', 'ann'), lease_acquire('doc', '1 hour', 'ann');
-- each reader releases its own, once
SELECT lease_release('doc', 'ann'), lease_release('doc', 'ann'), lease_release('doc', 'dora');
SELECT lease_token('doc', 'ann');
SELECT lease_acquire('doc', '1 hour', 'dora');
SELECT lease_release('doc', 'bob'), lease_release('doc', 'carl');

-- after all of them are released, the writer gets the lease, and is alone
SELECT lease_acquire('doc', '1 hour', 'dora');
SELECT lease_acquire_shared('doc', '1 hour', 'ann'), lease_acquire_shared('doc', '1 hour', 'dora'), lease_acquire('doc', '1 hour', 'ann');
SELECT owner, mode, slot FROM lease_status WHERE resource = 'doc';
SELECT lease_release('doc', 'dora'), lease_acquire_shared('doc', '1 hour', 'ann');

-- a writer's token is above those of all readers before it, and below those after it
SELECT lease_acquire_shared('order', '1 hour', 'r1'), lease_acquire_shared('order', '1 hour', 'r2');
SELECT max(token) AS readers FROM lease_status WHERE resource = 'order' \gset
SELECT lease_release('order', 'r1'), lease_release('order', 'r2'), lease_acquire('order', '1 hour', 'w');
SELECT lease_token('order', 'w') AS writer, lease_token('order', 'w') > :readers AS above_readers \gset
\echo :above_readers
SELECT lease_release('order', 'w'), lease_acquire_shared('order', '1 hour', 'r1');
SELECT lease_token('order', 'r1') > :writer AS above_writer;

-- a renewal extends one reader's lease, keeps its token, and neither inserts nor revives
SELECT lease_token('doc', 'ann') AS before \gset
SELECT lease_renew('doc', '3 hours', 'ann'), lease_renew('doc', '3 hours', 'bob');
SELECT expires_in > '2 hours' AS extended, token = :before AS same_token FROM lease_status WHERE resource = 'doc' AND owner = 'ann';
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource = 'doc' AND owner = 'ann';
SELECT lease_renew('doc', '1 hour', 'ann'), lease_token('doc', 'ann');

-- an expired one blocks nobody; its owner can release it until it is taken over
SELECT state FROM lease_status WHERE resource = 'doc';
SELECT lease_acquire('doc', '1 hour', 'dora');
SELECT lease_release('doc', 'ann'), lease_release('doc', 'dora');

-- readers take over an expired exclusive lease, which is then lost for its owner
SELECT lease_acquire('late', '1 hour', 'ann');
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource = 'late';
SELECT lease_acquire_shared('late', '1 hour', 'bob'), lease_acquire_shared('late', '1 hour', 'ann');
SELECT lease_acquire('late', '1 hour', 'carl');
-- of two leases of an owner, the latest one counts
SELECT lease_token('late', 'ann') IS NOT NULL AS held;
SELECT lease_release('late', 'ann'), lease_token('late', 'ann') IS NULL AS released;
SELECT owner, mode, state FROM lease_status WHERE resource = 'late' ORDER BY owner;
SELECT lease_release('late', 'ann'), lease_release('late', 'ann');

-- an owner that comes again gets its former row
SELECT lease_acquire_shared('home', '1 hour', 'ann'), lease_acquire_shared('home', '1 hour', 'bob');
SELECT slot AS home FROM lease_status WHERE resource = 'home' AND owner = 'ann' \gset
SELECT bool_and(lease_release('home', 'ann') AND lease_acquire_shared('home', '1 hour', 'ann')) FROM generate_series(1, 20);
SELECT slot = :home AS same_slot FROM lease_status WHERE resource = 'home' AND owner = 'ann';
SELECT count(*) FROM lease_lock WHERE resource = 'home' AND slot > 0;

-- release_all releases what an owner has in all modes
SELECT lease_acquire('all x', '1 hour', 'eve'), lease_acquire_shared('all s', '1 hour', 'eve'), lease_acquire_permit('all p', 3, '1 hour', 'eve');
SELECT lease_release_all('eve'), lease_release_all('eve');
SELECT count(*) FROM lease_status WHERE owner = 'eve';

-- rolled back with its transaction, or to a savepoint
BEGIN;
SELECT lease_acquire_shared('undone', '1 hour', 'ann');
SAVEPOINT s;
SELECT lease_acquire_shared('undone', '1 hour', 'bob'), lease_release('undone', 'ann');
ROLLBACK TO s;
SELECT lease_token('undone', 'ann') IS NOT NULL AS ann, lease_token('undone', 'bob') IS NOT NULL AS bob;
ROLLBACK;
SELECT lease_acquire('undone', '1 hour', 'carl');

-- in one transaction: from shared to exclusive and back
BEGIN;
SELECT lease_acquire_shared('switch', '1 hour', 'ann'), lease_acquire('switch', '1 hour', 'ann') AS refused, lease_release('switch', 'ann');
SELECT lease_acquire('switch', '1 hour', 'ann'), lease_acquire_shared('switch', '1 hour', 'ann') AS refused, lease_release('switch', 'ann');
SELECT lease_acquire_shared('switch', '1 hour', 'ann'), lease_acquire_shared('switch', '1 hour', 'bob');
COMMIT;
SELECT owner, mode FROM lease_status WHERE resource = 'switch' ORDER BY owner;

-- many readers at a time
SELECT count(*) FROM generate_series(1, 300) AS i WHERE lease_acquire_shared('crowd', '1 hour', 'reader ' || i);
SELECT count(*), count(DISTINCT slot), count(DISTINCT token) FROM lease_status WHERE resource = 'crowd';
SELECT lease_acquire('crowd', '1 hour', 'w');
SELECT count(*) FROM generate_series(1, 300) AS i WHERE lease_release('crowd', 'reader ' || i);
SELECT lease_acquire('crowd', '1 hour', 'w');

-- purge removes ended leases, even while others share the resource
TRUNCATE lease_lock;
SET lease_lock.purge_after = 0;
SELECT lease_acquire_shared('purged', '1 hour', 'ann'), lease_acquire_shared('purged', '1 hour', 'bob'), lease_release('purged', 'bob');
SELECT lease_purge();
SELECT slot > 0 AS slot, owner FROM lease_lock ORDER BY 1;
SELECT lease_release('purged', 'ann');
-- and all others at once
SELECT lease_purge() + lease_purge() AS purged;
SELECT count(*) FROM lease_lock;

-- without a row for the exclusive lease: readers keep it away, and let others in
SELECT lease_acquire_shared('lost', '1 hour', 'ann');
DELETE FROM lease_lock WHERE slot = 0;
SELECT lease_acquire('lost', '1 hour', 'bob'), lease_acquire_shared('lost', '1 hour', 'bob'), lease_acquire('lost', '1 hour', 'carl');
DELETE FROM lease_lock WHERE slot = 0;
SELECT lease_release('lost', 'ann'), lease_acquire('lost', '1 hour', 'carl'), lease_release('lost', 'bob'), lease_acquire('lost', '1 hour', 'carl');

RESET lease_lock.purge_after;
TRUNCATE lease_lock;
