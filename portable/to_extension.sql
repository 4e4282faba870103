/*
 * Replace the portable edition of lease_lock by the extension, in one
 * transaction. Leases, owners and tokens are taken along, and so are the
 * privileges on the functions and on lease_status. Run it as a superuser, after make install:
 *
 *	psql -v ON_ERROR_STOP=1 --single-transaction -c 'SET search_path = lease' -f to_extension.sql
 *
 * The extension comes into the same schema, so callers change nothing. Calls
 * that wait at that moment fail once, with an error, and can be repeated. It
 * ends with an error, and changes nothing, if an object of a user depends on
 * the portable edition, such as a view on lease_status; and if a transaction has
 * used a lease function and stays open for 2 seconds, or a call waits for a lease
 * for so long, since renewals wait behind this script. A lock_timeout of yours
 * takes the place of the 2 seconds.
 *
 * The schema may belong to a role that is no superuser. So no name is looked for there.
 */
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;		-- an older snapshot would not see what is committed while it waits
SELECT pg_catalog.set_config('lease_portable.schema', pg_catalog.quote_ident(pg_catalog.current_schema()), true);
SELECT pg_catalog.set_config('lock_timeout', '2s', true) WHERE pg_catalog.current_setting('lock_timeout') OPERATOR(pg_catalog.=) '0';
SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
DECLARE
	home text = current_setting('lease_portable.schema');
	portable regclass;
	-- The owner may have made others, under names of the extension's.
	functions name[] = '{lease_acquire, lease_acquire_all, lease_acquire_any, lease_acquire_permit, lease_acquire_shared, lease_assert, lease_assert_token,
		lease_break, lease_contended, lease_portable_version, lease_purge, lease_release, lease_release_all, lease_renew, lease_renew_all, lease_renew_several,
		lease_request, lease_set_payload, lease_token, lease_transfer, lease_wait}';
	part record;
	privilege record;
BEGIN
	-- Its owner can rename it, and give its name to another schema.
	PERFORM FROM pg_namespace WHERE nspname = (parse_ident(home))[1] FOR SHARE;
	portable := to_regclass(home || '.lease_lock');
	IF (SELECT relkind FROM pg_class WHERE oid = portable) IS DISTINCT FROM 'r'
		OR to_regprocedure(home || '.lease_portable_version()') IS NULL THEN
		RAISE undefined_table USING
			MESSAGE = format('schema %s does not have the portable edition of lease_lock', home),
			HINT = 'SET search_path to its schema.';
	END IF;

	-- From here on, no call can change a lease. Those that are open have ended.
	EXECUTE format('LOCK TABLE %s.lease_lock IN ACCESS EXCLUSIVE MODE', home);
	-- Nor can it be replaced. A view, a cast of a type, or what the planner evaluates, could run functions with the rights
	-- of the superuser.
	portable := to_regclass(home || '.lease_lock');
	IF (SELECT relkind FROM pg_class WHERE oid = portable) <> 'r'
		OR EXISTS (SELECT FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
			WHERE a.attrelid = portable AND t.typnamespace <> 'pg_catalog'::regnamespace) THEN
		RAISE wrong_object_type USING
			MESSAGE = format('%s.lease_lock is not the table of the portable edition', home);
	ELSIF EXISTS (SELECT FROM pg_index WHERE indrelid = portable AND (indexprs IS NOT NULL OR indpred IS NOT NULL))
		OR EXISTS (SELECT FROM pg_statistic_ext WHERE stxrelid = portable AND stxexprs IS NOT NULL)
		OR EXISTS (SELECT FROM pg_constraint WHERE conrelid = portable AND contype = 'c')
		OR EXISTS (SELECT FROM pg_attribute WHERE attrelid = portable AND attgenerated <> '') THEN
		RAISE wrong_object_type USING
			MESSAGE = format('%s.lease_lock has an expression of a user', home),
			HINT = 'Drop its check constraints and generated columns, and its indexes and statistics with an expression or predicate.';
	END IF;
	EXECUTE format('CREATE TEMP TABLE lease_taken_along ON COMMIT DROP AS SELECT * FROM ONLY %s.lease_lock', home);
	-- Those of the owner, too: the extension belongs to the superuser. The view has no arguments.
	CREATE TEMP TABLE lease_privileges ON COMMIT DROP AS
		SELECT p.proname AS name, oidvectortypes(p.proargtypes) AS arguments, p.proacl AS acl, acldefault('f', p.proowner) AS default_acl
		FROM pg_proc AS p WHERE p.pronamespace = home::regnamespace AND p.proname = ANY (functions)
		UNION ALL
		SELECT c.relname, NULL, c.relacl, acldefault('r', c.relowner) FROM pg_class AS c WHERE c.oid = to_regclass(home || '.lease_status');

	IF EXISTS (SELECT FROM pg_extension WHERE extname = 'lease_lock_portable') THEN
		DROP EXTENSION lease_lock_portable;		-- by pg_tle
	ELSE
		EXECUTE format('DROP VIEW %s.lease_status', home);
		FOR part IN
			SELECT oid::regprocedure AS name FROM pg_proc
			WHERE pronamespace = home::regnamespace AND (proname = ANY (functions) OR proname ^@ '_lease_')
		LOOP
			EXECUTE format('DROP ROUTINE %s', part.name);
		END LOOP;
		EXECUTE format('DROP TYPE %1$s._lease_request, %1$s._lease_outcome', home);
		EXECUTE format('DROP TABLE %s.lease_lock', home);
	END IF;

	EXECUTE format('CREATE EXTENSION lease_lock SCHEMA %s', home);

	-- The extension dates leases by a clock of its own, which can differ from the wall clock.
	EXECUTE format($insert$
		INSERT INTO %1$s.lease_lock (resource, slot, owner, expires_at, token, granted_at, xid, role, mode, holds, hold_until, payload)
		SELECT resource, slot, owner, expires_at - d, token, granted_at - d, xid, role, mode, holds, hold_until - d, payload
		FROM pg_temp.lease_taken_along, %1$s.lease_clock_difference() AS d
		WHERE owner IS NOT NULL OR expires_at > clock_timestamp() OR slot = 0
	$insert$, home);
	-- Tokens that somebody has raised by hand, or that a clock gave that was set back since, are above those of the clock.
	EXECUTE format('SELECT setval(%2$L, max(token)) FROM %1$s.lease_lock HAVING max(token) > coalesce(pg_sequence_last_value(%2$L), 0)',
		home, home || '.lease_token_seq');

	-- A grant to the superuser, who owns them now, changes nothing.
	FOR part IN
		SELECT o.object, o.privilege, g.acl, g.default_acl FROM lease_privileges AS g, LATERAL (
			SELECT format('ROUTINE %s', p.oid::regprocedure), 'EXECUTE' FROM pg_proc AS p
			WHERE p.pronamespace = home::regnamespace AND p.proname = g.name AND oidvectortypes(p.proargtypes) = g.arguments
			UNION ALL
			SELECT format('TABLE %s.lease_status', home), 'SELECT' WHERE g.arguments IS NULL
		) AS o (object, privilege)
	LOOP
		EXECUTE format('REVOKE ALL ON %s FROM PUBLIC', part.object);
		FOR privilege IN SELECT * FROM aclexplode(coalesce(part.acl, part.default_acl)) AS a WHERE a.privilege_type = part.privilege LOOP
			EXECUTE format('GRANT %s ON %s TO %s%s', part.privilege, part.object,
				CASE WHEN privilege.grantee = 0 THEN 'PUBLIC' ELSE privilege.grantee::regrole::text END,
				CASE WHEN privilege.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
		END LOOP;
	END LOOP;
END $$;
