-- A takeover, in any mode, ends the old lease for good: its former owner can do nothing
-- with it, whatever happens later.

-- The clock of the server moves: everything in the table moves against it.
CREATE FUNCTION clock_moves(by interval) RETURNS void LANGUAGE sql AS $$
	UPDATE lease_lock SET granted_at = granted_at - by, expires_at = expires_at - by, hold_until = hold_until - by
$$;

CREATE FUNCTION can_still(resource text, owner text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	what text[] := ARRAY[]::text[];
BEGIN
	IF lease_token(resource, owner) IS NOT NULL THEN what := what || 'token'::text; END IF;
	IF lease_renew(resource, '1 hour', owner) THEN what := what || 'renew'::text; END IF;
	BEGIN
		PERFORM lease_assert(resource, owner);
		what := what || 'assert'::text;
	EXCEPTION WHEN object_not_in_prerequisite_state THEN NULL;
	END;
	IF lease_transfer(resource, owner, 'somebody') IS NOT NULL THEN what := what || 'transfer'::text; END IF;
	IF lease_release(resource, owner) THEN what := what || 'release'::text; END IF;
	RETURN coalesce(nullif(array_to_string(what, ', '), ''), 'nothing');
END $$;

-- the clock steps back after a writer took over what readers had
SELECT lease_acquire_shared('r', '1 hour', 'ann') AS reader, lease_acquire_permit('r', 2, '1 hour', 'bob') AS permit;
SELECT clock_moves('2 hours');
SELECT lease_acquire('r', '1 hour', 'writer');
SELECT clock_moves('-90 minutes');
SELECT can_still('r', 'ann') AS ann, can_still('r', 'bob') AS bob, can_still('r', 'writer') AS writer;

-- and after a reader, or a permit, took over what a writer had
TRUNCATE lease_lock;
SELECT lease_acquire('r', '1 hour', 'writer'), lease_acquire('p', '1 hour', 'writer');
SELECT clock_moves('2 hours');
SELECT lease_acquire_shared('r', '1 hour', 'ann'), lease_acquire_permit('p', 1, '1 hour', 'ann');
SELECT clock_moves('-90 minutes');
SELECT can_still('r', 'writer') AS r, can_still('p', 'writer') AS p, lease_token('r', 'ann') IS NOT NULL AS ann;

-- the old lease stays lost when the released row of the new owner is purged
TRUNCATE lease_lock;
SET lease_lock.purge_after = 0;
SELECT lease_acquire('r', '1 hour', 'writer');
SELECT clock_moves('2 hours');
SELECT lease_acquire_permit('r', 3, '1 hour', 'ann') AS taken_over, lease_release('r', 'ann') AS released;
SELECT lease_purge() > 0 AS purged;
SELECT can_still('r', 'writer');

-- but an expired lease that was not taken over can be released late, even beside new shared leases of others
TRUNCATE lease_lock;
SELECT lease_acquire_shared('r', '1 hour', 'ann'), lease_acquire_shared('r', '1 hour', 'bob') AND lease_release('r', 'bob') AS tombstone;
SELECT clock_moves('2 hours');
SELECT lease_acquire_shared('r', '1 hour', 'carl');
SELECT can_still('r', 'ann') AS ann, can_still('r', 'ann') AS again;

-- a writer that takes over many leases writes each of their rows once
TRUNCATE lease_lock;
SELECT count(*) FROM generate_series(1, 200) AS i WHERE lease_acquire_shared('r', '1 hour', 'o' || i);
SELECT clock_moves('2 hours');
SELECT lease_acquire('r', '1 hour', 'writer'), lease_release('r', 'writer');
SELECT DISTINCT can_still('r', 'o' || i) FROM generate_series(1, 200) AS i;
CREATE FUNCTION rows_written(statement text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	before bigint := pg_stat_get_xact_tuples_updated('lease_lock'::regclass);
	lsn pg_lsn := pg_current_wal_insert_lsn();
BEGIN
	EXECUTE statement;
	IF pg_current_wal_insert_lsn() - lsn > 10000 THEN
		RAISE 'wrote % bytes of WAL', pg_current_wal_insert_lsn() - lsn;
	END IF;
	RETURN pg_stat_get_xact_tuples_updated('lease_lock'::regclass) - before;
END $$;
SELECT rows_written($$SELECT lease_acquire('r', '1 hour', 'writer'), lease_release('r', 'writer')$$);

DROP FUNCTION clock_moves, can_still, rows_written;
TRUNCATE lease_lock;
