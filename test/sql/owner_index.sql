-- An index on the owner is used by the calls that are about the leases of an owner, and changes no result.

\getenv source PG_ABS_SRCDIR
\set helpers :source '/sql/include/error_of.sql'
\i :helpers

SELECT lease_acquire('a', '1 hour', 'ann'), lease_acquire_shared('b', '1 hour', 'ann'), lease_acquire('c', '1 hour', 'bob');

-- Which calls use an index like this? Each is created, used and dropped by one transaction.
CREATE FUNCTION used(definition text, OUT renew_all text, OUT limits text) LANGUAGE plpgsql AS $$
DECLARE
	renewed int8;
	message text;
	scans int8;
BEGIN
	EXECUTE 'CREATE ' || replace(definition, 'INDEX', 'INDEX tried ON lease_lock');
	renewed := lease_renew_all('1 hour', 'ann');
	scans := pg_stat_get_xact_numscans('tried'::regclass);
	renew_all := renewed || CASE WHEN scans > 0 THEN ', by index' ELSE '' END;

	SET LOCAL lease_lock.max_leases_per_owner = 2;
	message := (error_of($sql$SELECT lease_acquire('d', '1 hour', 'ann')$sql$)).message;
	limits := substr(message, 1, 15) || CASE WHEN pg_stat_get_xact_numscans('tried'::regclass) > scans THEN ', by index' ELSE '' END;
	SET LOCAL lease_lock.max_leases_per_owner = 0;
	DROP INDEX tried;
END $$;

SELECT definition, (used(definition)).* FROM unnest(ARRAY[
	'INDEX (owner, kept_for)',
	'INDEX (owner)',
	'INDEX (owner DESC, kept_for DESC NULLS LAST, expires_at)',
	'INDEX (owner varchar_ops)',
	'INDEX (owner) INCLUDE (kept_for)',
	'UNIQUE INDEX (owner, resource)',
	-- partial
	'INDEX (owner, kept_for) WHERE owner IS NOT NULL OR kept_for IS NOT NULL',
	'INDEX (owner, kept_for) WHERE owner IS NOT NULL',
	$$INDEX (owner) WHERE owner >= 'ann'$$,
	$$INDEX (owner) WHERE owner > 'ann'$$,
	$$INDEX (owner) WHERE owner IN ('ann', 'bob')$$,
	$$INDEX (owner) WHERE owner = 'bob'$$,
	$$INDEX (owner, kept_for) WHERE mode = 'x'$$,
	'INDEX (owner, kept_for) WHERE length(owner) = 3',
	'INDEX (owner, kept_for) WHERE owner IS NULL',
	-- not in the order of bytes, or not on these columns
	'INDEX (owner text_pattern_ops)',
	'INDEX (owner COLLATE "POSIX", kept_for)',
	'INDEX (owner, kept_for COLLATE "POSIX")',
	$$INDEX ((owner || ''), kept_for)$$,
	'INDEX (kept_for, owner)',
	'INDEX (resource, owner)',
	'INDEX USING hash (owner)'
]) AS definition;

-- Rows of before the index, with several versions: HOT-updated, released, kept, expired, of another role.
CREATE ROLE regress_other;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO regress_other;
SELECT lease_renew('a', i * interval '1 hour', 'ann') FROM generate_series(2, 4) AS i;
SELECT lease_release('c', 'bob'), lease_acquire('c', '1 hour', 'ann'), lease_transfer('c', 'ann', 'carl') IS NOT NULL AS transferred;
SELECT granted FROM lease_request('kept', '1 hour', 'ann', min_hold => '30 minutes');
SELECT lease_release('kept', 'ann'), lease_acquire('late', '1 hour', 'ann');
UPDATE lease_lock SET expires_at = '2000-01-01' WHERE resource = 'late';
SET ROLE regress_other;
SELECT lease_acquire('other', '1 hour', 'ann');
RESET ROLE;
CREATE INDEX by_owner ON lease_lock (owner, kept_for);

-- the same as before the index: two are held, one is kept, the expired one and that of another role do not count
SET lease_lock.max_leases_per_owner = 3;
SELECT (error_of($$SELECT lease_acquire('e', '1 hour', 'ann')$$)).message;
SET lease_lock.max_leases_per_owner = 4;
SELECT lease_acquire('e', '1 hour', 'ann');
SELECT (error_of($$SELECT lease_acquire('f', '1 hour', 'ann')$$)).message;
-- what is written now, and taken back
BEGIN;
SAVEPOINT s;
SELECT lease_release('e', 'ann'), lease_acquire('f', '1 hour', 'ann');
ROLLBACK TO s;
SELECT (error_of($$SELECT lease_acquire('f', '1 hour', 'ann')$$)).message;
SELECT lease_break('kept'), lease_acquire('f', '1 hour', 'ann');
ROLLBACK;
RESET lease_lock.max_leases_per_owner;
SELECT lease_renew_all('5 hours', 'ann') AS renewed, lease_renew_all('5 hours', 'bob') AS of_nobody;
SELECT resource FROM lease_status WHERE expires_at > now() + interval '4.5 hours' ORDER BY resource;
SELECT lease_release_all('ann') AS by_superuser, lease_release_all('ann') AS again;
SELECT resource, owner, state FROM lease_status ORDER BY resource;

-- an index that could not be built stays, and is not valid
SELECT lease_acquire('a', '1 hour', 'ann'), lease_acquire('b', '1 hour', 'ann');
DROP INDEX by_owner;
CREATE UNIQUE INDEX CONCURRENTLY by_owner ON lease_lock (owner);
SELECT indisvalid FROM pg_index WHERE indexrelid = 'by_owner'::regclass;
BEGIN;
SELECT lease_renew_all('6 hours', 'ann') AS renewed, pg_stat_get_xact_numscans('by_owner'::regclass) AS scans;
COMMIT;

-- a plan from before the index, with it, and after it
DROP INDEX by_owner;
PREPARE renew_all AS SELECT lease_renew_all('7 hours', 'ann') AS renewed;
EXECUTE renew_all;
CREATE INDEX by_owner ON lease_lock (owner, kept_for);
EXECUTE renew_all;
REINDEX INDEX CONCURRENTLY by_owner;
EXECUTE renew_all;
VACUUM FULL lease_lock;
EXECUTE renew_all;
DROP INDEX CONCURRENTLY by_owner;
EXECUTE renew_all;

SELECT lease_release_all('ann');
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM regress_other;
DROP ROLE regress_other;
DROP FUNCTION used;
TRUNCATE lease_lock;
