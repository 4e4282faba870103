-- Guard: every way to write a row of a protected table needs its lease.

\getenv source PG_ABS_SRCDIR
\set helpers :source '/sql/include/error_of.sql'
\i :helpers
\pset null '(null)'

CREATE TABLE workitem (id int PRIMARY KEY, what text NOT NULL DEFAULT 'new', n int NOT NULL DEFAULT 0);
INSERT INTO workitem SELECT generate_series(1, 5);
SELECT lease_protect('workitem', 'workitem:{id}');
SELECT lease_acquire('workitem:' || id, '1 hour', 'ann') FROM unnest('{1, 2, 7}'::int[]) AS id;

-- no owner is set, the wrong owner, the right owner
\pset expanded on
SELECT * FROM error_with_context($$ UPDATE workitem SET what = 'a' WHERE id = 1 $$);
SET lease_lock.owner = 'bob';
SELECT * FROM error_with_context($$ UPDATE workitem SET what = 'a' WHERE id = 1 $$);
SET lease_lock.owner = 'ann';
SELECT * FROM error_with_context($$ UPDATE workitem SET what = 'a' WHERE id = 3 $$);
SELECT message FROM error_with_context($$ UPDATE workitem SET what = 'a' WHERE id IN (1, 2) $$);
\pset expanded off

-- insert, delete
SELECT message FROM error_with_context($$ INSERT INTO workitem VALUES (7), (8) $$);
SELECT message FROM error_with_context($$ INSERT INTO workitem VALUES (7) $$);
SELECT message FROM error_with_context($$ DELETE FROM workitem WHERE id IN (3, 7) $$);
SELECT message FROM error_with_context($$ DELETE FROM workitem WHERE id = 7 $$);

-- an update that changes the key needs both leases
SELECT message FROM error_with_context($$ UPDATE workitem SET id = 6 WHERE id = 2 $$);
SELECT message FROM error_with_context($$ UPDATE workitem SET id = 7 WHERE id = 3 $$);
SELECT message FROM error_with_context($$ UPDATE workitem SET id = 7 WHERE id = 2 $$);
SELECT message FROM error_with_context($$ UPDATE workitem SET id = 2 WHERE id = 7 $$);

-- ON CONFLICT: the row that was to be inserted, and the one that is updated
SELECT message FROM error_with_context($$ INSERT INTO workitem VALUES (1) ON CONFLICT (id) DO UPDATE SET n = workitem.n + 1 $$);
SELECT message FROM error_with_context($$ INSERT INTO workitem VALUES (3) ON CONFLICT (id) DO UPDATE SET n = workitem.n + 1 $$);
SELECT message FROM error_with_context($$ INSERT INTO workitem VALUES (3) ON CONFLICT (id) DO NOTHING $$);
SELECT message FROM error_with_context($$ INSERT INTO workitem VALUES (1) ON CONFLICT (id) DO UPDATE SET id = 8 $$);

-- MERGE
SELECT message FROM error_with_context($$ MERGE INTO workitem AS w USING (VALUES (1), (7)) AS v (id) ON w.id = v.id
	WHEN MATCHED THEN UPDATE SET n = n + 1 WHEN NOT MATCHED THEN INSERT (id) VALUES (v.id) $$);
SELECT message FROM error_with_context($$ MERGE INTO workitem AS w USING (VALUES (1), (3)) AS v (id) ON w.id = v.id
	WHEN MATCHED THEN UPDATE SET n = n + 1 $$);
SELECT message FROM error_with_context($$ MERGE INTO workitem AS w USING (VALUES (8)) AS v (id) ON w.id = v.id
	WHEN NOT MATCHED THEN INSERT (id) VALUES (v.id) $$);
SELECT message FROM error_with_context($$ MERGE INTO workitem AS w USING (VALUES (4)) AS v (id) ON w.id = v.id
	WHEN MATCHED THEN DELETE $$);
SELECT message FROM error_with_context($$ MERGE INTO workitem AS w USING (VALUES (7)) AS v (id) ON w.id = v.id
	WHEN MATCHED THEN DELETE $$);

-- COPY
COPY workitem (id) FROM stdin;
7
\.
COPY workitem (id) FROM stdin;
8
\.
TABLE workitem ORDER BY id;

-- TRUNCATE, also by CASCADE
CREATE TABLE referenced (id int PRIMARY KEY);
CREATE TABLE referencing (id int REFERENCES referenced);
SELECT lease_protect('referencing', 'referencing:{id}');
\pset expanded on
SELECT * FROM error_with_context($$ TRUNCATE workitem $$);
SELECT code, message FROM error_with_context($$ TRUNCATE referenced CASCADE $$);
\pset expanded off
DROP TABLE referencing, referenced;

-- through a view, a function, a rule, a writable CTE
CREATE VIEW regress_view AS SELECT id, n FROM workitem WHERE id < 4;
SELECT message FROM error_with_context($$ UPDATE regress_view SET n = n + 1 $$);
SELECT message FROM error_with_context($$ UPDATE regress_view SET n = n + 1 WHERE id < 3 $$);
SELECT message FROM error_with_context($$ WITH moved AS (DELETE FROM workitem WHERE id = 4 RETURNING *) SELECT * FROM moved $$);
DROP VIEW regress_view;

-- SELECT ... FOR UPDATE and reading need no lease
SELECT id FROM workitem WHERE id = 3 FOR UPDATE;

-- a token that is set must be the token of the lease
SELECT lease_token('workitem:1', 'ann') AS token \gset
BEGIN;
SET LOCAL lease_lock.token = :token;
UPDATE workitem SET n = n + 1 WHERE id = 1;
SELECT code, message = format('lease on "workitem:2" is not held by owner "ann" with token %s', :token) AS as_expected, detail
FROM error_with_context($$ UPDATE workitem SET n = n + 1 WHERE id = 2 $$);
SET LOCAL lease_lock.token = -1;
SELECT code, message, detail FROM error_with_context($$ UPDATE workitem SET n = n + 1 WHERE id = 1 $$);
SET LOCAL lease_lock.token = '';
UPDATE workitem SET n = n + 1 WHERE id IN (1, 2);
ROLLBACK;

-- settings
SET lease_lock.token = 'x';
SET lease_lock.token = '1 ';
SET lease_lock.token = '9223372036854775808';
SET lease_lock.token = '9223372036854775807';
RESET lease_lock.token;
SELECT code, left(message, 50) AS message FROM error_with_context($$ SELECT set_config('lease_lock.owner', repeat('x', 1025), false) $$);
SHOW lease_lock.owner;
-- SET LOCAL, also in a session that has not loaded the library yet
\c -
\set VERBOSITY terse
BEGIN;
SET LOCAL lease_lock.owner = 'ann';
UPDATE workitem SET n = n + 1 WHERE id = 1;
SAVEPOINT s;
SET LOCAL lease_lock.owner = 'bob';
UPDATE workitem SET n = n + 1 WHERE id = 1;
ROLLBACK TO s;
UPDATE workitem SET n = n + 1 WHERE id = 1;
COMMIT;
SHOW lease_lock.owner;
UPDATE workitem SET n = n + 1 WHERE id = 1;
\set VERBOSITY default

-- an asserted lease is not looked at again in the same transaction, unless the
-- transaction itself ended it
SET lease_lock.owner = 'ann';
BEGIN;
UPDATE workitem SET n = n + 1 WHERE id = 1;
SELECT lease_release('workitem:1', 'ann');
SELECT message FROM error_with_context($$ UPDATE workitem SET n = n + 1 WHERE id = 1 $$);
ROLLBACK;
-- also within one statement
CREATE FUNCTION give_up(id int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lease_release('workitem:' || id, 'ann');
	RETURN 1;
END $$;
BEGIN;
CREATE TABLE many (k int, id int);
INSERT INTO many VALUES (1, 1), (1, 2);
SELECT lease_protect('many', 'workitem:{k}');
SELECT message FROM error_with_context($$ UPDATE many SET id = id + 1 $$);
SELECT message FROM error_with_context($$ UPDATE many SET id = CASE id WHEN 3 THEN give_up(k) ELSE id END $$);
SELECT message FROM error_with_context($$ UPDATE many SET id = CASE id WHEN 3 THEN length(set_config('lease_lock.owner', 'bob', true)) ELSE id END $$);
SELECT message FROM error_with_context($$ UPDATE many SET id = CASE id WHEN 3 THEN length(set_config('lease_lock.token', '-1', true)) ELSE id END $$);
SELECT message FROM error_with_context($$ UPDATE many SET id = CASE id WHEN 3 THEN length(set_config('role', 'pg_monitor', true)) ELSE id END $$);
ROLLBACK;

-- only some operations
CREATE TABLE partly (id int);
SELECT lease_protect('partly', 'partly:{id}', ' Update ');
INSERT INTO partly VALUES (1);
SELECT message FROM error_with_context($$ UPDATE partly SET id = id $$);
TRUNCATE partly;
SELECT lease_unprotect('partly');
SELECT lease_protect('partly', 'partly:{id}', 'delete,insert');
SELECT message FROM error_with_context($$ INSERT INTO partly VALUES (1) $$);
SELECT message FROM error_with_context($$ TRUNCATE partly $$);
SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'partly'::regclass ORDER BY tgname;
DROP TABLE partly;

-- partitions: the same through the root and directly, also when attached later
CREATE TABLE part (region text, id int, n int DEFAULT 0) PARTITION BY LIST (region);
CREATE TABLE part_north PARTITION OF part FOR VALUES IN ('north');
CREATE TABLE part_south (n int, id int, dropped int, region text);
ALTER TABLE part_south DROP COLUMN dropped;
INSERT INTO part VALUES ('north', 1);
INSERT INTO part_south (region, id, n) VALUES ('south', 1, 0);
SELECT lease_protect('part', '{region}:{id}');
ALTER TABLE part ATTACH PARTITION part_south FOR VALUES IN ('south');
SELECT lease_acquire('north:1', '1 hour', 'ann');
UPDATE part SET n = n + 1 WHERE region = 'north';
UPDATE part_north SET n = n + 1;
SELECT message FROM error_with_context($$ UPDATE part SET n = n + 1 $$);
SELECT message FROM error_with_context($$ UPDATE part_south SET n = n + 1 $$);
SELECT message FROM error_with_context($$ INSERT INTO part_north VALUES ('north', 2) $$);
-- a row that moves to another partition
SELECT message FROM error_with_context($$ UPDATE part SET region = 'south', id = 2 WHERE region = 'north' $$);
SELECT lease_acquire('south:2', '1 hour', 'ann');
UPDATE part SET region = 'south', id = 2 WHERE region = 'north';
SELECT tableoid::regclass, region, id, n FROM part ORDER BY n;
SELECT message FROM error_with_context($$ TRUNCATE part $$);
SELECT message FROM error_with_context($$ TRUNCATE part_north $$);
SELECT message FROM error_with_context($$ SELECT lease_unprotect('part_north') $$);
SELECT message FROM error_with_context($$ SELECT lease_protect('part_north', 'x') $$);
SELECT lease_unprotect('part');
SELECT count(*) FROM pg_trigger WHERE tgrelid IN ('part'::regclass, 'part_north'::regclass, 'part_south'::regclass);
DROP TABLE part;

-- another BEFORE trigger changes the key: the guard fires last and sees it
CREATE TABLE shifted (id int);
CREATE FUNCTION shift() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.id := NEW.id + 1; RETURN NEW; END $$;
CREATE TRIGGER zzz_shift BEFORE INSERT OR UPDATE ON shifted FOR EACH ROW EXECUTE FUNCTION shift();
SELECT lease_protect('shifted', 'workitem:{id}');
INSERT INTO shifted VALUES (0);
UPDATE shifted SET id = id;
SELECT message FROM error_with_context($$ UPDATE shifted SET id = id $$);
DROP TABLE shifted;

-- a shared lease or permit will do, unless the table asks for an exclusive lease
CREATE TABLE alone (id int PRIMARY KEY, n int DEFAULT 0);
SELECT lease_protect('alone', 'alone:{id}');
SELECT lease_acquire_shared('alone:1', '1 hour', 'ann'), lease_acquire_permit('alone:2', 3, '1 hour', 'ann'), lease_acquire('alone:3', '1 hour', 'ann');
INSERT INTO alone SELECT generate_series(1, 3);
SELECT lease_unprotect('alone'), lease_protect('alone', 'alone:{id}', exclusive => true);
\d alone
SELECT error.* FROM generate_series(1, 3) AS id, error_of(format('UPDATE alone SET n = n + 1 WHERE id = %s', id)) AS error;
-- also for a lease that the transaction has asserted, and downgrades
BEGIN;
SELECT lease_assert('alone:1', 'ann') > 0;
SELECT code, message FROM error_of($$ UPDATE alone SET n = n + 1 WHERE id = 1 $$);
UPDATE alone SET n = n + 1 WHERE id = 3;
SELECT lease_downgrade('alone:3', 'ann') > 0;
SELECT code, message FROM error_of($$ UPDATE alone SET n = n + 1 WHERE id = 3 $$);
ROLLBACK;
DROP TABLE alone;

-- triggers made by hand
CREATE TABLE by_hand (id int);
INSERT INTO by_hand VALUES (1), (2), (3);
CREATE TRIGGER t BEFORE UPDATE OF id ON by_hand FOR EACH ROW WHEN (OLD.id > 1) EXECUTE FUNCTION lease_guard('workitem:{id}');
UPDATE by_hand SET id = id WHERE id = 1;
SELECT message FROM error_with_context($$ UPDATE by_hand SET id = id WHERE id = 3 $$);
SELECT code, message FROM error_with_context($$ SELECT lease_protect('by_hand', 'x') $$);
DROP TRIGGER t ON by_hand;
CREATE FUNCTION try_trigger(definition text) RETURNS TABLE (code text, message text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'CREATE TRIGGER t ' || definition;
	RETURN QUERY SELECT e.code, e.message FROM error_of('UPDATE by_hand SET id = id') AS e;
	DROP TRIGGER t ON by_hand;
END $$;
SELECT * FROM unnest(ARRAY[
	'AFTER UPDATE ON by_hand FOR EACH ROW EXECUTE FUNCTION lease_guard(''x'')',
	'BEFORE UPDATE ON by_hand FOR EACH STATEMENT EXECUTE FUNCTION lease_guard(''x'')',
	'AFTER UPDATE ON by_hand FOR EACH STATEMENT EXECUTE FUNCTION lease_guard(''x'')',
	'BEFORE UPDATE ON by_hand FOR EACH ROW EXECUTE FUNCTION lease_guard()',
	'BEFORE UPDATE ON by_hand FOR EACH ROW EXECUTE FUNCTION lease_guard(''x'', ''y'')',
	'BEFORE UPDATE ON by_hand FOR EACH ROW EXECUTE FUNCTION lease_guard(''x'', ''exclusive'', ''y'')',
	'BEFORE UPDATE ON by_hand FOR EACH ROW EXECUTE FUNCTION lease_guard(''{x}'')'
]) AS definition, try_trigger(definition);
SELECT lease_guard();
DROP TABLE by_hand;

-- read-only transactions may write temporary tables, but not lock a lease
CREATE TEMP TABLE regress_temp (id int);
SELECT lease_protect('regress_temp', 'workitem:{id}');
BEGIN READ ONLY;
INSERT INTO regress_temp VALUES (1);
ROLLBACK;
DROP TABLE regress_temp;

-- replication and its role do not fire it; that takes a superuser
SET session_replication_role = replica;
UPDATE workitem SET n = n + 1 WHERE id = 5;
RESET session_replication_role;

RESET lease_lock.owner;
DROP FUNCTION give_up, shift, try_trigger;
DROP TABLE workitem;
TRUNCATE lease_lock;
