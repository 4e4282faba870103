-- More permits and readers than fit into the slots that are looked at one by one.

CREATE VIEW slots_of AS SELECT resource, count(*) AS held, count(DISTINCT slot) AS slots, count(DISTINCT owner) AS owners FROM lease_status GROUP BY resource;
-- what this transaction read in the indexes of the lock table
CREATE FUNCTION read_so_far() RETURNS bigint LANGUAGE sql VOLATILE
RETURN (SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_index WHERE indrelid = 'lease_lock'::regclass);

-- each owner has one, finds it, and gets no other
SELECT count(*) FROM generate_series(1, 100) AS i WHERE lease_acquire_permit('api', 200, '1 hour', 'o' || i);
SELECT * FROM slots_of;
SELECT count(*) AS twice FROM generate_series(1, 100) AS i WHERE lease_acquire_permit('api', 200, '1 hour', 'o' || i) OR lease_acquire_shared('api', '1 hour', 'o' || i);
SELECT count(DISTINCT lease_token('api', 'o' || i)) AS tokens, count(*) FILTER (WHERE lease_renew('api', '2 hours', 'o' || i)) AS renewed,
	count(DISTINCT lease_assert('api', 'o' || i)) AS asserted, count(lease_token('api', 'p' || i)) AS strangers
FROM generate_series(1, 100) AS i;
SELECT count(*) AS again FROM generate_series(1, 100) AS i, lease_request('api', '1 hour', 'o' || i, mode => 'permit', permits => 200, reentrant => true) AS r
WHERE r.granted AND r.token = lease_token('api', 'o' || i);
SELECT count(*) FILTER (WHERE lease_release('api', 'o' || i)) AS less, count(*) FILTER (WHERE lease_release('api', 'o' || i)) AS released,
	count(*) FILTER (WHERE lease_release('api', 'o' || i)) AS more
FROM generate_series(1, 100) AS i;

-- as many as there are, then as many as there are again
SELECT count(*) FROM generate_series(1, 150) AS i WHERE lease_acquire_permit('api', 100, '1 hour', 'o' || i);
SELECT count(*) AS released FROM generate_series(1, 100, 3) AS i WHERE lease_release('api', 'o' || i);
SELECT count(*) FROM generate_series(1, 150) AS i WHERE lease_acquire_permit('api', 100, '1 hour', 'q' || i);
SELECT * FROM slots_of;

-- those in slots beyond the number count, whatever it is
SELECT count(*) FROM generate_series(1, 60) AS i WHERE lease_acquire_permit('wide', 5000, '1 hour', 'o' || i);
SELECT max(slot) > 100 AS beyond FROM lease_status WHERE resource = 'wide';
SELECT count(*) FROM generate_series(1, 50) AS i WHERE lease_acquire_permit('wide', 60, '1 hour', 'p' || i);
SELECT count(*) FROM generate_series(1, 50) AS i WHERE lease_acquire_permit('wide', 90, '1 hour', 'p' || i);
SELECT * FROM slots_of WHERE resource = 'wide';
-- also when only one of them is left, and when none is
SELECT count(*) AS released FROM (SELECT owner FROM lease_status WHERE resource = 'wide' AND owner IS NOT NULL ORDER BY slot DESC OFFSET 1) AS s
WHERE lease_release('wide', owner);
SELECT count(*) FROM generate_series(1, 50) AS i WHERE lease_acquire_permit('wide', 40, '1 hour', 'p' || i);
SELECT lease_release('wide', owner) FROM (SELECT owner FROM lease_status WHERE resource = 'wide' ORDER BY slot DESC LIMIT 1) AS s;
SELECT lease_acquire_permit('wide', 40, '1 hour', 'q1') AS one, lease_acquire_permit('wide', 40, '1 hour', 'q2') AS two;

-- who comes again finds the row that it left, and updates it in place
TRUNCATE lease_lock;
SELECT count(*) FROM generate_series(1, 40) AS i WHERE lease_acquire_shared('doc', '1 hour', 'o' || i);
CREATE TABLE place AS SELECT owner, slot FROM lease_status WHERE resource = 'doc' ORDER BY slot DESC LIMIT 1;
BEGIN;
SELECT pg_stat_get_xact_tuples_inserted(c) AS inserted, pg_stat_get_xact_tuples_updated(c) AS updated, pg_stat_get_xact_tuples_hot_updated(c) AS in_place
FROM (SELECT 'lease_lock'::regclass AS c) AS t \gset
SELECT lease_release('doc', owner) AND lease_acquire_shared('doc', '1 hour', owner) AND lease_release('do' || 'c', owner || '') AND lease_acquire_shared('doc', '1 hour', owner || '') AS again FROM place;
SELECT pg_stat_get_xact_tuples_inserted(c) - :inserted AS inserted, pg_stat_get_xact_tuples_updated(c) - :updated AS updated,
	pg_stat_get_xact_tuples_hot_updated(c) - :in_place AS in_place
FROM (SELECT 'lease_lock'::regclass AS c) AS t;
COMMIT;
SELECT s.slot = p.slot AS same_slot FROM place AS p JOIN lease_status AS s USING (owner) WHERE s.resource = 'doc';
-- also when it did not choose the slot itself
SELECT lease_transfer('doc', owner, 'yan') IS NOT NULL AS transferred, lease_release('doc', 'yan'), lease_acquire_shared('doc', '1 hour', 'yan') FROM place;
SELECT s.slot = p.slot AS same_slot FROM place AS p, lease_status AS s WHERE s.resource = 'doc' AND s.owner = 'yan';
SELECT lease_transfer('doc', 'yan', owner) IS NOT NULL AS transferred FROM place;
-- one that expired is taken by its owner again before any other slot, so that it is not left to be released late
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource = 'doc' AND (owner = (SELECT owner FROM place) OR slot = 1);
SELECT lease_token('doc', owner) AS token, lease_acquire_shared('doc', '1 hour', owner), lease_release('doc', owner), lease_release('doc', owner) AS once_more FROM place;

-- handed over: found under the new name only, and never to one who has another
SELECT owner AS far FROM lease_status WHERE resource = 'doc' AND state = 'held' ORDER BY slot DESC LIMIT 1 \gset
SELECT owner AS near FROM lease_status WHERE resource = 'doc' AND state = 'held' ORDER BY slot LIMIT 1 \gset
SELECT lease_transfer('doc', :'near', :'far');
SELECT lease_transfer('doc', :'far', 'zoe') = lease_token('doc', 'zoe') AS transferred, lease_token('doc', :'far') AS old_name;
SELECT lease_acquire_shared('doc', '1 hour', 'zoe') AS twice, lease_acquire_shared('doc', '1 hour', :'far') AS anew;

-- an exclusive lease meets all of them
SELECT lease_acquire('doc', '1 hour', 'writer') AS beside_them;
SELECT sum(lease_release_all(o)) FROM (SELECT DISTINCT owner AS o FROM lease_status WHERE owner IS NOT NULL ORDER BY 1) AS s;
SELECT lease_acquire('doc', '1 hour', 'writer') AS after_them, lease_acquire_shared('doc', '1 hour', 'o40') AS beside_it, lease_release('doc', 'writer');
-- one that expired and was followed by an exclusive one is lost
SELECT count(*) FROM generate_series(1, 40) AS i WHERE lease_acquire_shared('doc', '1 hour', 'o' || i);
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource = 'doc' AND slot > 0;
SELECT lease_release('doc', owner) AS late FROM lease_lock WHERE resource = 'doc' ORDER BY slot DESC LIMIT 1;
SELECT lease_acquire('doc', '1 hour', 'writer'), lease_release('doc', 'writer');
SELECT count(*) AS late FROM (SELECT owner FROM lease_lock WHERE resource = 'doc' AND slot > 0 AND owner IS NOT NULL OFFSET 0) AS s WHERE lease_release('doc', owner);

-- what is looked at does not grow with the number that is taken
SELECT count(*) FROM generate_series(1, 3000) AS i WHERE lease_acquire_permit('many', 6000, '1 hour', 'o' || i);
CREATE FUNCTION looked_at(permits int, owner text) RETURNS TABLE (acquire bigint, token bigint, renew bigint, release bigint) LANGUAGE plpgsql AS $$
DECLARE
	seen bigint[] := ARRAY[read_so_far()];
BEGIN
	ASSERT lease_acquire_permit('many', permits, '1 hour', owner);
	seen := seen || read_so_far();
	ASSERT lease_token('many', owner) IS NOT NULL;
	seen := seen || read_so_far();
	ASSERT lease_renew('many', '2 hours', owner);
	seen := seen || read_so_far();
	ASSERT lease_release('many', owner);
	seen := seen || read_so_far();
	RETURN QUERY SELECT seen[2] - seen[1], seen[3] - seen[2], seen[4] - seen[3], seen[5] - seen[4];
END $$;
SELECT max(acquire) < 300 AS acquire, max(token) < 60 AS token, max(renew) < 60 AS renew, max(release) < 60 AS release
FROM generate_series(1, 100) AS i, looked_at(6000, 'p' || i);
SELECT acquire > 3000 AS all_taken FROM looked_at(3001, 'last');

-- without the index everything is found as well, only not as fast
BEGIN;
DROP INDEX lease_lock_last_owner;
SELECT count(*) FROM generate_series(1, 100) AS i WHERE lease_acquire_permit('api', 200, '1 hour', 'n' || i);
SELECT count(*) AS twice FROM generate_series(1, 100) AS i WHERE lease_acquire_permit('api', 250, '1 hour', 'n' || i);
SELECT count(*) AS released FROM generate_series(1, 100) AS i WHERE lease_release('api', 'n' || i);
SELECT token > 3000 AS looked_at_all FROM looked_at(6000, 'slow');
CREATE INDEX ON lease_lock (resource, last_owner, slot) WHERE last_owner > '';
SELECT token > 3000 AS not_that_index FROM looked_at(6000, 'slow');
CREATE INDEX ON lease_lock (resource, last_owner, slot) WHERE last_owner IS NOT NULL;
SELECT token < 60 AS but_that_one FROM looked_at(6000, 'slow');
SELECT count(*) AS held FROM generate_series(1, 3000) AS i WHERE lease_token('many', 'o' || i) IS NOT NULL;
ROLLBACK;

DROP TABLE place;
DROP VIEW slots_of;
DROP FUNCTION looked_at, read_so_far;
TRUNCATE lease_lock;
