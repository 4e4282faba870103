-- Token: grows with every grant, across release, expiry, rollback and purge.

CREATE TABLE token_log (step int GENERATED ALWAYS AS IDENTITY, token bigint);
CREATE FUNCTION note_token(owner text) RETURNS boolean LANGUAGE sql
	AS $$ INSERT INTO token_log (token) VALUES (lease_token('door', owner)) RETURNING token IS NOT NULL $$;

SELECT lease_token('door', 'ann');

SELECT lease_acquire('door', '1 hour', 'ann');
SELECT note_token('ann');
SELECT lease_token('door', 'bob');

-- released, and granted again
SELECT lease_release('door', 'ann');
SELECT lease_token('door', 'ann');
SELECT lease_acquire('door', '1 hour', 'ann');
SELECT note_token('ann');

-- expired, and taken over
UPDATE lease_lock SET expires_at = now() - interval '1 second';
SELECT lease_token('door', 'ann');
SELECT lease_acquire('door', '1 hour', 'bob');
SELECT note_token('bob');

-- removed, and granted again; a grant rolled back in between
SELECT lease_release('door', 'bob');
SET lease_lock.purge_after = 0;
SELECT lease_purge();
BEGIN;
SELECT lease_acquire('door', '1 hour', 'ann');
ROLLBACK;
SELECT lease_token('door', 'ann');
SELECT lease_acquire('door', '1 hour', 'ann');
SELECT note_token('ann');

-- a renewal keeps it
SELECT lease_renew('door', '2 hours', 'ann');
SELECT lease_token('door', 'ann') = (SELECT max(token) FROM token_log) AS kept;

SELECT count(*), bool_and(grows) AS grows
FROM (SELECT token > lag(token, 1, 0) OVER (ORDER BY step) AS grows FROM token_log) AS t;

-- a sequence that was set back is an error where it would do harm
\set VERBOSITY terse
SELECT lease_release('door', 'ann');
SELECT setval('lease_token_seq', 1) IS NOT NULL AS set_back;
SELECT lease_acquire('door', '1 hour', 'ann');
SELECT setval('lease_token_seq', (SELECT max(token) FROM token_log)) IS NOT NULL AS set_again;
SELECT lease_acquire('door', '1 hour', 'ann');

\set VERBOSITY default

DROP FUNCTION note_token;
DROP TABLE token_log;
RESET lease_lock.purge_after;
TRUNCATE lease_lock;
