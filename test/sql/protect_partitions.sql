-- Partitions: protect, unprotect, attach and detach in any order leave a table that is wholly protected or not at all.

\getenv source PG_ABS_SRCDIR
\set helpers :source '/sql/include/error_of.sql'
\i :helpers

CREATE TABLE root (region text, id int) PARTITION BY LIST (region);
CREATE TABLE north PARTITION OF root FOR VALUES IN ('north');
CREATE TABLE south PARTITION OF root FOR VALUES IN ('south') PARTITION BY LIST (id);
CREATE TABLE south_1 PARTITION OF south FOR VALUES IN (1);

-- how a table is protected: against an insert, against TRUNCATE
CREATE FUNCTION state_of(relation regclass) RETURNS text LANGUAGE sql AS $$
	SELECT CASE
		WHEN writes.message LIKE 'lease_lock.owner is not set%' AND truncates.message LIKE 'cannot truncate%' THEN 'protected'
		WHEN writes.message || truncates.message = 'no errorno error' THEN 'open'
		ELSE writes.message || ', ' || truncates.message END
	FROM error_of(format('INSERT INTO %s VALUES (%L, 1)', relation, CASE WHEN relation::text LIKE 'south%' THEN 'south' ELSE 'north' END)) AS writes,
		error_of(format('TRUNCATE %s', relation)) AS truncates
$$;
CREATE FUNCTION states() RETURNS TABLE (relation regclass, state text) LANGUAGE sql AS $$
	SELECT r, state_of(r) FROM unnest('{root, north, south, south_1}'::regclass[]) AS r
$$;
SELECT * FROM states();

-- the guard of a partition is its own: unprotecting the table above leaves it
SELECT lease_protect('north', 'north:{id}');
SELECT lease_unprotect('root') AS root_was_protected;
SELECT * FROM states();

-- a table is protected once, here or above
\pset expanded on
SELECT * FROM error_of($$ SELECT lease_protect('root', 'root:{id}') $$);
SELECT lease_unprotect('north');
SELECT lease_protect('root', 'root:{id}');
SELECT * FROM error_of($$ SELECT lease_protect('north', 'north:{id}') $$);
SELECT * FROM error_of($$ SELECT lease_protect('south', 'south:{id}') $$);
SELECT * FROM error_of($$ SELECT lease_unprotect('north') $$);
\pset expanded off
SELECT * FROM states();

-- a partition that is detached is not protected, and can be, on its own
ALTER TABLE root DETACH PARTITION north;
ALTER TABLE root DETACH PARTITION south;
SELECT * FROM states();
SELECT lease_unprotect('north') AS north_was_protected;
SELECT lease_protect('north', 'north:{id}'), lease_protect('south', 'south:{id}');
SELECT * FROM states();
\pset expanded on
SELECT * FROM error_of($$ ALTER TABLE root ATTACH PARTITION north FOR VALUES IN ('north') $$);
\pset expanded off
SELECT lease_unprotect('north'), lease_unprotect('south');
SELECT * FROM states();

-- detached, and back again
ALTER TABLE root ATTACH PARTITION north FOR VALUES IN ('north');
ALTER TABLE root ATTACH PARTITION south FOR VALUES IN ('south');
SELECT * FROM states();
SELECT lease_unprotect('root'), lease_protect('root', 'root:{id}');
SELECT * FROM states();
ALTER TABLE root DETACH PARTITION north;
SELECT lease_unprotect('root');
ALTER TABLE root ATTACH PARTITION north FOR VALUES IN ('north');
SELECT * FROM states();
SELECT lease_protect('root', 'root:{id}');
SELECT * FROM states();

-- without deletes, TRUNCATE is allowed, and what an earlier protection left is removed
ALTER TABLE root DETACH PARTITION north;
SELECT lease_protect('north', 'north:{id}', 'insert, update');
SELECT state_of('north');
SELECT lease_unprotect('north');
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'north'::regclass;
SELECT lease_unprotect('root') AS root_was_protected, lease_unprotect('root') AS again;
SELECT count(*) FROM pg_trigger WHERE tgrelid::regclass::text IN ('root', 'south', 'south_1');

-- a table that inherits is no partition
CREATE TABLE parent (region text, id int);
CREATE TABLE child () INHERITS (parent);
SELECT lease_protect('child', 'child:{id}');
SELECT lease_unprotect('parent');
SELECT state_of('child');

DROP TABLE root, north, parent CASCADE;
DROP FUNCTION states, state_of;
