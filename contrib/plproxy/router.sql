-- Makes a database the router to partitions of leases: functions and views of
-- the names and arguments that lease_lock has, by PL/Proxy.
--
--   psql -d router -v ON_ERROR_STOP=1 -v partitions='host=a dbname=p0;host=b dbname=p1' -f contrib/plproxy/router.sql
--
-- Run it as a superuser, after partition.sql in each partition. Run it again to
-- change connection strings. All of them, or none: it is one transaction.
-- docs/scaling.md explains it.

\set ON_ERROR_STOP 1
\if :{?partitions} \else \set partitions '' \endif
SET client_min_messages = warning;

BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;	-- run nothing that other roles put into other schemas

SELECT FROM (SELECT set_config('lease_router.given', :'partitions', true)) AS _ \g /dev/null

CREATE TEMPORARY TABLE given ON COMMIT DROP AS
SELECT number - 1 AS partition, btrim(connection) AS connection
FROM regexp_split_to_table(rtrim(current_setting('lease_router.given'), '; '), ';') WITH ORDINALITY AS g (connection, number);

DO $$
DECLARE
	number bigint = (SELECT count(*) FROM given);
BEGIN
	IF number NOT IN (1, 2, 4, 8, 16, 32, 64, 128, 256) OR EXISTS (SELECT FROM given WHERE connection = '') THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('%s partitions are given: it has to be a power of two, at most 256', number),
			HINT = 'Separate connection strings with semicolons: -v partitions=''host=a dbname=p0;host=b dbname=p1''.';
	END IF;
	IF EXISTS (SELECT FROM given WHERE connection ~* '(user|password|service|options)\s*=|^\w+://') THEN
		RAISE invalid_parameter_value USING
			MESSAGE = 'a connection string must not contain a user, password, service or options, nor be a URI',
			DETAIL = 'Every role that calls the router would be that user in the partition, and can read the password.',
			HINT = 'The role that calls is the one that connects. "Roles" in docs/scaling.md says how it authenticates.';
	END IF;
	IF EXISTS (SELECT FROM pg_foreign_server WHERE srvname = 'lease_lock') THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = 'there is a foreign server "lease_lock"',
			DETAIL = 'PL/Proxy would use its user mappings, which say as which role it connects to the partition.',
			HINT = 'Drop it.';
	END IF;
	IF EXISTS (SELECT FROM pg_extension WHERE extname = 'lease_lock') THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = 'this database has leases of its own: the extension lease_lock is installed',
			HINT = 'Use a database without it for the router.';
	END IF;
END $$;

CREATE SCHEMA IF NOT EXISTS plproxy;
\ir logical_partition.sql

CREATE EXTENSION IF NOT EXISTS plproxy SCHEMA public;

CREATE TABLE IF NOT EXISTS lease_router.partitions (
	partition integer PRIMARY KEY,
	connection text NOT NULL,
	changes integer NOT NULL DEFAULT 1
);
COMMENT ON TABLE lease_router.partitions IS 'connection string of each partition: what clients that hash by themselves go by';
COMMENT ON COLUMN lease_router.partitions.changes IS 'how often the connection string was set; PL/Proxy reads the list again when the sum changes';
GRANT SELECT ON lease_router.partitions TO PUBLIC;

-- PL/Proxy asks these functions for its cluster, and connects as the role that calls. A foreign server would not do: a role
-- that may use it can create a user mapping, and with it choose its role in the partition. It runs nothing there that the owner of
-- that database has put before pg_catalog.
GRANT USAGE ON SCHEMA plproxy TO PUBLIC;
CREATE OR REPLACE FUNCTION plproxy.get_cluster_version(cluster_name text) RETURNS integer LANGUAGE sql STABLE
	RETURN (SELECT CAST(sum(changes) AS integer) FROM lease_router.partitions WHERE cluster_name = 'lease_lock');
CREATE OR REPLACE FUNCTION plproxy.get_cluster_partitions(cluster_name text) RETURNS SETOF text LANGUAGE sql STABLE
	BEGIN ATOMIC SELECT connection || ' options=''-c search_path=pg_catalog,pg_temp''' FROM lease_router.partitions WHERE cluster_name = 'lease_lock' ORDER BY partition; END;
CREATE OR REPLACE FUNCTION plproxy.get_cluster_config(cluster_name text, OUT key text, OUT val text) RETURNS SETOF record LANGUAGE sql STABLE
	BEGIN ATOMIC SELECT 'default_user', 'current_user'; END;

-- Another number of partitions would send names to where their leases are not.
-- One case is safe: twice as many, with each connection string at its place again.
DO $$
DECLARE
	number bigint = (SELECT count(*) FROM given);
	known bigint = (SELECT count(*) FROM lease_router.partitions);
BEGIN
	IF known NOT IN (0, number) AND (known > number OR EXISTS (
		SELECT FROM given AS g JOIN lease_router.partitions AS p ON p.partition = g.partition % known
		WHERE p.connection <> g.connection)) THEN
		RAISE feature_not_supported USING
			MESSAGE = format('the router has %s partitions, and %s are given', known, number),
			DETAIL = 'A name would be looked for in a partition that does not have its lease.',
			HINT = 'See "Splitting" in docs/scaling.md.';
	END IF;
	INSERT INTO lease_router.partitions AS p SELECT partition, connection FROM given
		ON CONFLICT (partition) DO UPDATE SET connection = EXCLUDED.connection, changes = p.changes + 1;

	EXECUTE format('CREATE OR REPLACE FUNCTION lease_router.partition_count() RETURNS integer LANGUAGE sql STABLE RETURN %s', number);
	-- A router backend whose client has gone leaves, and its waiter on the partition with it.
	EXECUTE format('ALTER DATABASE %I SET client_connection_check_interval = %L', current_database(), '5s');
	-- After each error PL/Proxy connects again, and says so.
	EXECUTE format('ALTER DATABASE %I SET client_min_messages = warning', current_database());
END $$;

-- What each partition says that it is. It has to fit its place in the list. These queries run as a superuser in a database
-- of others: every name in them is qualified, and what they return is only ever quoted.
CREATE OR REPLACE FUNCTION lease_router.facts(number integer, OUT mark text, OUT version text, OUT schema text)
	RETURNS SETOF record LANGUAGE plproxy AS $$
	CLUSTER 'lease_lock';
	RUN ON number;
	SELECT pg_catalog.current_setting('lease_router.partition', true) AS mark, e.extversion AS version, n.nspname AS schema
		FROM pg_catalog.pg_extension AS e JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace
		WHERE e.extname OPERATOR(pg_catalog.=) 'lease_lock';
$$;
REVOKE ALL ON FUNCTION lease_router.facts(integer) FROM PUBLIC;

-- Which server it is on: move-partition compares.
CREATE OR REPLACE FUNCTION lease_router.server(number integer, OUT start text)
	RETURNS SETOF text LANGUAGE plproxy AS $$
	CLUSTER 'lease_lock';
	RUN ON number;
	SELECT pg_catalog.concat(c.system_identifier, ' ', extract(epoch FROM pg_catalog.pg_postmaster_start_time())) AS start
		FROM pg_catalog.pg_control_system() AS c;
$$;
REVOKE ALL ON FUNCTION lease_router.server(integer) FROM PUBLIC;

DO $$
DECLARE
	g record;
	says record;
	first record;
	mark text[];
BEGIN
	FOR g IN SELECT partition, (SELECT count(*) FROM given) AS number FROM given ORDER BY 1 LOOP
		SELECT * INTO says FROM lease_router.facts(g.partition::integer);
		mark := regexp_match(says.mark, '^(\d+) of (\d+)$');
		IF mark IS NULL THEN
			RAISE object_not_in_prerequisite_state USING
				MESSAGE = format('partition %s is not prepared', g.partition),
				HINT = format('Run partition.sql there, with -v partition=%s -v partitions=%s.', g.partition, g.number);
		ELSIF mark[2]::integer > g.number OR g.partition % mark[2]::integer <> mark[1]::integer THEN
			RAISE object_not_in_prerequisite_state USING
				MESSAGE = format('partition %s of %s says that it is %s', g.partition, g.number, says.mark),
				HINT = 'Check the order of the connection strings. To have more partitions, see "Splitting" in docs/scaling.md.';
		END IF;
		first := COALESCE(first, says);
		IF (says.version, says.schema) <> (first.version, first.schema) THEN
			RAISE object_not_in_prerequisite_state USING
				MESSAGE = format('partition %s has lease_lock %s in schema %s, partition 0 has %s in %s',
					g.partition, says.version, says.schema, first.version, first.schema);
		END IF;
	END LOOP;
	IF first.schema ~ '^(pg_|information_schema$|lease_router$|plproxy$)' THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = format('the partitions say that they have lease_lock in schema %s', first.schema);
	END IF;
	EXECUTE format('CREATE SCHEMA IF NOT EXISTS %I', first.schema);
	PERFORM set_config('lease_router.schema', first.schema, true), pg_temp.check_owners(ARRAY[CAST(first.schema AS name)]);
END $$;

-- Where a call goes. NULLs go anywhere: the partition has the right error for them.
CREATE OR REPLACE FUNCTION lease_router.one_session(resource text, session boolean)
	RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF session THEN
		RAISE feature_not_supported USING
			MESSAGE = 'a router has no leases that end with the session',
			DETAIL = 'The session on the partition belongs to the router, and goes on when a client leaves a pooler.',
			HINT = 'Connect to the partition of the resource itself.';
	END IF;
	RETURN lease_router.logical_partition(resource);
END $$;

CREATE OR REPLACE FUNCTION lease_router.one_partition(resources text[])
	RETURNS integer LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	places integer[] = ARRAY(SELECT DISTINCT lease_router.logical_partition(r) % lease_router.partition_count()
		FROM unnest(resources) AS r WHERE r IS NOT NULL);
BEGIN
	IF cardinality(places) > 1 THEN
		RAISE feature_not_supported USING
			MESSAGE = format('these resources are in %s partitions', cardinality(places)),
			DETAIL = 'Leases of one partition only are granted or renewed together.',
			HINT = 'Give the names a tag in common, as in "{order:7}/item" and "{order:7}/invoice": the tag alone decides the partition.';
	END IF;
	RETURN COALESCE(places[1], 0);
END $$;

CREATE OR REPLACE FUNCTION lease_router.first_partition(resources text[])
	RETURNS integer LANGUAGE sql IMMUTABLE
	RETURN lease_router.logical_partition(resources[1]);

-- How each function of the extension is routed, told apart by its first argument.
--
--   hash    to the partition of its resource
--   one     to the partition that all resources are in
--   any     partition by partition, until one grants
--   sum     to all, and the answers are added
--   each    to all, and the answers are put together line by line
--   refused an error, with the reason
--   hidden  there is none: for the extension's own use, or the administrator's in the partition
CREATE TEMPORARY TABLE route (name text, argument text, how text, reason text, hint text) ON COMMIT DROP;
INSERT INTO route (name, argument, how) VALUES
	('lease_acquire', 'resource', 'hash'),
	('lease_acquire_shared', 'resource', 'hash'),
	('lease_acquire_permit', 'resource', 'hash'),
	('lease_request', 'resource', 'hash'),
	('lease_release', 'resource', 'hash'),
	('lease_renew', 'resource', 'hash'),
	('lease_token', 'resource', 'hash'),
	('lease_transfer', 'resource', 'hash'),
	('lease_downgrade', 'resource', 'hash'),
	('lease_set_payload', 'resource', 'hash'),
	('lease_break', 'resource', 'hash'),
	('lease_contended', 'resource', 'hash'),
	('lease_acquire_all', 'resources', 'one'),
	('lease_renew_several', 'resources', 'one'),
	('lease_acquire_any', 'resources', 'any'),
	('lease_release_all', 'owner', 'sum'),
	('lease_renew_all', 'ttl', 'sum'),
	('lease_purge', NULL, 'sum'),
	('lease_stats_reset', NULL, 'each'),
	('lease_wait_graph', NULL, 'each'),
	('lease_clock_difference', NULL, 'hidden'),
	('lease_printable', 'name', 'hidden'),
	('lease_new_era', NULL, 'hidden'),
	('lease_session_ended', 'session_number', 'hidden'),
	('lease_stats', 'database', 'hidden'),
	('lease_waiters', 'resource', 'hidden');
INSERT INTO route VALUES
	('lease_wait', 'resource', 'refused', 'PL/Proxy calls functions only, and a call keeps a snapshot.',
		'Use lease_acquire() or lease_request() with a wait, or connect to the partition itself.'),
	('lease_assert', 'resource', 'refused', 'The transaction on the partition would end, and the assertion with it, before this call returns.',
		'Send the fencing token along with what you write, or keep what is protected in the partition.'),
	('lease_assert_token', 'resource', 'refused', 'The transaction on the partition would end, and the assertion with it, before this call returns.',
		'Send the fencing token along with what you write, or keep what is protected in the partition.'),
	('lease_protect', 'table', 'refused', 'A table is protected by leases of its own database only.', 'Protect it in the partition.'),
	('lease_unprotect', 'table', 'refused', 'A table is protected by leases of its own database only.', 'Call it in the partition.'),
	('lease_guard', NULL, 'refused', 'A table is protected by leases of its own database only.', 'Protect it in the partition.'),
	('lease_version', NULL, 'refused', 'It needs the library of lease_lock, but no leases.', 'Install lease_lock in the database of the table.'),
	('lease_watch', 'prefix', 'refused', 'Notifications of a partition do not arrive here.', 'Call it and LISTEN in each partition.'),
	('lease_unwatch', 'prefix', 'refused', 'Notifications of a partition do not arrive here.', 'Call it in each partition.');

-- The functions and views themselves are read from partition 0.
CREATE OR REPLACE FUNCTION lease_router.functions(OUT name text, OUT is_procedure boolean, OUT names text[], OUT modes text[],
		OUT types text[], OUT defaults text[], OUT result text, OUT description text)
	RETURNS SETOF record LANGUAGE plproxy AS $$
	CLUSTER 'lease_lock';
	RUN ON 0;
	SELECT p.proname AS name, p.prokind OPERATOR(pg_catalog.=) 'p' AS is_procedure, p.proargnames AS names, p.proargmodes AS modes,
			ARRAY(SELECT pg_catalog.format_type(a.type, NULL)
				FROM pg_catalog.unnest(COALESCE(p.proallargtypes, CAST(p.proargtypes AS pg_catalog.oid[]))) WITH ORDINALITY AS a (type, place)
				ORDER BY a.place) AS types,
			ARRAY(SELECT pg_catalog.pg_get_function_arg_default(p.oid, CAST(a.place AS pg_catalog.int4))
				FROM pg_catalog.unnest(p.proargnames) WITH ORDINALITY AS a (name, place) ORDER BY a.place) AS defaults,
			pg_catalog.format_type(p.prorettype, NULL) AS result, pg_catalog.obj_description(p.oid, 'pg_proc') AS description
		FROM pg_catalog.pg_extension AS e
			JOIN pg_catalog.pg_depend AS d ON d.refclassid OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_extension' AS pg_catalog.regclass)
				AND d.refobjid OPERATOR(pg_catalog.=) e.oid AND d.classid OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_proc' AS pg_catalog.regclass)
			JOIN pg_catalog.pg_proc AS p ON p.oid OPERATOR(pg_catalog.=) d.objid
		WHERE e.extname OPERATOR(pg_catalog.=) 'lease_lock';
$$;
CREATE OR REPLACE FUNCTION lease_router.views(OUT name text, OUT names text[], OUT types text[], OUT description text)
	RETURNS SETOF record LANGUAGE plproxy AS $$
	CLUSTER 'lease_lock';
	RUN ON 0;
	SELECT c.relname AS name, pg_catalog.array_agg(CAST(a.attname AS pg_catalog.text) ORDER BY a.attnum) AS names,
			pg_catalog.array_agg(pg_catalog.format_type(a.atttypid, NULL) ORDER BY a.attnum) AS types,
			pg_catalog.obj_description(c.oid, 'pg_class') AS description
		FROM pg_catalog.pg_extension AS e
			JOIN pg_catalog.pg_depend AS d ON d.refclassid OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_extension' AS pg_catalog.regclass)
				AND d.refobjid OPERATOR(pg_catalog.=) e.oid AND d.classid OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_class' AS pg_catalog.regclass)
			JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) d.objid
			JOIN pg_catalog.pg_attribute AS a ON a.attrelid OPERATOR(pg_catalog.=) c.oid
		WHERE e.extname OPERATOR(pg_catalog.=) 'lease_lock' AND c.relkind OPERATOR(pg_catalog.=) 'v' AND a.attnum OPERATOR(pg_catalog.>) 0
		GROUP BY c.oid, c.relname;
$$;
REVOKE ALL ON FUNCTION lease_router.functions() FROM PUBLIC;
REVOKE ALL ON FUNCTION lease_router.views() FROM PUBLIC;

-- Parts of declarations, made from what a partition says: names, types of the server, and constants as default values.
CREATE FUNCTION pg_temp.type_from(given text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	known CONSTANT text = (SELECT format_type(oid, NULL) FROM pg_type
		WHERE oid = to_regtype(given) AND typnamespace = CAST('pg_catalog' AS regnamespace));
BEGIN
	IF known IS NULL THEN
		RAISE object_not_in_prerequisite_state USING MESSAGE = format('partition 0 says that something is of type %s', given);
	END IF;
	RETURN known;
END $$;

CREATE FUNCTION pg_temp.default_from(given text) RETURNS text LANGUAGE plpgsql AS $do$
DECLARE
	parts CONSTANT text[] = regexp_match(given, $$^(?:NULL|(true|false|-?\d+)|'([^'\\]*)')(?:::[a-z ]+(?:\[\])?)?$$ || '$');
BEGIN
	IF given IS NULL THEN
		RETURN '';
	ELSIF parts IS NULL THEN
		RAISE object_not_in_prerequisite_state USING MESSAGE = format('partition 0 says that an argument has the default %s', given);
	END IF;
	RETURN ' DEFAULT ' || quote_nullable(COALESCE(parts[1], parts[2]));
END $do$;

CREATE FUNCTION pg_temp.arguments_from(names text[], modes text[], types text[], defaults text[]) RETURNS text LANGUAGE sql AS $$
	SELECT COALESCE(string_agg(concat(CASE modes[place] WHEN 'o' THEN 'OUT ' WHEN 'b' THEN 'INOUT ' END, quote_ident(names[place]), ' ',
		pg_temp.type_from(type), pg_temp.default_from(defaults[place])), ', ' ORDER BY place), '')
	FROM unnest(types) WITH ORDINALITY AS t (type, place)
$$;

DO $do$
DECLARE
	home CONSTANT text = quote_ident(current_setting('lease_router.schema'));
	f record;
	v record;
	inputs text[];	-- names of the input arguments
	list text;		-- the same, for a call
	arguments text;
	result text;
BEGIN
	FOR f IN SELECT p.*, r.how, r.reason, r.hint FROM lease_router.functions() AS p LEFT JOIN route AS r
			ON r.name = p.name AND r.argument IS NOT DISTINCT FROM p.names[1] LOOP
		CONTINUE WHEN f.how = 'hidden';
		IF f.how IS NULL THEN
			RAISE WARNING '%(%) is not routed: router.sql does not know it', f.name, array_to_string(f.types, ', ');
			CONTINUE;
		END IF;
		SELECT array_agg(name ORDER BY place), string_agg(quote_ident(name), ', ' ORDER BY place) INTO inputs, list
			FROM unnest(f.names) WITH ORDINALITY AS n (name, place) WHERE (f.modes[place] = 'o') IS NOT TRUE;
		arguments := pg_temp.arguments_from(f.names, f.modes, f.types, f.defaults);
		result := CASE WHEN NOT f.is_procedure THEN 'RETURNS ' || pg_temp.type_from(f.result) END;
		CASE f.how
		WHEN 'hash', 'one' THEN
			EXECUTE format('CREATE OR REPLACE FUNCTION %s.%I(%s) %s LANGUAGE plproxy AS %L', home, f.name, arguments, result,
				format('CLUSTER ''lease_lock''; RUN ON %s;',
					CASE WHEN f.how = 'one' THEN 'lease_router.one_partition(resources)'
						WHEN 'session' = ANY (inputs) THEN 'lease_router.one_session(resource, session)'
						ELSE 'lease_router.logical_partition(resource)' END));
		WHEN 'any' THEN
			EXECUTE format('CREATE OR REPLACE FUNCTION lease_router.%I(%s) %s LANGUAGE plproxy AS %L', f.name, arguments, result,
				format('CLUSTER ''lease_lock''; RUN ON lease_router.first_partition(resources); SELECT %s.%I(%s);', home, f.name, list));
			EXECUTE format('CREATE OR REPLACE FUNCTION %s.%I(%s) %s LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS %L',
				home, f.name, arguments, result, CASE WHEN 'wait' = ANY (inputs) THEN $$
DECLARE
	pause CONSTANT interval = '100 milliseconds';
	until timestamptz = clock_timestamp() + wait;
	partitions CONSTANT jsonb = lease_router.by_partition(resources);
	place integer = 0;
	answer text;
BEGIN
	-- One partition has a queue for them all. Nobody can stand in those of several at once: wait a little in one after another.
	IF jsonb_array_length(partitions) <= 1 OR wait < '0' THEN
		RETURN lease_router.lease_acquire_any(resources, ttl, owner, wait);
	END IF;
	LOOP
		answer := lease_router.acquire_any_now(partitions, ttl, owner);
		IF answer IS NOT NULL OR clock_timestamp() >= until THEN
			RETURN answer;
		END IF;
		answer := lease_router.lease_acquire_any(ARRAY(SELECT jsonb_array_elements_text(partitions -> place)), ttl, owner,
			GREATEST(LEAST(until - clock_timestamp(), pause), '0'));
		IF answer IS NOT NULL THEN
			RETURN answer;
		END IF;
		place := (place + 1) % jsonb_array_length(partitions);
	END LOOP;
END $$ ELSE $$
DECLARE
	partitions CONSTANT jsonb = lease_router.by_partition(resources);
BEGIN
	IF jsonb_array_length(partitions) <= 1 THEN
		RETURN lease_router.lease_acquire_any(resources, ttl, owner);
	END IF;
	RETURN lease_router.acquire_any_now(partitions, ttl, owner);
END $$ END);
		WHEN 'sum', 'each' THEN
			EXECUTE format('CREATE OR REPLACE FUNCTION lease_router.%I(%s) RETURNS SETOF text LANGUAGE plproxy AS %L', f.name, arguments,
				format('CLUSTER ''lease_lock''; RUN ON ALL; SELECT CAST(%s.%I(%s) AS pg_catalog.text);', home, f.name, list));
			EXECUTE format('CREATE OR REPLACE FUNCTION %s.%I(%s) %s LANGUAGE sql VOLATILE AS %L', home, f.name, arguments, result,
				format(CASE WHEN f.how = 'sum'
						THEN 'SELECT CAST(pg_catalog.sum(CAST(answer AS pg_catalog.int8)) AS pg_catalog.int8) FROM lease_router.%I(%s) AS answer'
					WHEN f.result = 'void' THEN 'SELECT FROM (SELECT pg_catalog.count(*) AS %1$I FROM lease_router.%1$I(%2$s)) AS _'
					ELSE 'SELECT pg_catalog.string_agg(answer, pg_catalog.chr(10)) FROM lease_router.%I(%s) AS answer' END,
					f.name, list));
		WHEN 'refused' THEN
			EXECUTE format('CREATE OR REPLACE %s %s.%I(%s) %s LANGUAGE plpgsql AS %L',
				CASE WHEN f.is_procedure THEN 'PROCEDURE' ELSE 'FUNCTION' END, home, f.name, arguments, result,
				format('BEGIN RAISE feature_not_supported USING MESSAGE = %L, DETAIL = %L, HINT = %L; END',
					f.name || '() is not possible through a router', f.reason, f.hint));
		END CASE;
		EXECUTE format('COMMENT ON ROUTINE %s.%I(%s) IS %L', home, f.name, pg_temp.arguments_from(f.names, f.modes, f.types, NULL), f.description);
	END LOOP;

	FOR v IN SELECT * FROM lease_router.views() WHERE name ~ '^lease_' LOOP
		SELECT string_agg(quote_ident(name), ', ' ORDER BY place) INTO list FROM unnest(v.names) WITH ORDINALITY AS n (name, place);
		EXECUTE format('CREATE OR REPLACE FUNCTION lease_router.%I() RETURNS TABLE (%s) LANGUAGE plproxy AS %L',
			'view_' || v.name, pg_temp.arguments_from(v.names, NULL, v.types, NULL),
			format('CLUSTER ''lease_lock''; RUN ON ALL; SELECT %s FROM %s.%I AS rows;', list, home, v.name));
		EXECUTE format('CREATE OR REPLACE VIEW %s.%I AS SELECT * FROM lease_router.%I()', home, v.name, 'view_' || v.name);
		EXECUTE format('COMMENT ON VIEW %s.%I IS %L', home, v.name, v.description);
		EXECUTE format('GRANT SELECT ON %s.%I TO PUBLIC', home, v.name);	-- the partitions decide
	END LOOP;
END $do$;

-- The resources by partition, in the order in which they are given. Nothing if there is a NULL among them: an error, whatever else is there.
CREATE OR REPLACE FUNCTION lease_router.by_partition(resources text[])
	RETURNS jsonb LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT COALESCE(jsonb_agg(names ORDER BY first), '[]')
	FROM (SELECT jsonb_agg(r.name ORDER BY r.place) AS names, min(r.place) AS first
		FROM unnest(resources) WITH ORDINALITY AS r (name, place)
		WHERE array_position(resources, NULL) IS NULL
		GROUP BY lease_router.logical_partition(r.name) % lease_router.partition_count()) AS _
$$;

CREATE OR REPLACE FUNCTION lease_router.acquire_any_now(partitions jsonb, ttl interval, owner text)
	RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	resources jsonb;
	answer text;
BEGIN
	FOR resources IN SELECT jsonb_array_elements(partitions) LOOP
		answer := lease_router.lease_acquire_any(ARRAY(SELECT jsonb_array_elements_text(resources)), ttl, owner);
		EXIT WHEN answer IS NOT NULL;
	END LOOP;
	RETURN answer;
END $$;

SELECT FROM (SELECT pg_temp.check_owners(ARRAY[CAST(current_setting('lease_router.schema') AS name)])) AS _ \g /dev/null

COMMIT;
