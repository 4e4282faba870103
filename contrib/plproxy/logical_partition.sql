-- Which of 256 logical partitions a resource belongs to: the first byte of
-- SHA-256 of its name in UTF-8, or of its {tag} alone. docs/scaling.md has the
-- same function in Python and JavaScript. Included by router.sql and partition.sql.

CREATE SCHEMA IF NOT EXISTS lease_router;
GRANT USAGE ON SCHEMA lease_router TO PUBLIC;

-- CREATE OR REPLACE keeps the owner. So a schema or function that another role made before would stay that role's. The scripts
-- call this at their end.
CREATE OR REPLACE FUNCTION pg_temp.check_owners(schemas pg_catalog.text[]) RETURNS pg_catalog.void LANGUAGE plpgsql AS $$
DECLARE
	foreign_objects CONSTANT text = (
		SELECT string_agg(o.name || ' of role ' || quote_ident(r.rolname), ', ')
		FROM (
			SELECT 'schema ' || quote_ident(n.nspname) AS name, n.nspowner AS owner FROM pg_namespace AS n WHERE n.nspname IN ('lease_router', 'plproxy')
			UNION ALL
			SELECT p.oid::regprocedure::text, p.proowner FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
			WHERE n.nspname IN ('lease_router', 'plproxy') OR quote_ident(n.nspname) = ANY (schemas) AND p.proname ~ '^lease_'
			UNION ALL
			SELECT c.oid::regclass::text, c.relowner FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
			WHERE n.nspname = 'lease_router' OR quote_ident(n.nspname) = ANY (schemas) AND c.relname ~ '^lease_'
		) AS o JOIN pg_roles AS r ON r.oid = o.owner
		WHERE NOT r.rolsuper
	);
BEGIN
	IF foreign_objects IS NOT NULL THEN
		RAISE insufficient_privilege USING
			MESSAGE = 'objects of these scripts belong to a role that is no superuser',
			DETAIL = foreign_objects,
			HINT = 'That role could change what others run. Drop them, and run the script again.';
	END IF;
END $$;

CREATE OR REPLACE FUNCTION lease_router.logical_partition(resource pg_catalog.text)
	RETURNS pg_catalog.int4 LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN pg_catalog.get_byte(pg_catalog.sha256(pg_catalog.convert_to(COALESCE(
		NULLIF(pg_catalog.substring(resource, '\{([^}]*)\}'), ''), resource, ''), 'UTF8')), 0);
COMMENT ON FUNCTION lease_router.logical_partition(pg_catalog.text) IS
	'number of a resource''s logical partition, 0 to 255';
