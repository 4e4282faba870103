/* lease_lock 1.0 */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION lease_lock" to load this file. \quit

/*
 * Fencing tokens. No cache: a session that kept numbers back would hand out
 * a smaller token after a larger one.
 */
CREATE SEQUENCE lease_token_seq AS pg_catalog.int8 NO CYCLE CACHE 1;

/*
 * Dumped, so that a restored database does not count backwards. The leases
 * are not: nobody holds them in the restored database.
 */
SELECT pg_catalog.pg_extension_config_dump('lease_token_seq', '');

CREATE TABLE lease_lock (
	resource pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
	slot pg_catalog.int2 NOT NULL DEFAULT 0,
	owner pg_catalog.text COLLATE pg_catalog."C",
	token pg_catalog.int8 NOT NULL,
	granted_at pg_catalog.timestamptz NOT NULL,
	expires_at pg_catalog.timestamptz NOT NULL,
	holder pg_catalog.oid NOT NULL,
	xid pg_catalog.xid8 NOT NULL,
	PRIMARY KEY (resource, slot)
) WITH (fillfactor = 70);

/* Names are at most 1024 bytes: never worth a trip to a TOAST table. */
ALTER TABLE lease_lock
	ALTER COLUMN resource SET STORAGE PLAIN,
	ALTER COLUMN owner SET STORAGE PLAIN;

COMMENT ON TABLE lease_lock IS
	'leases, as the lease_* functions keep them; read lease_status instead';
COMMENT ON COLUMN lease_lock.owner IS 'NULL: released';
COMMENT ON COLUMN lease_lock.holder IS 'role that acquired the lease';
COMMENT ON COLUMN lease_lock.xid IS 'transaction that granted the lease';

CREATE FUNCTION lease_acquire(resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_acquire(pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
	'acquire a lease unless somebody holds it, without waiting; true when granted';

CREATE FUNCTION lease_acquire(resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text,
		wait pg_catalog.interval)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_acquire(pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.interval) IS
	'acquire a lease, waiting for it in order of arrival for at most wait, or for ever when that is NULL; true when granted';

CREATE PROCEDURE lease_wait(resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text,
		wait pg_catalog.interval, INOUT acquired pg_catalog.bool)
	AS 'MODULE_PATHNAME' LANGUAGE C;
COMMENT ON PROCEDURE lease_wait(pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.interval, pg_catalog.bool) IS
	'acquire a lease like lease_acquire, but wait without a snapshot, committing before each sleep';

CREATE FUNCTION lease_release(resource pg_catalog.text, owner pg_catalog.text)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_release(pg_catalog.text, pg_catalog.text) IS
	'release a lease that this owner took and nobody took over since; true when released';

CREATE FUNCTION lease_release_all(owner pg_catalog.text)
	RETURNS pg_catalog.int8
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_release_all(pg_catalog.text) IS
	'release every lease of this owner; how many';

CREATE FUNCTION lease_renew(resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_renew(pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
	'extend a lease that this owner still holds to at least ttl from now; true when it is held';

CREATE FUNCTION lease_token(resource pg_catalog.text, owner pg_catalog.text)
	RETURNS pg_catalog.int8
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_token(pg_catalog.text, pg_catalog.text) IS
	'fencing token of a lease that this owner holds, NULL when it does not';

CREATE FUNCTION lease_release(resource pg_catalog.text, owner pg_catalog.text, token pg_catalog.int8)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_release(pg_catalog.text, pg_catalog.text, pg_catalog.int8) IS
	'release a lease that this owner took with this token and nobody took over since; true when released';

CREATE FUNCTION lease_renew(resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text,
		token pg_catalog.int8)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_renew(pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.int8) IS
	'extend a lease that this owner still holds with this token to at least ttl from now; true when it is held';

CREATE FUNCTION lease_assert(resource pg_catalog.text, owner pg_catalog.text)
	RETURNS pg_catalog.int8
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_assert(pg_catalog.text, pg_catalog.text) IS
	'fail unless this owner holds the lease, and keep it from being lost until the transaction ends; its fencing token';

CREATE FUNCTION lease_assert(resource pg_catalog.text, token pg_catalog.int8)
	RETURNS pg_catalog.int8
	AS 'MODULE_PATHNAME', 'lease_assert_token' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_assert(pg_catalog.text, pg_catalog.int8) IS
	'fail unless the lease is held with this token, and keep it from being lost until the transaction ends; the token';

CREATE FUNCTION lease_guard()
	RETURNS pg_catalog.trigger
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_guard() IS
	'trigger of protected tables: refuses writes unless the owner that lease_lock.owner names holds the lease of the row';

CREATE FUNCTION lease_protect("table" pg_catalog.regclass, resource_template pg_catalog.text,
		operations pg_catalog.text DEFAULT 'insert, update, delete')
	RETURNS pg_catalog.void
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_protect(pg_catalog.regclass, pg_catalog.text, pg_catalog.text) IS
	'make a table refuse writes by anyone who does not hold the lease of the row';

CREATE FUNCTION lease_unprotect("table" pg_catalog.regclass)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_unprotect(pg_catalog.regclass) IS
	'undo lease_protect; true when the table was protected';

CREATE FUNCTION lease_version()
	RETURNS pg_catalog.trigger
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_version() IS
	'trigger BEFORE UPDATE with the name of a version column: refuses stale writes, counts the column on for writers that do not mention it';

CREATE FUNCTION lease_purge()
	RETURNS pg_catalog.int8
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_purge() IS
	'remove what was released, or expired, at least lease_lock.purge_after ago; how many rows';
REVOKE ALL ON FUNCTION lease_purge() FROM PUBLIC;

/* The owner is the password for release: shown to who could release anyway. */
CREATE VIEW lease_status AS
SELECT
	l.resource,
	l.slot,
	CASE WHEN pg_catalog.pg_has_role(l.holder, 'USAGE') THEN l.owner END AS owner,
	l.token,
	CASE WHEN l.expires_at > c.now THEN 'held' ELSE 'expired' END AS state,
	l.expires_at - c.now AS expires_in,
	l.granted_at,
	l.expires_at,
	pg_catalog.pg_get_userbyid(l.holder) AS holder,
	l.xid
FROM lease_lock AS l
	CROSS JOIN LATERAL (SELECT pg_catalog.clock_timestamp() AS now) AS c
WHERE l.owner IS NOT NULL;
COMMENT ON VIEW lease_status IS
	'leases that were granted and not released: who holds what until when';
GRANT SELECT ON lease_status TO PUBLIC;

CREATE FUNCTION lease_waiters(
		OUT resource pg_catalog.text, OUT owner pg_catalog.text, OUT pid pg_catalog.int4, OUT role pg_catalog.oid,
		OUT waiting_since pg_catalog.timestamptz, OUT "position" pg_catalog.int4, OUT deadline pg_catalog.timestamptz,
		OUT blocked_by_owner pg_catalog.text, OUT blocked_by_xid pg_catalog.xid)
	RETURNS SETOF pg_catalog.record
	AS 'MODULE_PATHNAME' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_waiters() IS 'what the view lease_waiters shows';

CREATE VIEW lease_waiters AS
SELECT
	w.resource,
	w.owner,
	w.pid,
	pg_catalog.pg_get_userbyid(w.role) AS role,
	w.waiting_since,
	w."position",
	w.deadline,
	w.blocked_by_owner,
	w.blocked_by_xid
FROM lease_waiters() AS w;
COMMENT ON VIEW lease_waiters IS
	'who waits for which lease, in the order of their turn, and who is in the way';
GRANT SELECT ON lease_waiters TO PUBLIC;
