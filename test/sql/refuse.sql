-- A refused try writes nothing: no transaction id, no row version, no row lock.

SELECT lease_acquire('door', '1 hour', 'ann');
CREATE TEMP TABLE before AS SELECT ctid AS place, xmin AS written_by, xmax AS locked_by FROM lease_lock WHERE resource = 'door';

BEGIN;
SELECT lease_acquire('door', '1 hour', 'bob');
SELECT lease_release('door', 'bob'), lease_renew('door', '1 hour', 'bob'), lease_token('door', 'bob'), lease_release_all('bob');
SELECT lease_release('absent', 'bob'), lease_renew('absent', '1 hour', 'bob'), lease_token('absent', 'bob');
SELECT pg_current_xact_id_if_assigned() IS NULL AS nothing_written;
COMMIT;

SELECT l.ctid = b.place AND l.xmin = b.written_by AND l.xmax = b.locked_by AS untouched
FROM lease_lock AS l, before AS b WHERE l.resource = 'door';

-- nor does it use up a token
SELECT last_value AS tokens_before FROM lease_token_seq \gset
SELECT lease_acquire('door', '1 hour', 'bob') FROM generate_series(1, 3);
SELECT last_value - :tokens_before AS tokens_used FROM lease_token_seq;

TRUNCATE lease_lock;
