-- Several resources: all of them or none, or any of them.

\getenv source PG_ABS_SRCDIR
\set helpers :source '/sql/include/error_of.sql'
\i :helpers

-- all: each is a lease of its own, with a token of its own, in the order of the names' bytes
SELECT lease_acquire_all(ARRAY['c', 'a', 'B', 'ab'], '1 hour', 'ann');
SELECT resource, owner, mode, state FROM lease_status ORDER BY token;
SELECT lease_renew('a', '2 hours', 'ann'), lease_release('c', 'ann'), lease_token('ab', 'ann') IS NOT NULL AS token;
-- none of them, if one is held: by another owner, by the owner itself, or shared
SELECT lease_acquire_all(ARRAY['c', 'd', 'a'], '1 hour', 'bob'), lease_acquire_all(ARRAY['c', 'd', 'a'], '1 hour', 'ann');
SELECT lease_acquire_shared('z', '1 hour', 'carl'), lease_acquire_all(ARRAY['c', 'd', 'z'], '1 hour', 'bob');
SELECT count(*) FROM lease_status WHERE resource IN ('c', 'd');
-- leases that a refused call acquired on the way are free at once, and leave no row
SELECT lease_acquire('c', '1 hour', 'dora'), lease_acquire('d', '1 hour', 'dora');
-- with what was released and what has expired
SELECT lease_release('c', 'dora');
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource = 'd';
SELECT lease_acquire_all(ARRAY['d', 'c', 'new'], '1 hour', 'bob');
SELECT resource, owner FROM lease_status WHERE resource IN ('c', 'd', 'new') ORDER BY resource;
SELECT lease_release_all('bob'), lease_release_all('ann');
-- of one
SELECT lease_acquire_all(ARRAY['single'], '1 hour', 'ann'), lease_acquire_all(ARRAY['single'], '1 hour', 'bob');
-- two calls in one statement
SELECT lease_acquire_all(ARRAY['p', 'q'], '1 hour', 'ann') AS first, lease_acquire_all(ARRAY['q', 'r'], '1 hour', 'bob') AS second, lease_acquire_all(ARRAY['r', 's'], '1 hour', 'carl') AS third;
-- rolled back with the transaction
BEGIN;
SELECT lease_acquire_all(ARRAY['t1', 't2'], '1 hour', 'ann');
SAVEPOINT s;
SELECT lease_acquire_all(ARRAY['t3', 't4'], '1 hour', 'ann'), lease_acquire_all(ARRAY['t4', 't5'], '1 hour', 'bob');
ROLLBACK TO s;
SELECT lease_token('t2', 'ann') IS NOT NULL AS t2, lease_token('t3', 'ann') IS NOT NULL AS t3;
ROLLBACK;
SELECT count(*) FROM lease_status WHERE resource LIKE 't_';

-- with a wait: one deadline for all of them
TRUNCATE lease_lock;
SELECT lease_acquire_all(ARRAY['a', 'b'], '1 hour', 'ann', '1 hour'), lease_acquire('c', '1 hour', 'ann', NULL);
SELECT clock_timestamp() AS began \gset
SELECT lease_acquire_all(ARRAY['0', 'a', 'b', 'c'], '1 hour', 'bob', '100 ms');
SELECT clock_timestamp() - :'began' BETWEEN '100 ms' AND '50 seconds' AS in_time;
SELECT count(*) FROM lease_status WHERE resource = '0';
-- the ttl of all begins when the last of them is granted, so none of them loses time
TRUNCATE lease_lock;
SELECT lease_acquire('b', '200 ms', 'ann');
SELECT expires_at AS ends FROM lease_status \gset
SELECT lease_acquire_all(ARRAY['c', 'b', 'a'], '1 hour', 'bob', '1 minute');
SELECT resource, expires_at >= :'ends'::timestamptz + '1 hour' AS begins_after_wait FROM lease_status WHERE owner = 'bob' ORDER BY resource;
-- also if it ends before
SELECT lease_release_all('bob'), lease_acquire('b', '200 ms', 'ann');
SELECT expires_at AS ends FROM lease_status WHERE owner = 'ann' \gset
SELECT lease_acquire_all(ARRAY['a', 'b'], '100 ms', 'bob', '1 minute');
SELECT resource, expires_at >= :'ends'::timestamptz + '100 ms' AS begins_after_wait FROM lease_status WHERE owner = 'bob' ORDER BY resource;

-- 10,000 of them
TRUNCATE lease_lock;
SELECT lease_acquire_all(array_agg('item ' || i), '1 hour', 'ann') FROM generate_series(1, 10000) AS i;
SELECT count(*), count(DISTINCT token) FROM lease_status WHERE owner = 'ann';
SELECT lease_release('item 5000', 'ann'), lease_acquire_any(array_agg('item ' || i), '1 hour', 'bob') FROM generate_series(1, 10000) AS i;
SELECT lease_acquire_all(array_agg('item ' || i), '1 hour', 'bob') FROM generate_series(1, 10000) AS i;
SELECT code, message, hint FROM error_of($$ SELECT lease_acquire_all(array_agg('item ' || i), '1 hour', 'ann') FROM generate_series(1, 10001) AS i $$);
SELECT code, message, hint FROM error_of($$ SELECT lease_acquire_any(array_agg('item ' || i), '1 hour', 'ann') FROM generate_series(1, 10001) AS i $$);

-- any: the first that is free, in the order given
TRUNCATE lease_lock;
SELECT lease_acquire_any(ARRAY['c', 'a', 'b'], '1 hour', 'ann');
SELECT lease_acquire_any(ARRAY['c', 'a', 'b'], '1 hour', 'ann'), lease_acquire_any(ARRAY['c', 'a', 'b'], '1 hour', 'bob'), lease_acquire_any(ARRAY['c', 'a', 'b'], '1 hour', 'carl') IS NULL AS none;
SELECT resource, owner FROM lease_status ORDER BY resource;
-- a released or expired one; not a shared one
SELECT lease_release('b', 'bob'), lease_acquire_shared('0', '1 hour', 'dora'), lease_acquire_any(ARRAY['0', 'a', 'b', 'c'], '1 hour', 'carl');
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource = 'a';
SELECT lease_acquire_any(ARRAY['0', 'c', 'b', 'a'], '1 hour', 'eve');
-- each code to one only
TRUNCATE lease_lock;
CREATE TABLE code (id int, name text);
INSERT INTO code SELECT i, 'code ' || i FROM generate_series(1, 5) AS i;
SELECT i, lease_acquire_any((SELECT array_agg(name ORDER BY id) FROM code), '1 hour', 'customer ' || i) FROM generate_series(1, 6) AS i;
-- with a wait: NULL when none is free in time, and the first that is
SELECT clock_timestamp() AS began \gset
SELECT lease_acquire_any(ARRAY['code 1', 'code 2'], '1 hour', 'x', '50 ms');
SELECT clock_timestamp() - :'began' BETWEEN '50 ms' AND '50 seconds' AS in_time;
SELECT lease_release('code 3', 'customer 3'), lease_acquire('code 3', '100 ms', 'short');
SELECT lease_acquire_any(ARRAY['code 1', 'code 2', 'code 3', 'code 4'], '1 hour', 'x', '1 minute'), lease_acquire_any(ARRAY['free', 'code 1'], '1 hour', 'x', NULL);
-- also of more resources than a waiter has lines for
SELECT lease_release('code 3', 'x'), lease_acquire('code 3', '100 ms', 'short');
SELECT lease_acquire_all(array_agg('more ' || i), '1 hour', 'ann') FROM generate_series(1, 200) AS i;
SELECT lease_acquire_any(array_agg('more ' || i) || ARRAY['code 3'], '1 hour', 'y', '1 minute') FROM generate_series(1, 200) AS i;

-- an array that is stored compressed, or out of line
CREATE TABLE list (names text[]);
ALTER TABLE list ALTER names SET STORAGE EXTERNAL;
INSERT INTO list SELECT array_agg('toast ' || i) FROM generate_series(1, 1000) AS i;
ALTER TABLE list ALTER names SET STORAGE EXTENDED;
INSERT INTO list SELECT array_agg('toasted ' || i) FROM generate_series(1, 1000) AS i;
SELECT pg_column_size(names) > 2000 AS long, lease_acquire_all(names, '1 hour', 'ann') FROM list;
SELECT count(*) FROM lease_status WHERE resource LIKE 'toast%';
SELECT lease_release('toast 500', 'ann'), lease_acquire_any(names, '1 hour', 'bob') FROM list LIMIT 1;

-- an array may begin at any subscript
SELECT lease_acquire_all(ARRAY['m1', 'm2', 'm3', 'm4'], '1 hour', 'ann'), lease_acquire_any('[-1:1]={m1,m5,m6}', '1 hour', 'bob');
SELECT resource, owner FROM lease_status WHERE resource LIKE 'm_' ORDER BY resource;
-- names of every kind, compared byte for byte
SELECT lease_acquire_all(ARRAY['Name', 'name', 'name ', E'na\tme', repeat('n', 1024)], '1 hour', 'ann');
SELECT count(*) FROM lease_status WHERE resource ~* '^(name|na\sme|n+$)';

\pset expanded on
\pset null '(null)'
TRUNCATE lease_lock;
SELECT * FROM error_of($$ SELECT lease_acquire_all(NULL, '1 hour', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire_all(ARRAY[['a', 'b'], ['c', 'd']], '1 hour', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire_all('{}', '1 hour', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire_all(ARRAY['a', NULL], '1 hour', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire_all(ARRAY['b', 'a', 'c', 'a'], '1 hour', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire_all(ARRAY[['a', 'b'], ['c', 'a']], '1 hour', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire_all(ARRAY['a', ''], '1 hour', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire_all(ARRAY['a', repeat('x', 1025)], '1 hour', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_all(ARRAY['a'], NULL, 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_all(ARRAY['a'], '0', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_all(ARRAY['a'], '1 hour', NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_all(ARRAY['a'], '1 hour', 'ann', '-1 s') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_any(NULL, '1 hour', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_any('{}', '1 hour', 'ann', NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_any(ARRAY[NULL], '1 hour', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_any(ARRAY['a', 'a'], '1 hour', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_any(ARRAY['a', ''], '1 hour', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_any(ARRAY['a'], NULL, 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_any(ARRAY['a'], '1 hour', '') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_any(ARRAY['a'], '1 hour', 'ann', '100001 years') $$);
\pset expanded off
-- no lease is left after an error
SELECT count(*) FROM lease_lock;
BEGIN READ ONLY;
SELECT lease_acquire_all(ARRAY['a'], '1 hour', 'ann');
ROLLBACK;
BEGIN READ ONLY;
SELECT lease_acquire_any(ARRAY['a'], '1 hour', 'ann');
ROLLBACK;

DROP TABLE code, list;
TRUNCATE lease_lock;
