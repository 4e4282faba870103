/*
 * lease_lock, portable edition 1.0.0
 *
 * The lease functions of the extension lease_lock as plain SQL, for servers on
 * which no extension in C can be installed. PostgreSQL 14 or later, no
 * superuser. docs/portable.md says what it promises, and what it does not.
 *
 *	psql -v ON_ERROR_STOP=1 --single-transaction -c 'CREATE SCHEMA lease' \
 *		-c 'SET search_path = lease' -f lease_lock.sql
 *	psql -c 'GRANT USAGE ON SCHEMA lease TO PUBLIC'
 *
 * Run it again, without CREATE SCHEMA, to update an older version. Leases stay.
 *
 * How it works
 * ------------
 * Each resource that was ever used has a row for slot 0. That is the exclusive
 * lease, or a row without an owner (a tombstone). Shared leases and permits
 * have rows of their own, in slots from 1 on.
 *
 * The modes of row locks carry the rules:
 *
 *	what happens to a lease			lock on its row		conflicts with
 *	it is asserted					FOR KEY SHARE		its end
 *	it is renewed					FOR NO KEY UPDATE	its end, another renewal
 *	it ends, or is taken over		FOR UPDATE			all of them
 *
 * FOR KEY SHARE does not always fail on an old version of a row. So an assertion
 * looks again when it has the lock, which nobody can pass any more.
 *
 * A grant of any mode locks and writes slot 0. So all grants of a resource come
 * one after the other, and the second one looks after the first one has
 * committed. An old snapshot (REPEATABLE READ) cannot lock the row that was
 * written since: it fails with 40001, and never makes a second holder. A grant
 * also locks each expired row that it counts as free. Whoever asserts or renews
 * that lease has locked the row. SKIP LOCKED keeps a try from waiting: a row
 * that it could not lock refuses it. A refusal gives its locks back, since it
 * rolls a subtransaction back. The clock is read after the lock.
 *
 * Slot 0 of a new resource does not exist yet. An advisory lock orders the
 * sessions that insert it: without that lock, they would wait for each other.
 *
 * The functions run with the rights of the role that runs this file, and see
 * only this schema and pg_catalog. So nobody else may create objects here. Their
 * messages begin at NOTICE, since a caller who lets the server log plans to the
 * client (debug_print_plan) would see the rows of others in them.
 */
DO $$
DECLARE
	home oid = to_regnamespace(quote_ident(current_schema()));
	others text;
	installed text = '0';
BEGIN
	IF current_setting('server_version_num')::int < 140000 THEN
		RAISE feature_not_supported USING MESSAGE = 'lease_lock needs PostgreSQL 14 or later';
	END IF;
	IF EXISTS (SELECT FROM pg_extension WHERE extname = 'lease_lock') THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = 'the extension lease_lock is installed in this database',
			HINT = 'It has all functions of the portable edition.';
	END IF;
	IF home IS NULL OR (SELECT nspowner FROM pg_namespace WHERE oid = home) <> quote_ident(current_user)::regrole THEN
		RAISE insufficient_privilege USING
			MESSAGE = format('the first schema of search_path, %s, does not belong to role %I',
				coalesce(home::regnamespace::text, 'none'), current_user),
			HINT = 'CREATE SCHEMA lease, and SET search_path = lease.';
	END IF;
	SELECT string_agg(DISTINCT coalesce(r.rolname, 'PUBLIC'), ', ') INTO others
	FROM pg_namespace n, aclexplode(n.nspacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
	WHERE n.oid = home AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner;
	IF others IS NOT NULL THEN
		RAISE insufficient_privilege USING
			MESSAGE = format('other roles may create objects in schema %I: %s', current_schema(), others),
			DETAIL = 'Functions of theirs could run with the rights of the lease functions.',
			HINT = 'Use a schema of its own, or REVOKE CREATE ON SCHEMA.';
	END IF;
	SELECT string_agg(pg_describe_object(d.classid, d.objid, 0), ', ') INTO others
	FROM pg_depend AS d JOIN pg_shdepend AS o ON o.classid = d.classid AND o.objid = d.objid AND o.deptype = 'o'
	WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = home AND o.refobjid <> quote_ident(current_user)::regrole
		AND o.dbid = (SELECT oid FROM pg_database WHERE datname = current_database());
	IF others IS NOT NULL THEN
		RAISE insufficient_privilege USING
			MESSAGE = format('schema %I has objects of other roles', current_schema()),
			DETAIL = format('The lease functions could take them for their own: %s.', others),
			HINT = 'Use a schema of its own.';
	END IF;
	IF to_regprocedure(quote_ident(current_schema()) || '.lease_portable_version()') IS NOT NULL THEN
		EXECUTE format('SELECT %I.lease_portable_version()', current_schema()) INTO installed;
	END IF;
	IF string_to_array(installed, '.')::int[] > string_to_array('1.0.0', '.')::int[] THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = format('schema %I has a newer version of lease_lock: %s', current_schema(), installed);
	END IF;
	PERFORM set_config('lease_portable.is_new', (to_regclass(quote_ident(current_schema()) || '.lease_lock') IS NULL)::text, true);
	PERFORM set_config('lease_portable.has_view', (to_regclass(quote_ident(current_schema()) || '.lease_status') IS NOT NULL)::text, true);
	-- For the functions below, which take over this path. Types are not looked for in pg_temp.
	PERFORM set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
	PERFORM set_config('lease_portable.installed_by', pg_current_xact_id()::text, true);
END $$;

-- psql goes on after an error, unless it was told to stop. Then there must be no schema to create anything in.
DO $$
BEGIN
	IF current_setting('lease_portable.installed_by', true) IS DISTINCT FROM pg_current_xact_id()::text THEN
		PERFORM set_config('search_path', 'lease_lock_was_refused', false);
	END IF;
END $$;

DO $$
BEGIN
	IF current_setting('lease_portable.installed_by', true) IS DISTINCT FROM pg_current_xact_id()::text THEN
		RAISE no_active_sql_transaction USING
			MESSAGE = 'this file must run in one transaction',
			HINT = 'psql --single-transaction, or BEGIN before it and COMMIT after it. Set search_path again.';
	END IF;
END $$;

CREATE OR REPLACE FUNCTION lease_portable_version() RETURNS text
	LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT '1.0.0' $$;
COMMENT ON FUNCTION lease_portable_version() IS 'version of the portable edition of lease_lock';

/* The same columns as in the extension, as far as this edition has them. */
CREATE TABLE IF NOT EXISTS lease_lock (
	resource text COLLATE "C" NOT NULL,
	slot int2 NOT NULL DEFAULT 0,
	owner text COLLATE "C",				-- NULL: a tombstone
	expires_at timestamptz NOT NULL,	-- of a tombstone: free from then on
	token int8 NOT NULL,				-- in slot 0: the last one of the resource, if it is a tombstone
	granted_at timestamptz NOT NULL,
	xid xid8 NOT NULL,
	role oid NOT NULL,
	mode "char" NOT NULL,
	holds int4 NOT NULL,
	hold_until timestamptz,
	payload jsonb,
	PRIMARY KEY (resource, slot)
) WITH (fillfactor = 70);
COMMENT ON TABLE lease_lock IS 'leases, as the lease functions store them; read lease_status instead';

/* --- Arguments ---------------------------------------------------------- */

/* A name in a message, inside quotes. The caller may have set standard_conforming_strings off. */
CREATE OR REPLACE FUNCTION _lease_shown(name text) RETURNS text
	LANGUAGE sql IMMUTABLE AS $$
	SELECT replace(replace(replace(replace(replace(name COLLATE "C", E'\\', E'\\\\'), '"', E'\\"'), E'\n', E'\\n'), E'\r', E'\\r'), E'\t', E'\\t')
$$;

/* A NULL is an error, because a caller would take a NULL result for "not granted". */
CREATE OR REPLACE FUNCTION _lease_check_name(what text, name text) RETURNS void
	LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF octet_length(name) BETWEEN 1 AND 1024 THEN
		RETURN;
	ELSIF octet_length(name) > 1024 THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('%s of a lease must not be longer than 1024 bytes', what),
			DETAIL = format('It has %s bytes.', octet_length(name)),
			HINT = 'Use a digest as the name, for example encode(sha256(convert_to(name, ''UTF8'')), ''hex'').';
	END IF;
	RAISE EXCEPTION USING
		ERRCODE = CASE WHEN name IS NULL THEN '22004' ELSE '22023' END,
		MESSAGE = format('%s of a lease must not be %s', what, CASE WHEN name IS NULL THEN 'null' ELSE 'empty' END),
		HINT = 'Give a name of 1 to 1024 bytes.';
END $$;

/*
 * An interval that does not depend on calendar and time zone: a month has 30
 * days, and a day 24 hours. The epoch of an interval counts 365.25 days for each
 * full year, which is 453600 seconds more than twelve months. Without FROM, as
 * _lease_caller below.
 */
CREATE OR REPLACE FUNCTION _lease_span(i interval) RETURNS interval
	LANGUAGE sql IMMUTABLE AS $$
	SELECT ((extract(epoch FROM i) - extract(year FROM i) * 453600) * 1000000)::float8 * interval '1 microsecond'
$$;

CREATE OR REPLACE FUNCTION _lease_check_ttl(resource text, ttl interval) RETURNS interval
	LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF ttl IS NULL THEN
		RAISE null_value_not_allowed USING
			MESSAGE = coalesce('ttl of the lease on "' || _lease_shown(resource) || '"', 'ttl of leases') || ' must not be null',
			HINT = 'For a lease that lasts until it is released, give a long ttl.';
	ELSIF ttl > '100000 years' OR ttl <= '0' OR _lease_span(ttl) <= '0' THEN
		RAISE invalid_parameter_value USING
			MESSAGE = coalesce('ttl of the lease on "' || _lease_shown(resource) || '"', 'ttl of leases') || format(' is out of range: %s', ttl),
			HINT = 'Give an interval of more than zero and at most 100000 years.';
	END IF;
	RETURN _lease_span(ttl);
END $$;

/* A span that may be zero; NULL stays NULL. */
CREATE OR REPLACE FUNCTION _lease_check_span(what text, resource text, i interval) RETURNS interval
	LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF i < '0' OR i > '100000 years' THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('%s the lease on "%s" is out of range: %s', what, _lease_shown(resource), i),
			HINT = 'Give an interval of zero to 100000 years' || CASE WHEN what = 'wait for' THEN ', or NULL to wait without limit.' ELSE '.' END;
	END IF;
	RETURN _lease_span(i);
END $$;

CREATE OR REPLACE FUNCTION _lease_check_word(what text, resource text, word text, words text[], hint text) RETURNS void
	LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF word = ANY (words COLLATE "C") THEN
		RETURN;
	END IF;
	RAISE EXCEPTION USING
		ERRCODE = CASE WHEN word IS NULL THEN '22004' ELSE '22023' END,
		MESSAGE = format('%s the lease on "%s" ', what, _lease_shown(resource)) ||
			CASE WHEN word IS NULL THEN 'must not be null' ELSE format('is unknown: "%s"', _lease_shown(word)) END,
		HINT = hint;
END $$;

CREATE OR REPLACE FUNCTION _lease_check_permits(resource text, permits int) RETURNS void
	LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF permits BETWEEN 1 AND 32767 THEN
		RETURN;
	END IF;
	RAISE EXCEPTION USING
		ERRCODE = CASE WHEN permits IS NULL THEN '22004' ELSE '22023' END,
		MESSAGE = format('number of permits for "%s" ', _lease_shown(resource)) ||
			CASE WHEN permits IS NULL THEN 'must not be null' ELSE format('is out of range: %s', permits) END,
		HINT = 'Give the number of owners that may have a permit at a time: 1 to 32767.';
END $$;

CREATE OR REPLACE FUNCTION _lease_check_resources(resources text[]) RETURNS void
	LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
	twice text;
BEGIN
	IF resources IS NULL OR array_ndims(resources) > 1 THEN
		RAISE EXCEPTION USING
			ERRCODE = CASE WHEN resources IS NULL THEN '22004' ELSE '2202E' END,
			MESSAGE = CASE WHEN resources IS NULL THEN 'resources must not be null' ELSE 'resources must be an array of one dimension' END,
			HINT = 'Give an array of 1 to 10000 names.';
	ELSIF cardinality(resources) NOT BETWEEN 1 AND 10000 THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('number of resources is out of range: %s', cardinality(resources)),
			HINT = 'Give an array of 1 to 10000 names.';
	END IF;
	PERFORM _lease_check_name('resource', r) FROM unnest(resources) AS r;
	SELECT r COLLATE "C" INTO twice FROM unnest(resources) AS r GROUP BY 1 HAVING count(*) > 1 ORDER BY 1 LIMIT 1;
	IF twice IS NOT NULL THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('resource "%s" is named twice', _lease_shown(twice)),
			HINT = 'Name each resource once.';
	END IF;
END $$;

/* --- Rights ------------------------------------------------------------- */

/*
 * The role that calls. A function that runs as its definer cannot ask for the
 * role of its caller, but for the role that the session has set. Without FROM,
 * the server puts it in place of each call; else it would plan it each time.
 */
CREATE OR REPLACE FUNCTION _lease_caller() RETURNS oid
	LANGUAGE sql STABLE AS $$
	SELECT to_regrole(quote_ident(coalesce(nullif(current_setting('role'), 'none'), session_user)))::oid
$$;

/*
 * Refuse code that the server runs for its definer, in a session of another role:
 * the index expressions of a table in ANALYZE, say, which a superuser or
 * autovacuum runs. There UNLISTEN is an error. Elsewhere it has no effect, as
 * nobody listens to this channel; but a session that listens to others cannot
 * prepare the transaction.
 */
CREATE OR REPLACE FUNCTION _lease_refuse_code_of_others() RETURNS void
	LANGUAGE plpgsql AS $$ BEGIN UNLISTEN lease_lock_caller; END $$;

/* Those that may find nothing to write would not fail by themselves. */
CREATE OR REPLACE FUNCTION _lease_require_writable(what text) RETURNS void
	LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF current_setting('transaction_read_only')::bool THEN
		RAISE read_only_sql_transaction USING MESSAGE = format('cannot %s a lease in a read-only transaction', what);
	END IF;
END $$;

/* The owner's name is not enough to act on a lease: it needs the privileges of the role that acquired it, too. */
CREATE OR REPLACE FUNCTION _lease_may_act(role oid) RETURNS bool
	LANGUAGE sql STABLE AS $$ SELECT pg_has_role(_lease_caller(), role, 'USAGE') $$;

CREATE OR REPLACE FUNCTION _lease_require_rights(l lease_lock) RETURNS void
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	acquired_by text = (SELECT rolname FROM pg_roles WHERE oid = l.role);
BEGIN
	IF _lease_may_act(l.role) THEN
		RETURN;
	END IF;
	RAISE insufficient_privilege USING
		MESSAGE = format('permission denied for lease on "%s"', _lease_shown(l.resource)),
		DETAIL = coalesce('It was acquired by role "' || acquired_by || '".', 'It was acquired by a role that was dropped.'),
		HINT = CASE WHEN acquired_by IS NULL THEN 'Wait until it expires, or ask a superuser to release it.'
			ELSE 'Act as a role that has the privileges of that role.' END;
END $$;

/* --- Grants ------------------------------------------------------------- */

/*
 * Four for each microsecond since 2026, as an era of the extension begins. (The
 * session can say what an abbreviation such as UTC means.)
 * Higher than the last token of the resource, and than all that were purged
 * with it, unless the clock was set back.
 */
CREATE OR REPLACE FUNCTION _lease_next_token(last int8, now timestamptz) RETURNS int8
	LANGUAGE sql IMMUTABLE AS $$ SELECT greatest(last + 1, (extract(epoch FROM now - timestamptz '2026-01-01 00:00:00+00') * 4000000)::int8) $$;

/* The key of an advisory lock: kind 1 orders the first inserts of a resource, and kind 2 its waiters. */
CREATE OR REPLACE FUNCTION _lease_key(kind int, resource text) RETURNS int8
	LANGUAGE sql IMMUTABLE AS $$ SELECT hashtextextended(resource COLLATE "C", 5171 + kind) $$;

/* What is asked for, and what became of it. */
DO $$
BEGIN
	IF to_regtype('_lease_request') IS NULL THEN
		CREATE TYPE _lease_request AS (resource text, owner text, ttl interval, mode "char", permits int, if_own text,
			min_hold interval, payload jsonb, role oid);
		CREATE TYPE _lease_outcome AS (granted bool, token int8, granted_at timestamptz, expires_at timestamptz,
			reason text, blocked_by text, held_until timestamptz, resource text);
	END IF;
END $$;

/*
 * What a look at the rows of a resource shows at a time: the refusal, if a lease
 * that is held or kept is in the way (else NULL), how many leases of other slots
 * are held, and how many have expired.
 */
CREATE OR REPLACE FUNCTION _lease_look(r _lease_request, now timestamptz,
		OUT refusal _lease_outcome, OUT taken int, OUT stale int, OUT last_token int8)
	LANGUAGE plpgsql AS $$
DECLARE
	own bool;
	top bool;
	blocker record;
	until timestamptz;
BEGIN
	SELECT coalesce(bool_or(l.owner = r.owner) FILTER (WHERE l.expires_at > now), false),
		coalesce(bool_or(l.expires_at > now) FILTER (WHERE l.slot = 0), false),
		count(*) FILTER (WHERE l.slot > 0 AND l.expires_at > now),
		count(*) FILTER (WHERE l.slot > 0 AND l.expires_at <= now AND l.owner IS NOT NULL),
		max(l.token),
		CASE WHEN r.mode = 'x' THEN max(l.expires_at) FILTER (WHERE l.expires_at > now)
			ELSE coalesce(max(l.expires_at) FILTER (WHERE l.slot = 0 AND l.expires_at > now),
				max(l.expires_at) FILTER (WHERE l.owner = r.owner AND l.expires_at > now),
				min(l.expires_at) FILTER (WHERE l.expires_at > now)) END
	INTO own, top, taken, stale, last_token, until
	FROM lease_lock AS l WHERE l.resource = r.resource;

	IF own OR top OR taken >= (CASE WHEN r.mode = 'x' THEN 1 ELSE r.permits END) THEN
		SELECT l.owner, pg_has_role(r.role, l.role, 'USAGE') OR pg_has_role(r.role, 'pg_read_all_stats', 'USAGE') AS shown
		INTO blocker FROM lease_lock AS l WHERE l.resource = r.resource AND l.expires_at > now
		ORDER BY l.owner IS NOT DISTINCT FROM r.owner DESC, l.owner IS NULL, l.slot LIMIT 1;
		refusal := ROW(false, NULL, NULL, NULL, CASE WHEN own THEN 'own' ELSE 'held' END, CASE WHEN blocker.shown THEN blocker.owner END, until, NULL);
	END IF;
END $$;

/*
 * Lock slot 0 of a resource, without waiting. False: another transaction has
 * locked it, or is inserting it. Each statement has a new snapshot, so the last
 * look at the row comes after the advisory lock. That lock stays until the
 * transaction ends, since others cannot see the row before.
 */
CREATE OR REPLACE FUNCTION _lease_lock_top(r _lease_request) RETURNS bool
	LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM lease_lock WHERE resource = r.resource AND slot = 0 FOR UPDATE SKIP LOCKED;
	IF FOUND THEN
		RETURN true;
	END IF;
	PERFORM FROM lease_lock WHERE resource = r.resource AND slot = 0;
	IF FOUND OR NOT pg_try_advisory_xact_lock(_lease_key(1, r.resource)) THEN
		RETURN false;
	END IF;
	PERFORM FROM lease_lock WHERE resource = r.resource AND slot = 0;
	IF FOUND THEN
		RETURN false;
	END IF;
	RETURN _lease_insert_top(r);
END $$;

/*
 * Insert slot 0. False: it is there. A snapshot that stays may not show it:
 * then it fails with 40001, or another transaction is changing the row, and is
 * not waited for.
 */
CREATE OR REPLACE FUNCTION _lease_insert_top(r _lease_request) RETURNS bool
	LANGUAGE plpgsql AS $$
DECLARE
	callers text = current_setting('lock_timeout');
	inserted bool;
BEGIN
	IF _lease_snapshot_stays() THEN
		PERFORM set_config('lock_timeout', '10', true);
	END IF;
	INSERT INTO lease_lock VALUES (r.resource, 0, NULL, 'epoch', 0, clock_timestamp(), pg_current_xact_id(), r.role, 'x', 0)
	ON CONFLICT DO NOTHING;
	inserted := FOUND;
	PERFORM set_config('lock_timeout', callers, true);
	RETURN inserted;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END $$;

/* Grant the owner a lease again that it holds, if the request says so. */
CREATE OR REPLACE FUNCTION _lease_reacquire(r _lease_request, INOUT outcome _lease_outcome)
	LANGUAGE plpgsql AS $$
DECLARE
	l lease_lock;
	now timestamptz;
BEGIN
	SELECT * INTO l FROM lease_lock
	WHERE resource = r.resource AND owner = r.owner AND mode = r.mode AND expires_at > clock_timestamp() AND _lease_may_act(role)
	FOR NO KEY UPDATE SKIP LOCKED;
	IF NOT FOUND THEN
		PERFORM FROM lease_lock
		WHERE resource = r.resource AND owner = r.owner AND mode = r.mode AND expires_at > clock_timestamp() AND _lease_may_act(role);
		outcome.reason := CASE WHEN FOUND THEN 'open' ELSE outcome.reason END;
		RETURN;
	ELSIF l.expires_at <= clock_timestamp() THEN		-- others may have been granted what was free then
		outcome.reason := 'open';
		RETURN;
	ELSIF r.if_own = 'count' AND l.holds = 2147483647 THEN
		RAISE program_limit_exceeded USING
			MESSAGE = format('lease on "%s" was acquired too many times by the same owner', _lease_shown(r.resource)),
			HINT = 'Release it as many times as it is acquired.';
	END IF;
	now := clock_timestamp();
	UPDATE lease_lock SET
		expires_at = CASE WHEN r.if_own = 'renew' THEN now + r.ttl ELSE greatest(expires_at, now + r.ttl) END,
		holds = holds + CASE WHEN r.if_own = 'count' THEN 1 ELSE 0 END,
		hold_until = CASE WHEN r.min_hold > '0' THEN CASE WHEN r.if_own = 'renew' THEN now + r.min_hold ELSE greatest(hold_until, now + r.min_hold) END
			WHEN r.min_hold = '0' AND r.if_own = 'renew' THEN NULL ELSE hold_until END,
		payload = coalesce(r.payload, payload)
	WHERE resource = l.resource AND slot = l.slot RETURNING * INTO l;
	outcome := ROW(true, l.token, now, l.expires_at, CASE r.if_own WHEN 'renew' THEN 'renewed' ELSE 'counted' END, NULL, NULL, NULL);
END $$;

/*
 * Choose the slot of a shared lease or permit, and lock its row: the owner's
 * former row, else a tombstone, else an expired lease, else a new slot. A permit
 * that has no room beside an expired one takes over that one.
 */
CREATE OR REPLACE FUNCTION _lease_seat(r _lease_request, now timestamptz, replaces bool) RETURNS int
	LANGUAGE plpgsql AS $$
DECLARE
	seat int;
BEGIN
	SELECT slot INTO seat FROM lease_lock
	WHERE resource = r.resource AND slot > 0 AND expires_at <= now
	ORDER BY owner = r.owner AND owner IS NOT NULL DESC, (owner IS NULL) <> replaces DESC, slot
	LIMIT 1 FOR UPDATE SKIP LOCKED;
	RETURN coalesce(seat, (SELECT nullif(coalesce(min(n) FILTER (WHERE n < slot), count(*) + 1), 32768)
		FROM (SELECT slot, row_number() OVER (ORDER BY slot) AS n FROM lease_lock WHERE resource = r.resource AND slot > 0) AS s));
END $$;

/* Write a lease that is granted now. The transaction has locked slot 0, and each row that it takes over. */
CREATE OR REPLACE FUNCTION _lease_write(r _lease_request, at_slot int, last_token int8, now timestamptz, OUT outcome _lease_outcome)
	LANGUAGE plpgsql AS $$
DECLARE
	l lease_lock = ROW(r.resource, at_slot, r.owner, now + r.ttl, _lease_next_token(last_token, now), now,
		pg_current_xact_id(), r.role, r.mode, 1, CASE WHEN r.min_hold > '0' THEN now + r.min_hold END, r.payload);
BEGIN
	IF r.mode = 'x' THEN
		UPDATE lease_lock SET owner = NULL, hold_until = NULL, payload = NULL
		WHERE resource = r.resource AND slot > 0 AND owner IS NOT NULL;
	ELSE
		UPDATE lease_lock SET owner = NULL, hold_until = NULL, payload = NULL, token = l.token
		WHERE resource = r.resource AND slot = 0;
	END IF;
	UPDATE lease_lock SET (owner, expires_at, token, granted_at, xid, role, mode, holds, hold_until, payload) =
		ROW(l.owner, l.expires_at, l.token, l.granted_at, l.xid, l.role, l.mode, l.holds, l.hold_until, l.payload)
	WHERE resource = r.resource AND slot = at_slot;
	IF NOT FOUND THEN
		INSERT INTO lease_lock VALUES (l.*);
	END IF;
	outcome := ROW(true, l.token, now, l.expires_at, NULL, NULL, NULL, NULL);
END $$;

/* Lock slot 0, look again, lock the expired rows, and write. It waits for nothing. */
CREATE OR REPLACE FUNCTION _lease_grant(r _lease_request, OUT outcome _lease_outcome)
	LANGUAGE plpgsql AS $$
DECLARE
	now timestamptz;
	look record;
	locked int = 0;
	own int;
	seat int = 0;
BEGIN
	outcome := ROW(false, NULL, NULL, NULL, 'open', NULL, NULL, NULL);
	IF NOT _lease_lock_top(r) THEN
		RETURN;
	END IF;
	now := clock_timestamp();
	look := _lease_look(r, now);
	IF NOT (look.refusal).granted THEN
		outcome := look.refusal;
		RETURN;
	END IF;
	IF look.stale > 0 AND r.mode <> 's' THEN
		SELECT count(*) INTO locked FROM (
			SELECT FROM lease_lock
			WHERE resource = r.resource AND slot > 0 AND expires_at <= now AND owner IS NOT NULL FOR UPDATE SKIP LOCKED
		) AS l;
		IF r.mode = 'x' AND locked < look.stale OR r.mode = 'p' AND look.taken + look.stale - locked >= r.permits THEN
			RETURN;
		END IF;
	END IF;
	IF r.mode <> 'x' THEN
		-- A former lease of this owner that somebody renews may become held again. An owner has at most one.
		SELECT count(*) INTO own FROM lease_lock WHERE resource = r.resource AND slot > 0 AND owner = r.owner;
		SELECT count(*) INTO locked FROM (
			SELECT FROM lease_lock WHERE resource = r.resource AND slot > 0 AND owner = r.owner FOR UPDATE SKIP LOCKED
		) AS l;
		IF locked < own THEN
			RETURN;
		END IF;
		seat := _lease_seat(r, now, r.mode = 'p' AND look.taken + look.stale >= r.permits);
		IF seat IS NULL THEN
			RETURN;
		END IF;
	END IF;
	outcome := _lease_write(r, seat, look.last_token, now);
END $$;

/* One try. A refusal gives back what was locked: the subtransaction is rolled back. */
CREATE OR REPLACE FUNCTION _lease_try(r _lease_request, OUT outcome _lease_outcome)
	LANGUAGE plpgsql AS $$
BEGIN
	outcome := (_lease_look(r, clock_timestamp())).refusal;
	IF outcome.reason IS NULL THEN
		BEGIN
			outcome := _lease_grant(r);
			IF NOT outcome.granted THEN
				RAISE SQLSTATE 'LEASE';
			END IF;
		EXCEPTION WHEN SQLSTATE 'LEASE' THEN
			NULL;						-- what was assigned stays
		END;
	END IF;
	IF outcome.reason = 'own' AND r.if_own <> 'refuse' THEN
		outcome := _lease_reacquire(r, outcome);
	END IF;
END $$;

/* Try each of the resources in turn. */
CREATE OR REPLACE FUNCTION _lease_try_any(r _lease_request, resources text[], OUT outcome _lease_outcome)
	LANGUAGE plpgsql AS $$
BEGIN
	FOREACH r.resource IN ARRAY resources LOOP
		outcome := _lease_try(r);
		outcome.resource := r.resource;
		EXIT WHEN outcome.granted;
	END LOOP;
END $$;

/* --- Waiting ------------------------------------------------------------ */

/* Does each statement of the transaction see what the first one saw? */
CREATE OR REPLACE FUNCTION _lease_snapshot_stays() RETURNS bool
	LANGUAGE sql STABLE AS $$ SELECT current_setting('transaction_isolation') IN ('repeatable read', 'serializable') $$;

CREATE OR REPLACE FUNCTION _lease_require_fresh_looks() RETURNS void
	LANGUAGE plpgsql AS $$
BEGIN
	IF _lease_snapshot_stays() THEN
		RAISE feature_not_supported USING
			MESSAGE = 'a lease cannot be waited for at isolation level ' || current_setting('transaction_isolation'),
			DETAIL = 'The snapshot of the transaction would never show that the lease became free.',
			HINT = 'Wait at READ COMMITTED, or try without a wait.';
	END IF;
END $$;

/* The seconds that are left. Before version 17, an infinite time cannot be subtracted from. */
CREATE OR REPLACE FUNCTION _lease_left(until timestamptz) RETURNS float8
	LANGUAGE sql VOLATILE AS $$
	SELECT CASE WHEN until = 'infinity' THEN 'infinity' ELSE extract(epoch FROM until - clock_timestamp())::float8 END
$$;

/* Milliseconds; 0 is no limit. */
CREATE OR REPLACE FUNCTION _lease_lock_timeout() RETURNS int8
	LANGUAGE sql STABLE AS $$ SELECT (extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)::int8 $$;

/* For lock_timeout: not 0, which is no limit. */
CREATE OR REPLACE FUNCTION _lease_milliseconds(until timestamptz) RETURNS int8
	LANGUAGE sql VOLATILE AS $$
	SELECT CASE WHEN until IS NOT NULL THEN least(greatest(_lease_left(until) * 1000, 1), 2147483647)::int8 END
$$;

/*
 * Wait in the line of a resource: an advisory lock, which its first waiter has.
 * The lock manager grants it in the order of arrival, and lock_timeout ends the
 * wait for it. Returns false if the wait was over first. timeout is when the
 * lock_timeout of the caller is over, or NULL.
 */
CREATE OR REPLACE FUNCTION _lease_line_up(resource text, until timestamptz, timeout timestamptz) RETURNS bool
	LANGUAGE plpgsql AS $$
DECLARE
	callers text = current_setting('lock_timeout');
BEGIN
	PERFORM set_config('lock_timeout', _lease_milliseconds(least(until, timeout))::text, true);
	PERFORM pg_advisory_xact_lock(_lease_key(2, resource));
	PERFORM set_config('lock_timeout', callers, true);
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	IF timeout <= until THEN
		RAISE;
	END IF;
	RETURN false;
END $$;

/*
 * A look of a caller that is not the first in the line. Its owner may be granted a
 * lease again that it has, but no other one, since others wait: then it is open.
 */
CREATE OR REPLACE FUNCTION _lease_look_aside(r _lease_request, OUT outcome _lease_outcome)
	LANGUAGE plpgsql AS $$
BEGIN
	outcome := (_lease_look(r, clock_timestamp())).refusal;
	IF outcome.reason IS NULL THEN
		outcome := ROW(false, NULL, NULL, NULL, 'open', NULL, NULL, NULL);
	ELSIF outcome.reason = 'own' AND r.if_own <> 'refuse' THEN
		outcome := _lease_reacquire(r, outcome);
	END IF;
END $$;

/* Does the owner have a lease on the resource? Whatever a look says: another transaction may have locked it for a moment. */
CREATE OR REPLACE FUNCTION _lease_is_own(r _lease_request) RETURNS bool
	LANGUAGE sql VOLATILE AS $$
	SELECT EXISTS (SELECT FROM lease_lock WHERE resource = r.resource AND owner = r.owner AND expires_at > clock_timestamp())
$$;

/*
 * Has this transaction granted, ended, renewed or asserted a lease on the resource?
 * Then others may wait for its end: it must not wait in their line. (The system
 * columns do not tell what it did in a savepoint, or beside another assertion.)
 */
CREATE OR REPLACE FUNCTION _lease_is_changed_here(resource text) RETURNS bool
	LANGUAGE sql VOLATILE AS $$
	SELECT EXISTS (SELECT FROM lease_lock AS l, pg_current_xact_id_if_assigned() AS x
		WHERE l.resource = $1 COLLATE "C" AND (l.xid = x OR l.xmin = x::xid OR l.xmax = x::xid))
$$;

/* Does somebody wait in the line? The lock that this takes is given back. */
CREATE OR REPLACE FUNCTION _lease_has_line(resource text) RETURNS bool
	LANGUAGE plpgsql AS $$
DECLARE
	is_free bool;
BEGIN
	is_free := pg_try_advisory_xact_lock(_lease_key(2, resource));
	RAISE SQLSTATE 'LEASE';
EXCEPTION WHEN SQLSTATE 'LEASE' THEN
	RETURN NOT is_free;
END $$;

/*
 * Try until one of the leases is granted, or the wait is over. Waiters for one
 * lease take turns; of these, the first looks again after 2 to 100 ms. A wait
 * that ends without a lease gives the place in the line back: its
 * subtransaction is rolled back. lock_timeout ends it, although it sleeps.
 *
 * An owner that has the lease itself stands aside, since others can be granted
 * what it cannot. When that changes, the function returns, and is called again.
 */
CREATE OR REPLACE FUNCTION _lease_wait_any(r _lease_request, resources text[], until timestamptz, timeout timestamptz, INOUT outcome _lease_outcome)
	LANGUAGE plpgsql AS $$
DECLARE
	alone bool = cardinality(resources) = 1;
	in_line bool;
	aside bool;
	pause float8 = 0.002;
	remaining float8;
BEGIN
	r.resource := resources[1];
	aside := alone AND _lease_is_own(r);
	in_line := alone AND NOT aside AND NOT _lease_is_changed_here(r.resource);
	IF NOT in_line OR _lease_line_up(r.resource, until, timeout) THEN
		LOOP
			outcome := CASE WHEN aside THEN _lease_look_aside(r) ELSE _lease_try_any(r, resources) END;
			remaining := _lease_left(until);
			EXIT WHEN outcome.granted OR remaining <= 0 OR alone AND _lease_is_own(r) <> aside;
			IF timeout <= clock_timestamp() THEN
				RAISE lock_not_available USING MESSAGE = 'canceling statement due to lock timeout';
			END IF;
			PERFORM pg_sleep(least(pause, remaining, _lease_left(timeout)));
			pause := least(pause * 1.5, 0.1);
		END LOOP;
	ELSE
		outcome := _lease_look_aside(r);	-- others have waited for longer
	END IF;
	IF NOT outcome.granted THEN
		RAISE SQLSTATE 'LEASE';
	END IF;
EXCEPTION WHEN SQLSTATE 'LEASE' THEN
	NULL;
END $$;

/* Acquire the first of the leases that is free. wait is NULL for a wait without limit. */
CREATE OR REPLACE FUNCTION _lease_acquire(r _lease_request, resources text[], wait interval, OUT outcome _lease_outcome)
	LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz = coalesce(clock_timestamp() + wait, 'infinity');
	timeout timestamptz = clock_timestamp() + nullif(_lease_lock_timeout(), 0) * interval '1 ms';
BEGIN
	IF current_setting('transaction_read_only')::bool THEN
		PERFORM _lease_require_writable('acquire');	-- which fails: a call for each try would slow it down
	END IF;
	r.role := _lease_caller();
	IF r.role IS NULL THEN
		RAISE undefined_object USING
			MESSAGE = format('role "%s" does not exist any more', _lease_shown(current_setting('role'))),
			HINT = 'It was renamed or dropped. SET ROLE again.';
	END IF;
	IF wait IS DISTINCT FROM '0' AND cardinality(resources) = 1 AND NOT _lease_snapshot_stays()
		AND NOT _lease_is_changed_here(resources[1]) AND _lease_has_line(resources[1]) THEN
		outcome := _lease_look_aside(r);
	ELSE
		outcome := _lease_try_any(r, resources);
	END IF;
	IF NOT outcome.granted AND wait IS DISTINCT FROM '0' THEN
		PERFORM _lease_require_fresh_looks();
		LOOP
			outcome := _lease_wait_any(r, resources, until, timeout, outcome);
			EXIT WHEN outcome.granted OR _lease_left(until) <= 0;
		END LOOP;
	END IF;
	IF outcome.granted THEN			-- only then: it takes a fifth of the time of a refused try
		PERFORM _lease_refuse_code_of_others();
	END IF;
END $$;

/* --- The functions that acquire ------------------------------------------ */

CREATE OR REPLACE FUNCTION lease_request(
		resource text, ttl interval, owner text, wait interval DEFAULT '0',
		mode text DEFAULT 'exclusive', permits int DEFAULT NULL, if_own text DEFAULT 'refuse',
		min_hold interval DEFAULT NULL, payload jsonb DEFAULT NULL, session bool DEFAULT false,
		OUT granted bool, OUT token int8, OUT expires_at timestamptz, OUT waited interval,
		OUT blocked_by text, OUT blocked_for interval, OUT reason text)
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
DECLARE
	begun timestamptz = clock_timestamp();
	outcome _lease_outcome;
	r _lease_request;
BEGIN
	PERFORM _lease_check_name('resource', resource), _lease_check_name('owner', owner);
	wait := _lease_check_span('wait for', resource, wait);
	IF session IS NULL THEN
		RAISE null_value_not_allowed USING
			MESSAGE = format('session for the lease on "%s" must not be null', _lease_shown(resource)),
			HINT = 'Leave it out.';
	ELSIF session THEN
		RAISE feature_not_supported USING
			MESSAGE = 'the portable edition of lease_lock has no leases that end with their session',
			HINT = 'Give a ttl, and renew the lease.';
	END IF;
	ttl := _lease_check_ttl(resource, ttl);
	PERFORM _lease_check_word('mode of', resource, mode, '{exclusive,shared,permit}', 'The modes are exclusive, shared and permit.');
	IF mode = 'permit' COLLATE "C" THEN
		PERFORM _lease_check_permits(resource, permits);
	ELSIF permits IS NOT NULL THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('number of permits for "%s" can be given only with mode permit', _lease_shown(resource)),
			HINT = 'Leave it out, or use mode permit.';
	END IF;
	PERFORM _lease_check_word('if_own for', resource, if_own, '{refuse,renew,count}', 'Give refuse, renew or count.');
	r := ROW(resource, owner, ttl, left(replace(mode COLLATE "C", 'exclusive', 'x'), 1)::"char", coalesce(permits, 32767), if_own,
		_lease_check_span('min_hold of', resource, min_hold), payload, NULL);
	outcome := _lease_acquire(r, ARRAY[resource], wait);
	IF outcome.blocked_by IS NOT NULL THEN
		PERFORM _lease_refuse_code_of_others();
	END IF;
	granted := outcome.granted;
	token := outcome.token;
	expires_at := CASE WHEN outcome.expires_at >= '10000-01-01 00:00:00+00' THEN 'infinity' ELSE outcome.expires_at END;
	-- Not more than the time until the ttl began: a client adds it to the time of its request.
	waited := greatest(coalesce(outcome.granted_at, clock_timestamp()) - begun, '0');
	blocked_by := outcome.blocked_by;
	blocked_for := CASE WHEN outcome.held_until < 'infinity' THEN greatest(outcome.held_until - clock_timestamp(), '0') END;
	reason := outcome.reason;
END $$;
COMMENT ON FUNCTION lease_request(text, interval, text, interval, text, int, text, interval, jsonb, bool) IS
	'acquire a lease of any mode with all options; returns whether it was granted, and if not, what blocks it';

CREATE OR REPLACE FUNCTION lease_acquire(resource text, ttl interval, owner text, wait interval) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
BEGIN
	PERFORM _lease_check_name('resource', resource);
	ttl := _lease_check_ttl(resource, ttl);
	PERFORM _lease_check_name('owner', owner);
	RETURN (_lease_acquire(ROW(resource, owner, ttl, 'x', 1, 'refuse', NULL, NULL, NULL), ARRAY[resource],
		_lease_check_span('wait for', resource, wait))).granted;
END $$;
COMMENT ON FUNCTION lease_acquire(text, interval, text, interval) IS
	'acquire an exclusive lease, waiting for at most wait, or without limit if wait is NULL; true when granted';

CREATE OR REPLACE FUNCTION lease_acquire(resource text, ttl interval, owner text) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$ BEGIN RETURN lease_acquire(resource, ttl, owner, '0'); END $$;
COMMENT ON FUNCTION lease_acquire(text, interval, text) IS
	'acquire an exclusive lease unless it is held, without waiting; true when granted';

CREATE OR REPLACE FUNCTION lease_acquire_shared(resource text, ttl interval, owner text, wait interval) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
BEGIN
	PERFORM _lease_check_name('resource', resource);
	ttl := _lease_check_ttl(resource, ttl);
	PERFORM _lease_check_name('owner', owner);
	RETURN (_lease_acquire(ROW(resource, owner, ttl, 's', 32767, 'refuse', NULL, NULL, NULL), ARRAY[resource],
		_lease_check_span('wait for', resource, wait))).granted;
END $$;
COMMENT ON FUNCTION lease_acquire_shared(text, interval, text, interval) IS
	'acquire a lease beside others that share the resource, waiting for at most wait, or without limit if wait is NULL; true when granted';

CREATE OR REPLACE FUNCTION lease_acquire_shared(resource text, ttl interval, owner text) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$ BEGIN RETURN lease_acquire_shared(resource, ttl, owner, '0'); END $$;
COMMENT ON FUNCTION lease_acquire_shared(text, interval, text) IS
	'acquire a lease beside others that share the resource, unless it is held exclusively, without waiting; true when granted';

CREATE OR REPLACE FUNCTION lease_acquire_permit(resource text, permits int, ttl interval, owner text, wait interval) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
BEGIN
	PERFORM _lease_check_name('resource', resource), _lease_check_permits(resource, permits);
	ttl := _lease_check_ttl(resource, ttl);
	PERFORM _lease_check_name('owner', owner);
	RETURN (_lease_acquire(ROW(resource, owner, ttl, 'p', permits, 'refuse', NULL, NULL, NULL), ARRAY[resource],
		_lease_check_span('wait for', resource, wait))).granted;
END $$;
COMMENT ON FUNCTION lease_acquire_permit(text, int, interval, text, interval) IS
	'acquire one of a number of permits, waiting for at most wait, or without limit if wait is NULL; true when granted';

CREATE OR REPLACE FUNCTION lease_acquire_permit(resource text, permits int, ttl interval, owner text) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$ BEGIN RETURN lease_acquire_permit(resource, permits, ttl, owner, '0'); END $$;
COMMENT ON FUNCTION lease_acquire_permit(text, int, interval, text) IS
	'acquire one of a number of permits, without waiting; true when granted';

CREATE OR REPLACE FUNCTION lease_acquire_any(resources text[], ttl interval, owner text, wait interval) RETURNS text
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
DECLARE
	outcome _lease_outcome;
BEGIN
	PERFORM _lease_check_resources(resources);
	resources := ARRAY(SELECT unnest(resources));	-- whatever its first subscript was
	ttl := _lease_check_ttl(resources[1], ttl);
	PERFORM _lease_check_name('owner', owner);
	outcome := _lease_acquire(ROW(NULL, owner, ttl, 'x', 1, 'refuse', NULL, NULL, NULL), resources, _lease_check_span('wait for', resources[1], wait));
	RETURN CASE WHEN outcome.granted THEN outcome.resource END;
END $$;
COMMENT ON FUNCTION lease_acquire_any(text[], interval, text, interval) IS
	'acquire the lease on the first of these resources that is free, waiting for at most wait, or without limit if wait is NULL; the name of that resource, or NULL';

CREATE OR REPLACE FUNCTION lease_acquire_any(resources text[], ttl interval, owner text) RETURNS text
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$ BEGIN RETURN lease_acquire_any(resources, ttl, owner, '0'); END $$;
COMMENT ON FUNCTION lease_acquire_any(text[], interval, text) IS
	'acquire the lease on the first of these resources that is free, without waiting; the name of that resource, or NULL';

/*
 * One after the other, in the order of their names, so that two calls cannot
 * block each other. The ttl of all leases begins when the last one is granted.
 */
CREATE OR REPLACE FUNCTION lease_acquire_all(resources text[], ttl interval, owner text, wait interval) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
DECLARE
	until timestamptz;
	now timestamptz;
	name text;
	waits bool = wait IS DISTINCT FROM '0';
BEGIN
	PERFORM _lease_check_resources(resources);
	ttl := _lease_check_ttl(resources[1], ttl);
	PERFORM _lease_check_name('owner', owner);
	until := clock_timestamp() + _lease_check_span('wait for', resources[1], wait);
	BEGIN
		FOR name IN SELECT r COLLATE "C" FROM unnest(resources) AS r ORDER BY 1 LOOP
			wait := CASE WHEN wait > '0' THEN greatest(until - clock_timestamp(), '0') ELSE wait END;
			IF NOT (_lease_acquire(ROW(name, owner, ttl, 'x', 1, 'refuse', NULL, NULL, NULL), ARRAY[name], wait)).granted THEN
				RAISE SQLSTATE 'LEASE';
			END IF;
		END LOOP;
		now := clock_timestamp();
		UPDATE lease_lock AS l SET expires_at = now + ttl
		WHERE l.resource = ANY (resources COLLATE "C") AND l.slot = 0 AND l.expires_at < now + ttl AND waits;
	EXCEPTION WHEN SQLSTATE 'LEASE' THEN
		RETURN false;
	END;
	RETURN true;
END $$;
COMMENT ON FUNCTION lease_acquire_all(text[], interval, text, interval) IS
	'acquire the leases on all of these resources or on none, waiting for at most wait, or without limit if wait is NULL; true when granted';

CREATE OR REPLACE FUNCTION lease_acquire_all(resources text[], ttl interval, owner text) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$ BEGIN RETURN lease_acquire_all(resources, ttl, owner, '0'); END $$;
COMMENT ON FUNCTION lease_acquire_all(text[], interval, text) IS
	'acquire the leases on all of these resources or on none, without waiting; true when granted';

/*
 * A procedure that commits can have neither SECURITY DEFINER nor a search_path
 * of its own. So this text names the schema.
 */
DO $do$
BEGIN
	EXECUTE format($ddl$
		CREATE OR REPLACE PROCEDURE lease_wait(resource text, ttl interval, owner text, wait interval,
				INOUT acquired bool DEFAULT NULL, INOUT token int8 DEFAULT NULL, INOUT expires_at timestamptz DEFAULT NULL,
				mode text DEFAULT 'exclusive', permits int DEFAULT NULL, if_own text DEFAULT 'refuse',
				min_hold interval DEFAULT NULL, payload jsonb DEFAULT NULL, session bool DEFAULT false)
			LANGUAGE plpgsql AS $$
		DECLARE
			until pg_catalog.timestamptz;
			pause pg_catalog.float8 := 0.01;
			remaining pg_catalog.float8;
		BEGIN
			PERFORM %1$I._lease_require_wait(resource, wait);
			until := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) wait;
			LOOP
				SELECT r.granted, r.token, r.expires_at INTO acquired, token, expires_at
				FROM %1$I.lease_request(resource, ttl, owner, '0', mode, permits, if_own, min_hold, payload, session) AS r;
				remaining := CASE WHEN wait IS NULL THEN 'infinity'
					ELSE pg_catalog.date_part('epoch', until OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()) END;
				EXIT WHEN acquired OR remaining OPERATOR(pg_catalog.<=) 0;
				COMMIT;
				PERFORM pg_catalog.pg_sleep(LEAST(pause, remaining));
				pause := LEAST(pause OPERATOR(pg_catalog.*) 1.5::pg_catalog.float8, 0.1);
			END LOOP;
		END $$
	$ddl$, current_schema());
END $do$;
COMMENT ON PROCEDURE lease_wait(text, interval, text, interval, bool, int8, timestamptz, text, int, text, interval, jsonb, bool) IS
	'acquire a lease of any mode with all options of lease_request, but wait without a snapshot, committing before each sleep; waiters have no order';

CREATE OR REPLACE FUNCTION _lease_require_wait(resource text, wait interval) RETURNS void
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
BEGIN
	PERFORM _lease_check_name('resource', resource), _lease_check_span('wait for', resource, wait);
END $$;

/* --- The functions of a holder -------------------------------------------- */

/*
 * No lease of that owner or token was found and locked: is there one all the same?
 * A transaction that was waited for may have granted it in another row. In a
 * snapshot that stays, a row that was written since fails with 40001.
 */
CREATE OR REPLACE FUNCTION _lease_is_there(the_resource text, the_owner text, the_token int8, ends bool) RETURNS bool
	LANGUAGE plpgsql AS $$
BEGIN
	IF _lease_snapshot_stays() THEN
		BEGIN
			PERFORM FROM lease_lock
			WHERE resource = the_resource COLLATE "C" AND owner = coalesce(the_owner, owner) COLLATE "C" AND token = coalesce(the_token, token) FOR SHARE;
			RAISE SQLSTATE 'LEASE';
		EXCEPTION WHEN SQLSTATE 'LEASE' THEN
			RETURN false;
		END;
	END IF;
	RETURN EXISTS (SELECT FROM lease_lock
		WHERE resource = the_resource COLLATE "C" AND owner = coalesce(the_owner, owner) COLLATE "C" AND token = coalesce(the_token, token)
			AND (ends OR expires_at > clock_timestamp()));
END $$;

/*
 * Find the lease of an owner, and lock its row. It waits for a transaction that
 * changes or asserts the lease, and finds what that transaction left. After an
 * expiry an owner may have several leases on a resource: then the one that it
 * holds counts, else the latest.
 */
CREATE OR REPLACE FUNCTION _lease_find(the_resource text, the_owner text, the_token int8, ends bool) RETURNS lease_lock
	LANGUAGE plpgsql AS $$
DECLARE
	l lease_lock;
BEGIN
	PERFORM _lease_check_name('resource', the_resource), _lease_check_name('owner', the_owner), _lease_refuse_code_of_others();
	LOOP
		IF ends THEN
			SELECT * INTO l FROM lease_lock
			WHERE resource = the_resource COLLATE "C" AND owner = the_owner COLLATE "C" AND token = coalesce(the_token, token)
			ORDER BY expires_at > clock_timestamp() DESC, token DESC LIMIT 1 FOR UPDATE;
		ELSE
			SELECT * INTO l FROM lease_lock
			WHERE resource = the_resource COLLATE "C" AND owner = the_owner COLLATE "C" AND token = coalesce(the_token, token) AND expires_at > clock_timestamp()
			FOR NO KEY UPDATE;
		END IF;
		EXIT WHEN FOUND OR NOT _lease_is_there(the_resource, the_owner, the_token, ends);
	END LOOP;
	IF l.resource IS NOT NULL THEN
		PERFORM _lease_require_rights(l);
	ELSIF NOT ends THEN
		PERFORM _lease_require_rights_of_ended(the_resource, the_owner, the_token);
	END IF;
	IF NOT ends AND l.expires_at <= clock_timestamp() THEN
		l := NULL;				-- it expired while this call waited
	END IF;
	RETURN l;
END $$;

/* No lease is held: one that has ended is as much its role's as one that is held. */
CREATE OR REPLACE FUNCTION _lease_require_rights_of_ended(the_resource text, the_owner text, the_token int8) RETURNS void
	LANGUAGE plpgsql AS $$
DECLARE
	l lease_lock;
BEGIN
	SELECT * INTO l FROM lease_lock
	WHERE resource = the_resource COLLATE "C" AND owner = the_owner COLLATE "C" AND token = coalesce(the_token, token)
	ORDER BY token DESC LIMIT 1;
	IF FOUND THEN
		PERFORM _lease_require_rights(l);
	END IF;
END $$;

CREATE OR REPLACE FUNCTION _lease_require_token(resource text, token int8) RETURNS void
	LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF token IS NULL THEN
		RAISE null_value_not_allowed USING
			MESSAGE = format('token of the lease on "%s" must not be null', _lease_shown(resource)),
			HINT = 'lease_token() returns null if that owner does not hold the lease.';
	END IF;
END $$;

/* End a lease. One that is released in time is kept as long as min_hold says. */
CREATE OR REPLACE FUNCTION _lease_end(l lease_lock, of_all bool) RETURNS bool
	LANGUAGE plpgsql AS $$
DECLARE
	now timestamptz = clock_timestamp();
	held bool = l.expires_at > now;
BEGIN
	IF l.holds > 1 AND held AND NOT of_all THEN
		UPDATE lease_lock SET holds = holds - 1 WHERE resource = l.resource AND slot = l.slot;
	ELSE
		UPDATE lease_lock SET owner = NULL, hold_until = NULL, payload = NULL,
			expires_at = CASE WHEN held THEN greatest(now, l.hold_until) ELSE l.expires_at END
		WHERE resource = l.resource AND slot = l.slot;
	END IF;
	RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION lease_release(resource text, owner text) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
DECLARE
	l lease_lock = _lease_find(resource, owner, NULL, true);
BEGIN
	RETURN l.resource IS NOT NULL AND _lease_end(l, false);
END $$;
COMMENT ON FUNCTION lease_release(text, text) IS 'release a lease of this owner, unless it was taken over; true when released';

CREATE OR REPLACE FUNCTION lease_release(resource text, owner text, token int8) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
DECLARE
	l lease_lock;
BEGIN
	PERFORM _lease_check_name('resource', resource), _lease_check_name('owner', owner), _lease_require_token(resource, token);
	l := _lease_find(resource, owner, token, true);
	RETURN l.resource IS NOT NULL AND _lease_end(l, false);
END $$;
COMMENT ON FUNCTION lease_release(text, text, int8) IS
	'release the lease of this owner with this token, unless it was taken over; true when released';

/* The leases of an owner that the caller may act on. It reads the whole table. */
CREATE OR REPLACE FUNCTION _lease_of_owner(the_owner text) RETURNS SETOF lease_lock
	LANGUAGE sql AS $$
	SELECT * FROM lease_lock WHERE owner = the_owner COLLATE "C" AND _lease_may_act(role) ORDER BY resource, slot
$$;

CREATE OR REPLACE FUNCTION lease_release_all(owner text) RETURNS int8
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
DECLARE
	l lease_lock;
	found_now lease_lock;
	released int8 = 0;
BEGIN
	PERFORM _lease_check_name('owner', owner), _lease_require_writable('release');
	FOR l IN SELECT * FROM _lease_of_owner(owner) LOOP
		found_now := _lease_find(l.resource, owner, l.token, true);
		IF found_now.resource IS NOT NULL AND _lease_end(found_now, true) THEN
			released := released + 1;
		END IF;
	END LOOP;
	RETURN released;
END $$;
COMMENT ON FUNCTION lease_release_all(text) IS 'release every lease of this owner; returns how many';

CREATE OR REPLACE FUNCTION _lease_renew(resource text, ttl interval, owner text, token int8) RETURNS bool
	LANGUAGE plpgsql AS $$
DECLARE
	l lease_lock = _lease_find(resource, owner, token, false);
BEGIN
	UPDATE lease_lock AS r SET expires_at = greatest(r.expires_at, clock_timestamp() + ttl)
	WHERE r.resource = l.resource AND r.slot = l.slot;
	RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION lease_renew(resource text, ttl interval, owner text) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
BEGIN
	PERFORM _lease_check_name('resource', resource);
	RETURN _lease_renew(resource, _lease_check_ttl(resource, ttl), owner, NULL);
END $$;
COMMENT ON FUNCTION lease_renew(text, interval, text) IS
	'extend a lease that this owner still holds to at least ttl from now; true when it is held';

CREATE OR REPLACE FUNCTION lease_renew(resource text, ttl interval, owner text, token int8) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
BEGIN
	PERFORM _lease_check_name('resource', resource);
	ttl := _lease_check_ttl(resource, ttl);
	PERFORM _lease_check_name('owner', owner), _lease_require_token(resource, token);
	RETURN _lease_renew(resource, ttl, owner, token);
END $$;
COMMENT ON FUNCTION lease_renew(text, interval, text, int8) IS
	'extend a lease that this owner still holds with this token to at least ttl from now; true when it is held';

CREATE OR REPLACE FUNCTION lease_renew_several(resources text[], ttl interval, owner text) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
DECLARE
	name text;
BEGIN
	PERFORM _lease_check_resources(resources);
	ttl := _lease_check_ttl(resources[1], ttl);
	PERFORM _lease_check_name('owner', owner);
	FOR name IN SELECT r COLLATE "C" FROM unnest(resources) AS r ORDER BY 1 LOOP
		IF NOT _lease_renew(name, ttl, owner, NULL) THEN
			RAISE SQLSTATE 'LEASE';
		END IF;
	END LOOP;
	RETURN true;
EXCEPTION WHEN SQLSTATE 'LEASE' THEN
	RETURN false;
END $$;
COMMENT ON FUNCTION lease_renew_several(text[], interval, text) IS
	'extend the leases on all of these resources to at least ttl from now, or none; true when this owner holds all of them';

CREATE OR REPLACE FUNCTION lease_renew_all(ttl interval, owner text) RETURNS int8
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
DECLARE
	l lease_lock;
	renewed int8 = 0;
BEGIN
	PERFORM _lease_check_name('owner', owner);
	ttl := _lease_check_ttl(NULL, ttl);
	PERFORM _lease_require_writable('renew');
	FOR l IN SELECT * FROM _lease_of_owner(owner) LOOP
		renewed := renewed + _lease_renew(l.resource, ttl, owner, l.token)::int;
	END LOOP;
	RETURN renewed;
END $$;
COMMENT ON FUNCTION lease_renew_all(interval, text) IS
	'extend every lease that this owner holds to at least ttl from now; returns how many';

CREATE OR REPLACE FUNCTION lease_set_payload(resource text, owner text, payload jsonb) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
DECLARE
	l lease_lock = _lease_find(resource, owner, NULL, false);
BEGIN
	UPDATE lease_lock AS r SET payload = lease_set_payload.payload WHERE r.resource = l.resource AND r.slot = l.slot;
	RETURN FOUND;
END $$;
COMMENT ON FUNCTION lease_set_payload(text, text, jsonb) IS
	'replace the payload of a lease that this owner holds, or remove it if the new one is NULL; true when the lease is held';

CREATE OR REPLACE FUNCTION lease_token(resource text, owner text) RETURNS int8
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
BEGIN
	PERFORM _lease_check_name('resource', resource), _lease_check_name('owner', owner);
	RETURN (SELECT l.token FROM lease_lock AS l
		WHERE l.resource = lease_token.resource COLLATE "C" AND l.owner = lease_token.owner COLLATE "C" AND l.expires_at > clock_timestamp());
END $$;
COMMENT ON FUNCTION lease_token(text, text) IS
	'fencing token of a lease that this owner holds, NULL if it does not hold it';

CREATE OR REPLACE FUNCTION _lease_refuse_second(l lease_lock, new_owner text) RETURNS void
	LANGUAGE plpgsql AS $$
BEGIN
	IF new_owner <> l.owner COLLATE "C" AND EXISTS (SELECT FROM lease_lock AS o
			WHERE o.resource = l.resource AND o.owner = new_owner COLLATE "C" AND o.expires_at > clock_timestamp()) THEN
		RAISE object_in_use USING
			MESSAGE = format('new owner already has a lease on "%s"', _lease_shown(l.resource)),
			HINT = 'An owner has at most one lease on a resource.';
	END IF;
END $$;

/*
 * The lease gets a new token, so slot 0, which has the last one, is locked
 * first, as by a grant; but not by somebody who has no lease there. If the lease
 * ends meanwhile, that lock is given back.
 */
CREATE OR REPLACE FUNCTION lease_transfer(resource text, owner text, new_owner text) RETURNS int8
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
DECLARE
	l lease_lock;
	now timestamptz;
BEGIN
	PERFORM _lease_check_name('resource', resource), _lease_check_name('owner', owner), _lease_check_name('new owner', new_owner),
		_lease_require_writable('transfer');
	SELECT * INTO l FROM lease_lock AS t
	WHERE t.resource = lease_transfer.resource COLLATE "C" AND t.owner = lease_transfer.owner COLLATE "C" AND t.expires_at > clock_timestamp();
	IF NOT FOUND THEN
		PERFORM _lease_is_there(resource, owner, NULL, false);	-- in a snapshot that stays
		PERFORM _lease_require_rights_of_ended(resource, owner, NULL);
		RETURN NULL;
	END IF;
	PERFORM _lease_require_rights(l);
	PERFORM FROM lease_lock AS t WHERE t.resource = l.resource AND t.slot = 0 FOR UPDATE;
	l := _lease_find(resource, owner, NULL, true);
	PERFORM _lease_refuse_second(l, new_owner);
	-- A former lease of the new owner that somebody renews may become held again: it is waited for, and looked at once more.
	PERFORM FROM lease_lock AS t WHERE t.resource = l.resource AND t.owner = new_owner COLLATE "C" FOR NO KEY UPDATE;
	now := clock_timestamp();
	IF l.resource IS NULL OR l.expires_at <= now THEN
		RAISE SQLSTATE 'LEASE';
	END IF;
	PERFORM _lease_refuse_second(l, new_owner);
	l.token := _lease_next_token((SELECT max(t.token) FROM lease_lock AS t WHERE t.resource = l.resource), now);
	UPDATE lease_lock AS t SET token = l.token WHERE t.resource = l.resource AND t.slot IN (0, l.slot) AND (t.slot = l.slot OR t.owner IS NULL);
	UPDATE lease_lock AS t SET owner = new_owner, holds = 1, granted_at = now, xid = pg_current_xact_id()
	WHERE t.resource = l.resource AND t.slot = l.slot;
	RETURN l.token;
EXCEPTION WHEN SQLSTATE 'LEASE' THEN
	RETURN NULL;
END $$;
COMMENT ON FUNCTION lease_transfer(text, text, text) IS
	'transfer a lease that this owner holds to another owner; its new token, NULL if this owner does not hold it';

/* --- Fencing -------------------------------------------------------------- */

CREATE OR REPLACE FUNCTION _lease_refuse_assertion(l lease_lock, the_resource text, claim text) RETURNS void
	LANGUAGE plpgsql AS $$
DECLARE
	other lease_lock;
	seconds text;
BEGIN
	SELECT * INTO other FROM lease_lock
	WHERE resource = the_resource COLLATE "C" AND (expires_at > clock_timestamp() OR slot = 0) ORDER BY expires_at > clock_timestamp() DESC, slot LIMIT 1;
	seconds := to_char(abs(extract(epoch FROM coalesce(l.expires_at, other.expires_at) - clock_timestamp())), 'FM9999999999990.000') || ' seconds';
	RAISE object_not_in_prerequisite_state USING
		MESSAGE = format('lease on "%s" %s', _lease_shown(the_resource), claim),
		DETAIL = CASE
			WHEN l.owner IS NOT NULL THEN format('It expired %s ago.', seconds)
			WHEN other.owner IS NULL THEN 'Nobody holds it.'
			WHEN other.expires_at <= clock_timestamp() THEN format('Nobody holds it. The lease of another owner expired %s ago.', seconds)
			WHEN _lease_may_act(other.role) OR pg_has_role(_lease_caller(), 'pg_read_all_stats', 'USAGE') THEN
				format('Owner "%s" holds it with token %s for another %s.', _lease_shown(other.owner), other.token, seconds)
			ELSE format('Another owner holds it for another %s.', seconds) END,
		HINT = 'Acquire the lease and repeat the work from the start, because the data may have changed.';
END $$;

/*
 * Is the lease still held, after its row was locked FOR KEY SHARE? If the row was
 * renewed and the lease ended in one transaction, say, the server locks the row as
 * it is now, and returns it as it was. In a snapshot that stays, only a stronger
 * lock shows that: it fails with 40001, or is given back.
 */
CREATE OR REPLACE FUNCTION _lease_is_still(l lease_lock) RETURNS bool
	LANGUAGE plpgsql AS $$
BEGIN
	IF _lease_snapshot_stays() THEN
		BEGIN
			PERFORM FROM lease_lock WHERE resource = l.resource AND slot = l.slot FOR SHARE;
			RAISE SQLSTATE 'LEASE';
		EXCEPTION WHEN SQLSTATE 'LEASE' THEN
			NULL;
		END;
	END IF;
	RETURN EXISTS (SELECT FROM lease_lock
		WHERE resource = l.resource AND slot = l.slot AND owner = l.owner AND token = l.token AND expires_at > clock_timestamp());
END $$;

/*
 * Lock the row of the lease FOR KEY SHARE. Nobody can end or take over the
 * lease until the transaction ends, but it can be renewed.
 */
CREATE OR REPLACE FUNCTION lease_assert(resource text, owner text) RETURNS int8
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
DECLARE
	l lease_lock;
BEGIN
	PERFORM _lease_check_name('resource', resource), _lease_check_name('owner', owner), _lease_refuse_code_of_others();
	LOOP
		SELECT * INTO l FROM lease_lock AS r
		WHERE r.resource = lease_assert.resource COLLATE "C" AND r.owner = lease_assert.owner COLLATE "C" AND r.expires_at > clock_timestamp() FOR KEY SHARE;
		EXIT WHEN CASE WHEN FOUND THEN _lease_is_still(l) ELSE NOT _lease_is_there(resource, owner, NULL, false) END;
	END LOOP;
	IF NOT FOUND THEN
		SELECT * INTO l FROM lease_lock AS r WHERE r.resource = lease_assert.resource COLLATE "C" AND r.owner = lease_assert.owner COLLATE "C" ORDER BY r.token DESC LIMIT 1;
		PERFORM _lease_refuse_assertion(l, resource, format('is not held by owner "%s"', _lease_shown(owner)));
	END IF;
	PERFORM _lease_require_rights(l);
	RETURN l.token;
END $$;
COMMENT ON FUNCTION lease_assert(text, text) IS
	'fail unless this owner holds the lease, and keep it from being lost until the transaction ends; its fencing token';

CREATE OR REPLACE FUNCTION lease_assert_token(resource text, token int8) RETURNS int8
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
DECLARE
	l lease_lock;
BEGIN
	PERFORM _lease_check_name('resource', resource), _lease_require_token(resource, token), _lease_refuse_code_of_others();
	LOOP
		SELECT * INTO l FROM lease_lock AS r
		WHERE r.resource = lease_assert_token.resource COLLATE "C" AND r.token = lease_assert_token.token AND r.owner IS NOT NULL
			AND r.expires_at > clock_timestamp() FOR KEY SHARE;
		EXIT WHEN CASE WHEN FOUND THEN _lease_is_still(l) ELSE NOT _lease_is_there(resource, NULL, token, false) END;
	END LOOP;
	IF NOT FOUND THEN
		SELECT * INTO l FROM lease_lock AS r
		WHERE r.resource = lease_assert_token.resource COLLATE "C" AND r.token = lease_assert_token.token AND r.owner IS NOT NULL;
		PERFORM _lease_refuse_assertion(l, resource, format('with token %s is not held', token));
	END IF;
	PERFORM _lease_require_rights(l);
	RETURN l.token;
END $$;
COMMENT ON FUNCTION lease_assert_token(text, int8) IS
	'fail unless the lease is held with this token, and keep it from being lost until the transaction ends; the token';

/* --- Administration --------------------------------------------------------- */

/*
 * It ends only rows that it has locked: an UPDATE alone would not wait for an
 * assertion. It locks slot 0 first, so that a grant that was open then is seen
 * by the next statement, and none comes between.
 */
CREATE OR REPLACE FUNCTION lease_break(resource text, grace interval DEFAULT '0') RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
DECLARE
	slots int[];
	free_at timestamptz;
BEGIN
	PERFORM _lease_check_name('resource', resource);
	IF grace IS NULL THEN
		RAISE null_value_not_allowed USING
			MESSAGE = format('grace for the lease on "%s" must not be null', _lease_shown(resource)),
			HINT = 'Give an interval of zero to 100000 years.';
	END IF;
	grace := _lease_check_span('grace for', resource, grace);
	PERFORM FROM lease_lock AS l WHERE l.resource = lease_break.resource COLLATE "C" AND l.slot = 0 FOR UPDATE;
	slots := ARRAY(SELECT l.slot FROM lease_lock AS l WHERE l.resource = lease_break.resource COLLATE "C" ORDER BY l.slot FOR UPDATE);
	free_at := clock_timestamp() + grace;
	UPDATE lease_lock AS l SET owner = NULL, hold_until = NULL, payload = NULL, expires_at = least(l.expires_at, free_at)
	WHERE l.resource = lease_break.resource COLLATE "C" AND l.slot = ANY (slots) AND l.expires_at > clock_timestamp();
	RETURN FOUND;
END $$;
COMMENT ON FUNCTION lease_break(text, interval) IS
	'end all leases on a resource, whatever their owners; for the grace, or until they would have ended, they keep out whom they kept out; true when there were any';
REVOKE ALL ON FUNCTION lease_break(text, interval) FROM PUBLIC;

/* Slot 0 stays while the resource has other rows, since it orders the grants. */
CREATE OR REPLACE FUNCTION lease_purge() RETURNS int8
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
DECLARE
	after interval = coalesce(nullif(current_setting('lease_lock.purge_after', true), ''), '1 minute');
	until timestamptz = clock_timestamp() - greatest(after, '0');
	tops text[];
	others int8;
	removed int8;
BEGIN
	-- No grant can begin on a resource whose slot 0 is locked. The next statements see all that have ended.
	tops := ARRAY(SELECT resource FROM lease_lock WHERE slot = 0 AND expires_at <= until FOR UPDATE SKIP LOCKED);
	WITH ended AS (
		SELECT resource, slot FROM lease_lock
		WHERE resource = ANY (tops) AND slot > 0 AND expires_at <= until FOR UPDATE SKIP LOCKED
	)
	DELETE FROM lease_lock AS l USING ended AS e WHERE l.resource = e.resource AND l.slot = e.slot;
	GET DIAGNOSTICS others = ROW_COUNT;
	DELETE FROM lease_lock AS l WHERE l.resource = ANY (tops) AND l.slot = 0
		AND NOT EXISTS (SELECT FROM lease_lock AS s WHERE s.resource = l.resource AND s.slot > 0);
	GET DIAGNOSTICS removed = ROW_COUNT;
	RETURN removed + others;
END $$;
COMMENT ON FUNCTION lease_purge() IS 'remove rows that have been free for lease_lock.purge_after, by default a minute; returns how many';
REVOKE ALL ON FUNCTION lease_purge() FROM PUBLIC;

CREATE OR REPLACE FUNCTION lease_contended(resource text) RETURNS bool
	LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET client_min_messages = notice AS $$
BEGIN
	PERFORM _lease_check_name('resource', resource);
	RETURN NULL;
END $$;
COMMENT ON FUNCTION lease_contended(text) IS 'NULL: the portable edition does not know whether anybody waits for a lease';

/*
 * The owner works like a password for a release. So it is shown only to roles
 * that could release the lease anyway, and to roles that may see the activity
 * of others.
 */
CREATE OR REPLACE VIEW lease_status AS
SELECT
	l.resource,
	l.slot,
	CASE l.mode WHEN 'x' THEN 'exclusive' WHEN 's' THEN 'shared' ELSE 'permit' END AS mode,
	CASE WHEN c.shown THEN l.owner END AS owner,
	l.token,
	CASE WHEN l.owner IS NULL THEN 'released' WHEN l.expires_at > c.now THEN 'held' ELSE 'expired' END AS state,
	CASE WHEN isfinite(l.expires_at) THEN l.expires_at - c.now END AS expires_in,
	l.granted_at,
	CASE WHEN l.expires_at >= '10000-01-01 00:00:00+00' THEN 'infinity' ELSE l.expires_at END AS expires_at,
	CASE WHEN l.owner IS NULL THEN 0 ELSE l.holds END AS holds,
	pg_get_userbyid(l.role) AS role,
	l.xid,
	CASE WHEN c.shown THEN l.payload END AS payload,
	NULL::int4 AS session_pid
FROM lease_lock AS l
	CROSS JOIN LATERAL (
		SELECT clock_timestamp() AS now, pg_has_role(l.role, 'USAGE') OR pg_has_role('pg_read_all_stats', 'USAGE') AS shown
	) AS c
WHERE l.owner IS NOT NULL OR l.expires_at > c.now;
COMMENT ON VIEW lease_status IS
	'leases that were granted and not released, or are kept by min_hold, with their owners and ends';

/*
 * Default privileges may have granted more than PUBLIC has. An update leaves the
 * privileges as they are, but for functions with an underscore: these are parts
 * of the others.
 */
DO $$
DECLARE
	is_new bool = current_setting('lease_portable.is_new');
	part text;
	grantee oid;
BEGIN
	FOR part, grantee IN
		SELECT p.oid::regprocedure::text, a.grantee
		FROM pg_proc AS p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
		WHERE p.pronamespace = current_schema()::regnamespace AND a.grantee <> p.proowner
			AND (p.proname ^@ '_lease_' OR is_new AND a.grantee <> 0)
		UNION
		SELECT c.oid::regclass::text, a.grantee FROM pg_class AS c, aclexplode(c.relacl) AS a
		WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'v') AND a.grantee <> c.relowner AND is_new
	LOOP
		EXECUTE format('REVOKE ALL ON %s %s FROM %s', CASE WHEN right(part, 1) = ')' THEN 'ROUTINE' ELSE 'TABLE' END, part,
			CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE grantee::regrole::text END);
	END LOOP;
	IF NOT current_setting('lease_portable.has_view')::bool THEN
		GRANT SELECT ON lease_status TO PUBLIC;
	END IF;
END $$;
GRANT EXECUTE ON FUNCTION _lease_require_wait(text, interval) TO PUBLIC;

-- A column of such a type, in a table of anybody's, would stand in the way of every later change.
REVOKE USAGE ON TYPE lease_lock, lease_status, _lease_request, _lease_outcome FROM PUBLIC;
