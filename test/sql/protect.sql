-- Protect: what may be protected, by whom, and how leases are named.

\getenv source PG_ABS_SRCDIR
\set helpers :source '/sql/include/error_of.sql'
\i :helpers
-- the name of the lease that an update of all rows needs
CREATE FUNCTION lease_of(relation regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	message text;
BEGIN
	EXECUTE format('DELETE FROM %s', relation);
	RETURN NULL;
EXCEPTION WHEN invalid_parameter_value THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT;
	RETURN substring(message FROM '"(.*)"');
END $$;
\pset null '(null)'

CREATE TABLE workitem (id int PRIMARY KEY, what text, twice int GENERATED ALWAYS AS (id * 2) STORED);
INSERT INTO workitem VALUES (1, 'a');

-- templates
\pset expanded on
SELECT * FROM error_of($$ SELECT lease_protect('workitem', '') $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{id') $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{') $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{id{what}') $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:id}') $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{}') $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{nr}') $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{ID}') $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{ctid}') $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{twice}') $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', NULL) $$);
SELECT * FROM error_of($$ SELECT lease_protect(NULL, 'workitem:{id}') $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{id}', NULL) $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{id}', exclusive => NULL) $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{id}', '') $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{id}', 'insert, truncate') $$);
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{id}', 'insert,') $$);
-- texts without an end
SELECT code, left(message, 60) AS message, right(message, 50) AS message_end FROM error_of($$ SELECT lease_protect('workitem', repeat('{', 100000000)) $$);
SELECT code, left(message, 60) AS message, right(message, 50) AS message_end FROM error_of($$ SELECT lease_protect('workitem', '{id}', repeat('insert,', 2000000) || 'insert') $$);
SELECT * FROM error_of($$ SELECT lease_unprotect(NULL) $$);
SELECT * FROM error_of($$ SELECT lease_protect(0, 'workitem:{id}') $$);

-- once is enough
SELECT lease_protect('workitem', 'workitem:{id}');
SELECT * FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{id}') $$);
\pset expanded off
\d workitem
SELECT lease_unprotect('workitem'), lease_unprotect('workitem') AS again;
\d workitem
UPDATE workitem SET what = 'not protected';

-- names
CREATE FUNCTION name_of(definition text, value text, template text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	name text;
BEGIN
	EXECUTE format('CREATE TABLE named (%s)', definition);
	EXECUTE format('INSERT INTO named VALUES (%s)', value);
	PERFORM lease_protect('named', template);
	name := lease_of('named');
	DROP TABLE named;
	RETURN name;
END $$;
CREATE TYPE regress_color AS ENUM ('red', 'dark green');
CREATE DOMAIN regress_number AS numeric(10, 2) CHECK (VALUE > 0);
SET DateStyle = 'German';
SET TimeZone = 'Asia/Tokyo';
SELECT name_of(definition, value, template) AS name, definition
FROM (VALUES
	('id int', '1', '{{{id}}}'),
	('id int', '1', '{{id}}'),
	('id int', '1', '}}{id}{{'),
	('id int', '1', 'the whole table'),
	('a int, b int', '1, 2', '{b}/{a}/{b}'),
	('"Order Id" int, """" int', '1, 2', '{Order Id}{"}'),
	('id smallint', '-32768', '{id}'),
	('id int', '-2147483648', '{id}'),
	('id bigint', '-9223372036854775808', '{id}'),
	('id oid', '4294967295', '{id}'),
	('id text', $$E'%s \n {x}'$$, '{id}'),
	('id text', $$''$$, 'x{id}'),
	('id varchar(10)', $$'a '$$, '{id}.'),
	('id char(10)', $$'a '$$, '{id}.'),
	('id name', $$'a'$$, '{id}'),
	('id numeric', '1.10', '{id}'),
	('id numeric', '100', '{id}'),
	('id numeric', $$'NaN'$$, '{id}'),
	('id regress_number', '1', '{id}'),
	('id boolean, b boolean', 'true, false', '{id} {b}'),
	('id uuid', $$'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'$$, '{id}'),
	('id date', $$'2026-01-31'$$, '{id}'),
	('id timestamp', $$'2026-01-31 12:00:00.5'$$, '{id}'),
	('id timestamptz', $$'2026-01-31 12:00:00+00'$$, '{id}'),
	('id timestamptz', $$'infinity'$$, '{id}'),
	('id regress_color', $$'dark green'$$, '{id}')) AS v (definition, value, template);
RESET DateStyle;
RESET TimeZone;

-- types whose text depends on settings, or can be written in several ways
SELECT code, message FROM (VALUES ('float8'), ('bytea'), ('interval'), ('money'), ('int[]'), ('json'), ('timetz'), ('int4range')) AS v (type),
	LATERAL error_of(format($$ CREATE TABLE named (id %s); SELECT lease_protect('named', '{id}') $$, type));

-- nulls, and names that are too long or empty
CREATE TABLE named (id text);
SELECT lease_protect('named', '{id}');
\pset expanded on
SELECT * FROM error_of($$ INSERT INTO named VALUES (NULL) $$);
SELECT * FROM error_of($$ INSERT INTO named VALUES (repeat('x', 1025)) $$);
SELECT * FROM error_of($$ INSERT INTO named VALUES ('') $$);
SELECT code FROM error_of($$ INSERT INTO named VALUES (repeat('x', 1024)) $$);

-- a column that is renamed or dropped afterwards
ALTER TABLE named RENAME COLUMN id TO nr;
SELECT * FROM error_of($$ INSERT INTO named VALUES ('x') $$);
ALTER TABLE named RENAME COLUMN nr TO id;
ALTER TABLE named ALTER COLUMN id TYPE bytea USING id::bytea;
SELECT code, message FROM error_of($$ INSERT INTO named VALUES ('x') $$);
ALTER TABLE named DROP COLUMN id;
SELECT code, message FROM error_of($$ INSERT INTO named DEFAULT VALUES $$);
ALTER TABLE named ADD COLUMN other int, ADD COLUMN id int;
SELECT code, message FROM error_of($$ INSERT INTO named VALUES (1, 2) $$);
\pset expanded off

-- a template that is replaced under the same trigger, and put back
BEGIN;
CREATE OR REPLACE TRIGGER "~lease_guard" BEFORE INSERT ON named FOR EACH ROW EXECUTE FUNCTION lease_guard('other {other}');
SELECT message FROM error_of($$ INSERT INTO named VALUES (1, 2) $$);
ROLLBACK;
SELECT message FROM error_of($$ INSERT INTO named VALUES (1, 2) $$);

-- a statement uses the template that existed when it began, even if it replaces it
CREATE FUNCTION replace_template(template text) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE OR REPLACE TRIGGER "~lease_guard" BEFORE INSERT ON named FOR EACH ROW EXECUTE FUNCTION lease_guard(%L)', template);
	PERFORM error_of('INSERT INTO named VALUES (1, 2)');
	RETURN 7;
END $$;
SELECT message FROM error_of($$ INSERT INTO named VALUES (1, replace_template(repeat('{id}', 50) || repeat('x', 500))) $$);
DROP FUNCTION replace_template;
DROP TABLE named;

-- what cannot be protected
CREATE VIEW regress_view AS SELECT * FROM workitem;
CREATE MATERIALIZED VIEW regress_matview AS SELECT * FROM workitem;
CREATE SEQUENCE regress_sequence;
CREATE FOREIGN DATA WRAPPER regress_wrapper;
CREATE SERVER regress_server FOREIGN DATA WRAPPER regress_wrapper;
CREATE FOREIGN TABLE regress_foreign (id int) SERVER regress_server;
CREATE TABLE regress_parent (id int);
CREATE TABLE regress_child () INHERITS (regress_parent);
SELECT relation, code, message
FROM unnest('{regress_view, regress_matview, regress_sequence, regress_foreign, workitem_pkey, pg_class, lease_lock, lease_status, regress_parent}'::regclass[]) AS relation,
	LATERAL error_of(format('SELECT lease_protect(%s, %L)', relation::oid, 'constant'));

-- what a child writes is seen in the child, and in the parent's statements
SELECT lease_protect('regress_child', 'child:{id}');
SELECT code, message FROM error_of($$ INSERT INTO regress_child VALUES (1) $$);
INSERT INTO regress_parent VALUES (1);
ALTER TABLE regress_child DISABLE TRIGGER USER;
INSERT INTO regress_child VALUES (2);
ALTER TABLE regress_child ENABLE TRIGGER USER;
SELECT code, message FROM error_of($$ UPDATE regress_parent SET id = id $$);
DROP TABLE regress_parent CASCADE;

-- a temporary table is a table
CREATE TEMP TABLE regress_temp (id int);
SELECT lease_protect('regress_temp', 'temp:{id}');
SELECT code, message FROM error_of($$ INSERT INTO regress_temp VALUES (1) $$);
DROP TABLE regress_temp;

-- only the owner of the table
CREATE ROLE regress_lease_ann;
CREATE ROLE regress_lease_bob;
GRANT ALL ON workitem TO regress_lease_bob;
ALTER TABLE workitem OWNER TO regress_lease_ann;
SET ROLE regress_lease_bob;
SELECT code, message FROM error_of($$ SELECT lease_protect('workitem', 'workitem:{id}') $$);
SELECT code, message FROM error_of($$ SELECT lease_unprotect('workitem') $$);
SET ROLE regress_lease_ann;
SELECT lease_protect('workitem', 'workitem:{id}');
SET ROLE regress_lease_bob;
SELECT code, message FROM error_of($$ SELECT lease_unprotect('workitem') $$);
SET ROLE regress_lease_ann;
SELECT lease_unprotect('workitem');
RESET ROLE;
ALTER TABLE workitem OWNER TO CURRENT_USER;

-- names that need quotes, a search path of somebody else
CREATE SCHEMA "My ""Schema";
CREATE TABLE "My ""Schema"."Table; DROP" (id int);
CREATE SCHEMA regress_hostile;
CREATE TABLE regress_hostile."Table; DROP" (id int);
CREATE FUNCTION regress_hostile.lease_guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
SET search_path = regress_hostile, pg_catalog;
SELECT public.lease_protect('"My ""Schema"."Table; DROP"', $$it's \ {id}; --$$);
RESET search_path;
SELECT tgname, tgfoid::regprocedure, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = '"My ""Schema"."Table; DROP"'::regclass ORDER BY tgname;
SELECT code, message FROM error_of($$ INSERT INTO "My ""Schema"."Table; DROP" VALUES (1) $$);
-- renamed and moved, the table stays protected
ALTER TABLE "My ""Schema"."Table; DROP" RENAME TO moved;
ALTER TABLE "My ""Schema".moved SET SCHEMA regress_hostile;
SELECT code, message FROM error_of($$ INSERT INTO regress_hostile.moved VALUES (1) $$);
ALTER TRIGGER "~lease_guard" ON regress_hostile.moved RENAME TO other;
SELECT lease_unprotect('regress_hostile.moved');
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'regress_hostile.moved'::regclass;

SET client_min_messages = warning;
DROP SCHEMA "My ""Schema", regress_hostile CASCADE;
DROP FOREIGN DATA WRAPPER regress_wrapper CASCADE;
DROP SEQUENCE regress_sequence;
DROP TABLE workitem CASCADE;
DROP ROLE regress_lease_ann, regress_lease_bob;
DROP FUNCTION lease_of, name_of;
DROP TYPE regress_color;
DROP DOMAIN regress_number;
RESET client_min_messages;
