-- Makes a database a partition of leases, as contrib/plproxy/router.sql expects it:
--
--   psql -d p0 -v ON_ERROR_STOP=1 -v partition=0 -v partitions=4 -v roles='app worker' -f contrib/plproxy/partition.sql
--
-- Run it as a superuser, in each partition, with the same number of partitions
-- and the same roles. It can be run again. docs/scaling.md explains it.

\set ON_ERROR_STOP 1
\if :{?partition} \else \set partition '' \endif
\if :{?partitions} \else \set partitions '' \endif
\if :{?roles} \else \set roles '' \endif
SET client_min_messages = warning;

BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;	-- run nothing that other roles put into other schemas

SELECT FROM (SELECT set_config('lease_router.given', :'partition' || ' of ' || :'partitions', true),
	set_config('lease_router.roles', :'roles', true)) AS _ \g /dev/null

DO $$
DECLARE
	given text[] = regexp_match(current_setting('lease_router.given'), '^(\d{1,3}) of (\d{1,3})$');
	known text = NULLIF(current_setting('lease_router.partition', true), '');
BEGIN
	IF given IS NULL OR given[2]::int NOT IN (1, 2, 4, 8, 16, 32, 64, 128, 256) OR given[1]::int >= given[2]::int THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('there is no partition "%s"', current_setting('lease_router.given')),
			HINT = 'Give -v partition=0 -v partitions=4, say: a number from 0, and a power of two up to 256.';
	END IF;
	IF known <> current_setting('lease_router.given') THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = format('this database is partition %s already', known),
			DETAIL = 'It has the leases of other names.',
			HINT = 'To have more partitions, see "Splitting" in docs/scaling.md.';
	END IF;
END $$;

CREATE EXTENSION IF NOT EXISTS lease_lock SCHEMA public;

\ir logical_partition.sql

-- router.sql compares it with its list, so that swapped connection strings are refused.
SELECT format('ALTER DATABASE %I SET lease_router.partition = %L', current_database(), current_setting('lease_router.given')) \gexec

-- A router whose client has gone closes its connection. A call that waits here has to notice.
SELECT format('ALTER DATABASE %I SET client_connection_check_interval = %L', current_database(), '5s') \gexec

-- The router limits what a call may take, and cancels it here.
SELECT format('ALTER DATABASE %I SET %s = 0', current_database(), setting)
FROM unnest(ARRAY['statement_timeout', 'idle_session_timeout']) AS setting \gexec

-- A role comes from the router by its name, and holds its leases here. Members of lease_router_user are those that pg_hba.conf lets in
-- from there.
SELECT 'CREATE ROLE lease_router_user NOLOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'lease_router_user') \gexec
SELECT format('CREATE ROLE %I LOGIN', name)
FROM regexp_split_to_table(btrim(current_setting('lease_router.roles')), '\s+') AS name
WHERE name <> '' AND NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec
SELECT format('GRANT lease_router_user TO %I', name)
FROM regexp_split_to_table(btrim(current_setting('lease_router.roles')), '\s+') AS name
WHERE name <> '' \gexec

COMMIT;
