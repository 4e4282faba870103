-- Guard: which role needs the privileges of the role that acquired the lease: the
-- current role or, if a cascade or a function runs as another role, that of the
-- session.

CREATE ROLE regress_lease_owner;
CREATE ROLE regress_lease_app;
CREATE ROLE regress_lease_other;
GRANT CREATE ON SCHEMA public TO regress_lease_owner;

SET ROLE regress_lease_owner;
CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL);
CREATE TABLE booking (account int REFERENCES account ON DELETE CASCADE ON UPDATE CASCADE, amount int);
INSERT INTO account VALUES (1, 100), (2, 100);
INSERT INTO booking VALUES (1, 10), (1, 20), (2, 10);
SELECT lease_protect('account', 'account:{id}'), lease_protect('booking', 'account:{account}');
GRANT ALL ON account, booking TO regress_lease_app, regress_lease_other;
CREATE FUNCTION book(account int, amount int) RETURNS void SECURITY DEFINER LANGUAGE sql
	AS $$ INSERT INTO booking VALUES (account, amount) $$;
CREATE FUNCTION acquire(account int, owner text) RETURNS boolean SECURITY DEFINER LANGUAGE sql
	AS $$ SELECT lease_acquire('account:' || account, '1 hour', owner) $$;

SET ROLE regress_lease_app;
SELECT lease_acquire('account:1', '1 hour', 'ann');
SET lease_lock.owner = 'ann';
UPDATE account SET balance = 90 WHERE id = 1;

-- as the owner of the table
SELECT book(1, 30);
BEGIN;
DELETE FROM account WHERE id = 1;
TABLE booking;
ROLLBACK;
-- a cascade is guarded, too
BEGIN;
SELECT lease_acquire('account:3', '1 hour', 'ann');
UPDATE account SET id = 3 WHERE id = 1;
SELECT * FROM booking ORDER BY account, amount;
ROLLBACK;
\set VERBOSITY terse
UPDATE account SET id = 3 WHERE id = 1;
DELETE FROM account WHERE id = 2;
SET ROLE regress_lease_owner;
ALTER TABLE account DISABLE TRIGGER "~lease_guard";
SET ROLE regress_lease_app;
DELETE FROM account WHERE id = 2;
SET ROLE regress_lease_owner;
ALTER TABLE account ENABLE TRIGGER "~lease_guard";

-- another role that knows the owner name
SET ROLE regress_lease_other;
UPDATE account SET balance = 0 WHERE id = 1;
SELECT book(1, 40);
DELETE FROM account WHERE id = 1;
-- nor in code that the server runs for another session: the index expressions of a table
RESET ROLE;
GRANT CREATE ON SCHEMA public TO regress_lease_other;
SET ROLE regress_lease_other;
CREATE FUNCTION hidden(x int) RETURNS int LANGUAGE sql AS 'SELECT x';
CREATE FUNCTION harmless(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN public.hidden(x); END $$;
CREATE TABLE bait (x int);
CREATE INDEX ON bait (harmless(x));
INSERT INTO bait VALUES (1);
CREATE OR REPLACE FUNCTION hidden(x int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('lease_lock.owner', 'ann', true);
	UPDATE public.account SET balance = 0 WHERE id = 1;
	RETURN x;
END $$;
RESET ROLE;
ANALYZE bait;
SELECT balance FROM account WHERE id = 1;
-- nor in a function that sets the owner itself
SET ROLE regress_lease_other;
CREATE FUNCTION borrow() RETURNS int SECURITY DEFINER LANGUAGE sql AS 'SELECT public.hidden(1)';
SET ROLE regress_lease_app;
SELECT borrow();
RESET ROLE;
SELECT balance FROM account WHERE id = 1;
-- not even in a session that has not loaded the library yet
SET ROLE regress_lease_other;
CREATE FUNCTION plant() RETURNS text SECURITY DEFINER LANGUAGE sql AS $$ SELECT set_config('lease_lock.owner', 'ann', false) $$;
CREATE FUNCTION write() RETURNS void SECURITY DEFINER LANGUAGE sql AS 'UPDATE public.account SET balance = 0 WHERE id = 1';
\c -
SET ROLE regress_lease_app;
SELECT borrow();
\c -
SET ROLE regress_lease_app;
SELECT plant();
SELECT lease_token('account:1', 'ann') > 0 AS loaded;
SELECT write();
-- but what the session itself has set by then is its own
\c -
SET ROLE regress_lease_app;
SET lease_lock.owner = 'ann';
BEGIN;
SELECT write();
ROLLBACK;
-- also before SET ROLE, by a role that does not inherit the privileges of the other one
RESET ROLE;
CREATE ROLE regress_lease_login NOINHERIT;
GRANT regress_lease_app TO regress_lease_login;
SET SESSION AUTHORIZATION regress_lease_login;
SET lease_lock.owner = 'ann';
SET ROLE regress_lease_app;
BEGIN;
SELECT write();
DELETE FROM account WHERE id = 1;
ROLLBACK;
-- which then may not do so under its own name
RESET ROLE;
SELECT write();
RESET SESSION AUTHORIZATION;
SET ROLE regress_lease_app;
SET lease_lock.owner = 'ann';
RESET ROLE;
DROP ROLE regress_lease_login;
DROP TABLE bait;
DROP FUNCTION borrow, harmless, hidden, plant, write;
REVOKE CREATE ON SCHEMA public FROM regress_lease_other;
-- owning the table makes no difference
SET ROLE regress_lease_owner;
UPDATE account SET balance = 0 WHERE id = 1;
-- once it has the privileges, it may
RESET ROLE;
GRANT regress_lease_app TO regress_lease_other;
SET ROLE regress_lease_other;
UPDATE account SET balance = 80 WHERE id = 1;

-- acquired and used by a function that runs as somebody else
SELECT acquire(2, 'bob');
SET lease_lock.owner = 'bob';
UPDATE account SET balance = 0 WHERE id = 2;
SELECT book(2, 50);

-- A cascade runs as the owner of the table. Other roles cannot use a lease of that
-- role by setting its owner name.
SET ROLE regress_lease_owner;
ALTER TABLE account DISABLE TRIGGER "~lease_guard";
CREATE FUNCTION close(number int) RETURNS void SECURITY DEFINER LANGUAGE sql AS $$ DELETE FROM account WHERE id = number $$;
CREATE FUNCTION close_as(number int) RETURNS void SECURITY DEFINER SET lease_lock.owner = 'bob' LANGUAGE sql AS $$ DELETE FROM account WHERE id = number $$;
SET ROLE regress_lease_app;
DELETE FROM account WHERE id = 2;
SELECT close(2);
-- But that role may set it, in a function of its own or in its session.
SET lease_lock.owner = 'nobody';
BEGIN;
SELECT close_as(2);
TABLE booking;
ROLLBACK;
SET ROLE regress_lease_owner;
SET lease_lock.owner = 'bob';
BEGIN;
DELETE FROM account WHERE id = 2;
TABLE booking;
ROLLBACK;
-- nor can code that the server runs for a role, under the owner name of the session that has it run
RESET ROLE;
GRANT CREATE ON SCHEMA public TO regress_lease_app;
SET ROLE regress_lease_app;
CREATE FUNCTION delete_account() RETURNS int LANGUAGE sql AS 'DELETE FROM public.account WHERE id = 2; SELECT 1';
CREATE MATERIALIZED VIEW deletions AS SELECT delete_account() WITH NO DATA;
RESET ROLE;
SET lease_lock.owner = 'bob';
REFRESH MATERIALIZED VIEW deletions;
TABLE booking;
DROP MATERIALIZED VIEW deletions;
DROP FUNCTION delete_account;
REVOKE CREATE ON SCHEMA public FROM regress_lease_app;
SET ROLE regress_lease_app;
SET lease_lock.owner = 'bob';
-- not even after that role asserted the lease in the same transaction
BEGIN;
SELECT book(2, 60);
DELETE FROM account WHERE id = 2;
ROLLBACK;
\set VERBOSITY default

RESET lease_lock.owner;
RESET ROLE;
SELECT * FROM account ORDER BY id;
SELECT * FROM booking ORDER BY account, amount;
DROP FUNCTION book, acquire, close, close_as;
DROP TABLE booking, account;
REVOKE CREATE ON SCHEMA public FROM regress_lease_owner;
DROP ROLE regress_lease_owner, regress_lease_app, regress_lease_other;
TRUNCATE lease_lock;
