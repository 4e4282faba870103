-- Errors show values of a row, and details of its lease, only to roles that may
-- read those values. The text that each role gets:

CREATE ROLE regress_lease_owner;	-- of the tables; holds leases
CREATE ROLE regress_lease_reader;	-- may read and write all columns
CREATE ROLE regress_lease_column;	-- may write v, and read only the columns that name the lease, and the version
CREATE ROLE regress_lease_writer;	-- may write v and the version, delete from the parent, and read nothing
CREATE ROLE regress_lease_policy;	-- may read and write, within row security
GRANT CREATE ON SCHEMA public TO regress_lease_owner;

SET ROLE regress_lease_owner;
CREATE TABLE person (name text PRIMARY KEY, v int, version int DEFAULT 0);
CREATE TABLE visit (person text REFERENCES person ON DELETE CASCADE, v int);
CREATE TABLE policy (name text, v int, version int DEFAULT 0);
CREATE TABLE part (name text, v int, version int DEFAULT 0) PARTITION BY LIST (name);
CREATE TABLE part_secret PARTITION OF part FOR VALUES IN ('secret');
CREATE TABLE long (name text, v int);
INSERT INTO person VALUES ('secret');
INSERT INTO visit VALUES ('secret');
INSERT INTO policy VALUES ('secret');
INSERT INTO part VALUES ('secret');
INSERT INTO long VALUES (repeat('secret', 200));
ALTER TABLE policy ENABLE ROW LEVEL SECURITY;
CREATE POLICY hide ON policy FOR SELECT USING (current_user = 'regress_lease_owner');
CREATE POLICY write ON policy FOR UPDATE USING (true);
SELECT lease_protect('person', 'person:{name}', 'update'), lease_protect('visit', 'person:{person}'),
	lease_protect('policy', 'person:{name}'), lease_protect('part', 'person:{name}'), lease_protect('long', '{name}');
GRANT ALL ON person, visit, policy, part, long TO regress_lease_reader, regress_lease_policy;
GRANT SELECT (name, version), UPDATE (v, version) ON person, policy, part TO regress_lease_column;
GRANT SELECT (name), UPDATE (v) ON long TO regress_lease_column;
GRANT UPDATE (v, version) ON person, policy, part TO regress_lease_writer;
GRANT UPDATE (v) ON long TO regress_lease_writer;
GRANT DELETE ON person TO regress_lease_column, regress_lease_writer;
RESET ROLE;

-- A function that runs as the owner of the tables; its errors go to its caller.
CREATE FUNCTION as_owner(statement text) RETURNS void SECURITY DEFINER LANGUAGE plpgsql AS $$ BEGIN EXECUTE statement; END $$;
ALTER FUNCTION as_owner OWNER TO regress_lease_owner;

CREATE FUNCTION error_for(role name, statement text, OUT code text, OUT message text, OUT detail text, OUT hint text)
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', role);
	EXECUTE statement;
	message := 'no error';
	RAISE EXCEPTION USING ERRCODE = 'ZZZZZ';
EXCEPTION
	WHEN SQLSTATE 'ZZZZZ' THEN
		NULL;
	WHEN OTHERS THEN
		GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
			detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
		detail := regexp_replace(regexp_replace(detail, '\d+\.\d\d\d', 'n.nnn'), 'token \d+', 'token n');
		message := regexp_replace(message, '(secret){2,}', 'secret...');
END $$;

CREATE VIEW role AS SELECT substr(rolname, 15) AS role, rolname FROM pg_roles WHERE rolname LIKE 'regress\_lease\_%';

\set texts 'SELECT role, code, message, detail FROM role, error_for(rolname, :statement) ORDER BY role COLLATE "C"'

-- Nobody has the lease.
\set statement '''UPDATE person SET v = 1'''
:texts;
SET lease_lock.owner = 'ann';
:texts;
\set statement '''UPDATE policy SET v = 1'''
:texts;
-- A partition is read through its parent.
\set statement '''UPDATE part SET v = 1'''
:texts;
-- In a cascade, where the owner of the table is the current role.
\set statement '''DELETE FROM person'''
:texts;
-- In a function that runs as the owner.
\set statement '''SELECT as_owner($q$ UPDATE person SET v = 1 $q$)'''
:texts;

-- Another owner holds it, acquired by the role that owns the tables.
SET ROLE regress_lease_owner;
SELECT lease_acquire('person:secret', '1 hour', 'password');
RESET ROLE;
\set statement '''UPDATE person SET v = 1'''
:texts;
\set statement '''SELECT as_owner($q$ UPDATE person SET v = 1 $q$)'''
:texts;
-- The owner name is known, and the token is guessed.
SET lease_lock.owner = 'password';
\set statement '''UPDATE person SET v = 1'''
:texts;
SET lease_lock.token = '-1';
:texts;
RESET lease_lock.token;
RESET lease_lock.owner;

-- A name that cannot be that of a lease.
\set statement '''UPDATE long SET v = 1'''
:texts;

-- Versions.
SET ROLE regress_lease_owner;
SELECT lease_unprotect('person'), lease_unprotect('policy'), lease_unprotect('part');
CREATE TRIGGER version BEFORE UPDATE ON person FOR EACH ROW EXECUTE FUNCTION lease_version('version');
CREATE TRIGGER version BEFORE UPDATE ON policy FOR EACH ROW EXECUTE FUNCTION lease_version('version');
CREATE TRIGGER version BEFORE UPDATE ON part FOR EACH ROW EXECUTE FUNCTION lease_version('version');
ALTER TABLE part DISABLE TRIGGER version;
UPDATE part SET version = 2147483647;
ALTER TABLE part ENABLE TRIGGER version;
RESET ROLE;
\set statement '''UPDATE person SET version = 7'''
:texts;
\set statement '''UPDATE policy SET version = 7'''
:texts;
\set statement '''UPDATE part SET v = 1'''
:texts;

DROP VIEW role;
DROP FUNCTION error_for, as_owner;
DROP TABLE person, visit, policy, part, long;
REVOKE CREATE ON SCHEMA public FROM regress_lease_owner;
DROP ROLE regress_lease_owner, regress_lease_reader, regress_lease_column, regress_lease_writer, regress_lease_policy;
TRUNCATE lease_lock;
