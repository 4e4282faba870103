-- Which of 256 logical partitions a resource belongs to: the first byte of
-- SHA-256 of its name in UTF-8, or of its {tag} alone. docs/scaling.md has the
-- same function in Python and JavaScript. Included by router.sql and partition.sql.

CREATE SCHEMA IF NOT EXISTS lease_router;

-- IF NOT EXISTS and CREATE OR REPLACE keep what another role made before, and its owner. So nothing of a schema is used before
-- this has found that all belongs to superusers: the scripts' own schemas, and what is named lease_* in the given ones.
CREATE OR REPLACE FUNCTION pg_temp.check_owners(schemas pg_catalog.name[]) RETURNS pg_catalog.void LANGUAGE plpgsql AS $$
DECLARE
	foreign_objects CONSTANT text = (
		WITH space AS (
			SELECT *, nspname IN ('lease_router', 'plproxy') AS is_ours FROM pg_namespace
		), object AS (
			SELECT 'schema ' || quote_ident(nspname) AS name, nspowner AS owner FROM space WHERE is_ours
			UNION ALL
			SELECT 'privilege CREATE on schema ' || quote_ident(nspname), a.grantee
			FROM space CROSS JOIN aclexplode(nspacl) AS a WHERE is_ours AND a.privilege_type = 'CREATE'
			UNION ALL
			SELECT CAST(CAST(p.oid AS regprocedure) AS text), p.proowner FROM pg_proc AS p JOIN space AS n ON n.oid = p.pronamespace
			WHERE is_ours OR n.nspname = ANY (schemas) AND p.proname ~ '^lease_'
			UNION ALL
			SELECT CAST(CAST(c.oid AS regclass) AS text), c.relowner FROM pg_class AS c JOIN space AS n ON n.oid = c.relnamespace
			WHERE is_ours OR n.nspname = ANY (schemas) AND c.relname ~ '^lease_'
			UNION ALL
			SELECT CAST(CAST(t.oid AS regtype) AS text), t.typowner FROM pg_type AS t JOIN space AS n ON n.oid = t.typnamespace WHERE is_ours
			UNION ALL
			SELECT CAST(CAST(o.oid AS regoperator) AS text), o.oprowner FROM pg_operator AS o JOIN space AS n ON n.oid = o.oprnamespace WHERE is_ours
		)
		SELECT string_agg(o.name || ' of ' || COALESCE('role ' || quote_ident(r.rolname), 'PUBLIC'), ', ')
		FROM object AS o LEFT JOIN pg_roles AS r ON r.oid = o.owner
		WHERE r.rolsuper IS NOT TRUE
	);
BEGIN
	IF foreign_objects IS NOT NULL THEN
		RAISE insufficient_privilege USING
			MESSAGE = 'objects of these scripts belong to a role that is no superuser',
			DETAIL = foreign_objects,
			HINT = 'That role could change what others run. Drop or revoke them, and run the script again.';
	END IF;
END $$;

SELECT FROM (SELECT pg_temp.check_owners('{}')) AS _ \g /dev/null

GRANT USAGE ON SCHEMA lease_router TO PUBLIC;

CREATE OR REPLACE FUNCTION lease_router.logical_partition(resource pg_catalog.text)
	RETURNS pg_catalog.int4 LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN pg_catalog.get_byte(pg_catalog.sha256(pg_catalog.convert_to(COALESCE(
		NULLIF(pg_catalog.substring(resource, '\{([^}]*)\}'), ''), resource, ''), 'UTF8')), 0);
COMMENT ON FUNCTION lease_router.logical_partition(pg_catalog.text) IS
	'number of a resource''s logical partition, 0 to 255';
