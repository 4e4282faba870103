-- Version: a write that is based on an old version of the row is refused.

\getenv source PG_ABS_SRCDIR
\set helpers :source '/sql/include/error_of.sql'
\i :helpers
\pset null '(null)'

CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL, lock_version int NOT NULL DEFAULT 0);
CREATE TRIGGER version BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION lease_version('lock_version');
INSERT INTO account VALUES (1, 100), (2, 100);

-- as object mappers write it: read version 0, write 1, where it still is 0
UPDATE account SET balance = 90, lock_version = 1 WHERE id = 1 AND lock_version = 0;
UPDATE account SET balance = 80, lock_version = 1 WHERE id = 1 AND lock_version = 0;
\echo :ROW_COUNT rows for who read version 0
UPDATE account SET lock_version = lock_version + 1, balance = 80 WHERE id = 1;
TABLE account ORDER BY id;

-- without the condition on the version
\pset expanded on
SELECT * FROM error_of($$ UPDATE account SET balance = 0, lock_version = 1 WHERE id = 1 $$);
-- a stale writer states, by chance, the version that the row has already
SELECT * FROM error_of($$ UPDATE account SET balance = 0, lock_version = 2 WHERE id = 1 $$);
SELECT * FROM error_of($$ UPDATE account SET balance = 0, lock_version = lock_version WHERE id = 1 $$);
SELECT * FROM error_of($$ UPDATE account SET balance = 0, lock_version = 4 WHERE id = 1 $$);
SELECT * FROM error_of($$ UPDATE account SET balance = 0, lock_version = NULL WHERE id = 1 $$);
SELECT * FROM error_of($$ UPDATE account SET balance = 0, lock_version = DEFAULT WHERE id = 1 $$);
SELECT * FROM error_of($$ UPDATE account SET balance = 0, lock_version = -1 WHERE id = 1 $$);
\pset expanded off
UPDATE account SET balance = 70, lock_version = 3 WHERE id = 1;

-- a client that knows nothing of versions
UPDATE account SET balance = balance - 10;
TABLE account ORDER BY id;
SELECT code, message FROM error_of($$ UPDATE account SET balance = 0, lock_version = 4 WHERE id = 1 $$);

-- other ways to update
INSERT INTO account VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET balance = account.balance + 1 RETURNING *;
INSERT INTO account VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET lock_version = account.lock_version + 1 RETURNING *;
SELECT code, message FROM error_of($$ INSERT INTO account VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET lock_version = EXCLUDED.lock_version $$);
MERGE INTO account USING (VALUES (1, 5)) AS v (id, balance) ON account.id = v.id
	WHEN MATCHED THEN UPDATE SET balance = v.balance;
MERGE INTO account USING (VALUES (1, 6)) AS v (id, version) ON account.id = v.id
	WHEN MATCHED THEN UPDATE SET lock_version = v.version + 2;
SELECT code, message FROM error_of($$ MERGE INTO account USING (VALUES (1, 6)) AS v (id, version) ON account.id = v.id
	WHEN MATCHED THEN UPDATE SET lock_version = v.version $$);
TABLE account ORDER BY id;
-- in one MERGE that mentions it in any branch, it is mentioned in all
SELECT code, message FROM error_of($$ MERGE INTO account USING (VALUES (1), (2)) AS v (id) ON account.id = v.id
	WHEN MATCHED AND v.id = 1 THEN UPDATE SET lock_version = lock_version + 1
	WHEN MATCHED THEN UPDATE SET balance = 0 $$);

-- a change by another BEFORE trigger does not count as mentioning the column
CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.lock_version := 1000; RETURN NEW; END $$;
CREATE TRIGGER a_meddle BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION meddle();
UPDATE account SET balance = 4 WHERE id = 1 RETURNING *;
SELECT code, message FROM error_of($$ UPDATE account SET lock_version = lock_version + 1 WHERE id = 1 $$);
DROP TABLE account;

-- bigint, domains, nulls, the end of the range
CREATE DOMAIN regress_version AS bigint;
CREATE TABLE big (id int, version regress_version, other text);
ALTER TABLE big DROP COLUMN id;
CREATE TRIGGER version BEFORE UPDATE ON big FOR EACH ROW EXECUTE FUNCTION lease_version('version');
INSERT INTO big VALUES (NULL);
UPDATE big SET other = 'null counts as 0' RETURNING *;
UPDATE big SET version = 2 RETURNING *;
TRUNCATE big;
INSERT INTO big VALUES (NULL);
UPDATE big SET version = 1 RETURNING *;
TRUNCATE big;
INSERT INTO big VALUES (9223372036854775806);
UPDATE big SET other = 'last' RETURNING *;
\pset expanded on
SELECT * FROM error_of($$ UPDATE big SET other = 'over' $$);
SELECT * FROM error_of($$ UPDATE big SET version = -9223372036854775808 $$);
SELECT * FROM error_of($$ UPDATE big SET version = 9223372036854775807 $$);
\pset expanded off
ALTER TABLE big ALTER version TYPE int USING 2147483646;
UPDATE big SET other = 'last' RETURNING *;
SELECT code, message FROM error_of($$ UPDATE big SET other = 'over' $$);
SELECT code, message FROM error_of($$ UPDATE big SET version = -2147483648 $$);
ALTER TABLE big RENAME version TO revision;
SELECT code, message, hint FROM error_of($$ UPDATE big SET other = 'renamed' $$);
DROP TABLE big;
DROP DOMAIN regress_version;

-- partitions with their columns in another order
CREATE TABLE part (region text, id int, version int DEFAULT 0) PARTITION BY LIST (region);
CREATE TABLE part_north (version int DEFAULT 0, dropped int, id int, region text);
ALTER TABLE part_north DROP COLUMN dropped;
ALTER TABLE part ATTACH PARTITION part_north FOR VALUES IN ('north');
CREATE TABLE part_south PARTITION OF part FOR VALUES IN ('south');
CREATE TRIGGER version BEFORE UPDATE ON part FOR EACH ROW EXECUTE FUNCTION lease_version('version');
INSERT INTO part VALUES ('north', 1), ('south', 2);
UPDATE part SET id = id + 1;
UPDATE part SET version = version + 1;
UPDATE part_north SET version = 3;
SELECT code, message FROM error_of($$ UPDATE part SET version = 3 $$);
UPDATE part SET region = 'south' WHERE region = 'north';
SELECT tableoid::regclass, * FROM part ORDER BY id;
DROP TABLE part;

-- wrong trigger definitions
CREATE TABLE wrong (id int, small smallint, t text, version int, g int GENERATED ALWAYS AS (id) STORED);
INSERT INTO wrong VALUES (1);
CREATE FUNCTION try_trigger(definition text) RETURNS TABLE (code text, message text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'CREATE TRIGGER t ' || definition;
	RETURN QUERY SELECT e.code, e.message FROM error_of('UPDATE wrong SET id = 1') AS e;
	DROP TRIGGER t ON wrong;
END $$;
SELECT t.* FROM unnest(ARRAY[
	'AFTER UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION lease_version(''version'')',
	'BEFORE UPDATE ON wrong FOR EACH STATEMENT EXECUTE FUNCTION lease_version(''version'')',
	'BEFORE UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION lease_version()',
	'BEFORE UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION lease_version(''version'', ''id'')',
	'BEFORE UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION lease_version(''Version'')',
	'BEFORE UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION lease_version(''xmin'')',
	'BEFORE UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION lease_version(''small'')',
	'BEFORE UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION lease_version(''t'')',
	'BEFORE UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION lease_version(''g'')'
]) AS definition, try_trigger(definition) AS t;
CREATE TRIGGER t BEFORE INSERT ON wrong FOR EACH ROW EXECUTE FUNCTION lease_version('version');
INSERT INTO wrong VALUES (1);
SELECT lease_version();
DROP TABLE wrong;

-- the checks of a domain apply to the new version, too
CREATE DOMAIN few_versions AS integer CHECK (VALUE < 3);
CREATE TABLE limited (id integer, version few_versions);
CREATE TRIGGER t BEFORE UPDATE ON limited FOR EACH ROW EXECUTE FUNCTION lease_version('version');
INSERT INTO limited VALUES (1, 1);
UPDATE limited SET id = 2;
UPDATE limited SET id = 3;
SELECT * FROM limited;
DROP TABLE limited;
DROP DOMAIN few_versions;
DROP FUNCTION meddle, try_trigger;
