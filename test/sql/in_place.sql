-- A lease that is acquired and released is updated in place: no new index entries.

CREATE TABLE name (resource text, owner text);
INSERT INTO name VALUES ('door', 'ann');

-- also if the names come from a column, where they are stored in another form
BEGIN;
SELECT lease_acquire('door', '1 hour', 'ann'), lease_release(resource, owner) FROM name;
SELECT lease_acquire(resource, '1 hour', owner), lease_renew('door', '2 hours', 'ann'), lease_release('door', 'ann') FROM name;
SELECT lease_acquire('do' || 'or', '1 hour', 'a' || 'nn'), lease_release_all(owner) FROM name;
SELECT pg_stat_get_xact_tuples_inserted(c) AS inserted, pg_stat_get_xact_tuples_deleted(c) AS deleted,
	pg_stat_get_xact_tuples_updated(c) AS updated, pg_stat_get_xact_tuples_hot_updated(c) AS in_place
FROM (SELECT 'lease_lock'::regclass AS c) AS t;
COMMIT;

-- A lease that is only renewed stays where it is, too: its old versions are removed on the way.
SELECT lease_acquire('door', '1 hour', 'ann');
DO $$
DECLARE
	before bigint;
BEGIN
	-- A snapshot of another session, such as autovacuum's, may keep some.
	FOR attempt IN 1 .. 50 LOOP
		before := pg_relation_size('lease_lock');
		FOR i IN 1 .. 500 LOOP
			PERFORM lease_renew('door', '2 hours', 'ann');
			COMMIT;
		END LOOP;
		IF pg_relation_size('lease_lock') = before THEN
			RAISE NOTICE 'the table does not grow';
			RETURN;
		END IF;
	END LOOP;
	RAISE NOTICE 'the table grows';
END $$;

DROP TABLE name;
TRUNCATE lease_lock;
