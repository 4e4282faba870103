-- What every_order.pl plays: the states of a resource, the calls, and the points at which the first session
-- stops. Sessions a and b are connections of dblink.

CREATE EXTENSION dblink;

-- Each resource is used once.
CREATE SEQUENCE resources;

CREATE TABLE states (state text, setup text);
INSERT INTO states VALUES
	('never used', ''),
	('released', 'exclusive c; released c'),
	('held by a', 'exclusive a'),
	('held by b', 'exclusive b'),
	('held by c', 'exclusive c'),
	('shared by a', 'shared a'),
	('shared by c', 'shared c'),
	('shared by a and b', 'shared a; shared b'),
	('shared by a, renewed often', 'shared a; shared b; released b' || repeat('; renewed a', 10)),
	('permit of c', 'permit c'),
	('expired, a''s', 'exclusive a; expired a'),
	('expired, c''s', 'exclusive c; expired c'),
	('expired shared, a''s', 'shared a; expired a'),
	('expired shared, c''s', 'shared c; expired c'),
	('expired shared of a beside b''s', 'shared a; expired a; shared b'),
	('expired permits of a and c', 'permit a; permit c; expired a; expired c');

CREATE TABLE calls (call text, is_try boolean);
INSERT INTO calls VALUES
	('exclusive', true), ('shared', true), ('permit', true), ('one more', true),
	('released', false), ('renewed', false), ('asserted', false), ('transferred', false),
	('broken', false), ('downgraded', false), ('purged', false), ('locked', false);

-- Two calls in one transaction, which another one does not see between them.
CREATE TABLE double_calls (call text);
INSERT INTO double_calls VALUES ('renewed, released'), ('renewed, transferred'), ('renewed, renewed'), ('exclusive, released');

CREATE TABLE points (point text);
INSERT INTO points VALUES
	('before an open version is read'), ('in a look'), ('while rows are settled'), ('after a look'),
	('before the resource lock'), ('after the resource lock'), ('before an insert'), ('before an update'),
	('before the resource is unlocked'), ('after the resource was unlocked');

-- Without the setting, no session stops, and a call meets what the other session did before.
CREATE FUNCTION can_stop() RETURNS boolean LANGUAGE sql AS $$
	SELECT EXISTS (SELECT FROM pg_settings WHERE name = 'lease_lock.stop_at');
$$;
CREATE FUNCTION stop_at(session text, point text) RETURNS void LANGUAGE sql AS $$
	SELECT dblink_exec(session, format('SET lease_lock.stop_at = %L', point)) WHERE can_stop();
$$;

-- Make a call on a resource as an owner; the answer.
CREATE FUNCTION make(call text, r text, o text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	CASE call
	WHEN 'nothing' THEN RETURN '';
	WHEN 'exclusive' THEN RETURN lease_acquire(r, '1 h', o);
	WHEN 'shared' THEN RETURN lease_acquire_shared(r, '1 h', o);
	WHEN 'permit' THEN RETURN lease_acquire_permit(r, 2, '1 h', o);
	WHEN 'one more' THEN RETURN granted FROM lease_request(r, '1 h', o, if_own => 'count');
	WHEN 'released' THEN RETURN lease_release(r, o);
	WHEN 'renewed' THEN RETURN lease_renew(r, '2 h', o);
	WHEN 'transferred' THEN RETURN lease_transfer(r, o, 'd') IS NOT NULL;
	WHEN 'broken' THEN RETURN lease_break(r);
	WHEN 'downgraded' THEN RETURN lease_downgrade(r, o) IS NOT NULL;
	WHEN 'purged' THEN PERFORM lease_purge(); RETURN 'any number';
	WHEN 'locked' THEN PERFORM FROM lease_lock WHERE resource = r FOR UPDATE; RETURN true;
	WHEN 'asserted' THEN
		BEGIN
			RETURN lease_assert(r, o) IS NOT NULL;
		EXCEPTION WHEN object_not_in_prerequisite_state THEN
			RETURN false;
		END;
	WHEN 'renewed, released' THEN PERFORM lease_renew(r, '2 h', o); RETURN lease_release(r, o);
	WHEN 'renewed, transferred' THEN PERFORM lease_renew(r, '2 h', o); RETURN lease_transfer(r, o, 'd') IS NOT NULL;
	WHEN 'renewed, renewed' THEN PERFORM lease_renew(r, '2 h', o); RETURN lease_renew(r, '3 h', o);
	WHEN 'exclusive, released' THEN PERFORM lease_acquire(r, '1 h', o); RETURN lease_release(r, o);
	WHEN 'expired' THEN
		UPDATE lease_lock SET expires_at = granted_at WHERE resource = r AND owner = o;
		RETURN true;
	END CASE;
EXCEPTION WHEN object_in_use OR lock_not_available THEN
	RETURN 'in use';
END $$;

CREATE FUNCTION call_of(call text, r text, o text) RETURNS text LANGUAGE sql AS $$
	SELECT format('SELECT make(%L, %L, %L)', call, r, o);
$$;

-- The same by one of the two sessions.
CREATE FUNCTION made_by(session text, call text, r text, o text) RETURNS text LANGUAGE sql AS $$
	SELECT answer FROM dblink(session, call_of(call, r, o)) AS t(answer text);
$$;

-- A resource in this state.
CREATE FUNCTION new_resource(of_state text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	r text := 'r' || nextval('resources');
	step text;
BEGIN
	FOREACH step IN ARRAY regexp_split_to_array((SELECT setup FROM states WHERE state = of_state), '; ') LOOP
		IF step <> '' THEN
			PERFORM made_by('b', split_part(step, ' ', 1), r, split_part(step, ' ', 2));
		END IF;
	END LOOP;
	RETURN r;
END $$;

-- The leases on a resource, and for whom a release answers true. Ends them.
CREATE FUNCTION leases(r text) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
	held text := coalesce(string_agg(format('%s %s, %s times', mode, owner, holds), '; ' ORDER BY mode, owner), 'no lease')
		FROM lease_status WHERE resource = r AND state = 'held';
	released text := '';
	o text;
BEGIN
	FOREACH o IN ARRAY '{a,b,c,d}'::text[] LOOP
		IF lease_release(r, o) THEN
			released := released || o;
		END IF;
	END LOOP;
	RETURN ARRAY[held, released];
END $$;

-- What comes of calls one after the other: their answers, and the leases.
CREATE TABLE known (state text, call1 text, owner1 text, call2 text, owner2 text, outcome text[],
	PRIMARY KEY (state, call1, owner1, call2, owner2));

CREATE FUNCTION serially(s text, c1 text, o1 text, c2 text DEFAULT 'nothing', o2 text DEFAULT '') RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
	result text[] := (SELECT outcome FROM known WHERE (state, call1, owner1, call2, owner2) = (s, c1, o1, c2, o2));
	r text;
BEGIN
	IF result IS NULL THEN
		r := new_resource(s);
		result := ARRAY[made_by('b', c1, r, o1), made_by('b', c2, r, o2)];
		result := result || leases(r);
		INSERT INTO known VALUES (s, c1, o1, c2, o2, result);
	END IF;
	RETURN result;
END $$;

-- Wait until the session has its answer, or waits for a lock; does it wait?
CREATE FUNCTION waits(session text, session_pid int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		IF dblink_is_busy(session) = 0 THEN
			RETURN false;
		END IF;
		IF EXISTS (SELECT FROM pg_locks WHERE pid = session_pid AND NOT granted) THEN
			RETURN true;
		END IF;
		PERFORM pg_sleep(0.0001);
	END LOOP;
END $$;

CREATE FUNCTION answer(session text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	given text := t.answer FROM dblink_get_result(session) AS t(answer text);
BEGIN
	PERFORM * FROM dblink_get_result(session) AS t(answer text);
	RETURN given;
END $$;

-- Let a make its call, and stop at the point. Session b makes its call in a transaction, which it
-- begins before a makes its call and ends while a is stopped ('before'), begins and ends while a
-- is stopped ('between'), or begins then and ends when a is done or waits for it ('across'). But
-- if b has to wait for a, a goes on first. Also tells whether one may have met the other's open transaction, and whether
-- a lease that b asserted is there until b's transaction ends.
CREATE FUNCTION staged(s text, a_call text, stop text, b_call text, b_owner text, b_when text, b_end text, pids int[],
	OUT outcome text[], OUT a_seen_open boolean, OUT b_seen_open boolean, OUT still_asserted boolean)
LANGUAGE plpgsql AS $$
DECLARE
	r text := new_resource(s);
	a_has_written boolean;
	b_waits boolean := false;
	a_goes_on boolean := false;
	answers text[];
BEGIN
	PERFORM stop_at('a', stop);
	PERFORM dblink_exec('b', 'BEGIN');
	IF b_when = 'before' THEN
		answers[2] := made_by('b', b_call, r, b_owner);
	END IF;

	PERFORM pg_advisory_lock(7);
	PERFORM dblink_send_query('a', call_of(a_call, r, 'a'));
	PERFORM waits('a', pids[1]);
	a_has_written := EXISTS (SELECT FROM pg_locks WHERE pid = pids[1] AND locktype = 'transactionid' AND mode = 'ExclusiveLock');
	IF b_when <> 'before' THEN
		PERFORM dblink_send_query('b', call_of(b_call, r, b_owner));
		b_waits := waits('b', pids[2]);
		a_goes_on := b_waits OR b_when = 'across';
		IF a_goes_on THEN
			PERFORM pg_advisory_unlock(7);
		END IF;
		answers[2] := answer('b');
		IF b_when = 'across' THEN
			PERFORM waits('a', pids[1]);
		END IF;
	END IF;
	still_asserted := NOT (b_call = 'asserted' AND answers[2] = 'true')
		OR EXISTS (SELECT FROM lease_status WHERE resource = r AND owner = b_owner AND state = 'held');
	PERFORM dblink_exec('b', b_end);
	IF NOT a_goes_on THEN
		PERFORM pg_advisory_unlock(7);
	END IF;
	answers[1] := answer('a');

	PERFORM stop_at('a', 'nowhere');
	a_seen_open := b_waits OR a_has_written;
	b_seen_open := b_waits OR b_when <> 'between';
	outcome := answers || leases(r);
END $$;

-- Are these the leases? A purge passes over what is in use. A shared lease or permit takes over
-- an expired one, or a row beside it, whichever it finds.
CREATE FUNCTION same_leases(s text, a_call text, b_call text, found text[], expected text[]) RETURNS boolean LANGUAGE sql AS $$
	SELECT found[1] = expected[1] AND (found[2] = expected[2] OR 'purged' IN (a_call, b_call)
		OR (s ~ '^expired (shared|permits)' AND ARRAY['shared', 'permit'] && ARRAY[a_call, b_call]));
$$;

-- Has a call changed anything?
CREATE FUNCTION has_effect(s text, call text, o text) RETURNS boolean LANGUAGE sql AS $$
	SELECT call IN ('purged', 'renewed', 'locked') OR call IN (TABLE double_calls)
		OR (serially(s, call, o))[3:4] <> (serially(s, 'nothing', ''))[3:4];
$$;

-- Is that what the calls do one after the other?
CREATE FUNCTION is_right(s text, a_call text, b_call text, b_owner text, b_end text, outcome text[], a_seen_open boolean, b_seen_open boolean)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	a_then_b text[] := serially(s, a_call, 'a', b_call, b_owner);
	b_then_a text[] := serially(s, b_call, b_owner, a_call, 'a');
	a_alone text[] := serially(s, a_call, 'a');
	b_alone text[] := serially(s, b_call, b_owner);
	untouched text[] := serially(s, 'nothing', '');
	a_refused boolean := outcome[1] = 'in use' OR (outcome[1] = 'false' AND (SELECT is_try FROM calls WHERE call = a_call));
	b_refused boolean := outcome[2] = 'in use' OR (outcome[2] = 'false' AND (SELECT is_try FROM calls WHERE call = b_call));
BEGIN
	IF b_end = 'ROLLBACK' AND outcome[1] = a_alone[1] AND outcome[2] IN (b_alone[1], a_then_b[2])
		AND same_leases(s, a_call, b_call, outcome[3:4], a_alone[3:4]) THEN
		RETURN true;
	ELSIF b_end = 'COMMIT' AND outcome[1:2] = a_then_b[1:2]
		AND same_leases(s, a_call, b_call, outcome[3:4], a_then_b[3:4]) THEN
		RETURN true;
	ELSIF b_end = 'COMMIT' AND outcome[1:2] = ARRAY[b_then_a[2], b_then_a[1]]
		AND same_leases(s, a_call, b_call, outcome[3:4], b_then_a[3:4]) THEN
		RETURN true;
	END IF;

	-- A try is refused while an open transaction changes something.
	IF a_refused AND b_seen_open AND has_effect(s, b_call, b_owner) AND outcome[2] = b_alone[1]
		AND same_leases(s, a_call, b_call, outcome[3:4], CASE b_end WHEN 'COMMIT' THEN b_alone[3:4] ELSE untouched[3:4] END) THEN
		RETURN true;
	END IF;
	RETURN b_refused AND a_seen_open AND has_effect(s, a_call, 'a') AND outcome[1] = a_alone[1]
		AND same_leases(s, a_call, b_call, outcome[3:4], a_alone[3:4]);
END $$;

CREATE TABLE outcomes (state text, a_call text, point text, b_call text, b_owner text, b_when text, b_end text,
	outcome text[], is_right boolean);

CREATE PROCEDURE play(seconds float8, seed int, pids int[]) LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + seconds * interval '1 s';
	c record;
	result record;
	good boolean;
	failures int := 0;
BEGIN
	FOR c IN SELECT s.state, a.call AS a_call, point, b.call AS b_call, b_owner, b_when, b_end
		FROM states AS s, calls AS a, points, unnest(ARRAY['a', 'b']) AS b_owner, unnest(ARRAY['COMMIT', 'ROLLBACK']) AS b_end,
			(SELECT call, b_when FROM calls, unnest(ARRAY['before', 'between', 'across']) AS b_when
				UNION ALL SELECT call, 'before' FROM double_calls) AS b
		WHERE can_stop() OR (b_when = 'before' AND point = 'in a look')
		-- First, changes that end in the middle of a look at the lease, and assertions that meet an end of the lease:
		-- too rare among all orders.
		ORDER BY (point = 'before an open version is read' AND NOT a.is_try AND b_owner = 'a' AND b_end = 'COMMIT' AND
				(s.state, b.call) IN (('held by a', 'renewed, released'), ('held by a', 'renewed, transferred'),
					('shared by a', 'renewed, renewed'), ('never used', 'exclusive, released'))) DESC,
			(point = 'while rows are settled' AND NOT a.is_try AND b_owner = 'a' AND b_when = 'before' AND
				(s.state, b.call, b_end) IN (('held by a', 'renewed', 'COMMIT'), ('shared by a', 'renewed', 'COMMIT'),
					('shared by a, renewed often', 'released', 'ROLLBACK'))) DESC,
			(s.state = 'held by a' AND point = 'before an update' AND b_owner = 'a' AND b.call = 'asserted' AND b_when = 'across') DESC,
			hashtextextended(format('%s %s %s %s %s %s %s', s.state, a.call, point, b.call, b_owner, b_when, b_end), seed) LOOP
		EXIT WHEN clock_timestamp() > until AND (SELECT count(*) FROM outcomes) >= 10 OR failures = 3;
		result := staged(c.state, c.a_call, c.point, c.b_call, c.b_owner, c.b_when, c.b_end, pids);
		good := result.still_asserted
			AND is_right(c.state, c.a_call, c.b_call, c.b_owner, c.b_end, result.outcome, result.a_seen_open, result.b_seen_open);
		failures := failures + CASE WHEN good THEN 0 ELSE 1 END;
		INSERT INTO outcomes VALUES (c.state, c.a_call, c.point, c.b_call, c.b_owner, c.b_when, c.b_end, result.outcome, good);
		COMMIT;
	END LOOP;
END $$;

-- One of two permits is held at any moment: of c first, then of b. A look of a that reads one row before that changes, and
-- the other row after it, finds both held. Is a refused?
CREATE FUNCTION refused_by_different_moments(pids int[]) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	r text := 'r' || nextval('resources');
BEGIN
	PERFORM made_by('b', 'permit', r, 'b'), made_by('b', 'permit', r, 'c'), made_by('b', 'released', r, 'b'),
		stop_at('a', 'in a look'), pg_advisory_lock(7), dblink_send_query('a', call_of('permit', r, 'a'));
	PERFORM waits('a', pids[1]);
	PERFORM made_by('b', 'released', r, 'c'), made_by('b', 'permit', r, 'b'), pg_advisory_unlock(7);
	RETURN answer('a') = 'false';
END $$;
