-- Which of 256 logical partitions a resource belongs to: the first byte of
-- SHA-256 of its name in UTF-8, or of its {tag} alone. docs/scaling.md has the
-- same function in Python and JavaScript. Included by router.sql and partition.sql.

CREATE SCHEMA IF NOT EXISTS lease_router;
GRANT USAGE ON SCHEMA lease_router TO PUBLIC;

CREATE OR REPLACE FUNCTION lease_router.logical_partition(resource pg_catalog.text)
	RETURNS pg_catalog.int4 LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN pg_catalog.get_byte(pg_catalog.sha256(pg_catalog.convert_to(COALESCE(
		NULLIF(pg_catalog.substring(resource, '\{([^}]*)\}'), ''), resource, ''), 'UTF8')), 0);
COMMENT ON FUNCTION lease_router.logical_partition(pg_catalog.text) IS
	'number of a resource''s logical partition, 0 to 255';
