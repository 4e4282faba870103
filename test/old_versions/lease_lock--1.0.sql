/* lease_lock 1.0 */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION lease_lock" to load this file. \quit

/*
 * The schema may belong to a role that has created functions and operators
 * there. So this script, and the query of each view, qualify every type,
 * function and operator that is not their own. An unqualified operator could
 * be one of that schema whose argument types fit better, and would run with
 * the privileges of the role that reads the view.
 *
 * A function of that schema with one of our names and a default value makes
 * calls of ours ambiguous.
 */
DO LANGUAGE plpgsql $$
DECLARE
	overloads pg_catalog.text = (
		SELECT pg_catalog.string_agg(p.oid::pg_catalog.regprocedure::pg_catalog.text, ', '::pg_catalog.text)
		FROM pg_catalog.pg_proc AS p
			JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
		WHERE n.nspname OPERATOR(pg_catalog.=) pg_catalog.current_schema()
			AND p.proname OPERATOR(pg_catalog.~) '^lease_'::pg_catalog.text
			AND p.pronargdefaults OPERATOR(pg_catalog.>) 0
	);
BEGIN
	IF overloads IS NOT NULL THEN
		RAISE duplicate_function USING
			MESSAGE = 'the schema of the extension has functions that would be mistaken for its own',
			DETAIL = overloads,
			HINT = 'Drop them, or use another schema: CREATE EXTENSION lease_lock SCHEMA ...';
	END IF;
END $$;

/* --- What is stored -------------------------------------------------------- */

/*
 * Fencing tokens. The sequence has no cache: a session with cached numbers
 * would hand out a smaller token after a larger one.
 */
CREATE SEQUENCE lease_token_seq AS pg_catalog.int8 NO CYCLE CACHE 1;
COMMENT ON SEQUENCE lease_token_seq IS
	'fencing tokens; must never be set back';

/*
 * The era of the tokens: a fingerprint of server, timeline and token sequence,
 * and when the era began. At first it is the timeline alone, and the first
 * grant begins an era.
 *
 * Leases and sequences are not dumped. Nobody holds the leases in a restored
 * database, and its first era begins above all tokens of before. If the token
 * sequence were dumped, restoring data only would set it back.
 */
CREATE SEQUENCE lease_era_seq AS pg_catalog.int8
	MINVALUE -9223372036854775808 START 1 NO CYCLE CACHE 1;
SELECT pg_catalog.setval('lease_era_seq'::pg_catalog.regclass, pg_catalog.int8(CAST('x'::pg_catalog.text OPERATOR(pg_catalog.||)
	pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8) AS pg_catalog.bit(32))));
COMMENT ON SEQUENCE lease_era_seq IS
	'identifies the era of the tokens: server, timeline and token sequence';

CREATE SEQUENCE lease_era_began_seq AS pg_catalog.int8
	MINVALUE -9223372036854775808 START 1 NO CYCLE CACHE 1;
COMMENT ON SEQUENCE lease_era_began_seq IS
	'when the era began; unused in the first era';

/*
 * Columns that change together are adjacent, which keeps WAL records small: a
 * release changes owner and expires_at, and a grant also the three columns
 * after them.
 */
CREATE TABLE lease_lock (
	resource pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
	slot pg_catalog.int2 NOT NULL DEFAULT 0,
	owner pg_catalog.text COLLATE pg_catalog."C",
	expires_at pg_catalog.timestamptz NOT NULL,
	token pg_catalog.int8 NOT NULL,
	granted_at pg_catalog.timestamptz NOT NULL,
	xid pg_catalog.xid8 NOT NULL,
	role pg_catalog.oid NOT NULL,
	mode pg_catalog."char" NOT NULL,
	holds pg_catalog.int4 NOT NULL,
	hold_until pg_catalog.timestamptz,
	kept_for pg_catalog.text COLLATE pg_catalog."C",
	session_pid pg_catalog.int4,
	session_number pg_catalog.int8,
	payload pg_catalog.jsonb,
	PRIMARY KEY (resource, slot)
) WITH (fillfactor = 70);

/* Names have at most 1024 bytes, so they need no TOAST table. */
ALTER TABLE lease_lock
	ALTER COLUMN resource SET STORAGE PLAIN,
	ALTER COLUMN owner SET STORAGE PLAIN,
	ALTER COLUMN kept_for SET STORAGE PLAIN;

/*
 * Only the functions below access these objects. Default privileges of the
 * role that creates the extension may have granted access to PUBLIC. What they
 * grant to a role with a name stays.
 */
REVOKE ALL ON TABLE lease_lock FROM PUBLIC;
REVOKE ALL ON SEQUENCE lease_token_seq, lease_era_seq, lease_era_began_seq FROM PUBLIC;

COMMENT ON TABLE lease_lock IS
	'leases, as the lease functions store them; read lease_status instead';
COMMENT ON COLUMN lease_lock.resource IS 'name of the resource';
COMMENT ON COLUMN lease_lock.slot IS '0: the exclusive lease; others: a shared lease or permit each';
COMMENT ON COLUMN lease_lock.owner IS 'NULL: released';
COMMENT ON COLUMN lease_lock.expires_at IS 'when the lease ends, or ended';
COMMENT ON COLUMN lease_lock.token IS 'fencing token of the last grant';
COMMENT ON COLUMN lease_lock.granted_at IS 'when the lease was last granted';
COMMENT ON COLUMN lease_lock.role IS 'role that acquired the lease';
COMMENT ON COLUMN lease_lock.xid IS 'transaction that granted the lease';
COMMENT ON COLUMN lease_lock.mode IS 'x exclusive, s shared, p permit';
COMMENT ON COLUMN lease_lock.holds IS 'how many releases end the lease';
COMMENT ON COLUMN lease_lock.hold_until IS 'a lease that is released earlier is not granted before this time';
COMMENT ON COLUMN lease_lock.kept_for IS 'owner that released the lease, while it is kept until expires_at for that';
COMMENT ON COLUMN lease_lock.session_pid IS 'process of the session that the lease ends with; NULL: it does not end with a session';
COMMENT ON COLUMN lease_lock.session_number IS 'number of that session';
COMMENT ON COLUMN lease_lock.payload IS 'payload of the lease';

/*
 * Watches: channels that are notified of events of leases. They are not dumped:
 * a role that dumps the database would need SELECT on the table, and a role that
 * restores it INSERT, which lets it show owners to every session.
 */
CREATE TABLE lease_watch (
	prefix pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
	channel pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
	events pg_catalog.text[] NOT NULL,
	creator pg_catalog.oid NOT NULL,
	PRIMARY KEY (prefix, channel)
);
REVOKE ALL ON lease_watch FROM PUBLIC;
COMMENT ON TABLE lease_watch IS 'watches, as lease_watch() and lease_unwatch() keep them; read lease_watches instead';
COMMENT ON COLUMN lease_watch.prefix IS 'prefix of the names of the watched resources';
COMMENT ON COLUMN lease_watch.channel IS 'channel of NOTIFY';
COMMENT ON COLUMN lease_watch.events IS 'events to send notices of';
COMMENT ON COLUMN lease_watch.creator IS 'role that set up the watch; notices contain owners that this role may see';

/* --- Acquire --------------------------------------------------------------- */

CREATE FUNCTION lease_acquire(resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_acquire(pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
	'acquire an exclusive lease unless it is held, without waiting; true when granted';

CREATE FUNCTION lease_acquire(resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text,
		wait pg_catalog.interval)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_acquire(pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.interval) IS
	'acquire an exclusive lease, waiting for it in order of arrival for at most wait, or without limit if wait is NULL; true when granted';

CREATE FUNCTION lease_acquire_shared(resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_acquire_shared(pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
	'acquire a lease beside others that share the resource, unless it is held exclusively, without waiting; true when granted';

CREATE FUNCTION lease_acquire_shared(resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text,
		wait pg_catalog.interval)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_acquire_shared(pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.interval) IS
	'acquire a lease beside others that share the resource, unless it is held exclusively, waiting for at most wait, or without limit if wait is NULL; true when granted';

CREATE FUNCTION lease_acquire_permit(resource pg_catalog.text, permits pg_catalog.int4, ttl pg_catalog.interval,
		owner pg_catalog.text)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_acquire_permit(pg_catalog.text, pg_catalog.int4, pg_catalog.interval, pg_catalog.text) IS
	'acquire one of a number of permits, without waiting; true when granted';

CREATE FUNCTION lease_acquire_permit(resource pg_catalog.text, permits pg_catalog.int4, ttl pg_catalog.interval,
		owner pg_catalog.text,
		wait pg_catalog.interval)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_acquire_permit(pg_catalog.text, pg_catalog.int4, pg_catalog.interval, pg_catalog.text, pg_catalog.interval) IS
	'acquire one of a number of permits, waiting for at most wait, or without limit if wait is NULL; true when granted';

CREATE FUNCTION lease_acquire_all(resources pg_catalog.text[], ttl pg_catalog.interval, owner pg_catalog.text)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_acquire_all(pg_catalog.text[], pg_catalog.interval, pg_catalog.text) IS
	'acquire the leases on all of these resources or on none, without waiting; true when granted';

CREATE FUNCTION lease_acquire_all(resources pg_catalog.text[], ttl pg_catalog.interval, owner pg_catalog.text,
		wait pg_catalog.interval)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_acquire_all(pg_catalog.text[], pg_catalog.interval, pg_catalog.text, pg_catalog.interval) IS
	'acquire the leases on all of these resources or on none, waiting for at most wait, or without limit if wait is NULL; true when granted';

CREATE FUNCTION lease_acquire_any(resources pg_catalog.text[], ttl pg_catalog.interval, owner pg_catalog.text)
	RETURNS pg_catalog.text
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_acquire_any(pg_catalog.text[], pg_catalog.interval, pg_catalog.text) IS
	'acquire the lease on the first of these resources that is free, without waiting; the name of that resource, or NULL';

CREATE FUNCTION lease_acquire_any(resources pg_catalog.text[], ttl pg_catalog.interval, owner pg_catalog.text,
		wait pg_catalog.interval)
	RETURNS pg_catalog.text
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_acquire_any(pg_catalog.text[], pg_catalog.interval, pg_catalog.text, pg_catalog.interval) IS
	'acquire the lease on the first of these resources that is free, waiting for at most wait, or without limit if wait is NULL; the name of that resource, or NULL';

CREATE FUNCTION lease_request(
		resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text, wait pg_catalog.interval DEFAULT '0',
		mode pg_catalog.text DEFAULT 'exclusive', permits pg_catalog.int4 DEFAULT NULL, if_own pg_catalog.text DEFAULT 'refuse',
		min_hold pg_catalog.interval DEFAULT NULL, payload pg_catalog.jsonb DEFAULT NULL, session pg_catalog.bool DEFAULT false,
		OUT granted pg_catalog.bool, OUT token pg_catalog.int8, OUT expires_at pg_catalog.timestamptz,
		OUT waited pg_catalog.interval, OUT blocked_by pg_catalog.text, OUT blocked_for pg_catalog.interval,
		OUT reason pg_catalog.text)
	RETURNS pg_catalog.record
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_request(pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.int4, pg_catalog.text, pg_catalog.interval, pg_catalog.jsonb, pg_catalog.bool) IS
	'acquire a lease of any mode with all options; returns whether it was granted, and if not, what blocks it';

CREATE PROCEDURE lease_wait(resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text,
		wait pg_catalog.interval, INOUT acquired pg_catalog.bool DEFAULT NULL, INOUT token pg_catalog.int8 DEFAULT NULL,
		INOUT expires_at pg_catalog.timestamptz DEFAULT NULL, mode pg_catalog.text DEFAULT 'exclusive',
		permits pg_catalog.int4 DEFAULT NULL, if_own pg_catalog.text DEFAULT 'refuse',
		min_hold pg_catalog.interval DEFAULT NULL, payload pg_catalog.jsonb DEFAULT NULL, session pg_catalog.bool DEFAULT false)
	AS 'MODULE_PATHNAME' LANGUAGE C;
COMMENT ON PROCEDURE lease_wait(pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.interval, pg_catalog.bool, pg_catalog.int8, pg_catalog.timestamptz, pg_catalog.text, pg_catalog.int4, pg_catalog.text, pg_catalog.interval, pg_catalog.jsonb, pg_catalog.bool) IS
	'acquire a lease of any mode with all options of lease_request, but wait without a snapshot, committing before each sleep';

/* --- Keep ------------------------------------------------------------------ */

CREATE FUNCTION lease_renew(resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_renew(pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
	'extend a lease that this owner still holds to at least ttl from now; true when it is held';

CREATE FUNCTION lease_renew(resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text,
		token pg_catalog.int8)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_renew(pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.int8) IS
	'extend a lease that this owner still holds with this token to at least ttl from now; true when it is held';

CREATE FUNCTION lease_renew_several(resources pg_catalog.text[], ttl pg_catalog.interval, owner pg_catalog.text)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_renew_several(pg_catalog.text[], pg_catalog.interval, pg_catalog.text) IS
	'extend the leases on all of these resources to at least ttl from now, or none; true when this owner holds all of them';

CREATE FUNCTION lease_renew_all(ttl pg_catalog.interval, owner pg_catalog.text)
	RETURNS pg_catalog.int8
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_renew_all(pg_catalog.interval, pg_catalog.text) IS
	'extend every lease that this owner holds to at least ttl from now; returns how many';

CREATE FUNCTION lease_release(resource pg_catalog.text, owner pg_catalog.text)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_release(pg_catalog.text, pg_catalog.text) IS
	'release a lease of this owner, unless it was taken over; true when released';

CREATE FUNCTION lease_release(resource pg_catalog.text, owner pg_catalog.text, token pg_catalog.int8)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_release(pg_catalog.text, pg_catalog.text, pg_catalog.int8) IS
	'release the lease of this owner with this token, unless it was taken over; true when released';

CREATE FUNCTION lease_release_all(owner pg_catalog.text)
	RETURNS pg_catalog.int8
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_release_all(pg_catalog.text) IS
	'release every lease of this owner; returns how many';

CREATE FUNCTION lease_transfer(resource pg_catalog.text, owner pg_catalog.text, new_owner pg_catalog.text)
	RETURNS pg_catalog.int8
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_transfer(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS
	'transfer a lease that this owner holds to another owner; its new token, NULL if this owner does not hold it';

CREATE FUNCTION lease_downgrade(resource pg_catalog.text, owner pg_catalog.text)
	RETURNS pg_catalog.int8
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_downgrade(pg_catalog.text, pg_catalog.text) IS
	'turn an exclusive lease that this owner holds into a shared one; its new token, NULL if this owner does not hold it exclusively';

CREATE FUNCTION lease_set_payload(resource pg_catalog.text, owner pg_catalog.text, payload pg_catalog.jsonb)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_set_payload(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb) IS
	'replace the payload of a lease that this owner holds, or remove it if the new one is NULL; true when the lease is held';

/* --- Check ----------------------------------------------------------------- */

CREATE FUNCTION lease_token(resource pg_catalog.text, owner pg_catalog.text)
	RETURNS pg_catalog.int8
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_token(pg_catalog.text, pg_catalog.text) IS
	'fencing token of a lease that this owner holds, NULL if it does not hold it';

CREATE FUNCTION lease_assert(resource pg_catalog.text, owner pg_catalog.text)
	RETURNS pg_catalog.int8
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_assert(pg_catalog.text, pg_catalog.text) IS
	'fail unless this owner holds the lease, and keep it from being lost until the transaction ends; its fencing token';

CREATE FUNCTION lease_assert_token(resource pg_catalog.text, token pg_catalog.int8)
	RETURNS pg_catalog.int8
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_assert_token(pg_catalog.text, pg_catalog.int8) IS
	'fail unless the lease is held with this token, and keep it from being lost until the transaction ends; the token';

CREATE FUNCTION lease_protect("table" pg_catalog.regclass, resource_template pg_catalog.text,
		operations pg_catalog.text DEFAULT 'insert, update, delete', exclusive pg_catalog.bool DEFAULT false)
	RETURNS pg_catalog.void
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_protect(pg_catalog.regclass, pg_catalog.text, pg_catalog.text, pg_catalog.bool) IS
	'make a table refuse writes to a row unless the writer holds the lease of the row';

CREATE FUNCTION lease_unprotect("table" pg_catalog.regclass)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_unprotect(pg_catalog.regclass) IS
	'undo lease_protect; true when the table was protected';

CREATE FUNCTION lease_guard()
	RETURNS pg_catalog.trigger
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_guard() IS
	'trigger of protected tables: refuses writes unless the owner that lease_lock.owner names holds the lease of the row';

CREATE FUNCTION lease_version()
	RETURNS pg_catalog.trigger
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_version() IS
	'trigger BEFORE UPDATE with the name of a version column: refuses stale writes, and increments the column for writers that do not mention it';

/* --- For the views --------------------------------------------------------- */

CREATE FUNCTION lease_clock_difference()
	RETURNS pg_catalog.interval
	AS 'MODULE_PATHNAME' LANGUAGE C STRICT VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION lease_clock_difference() IS
	'how far the wall clock of the server is ahead of the clock that leases are dated by';

CREATE FUNCTION lease_session_ended(session_number pg_catalog.int8)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION lease_session_ended(pg_catalog.int8) IS
	'whether the session with this number has ended';

CREATE FUNCTION lease_printable(name pg_catalog.text)
	RETURNS pg_catalog.text
	AS 'MODULE_PATHNAME' LANGUAGE C STRICT STABLE PARALLEL SAFE;
COMMENT ON FUNCTION lease_printable(pg_catalog.text) IS
	'a name as the server''s log shows it: control characters, line ends and backslashes are escaped';

/* --- Watch ----------------------------------------------------------------- */

/*
 * The owner works like a password for a release. So it is shown only to roles
 * that could release the lease anyway, and to roles that may see the activity
 * of others. Times beyond the year 9999, which many clients cannot read, are
 * shown as infinity.
 */
CREATE VIEW lease_status AS
SELECT
	l.resource,
	l.slot,
	CASE
		WHEN l.mode OPERATOR(pg_catalog.=) 'x'::pg_catalog."char" THEN 'exclusive'::pg_catalog.text
		WHEN l.mode OPERATOR(pg_catalog.=) 's'::pg_catalog."char" THEN 'shared'::pg_catalog.text
		ELSE 'permit'::pg_catalog.text
	END AS mode,
	CASE WHEN c.shown THEN l.owner END AS owner,
	l.token,
	CASE
		WHEN l.owner IS NULL THEN 'released'::pg_catalog.text
		WHEN l.expires_at OPERATOR(pg_catalog.>) c.now AND NOT c.ended THEN 'held'::pg_catalog.text
		ELSE 'expired'::pg_catalog.text
	END AS state,
	CASE WHEN pg_catalog.isfinite(l.expires_at) THEN l.expires_at OPERATOR(pg_catalog.-) c.now END AS expires_in,
	l.granted_at OPERATOR(pg_catalog.+) c.difference AS granted_at,
	CASE
		WHEN l.expires_at OPERATOR(pg_catalog.>=) '10000-01-01 UTC'::pg_catalog.timestamptz THEN 'infinity'::pg_catalog.timestamptz
		ELSE l.expires_at OPERATOR(pg_catalog.+) c.difference
	END AS expires_at,
	CASE WHEN l.owner IS NULL THEN 0 ELSE l.holds END AS holds,
	pg_catalog.pg_get_userbyid(l.role) AS role,
	l.xid,
	CASE WHEN c.shown THEN l.payload END AS payload,
	CASE WHEN l.owner IS NOT NULL AND NOT c.ended THEN l.session_pid END AS session_pid
FROM lease_lock AS l
	CROSS JOIN LATERAL (
		SELECT
			pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) d.difference AS now,
			d.difference,
			l.owner IS NOT NULL AND l.session_number IS NOT NULL AND lease_session_ended(l.session_number) AS ended,
			pg_catalog.pg_has_role(l.role, 'USAGE'::pg_catalog.text)
				OR pg_catalog.pg_has_role('pg_read_all_stats'::pg_catalog.name, 'USAGE'::pg_catalog.text) AS shown
		FROM lease_clock_difference() AS d(difference)
	) AS c
WHERE l.owner IS NOT NULL OR l.expires_at OPERATOR(pg_catalog.>) c.now;
COMMENT ON VIEW lease_status IS
	'leases that were granted and not released, or are kept by min_hold, with their owners and ends';
REVOKE ALL ON lease_status FROM PUBLIC;
GRANT SELECT ON lease_status TO PUBLIC;

CREATE FUNCTION lease_waiters(
		OUT resource pg_catalog.text, OUT owner pg_catalog.text, OUT pid pg_catalog.int4, OUT role pg_catalog.oid,
		OUT waiting_since pg_catalog.timestamptz, OUT "position" pg_catalog.int4, OUT deadline pg_catalog.timestamptz,
		OUT blocked_by_owner pg_catalog.text, OUT blocked_by_xid pg_catalog.xid, OUT mode pg_catalog.text,
		OUT permits pg_catalog.int4, OUT blocked_by_pids pg_catalog.int4[])
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
	w.blocked_by_xid,
	w.mode,
	w.permits,
	w.blocked_by_pids
FROM lease_waiters() AS w;
COMMENT ON VIEW lease_waiters IS
	'waiting sessions, in the order of their turn, and what blocks them';
REVOKE ALL ON lease_waiters FROM PUBLIC;
GRANT SELECT ON lease_waiters TO PUBLIC;

CREATE FUNCTION lease_contended(resource pg_catalog.text)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_contended(pg_catalog.text) IS
	'does anybody wait for a lease on this resource? NULL on a server without a queue';

CREATE VIEW lease_contenders AS
SELECT
	c.resource,
	CAST(pg_catalog.row_number() OVER (PARTITION BY c.resource ORDER BY c.held DESC, c.number) AS pg_catalog.int4)
		AS "position",
	c.held,
	c.mode,
	c.owner,
	c.payload
FROM (
	SELECT s.resource, true AS held, s.token AS number, s.mode, s.owner, s.payload
	FROM lease_status AS s
	WHERE s.state OPERATOR(pg_catalog.=) 'held'
	UNION ALL
	SELECT w.resource, false, w."position", w.mode, w.owner, NULL
	FROM lease_waiters AS w
	WHERE w.resource IS NOT NULL
) AS c;
COMMENT ON VIEW lease_contenders IS
	'holders of each resource, in the order of the grants, and its waiters, in the order of their turn';
REVOKE ALL ON lease_contenders FROM PUBLIC;
GRANT SELECT ON lease_contenders TO PUBLIC;

/*
 * What the view shows. The database is 0 if several databases share the
 * counters. Everything is NULL if nothing is counted.
 */
CREATE FUNCTION lease_stats(
		OUT database pg_catalog.oid, OUT granted pg_catalog.int8, OUT refused pg_catalog.int8, OUT takeovers pg_catalog.int8,
		OUT renewals pg_catalog.int8, OUT releases pg_catalog.int8, OUT breaks pg_catalog.int8, OUT waits pg_catalog.int8,
		OUT wait_timeouts pg_catalog.int8, OUT deadlocks pg_catalog.int8, OUT wait_time pg_catalog.interval,
		OUT longest_wait pg_catalog.interval, OUT handoffs pg_catalog.int8, OUT handoff_time pg_catalog.interval,
		OUT handoff_bounds pg_catalog.interval[], OUT handoff_counts pg_catalog.int8[], OUT purged pg_catalog.int8,
		OUT stats_reset pg_catalog.timestamptz)
	RETURNS pg_catalog.record
	AS 'MODULE_PATHNAME' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_stats() IS 'what the view lease_stats shows';

CREATE VIEW lease_stats AS
SELECT
	pg_catalog.current_database() AS database,
	CASE
		WHEN s.database IS NULL THEN 'none'::pg_catalog.text
		WHEN s.database OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'overflow'::pg_catalog.text
		ELSE 'database'::pg_catalog.text
	END AS scope,
	s.granted,
	s.refused,
	s.takeovers,
	s.renewals,
	s.releases,
	s.breaks,
	s.waits,
	s.wait_timeouts,
	s.deadlocks,
	s.wait_time,
	s.longest_wait,
	s.handoffs,
	s.handoff_time,
	s.handoff_bounds,
	s.handoff_counts,
	s.purged,
	s.stats_reset
FROM lease_stats() AS s;
COMMENT ON VIEW lease_stats IS
	'counts of what happened to the leases of this database since stats_reset';
REVOKE ALL ON lease_stats FROM PUBLIC;
GRANT SELECT ON lease_stats TO PUBLIC;

/*
 * A graph of the two views. An owner that the reader may not see becomes a
 * separate node for each session and each lease. JIT compilation of the query
 * would take a thousand times longer than running it.
 */
CREATE FUNCTION lease_wait_graph()
	RETURNS pg_catalog.text LANGUAGE sql VOLATILE PARALLEL UNSAFE SET jit = off
BEGIN ATOMIC
	WITH waiter AS MATERIALIZED (
		SELECT w.*, pg_catalog.row_number() OVER () AS number,
			COALESCE('owner ' OPERATOR(pg_catalog.||) w.owner, 'session ' OPERATOR(pg_catalog.||) w.pid::pg_catalog.text) AS node
		FROM lease_waiters AS w
	), found AS MATERIALIZED (
		SELECT w.number, COALESCE('owner ' OPERATOR(pg_catalog.||) s.owner, 'lease ' OPERATOR(pg_catalog.||) s.resource) AS node,
			s.owner, s.role, NULL::pg_catalog.text AS process
		FROM waiter AS w
			CROSS JOIN LATERAL (
				SELECT l.resource, l.owner, l.role FROM lease_status AS l
				WHERE l.resource OPERATOR(pg_catalog.=) w.resource AND l.state OPERATOR(pg_catalog.=) 'held'
				ORDER BY l.slot LIMIT 1
			) AS s
		WHERE w.blocked_by_xid IS NULL
		UNION ALL
		SELECT w.number, COALESCE(b.node, p.process), b.owner, b.role, p.process
		FROM waiter AS w
			CROSS JOIN LATERAL (
				SELECT u.pid, CASE
					WHEN u.pid OPERATOR(pg_catalog.=) 0 THEN pg_catalog.concat_ws(' ', 'prepared transaction', w.blocked_by_xid)
					ELSE 'process ' OPERATOR(pg_catalog.||) u.pid::pg_catalog.text
				END AS process
				FROM (SELECT pg_catalog.unnest(w.blocked_by_pids) AS pid) AS u
			) AS p
			LEFT JOIN waiter AS b ON b.pid OPERATOR(pg_catalog.=) p.pid
	), obstacle AS MATERIALIZED (
		SELECT f.* FROM found AS f
		UNION ALL
		SELECT w.number, 'nobody', NULL, NULL, NULL
		FROM waiter AS w
		WHERE NOT EXISTS (SELECT FROM found AS f WHERE f.number OPERATOR(pg_catalog.=) w.number)
	), node AS MATERIALIZED (
		SELECT n.node, n.owner, n.role, n.process, pg_catalog.row_number() OVER (ORDER BY n.number, n.side) AS number
		FROM (
			SELECT DISTINCT ON (e.node) e.*
			FROM (
				SELECT w.node, w.owner, w.role, NULL::pg_catalog.text AS process, w.number, 1 AS side FROM waiter AS w
				UNION ALL
				SELECT o.node, o.owner, o.role, o.process, o.number, 2 FROM obstacle AS o
			) AS e
			ORDER BY e.node, e.number, e.side
		) AS n
	), label AS MATERIALIZED (
		SELECT t.name, pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(
			lease_printable(t.name), '\', '\\'), '"', '\"'), '&', '&amp;') AS label
		FROM (
			SELECT w.resource AS name FROM waiter AS w
			UNION SELECT n.owner FROM node AS n
			UNION SELECT n.role::pg_catalog.text FROM node AS n
		) AS t
	), line AS (
		SELECT 1 AS part, n.number, 'n' OPERATOR(pg_catalog.||) n.number::pg_catalog.text OPERATOR(pg_catalog.||) ' [label="' OPERATOR(pg_catalog.||)
			CASE
				WHEN n.node OPERATOR(pg_catalog.=) 'nobody' THEN 'nobody", shape=plaintext];'
				WHEN n.role IS NULL THEN n.process OPERATOR(pg_catalog.||) '", shape=ellipse];'
				ELSE COALESCE(o.label, '(hidden)') OPERATOR(pg_catalog.||) '\nrole ' OPERATOR(pg_catalog.||) r.label OPERATOR(pg_catalog.||) '"];'
			END AS text
		FROM node AS n
			LEFT JOIN label AS o ON o.name OPERATOR(pg_catalog.=) n.owner
			LEFT JOIN label AS r ON r.name OPERATOR(pg_catalog.=) n.role::pg_catalog.text
		UNION ALL
		SELECT 2, w.number, 'n' OPERATOR(pg_catalog.||) f.number::pg_catalog.text OPERATOR(pg_catalog.||) ' -> n' OPERATOR(pg_catalog.||)
			t.number::pg_catalog.text OPERATOR(pg_catalog.||) ' [label="' OPERATOR(pg_catalog.||) COALESCE(l.label, '(several)')
			OPERATOR(pg_catalog.||) '\nprocess ' OPERATOR(pg_catalog.||) w.pid::pg_catalog.text
			OPERATOR(pg_catalog.||) COALESCE(', position ' OPERATOR(pg_catalog.||) w."position"::pg_catalog.text, '')
			OPERATOR(pg_catalog.||) '"' OPERATOR(pg_catalog.||) CASE WHEN o.process IS NULL THEN '' ELSE ', style=dashed' END
			OPERATOR(pg_catalog.||) '];'
		FROM waiter AS w
			JOIN obstacle AS o ON o.number OPERATOR(pg_catalog.=) w.number
			JOIN node AS f ON f.node OPERATOR(pg_catalog.=) w.node
			JOIN node AS t ON t.node OPERATOR(pg_catalog.=) o.node
			LEFT JOIN label AS l ON l.name OPERATOR(pg_catalog.=) w.resource
	)
	SELECT 'digraph lease_waits {' OPERATOR(pg_catalog.||) pg_catalog.chr(10) OPERATOR(pg_catalog.||) pg_catalog.chr(9)
		OPERATOR(pg_catalog.||) 'node [shape=box];' OPERATOR(pg_catalog.||) pg_catalog.chr(10)
		OPERATOR(pg_catalog.||) COALESCE(pg_catalog.string_agg(pg_catalog.chr(9) OPERATOR(pg_catalog.||) l.text
			OPERATOR(pg_catalog.||) pg_catalog.chr(10), '' ORDER BY l.part, l.number, l.text), '')
		OPERATOR(pg_catalog.||) '}'
	FROM line AS l;
END;
COMMENT ON FUNCTION lease_wait_graph() IS
	'graph of which owner waits for which, in the DOT language of Graphviz';

CREATE FUNCTION lease_watch(prefix pg_catalog.text, channel pg_catalog.text, events pg_catalog.text[] DEFAULT NULL)
	RETURNS pg_catalog.void
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_watch(pg_catalog.text, pg_catalog.text, pg_catalog.text[]) IS
	'notify a channel of these events, or all except renewed, of leases on resources whose names begin with a prefix';
REVOKE ALL ON FUNCTION lease_watch(pg_catalog.text, pg_catalog.text, pg_catalog.text[]) FROM PUBLIC;

CREATE FUNCTION lease_unwatch(prefix pg_catalog.text, channel pg_catalog.text)
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_unwatch(pg_catalog.text, pg_catalog.text) IS
	'remove a watch; true when there was such a watch';
REVOKE ALL ON FUNCTION lease_unwatch(pg_catalog.text, pg_catalog.text) FROM PUBLIC;

-- OFFSET keeps the view from being updatable: it would change the table with the rights of its owner, row security or not.
CREATE VIEW lease_watches AS
SELECT w.prefix, w.channel, w.events, pg_catalog.pg_get_userbyid(w.creator) AS creator FROM lease_watch AS w OFFSET 0;
COMMENT ON VIEW lease_watches IS 'channels that are notified of events of leases';
REVOKE ALL ON lease_watches FROM PUBLIC;

/* --- Administer ------------------------------------------------------------ */

CREATE FUNCTION lease_break(resource pg_catalog.text, grace pg_catalog.interval DEFAULT '0')
	RETURNS pg_catalog.bool
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_break(pg_catalog.text, pg_catalog.interval) IS
	'end all leases on a resource, whatever their owners; for the grace, or until they would have ended, they keep out whom they kept out; true when there were any';
REVOKE ALL ON FUNCTION lease_break(pg_catalog.text, pg_catalog.interval) FROM PUBLIC;

CREATE FUNCTION lease_purge()
	RETURNS pg_catalog.int8
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_purge() IS
	'remove rows that have been free for lease_lock.purge_after; returns how many';
REVOKE ALL ON FUNCTION lease_purge() FROM PUBLIC;

CREATE FUNCTION lease_stats_reset()
	RETURNS pg_catalog.void
	AS 'MODULE_PATHNAME' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_stats_reset() IS 'set the counters of this database to zero';
REVOKE ALL ON FUNCTION lease_stats_reset() FROM PUBLIC;

CREATE FUNCTION lease_new_era()
	RETURNS pg_catalog.void
	AS 'MODULE_PATHNAME' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION lease_new_era() IS
	'begin a new era: fencing tokens continue far above all that were handed out, as after a failover';
REVOKE ALL ON FUNCTION lease_new_era() FROM PUBLIC;
