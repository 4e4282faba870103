-- A function that is declared safe for parallel queries, but uses leases, is
-- refused in one: a worker cannot hold a lock for its leader.

CREATE FUNCTION acquires() RETURNS boolean LANGUAGE plpgsql PARALLEL SAFE AS
	$$ BEGIN RETURN lease_acquire('door', '1 hour', 'bob'); END $$;
CREATE FUNCTION renews() RETURNS boolean LANGUAGE plpgsql PARALLEL SAFE AS
	$$ BEGIN RETURN lease_renew('door', '1 hour', 'ann'); END $$;
CREATE FUNCTION releases() RETURNS boolean LANGUAGE plpgsql PARALLEL SAFE AS
	$$ BEGIN RETURN lease_release('door', 'ann'); END $$;
CREATE FUNCTION asserts() RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS
	$$ BEGIN RETURN lease_assert('door', 'ann'); END $$;
CREATE FUNCTION asks() RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS
	$$ BEGIN RETURN lease_token('door', 'ann'); END $$;

SELECT lease_acquire('door', '1 hour', 'ann');
DO $$
BEGIN
	PERFORM set_config(name, 'on', false) FROM pg_settings
		WHERE name IN ('force_parallel_mode', 'debug_parallel_query');	-- until, and since 16
END $$;
\set VERBOSITY terse
SELECT acquires();
SELECT renews();
SELECT releases();
SELECT asserts();
SELECT asks();

-- the functions themselves are never run there
SELECT lease_token('door', 'ann') IS NOT NULL AS held;
SELECT lease_release('door', 'ann');

DROP FUNCTION acquires, renews, releases, asserts, asks;
TRUNCATE lease_lock;
