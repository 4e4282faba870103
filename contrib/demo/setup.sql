/* What the story needs to set its scenes; no part of lease_lock. */

CREATE TABLE account (id text PRIMARY KEY, balance int NOT NULL);
INSERT INTO account VALUES ('alice', 100);

/* Who got through the gate and withdrew. */
CREATE TABLE withdrawal (session int PRIMARY KEY);

/* Who printed, in which order. */
CREATE TABLE printed (turn int GENERATED ALWAYS AS IDENTITY, who text NOT NULL);

CREATE TABLE discount (code text PRIMARY KEY, customer text);
INSERT INTO discount SELECT 'SPRING-' || i FROM generate_series(101, 116) AS i;

CREATE TABLE ledger (balance int NOT NULL, version int NOT NULL);
INSERT INTO ledger VALUES (100, 0);
CREATE TRIGGER version BEFORE UPDATE ON ledger
	FOR EACH ROW EXECUTE FUNCTION lease_version('version');

CREATE TABLE report (id int PRIMARY KEY, lines int NOT NULL);
INSERT INTO report VALUES (7, 0);

/*
 * The gate: closed while a session holds this advisory lock, open otherwise.
 * Sessions that wait there go on together.
 */
CREATE FUNCTION gate() RETURNS int LANGUAGE sql IMMUTABLE
RETURN 4711;

CREATE FUNCTION wait_at_gate() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_lock_shared(gate());
	PERFORM pg_advisory_unlock_shared(gate());
END
$$;

/* Close the gate and open it when this many sessions wait. */
CREATE PROCEDURE open_gate_for(sessions int) LANGUAGE plpgsql AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + interval '30 seconds';
BEGIN
	LOOP
		EXIT WHEN sessions <= (SELECT count(*) FROM pg_locks
			WHERE locktype = 'advisory' AND objid = gate() AND NOT granted);
		IF clock_timestamp() > deadline THEN
			RAISE 'fewer than % sessions came to the gate', sessions;
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;

/* Wait until that many wait for a lease. */
CREATE PROCEDURE until_waiting(res text, waiters int) LANGUAGE plpgsql AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + interval '30 seconds';
BEGIN
	WHILE waiters > (SELECT count(*) FROM lease_waiters WHERE resource = res) LOOP
		IF clock_timestamp() > deadline THEN
			RAISE 'fewer than % wait for %', waiters, res;
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;

/* Wait until a connection is gone. */
CREATE PROCEDURE until_gone(backend int) LANGUAGE plpgsql AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + interval '30 seconds';
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_get_activity(backend)) LOOP
		IF clock_timestamp() > deadline THEN
			RAISE 'connection % does not end', backend;
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;

/* Wait until the clock has passed the end of a lease. */
CREATE PROCEDURE until_expired(res text) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_sleep_until((SELECT expires_at FROM lease_status WHERE resource = res));
END
$$;

/* Try until the lease is granted, each try in a transaction of its own. */
CREATE PROCEDURE acquire_patiently(resource text, owner text) LANGUAGE plpgsql AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + interval '30 seconds';
BEGIN
	WHILE NOT lease_acquire(resource, '1 minute', owner) LOOP
		COMMIT;
		IF clock_timestamp() > deadline THEN
			RAISE 'no lease on %', resource;
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;
