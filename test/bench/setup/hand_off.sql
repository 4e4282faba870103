-- One lock that goes from session to session, by different means, and a log of
-- who had it when.

-- Orders the holders, the same way whatever the lock is: it is asked while
-- holding it. Unlogged, so that it makes no transaction write to the log.
CREATE UNLOGGED SEQUENCE hand_off_order;

CREATE UNLOGGED TABLE hand_off_log (
	session int NOT NULL,
	begun_at timestamptz NOT NULL,
	ends_at timestamptz NOT NULL,
	turns bigint[] NOT NULL,
	got timestamptz[] NOT NULL,
	released timestamptz[] NOT NULL
);

-- The least that a lock of any kind does to outlive the connection: two updates
-- of a row, in turns that an advisory lock gives. It knows no expiry.
CREATE TABLE hand_off_row (resource text PRIMARY KEY, owner text) WITH (fillfactor = 10);
INSERT INTO hand_off_row VALUES ('handed on');

-- Take the lock and let it go, again and again, once the gate opens: advisory
-- lock 0, which the starter holds until all sessions stand before it.
CREATE PROCEDURE hand_off(p_lock text, p_pause float8, p_seconds float8)
LANGUAGE plpgsql AS $$
DECLARE
	self text := 'owner:' || pg_backend_pid();
	granted boolean;
	begun_at timestamptz;
	ends_at timestamptz;
	released_at timestamptz;
	turns bigint[] := '{}';
	got timestamptz[] := '{}';
	released timestamptz[] := '{}';
BEGIN
	PERFORM pg_advisory_lock_shared(0);
	PERFORM pg_advisory_unlock_shared(0);
	COMMIT;
	begun_at := clock_timestamp();
	ends_at := begun_at + make_interval(secs => p_seconds);

	LOOP
		IF p_lock = 'advisory' THEN
			PERFORM pg_advisory_lock(1);
		ELSIF p_lock = 'row' THEN
			PERFORM pg_advisory_lock(1);
			UPDATE hand_off_row SET owner = self WHERE resource = 'handed on';
		ELSIF p_lock = 'lease' THEN
			SELECT lease_acquire('handed on', interval '1 minute', self, interval '1 minute') INTO granted;
			IF NOT granted THEN
				RAISE EXCEPTION 'waited in vain';
			END IF;
		ELSE
			-- A pause also before the first try, or the session that has just
			-- released is the next holder most of the time.
			LOOP
				COMMIT;
				PERFORM pg_sleep(p_pause);
				SELECT lease_acquire('handed on', interval '1 minute', self) INTO granted;
				EXIT WHEN granted;
			END LOOP;
		END IF;
		COMMIT;
		got := got || clock_timestamp();
		turns := turns || nextval('hand_off_order');

		-- The time before the lock is free: of a lease at the commit.
		IF p_lock = 'advisory' THEN
			released_at := clock_timestamp();
			PERFORM pg_advisory_unlock(1);
		ELSIF p_lock = 'row' THEN
			UPDATE hand_off_row SET owner = NULL WHERE resource = 'handed on';
			released_at := clock_timestamp();
			COMMIT;
			PERFORM pg_advisory_unlock(1);
		ELSE
			PERFORM lease_release('handed on', self);
			released_at := clock_timestamp();
		END IF;
		COMMIT;
		released := released || released_at;

		EXIT WHEN released_at > ends_at;
	END LOOP;

	INSERT INTO hand_off_log VALUES (pg_backend_pid(), begun_at, ends_at, turns, got, released);
END
$$;

-- Hand-offs, while every session took part. A session that gets the lock again
-- at once did not hand it on.
CREATE VIEW hand_offs AS
WITH holders AS (
	SELECT l.session, h.got,
		lag(l.session) OVER turns AS previous_session,
		lag(h.released) OVER turns AS previous_released
	FROM hand_off_log AS l CROSS JOIN unnest(l.turns, l.got, l.released) AS h (turn, got, released)
	WINDOW turns AS (ORDER BY h.turn)
)
SELECT got, extract(epoch FROM got - previous_released) * 1000000 AS latency
FROM holders
WHERE session <> previous_session
	AND got BETWEEN (SELECT max(begun_at) FROM hand_off_log) AND (SELECT min(ends_at) FROM hand_off_log);

CREATE VIEW hand_off_result AS
SELECT count(*) / (SELECT extract(epoch FROM min(ends_at) - max(begun_at)) FROM hand_off_log) AS per_second,
	percentile_cont(0.5) WITHIN GROUP (ORDER BY latency) AS p50,
	percentile_cont(0.99) WITHIN GROUP (ORDER BY latency) AS p99,
	min(latency) AS least
FROM hand_offs;
