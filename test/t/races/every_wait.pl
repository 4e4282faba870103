# Two or three sessions wait for a lease, and another one gives it up. Whatever
# the order of their steps, all waits end, and in the order of arrival. If the
# library was built by scripts/check-races, the test stops two waiters and the
# other session at points of joining, looking, sleeping, waiting in the lock
# manager, leaving and waking, and lets them go on in each order. Otherwise it
# only makes the calls one after the other.
#
# Some orders are always tried, the others are chosen at random.
#
# No wait would end by itself: deadlock_timeout is an hour.
#
# RACE_SECONDS=n makes it that long, RACE_SEED=n repeats an order.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $seconds = $ENV{RACE_SECONDS} // 10;
my $seed = $ENV{RACE_SEED} // time % 1_000_000;
my $limit = $seconds + 4 * $WaitTest::LIMIT;
my $node = start_waiting_node('every_wait', "${WaitTest::NEVER}fsync = off\n");

plan skip_all => 'dblink is not installed'
  if $node->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'dblink'}) eq '0';
$node->safe_psql('postgres', <<'SQL' =~ s/LIMIT_OF_A_STEP/$WaitTest::LIMIT s/gr);
CREATE EXTENSION dblink;
CREATE SEQUENCE resources;
CREATE TABLE taken (resource text, owner text, token bigint);

-- How a session waits. Each releases in the same transaction what it was granted.
CREATE TABLE kinds (kind text, options text, wait interval);
INSERT INTO kinds VALUES
	('exclusive', $$mode => 'exclusive'$$, NULL),
	('shared', $$mode => 'shared'$$, NULL),
	('permit', $$mode => 'permit', permits => 2$$, NULL),
	('in time', $$mode => 'exclusive'$$, '100 ms'),
	('any', NULL, NULL),
	('any in time', NULL, '100 ms');

-- What the session that holds the lease has done, and what it does.
CREATE TABLE events (event text, before text[], during text[], after text[]);
INSERT INTO events VALUES
	('release', '{exclusive}', '{release}', '{}'),
	('break', '{exclusive}', '{break}', '{}'),
	('release shared', '{shared}', '{release}', '{}'),
	('release one of two', '{shared,permit of x}', '{release,release of x}', '{}'),
	('rollback', '{BEGIN,exclusive}', '{ROLLBACK}', '{}'),
	('rollback to savepoint', '{BEGIN,SAVEPOINT s,exclusive}', '{ROLLBACK TO s}', '{COMMIT}'),
	('commit', '{BEGIN,exclusive}', '{COMMIT}', '{release}'),
	('release later', '{exclusive}', '{BEGIN,release}', '{COMMIT}'),
	('release in vain', '{exclusive}', '{BEGIN,release,ROLLBACK}', '{release}'),
	('renew', '{exclusive}', '{renew}', '{release}'),
	('shorten', '{exclusive}', '{shorten}', '{}'),
	('shorten and lengthen', '{exclusive,shorten}', '{renew,pause}', '{shorten}'),
	('shorten after the alarm', '{exclusive,shorten}', '{renew,pause,shorten}', '{}'),
	('kept', '{exclusive}', '{keep,release}', '{}'),
	('downgrade', '{exclusive}', '{downgrade}', '{release}'),
	('expiry', '{short}', '{}', '{}'),
	('again', '{BEGIN,exclusive,release}', '{wait}', '{COMMIT}');

CREATE TABLE points (point text);
INSERT INTO points VALUES
	('nowhere'), ('before a waiter joins'), ('after a waiter joined'), ('in a look'), ('after a look'), ('before its turn'),
	('before the resource lock'), ('after the resource lock'), ('before a waiter tells its refusal'), ('before a waiter sleeps'),
	('before a waiter is away'), ('before a waiter comes back'), ('before a waiter leaves'), ('before waiters are woken');

CREATE FUNCTION can_stop() RETURNS boolean LANGUAGE sql AS $$
	SELECT EXISTS (SELECT FROM pg_settings WHERE name = 'lease_lock.stop_at');
$$;
CREATE FUNCTION stop_at(session text, point text) RETURNS void LANGUAGE sql AS $$
	SELECT dblink_exec(session, format('SET lease_lock.stop_at = %L', point)) WHERE can_stop();
$$;

-- One step of the session that holds the lease.
CREATE FUNCTION step(what text, r text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE
		WHEN what = upper(what) OR what LIKE '% s' THEN what
		ELSE 'SELECT ' || CASE what
			WHEN 'exclusive' THEN format('lease_acquire(%L, ''1 h'', ''h'')', r)
			WHEN 'shared' THEN format('lease_acquire_shared(%L, ''1 h'', ''h'')', r)
			WHEN 'permit of x' THEN format('lease_acquire_permit(%L, 2, ''1 h'', ''x'')', r)
			WHEN 'short' THEN format('lease_acquire(%L, ''100 ms'', ''h'')', r)
			WHEN 'release' THEN format('lease_release(%L, ''h'')', r)
			WHEN 'release of x' THEN format('lease_release(%L, ''x'')', r)
			WHEN 'break' THEN format('lease_break(%L)', r)
			WHEN 'renew' THEN format('lease_renew(%L, ''2 h'', ''h'')', r)
			WHEN 'downgrade' THEN format('lease_downgrade(%L, ''h'') > 0', r)
			WHEN 'shorten' THEN format('granted FROM lease_request(%L, ''100 ms'', ''h'', if_own => ''renew'')', r)
			WHEN 'keep' THEN format('granted FROM lease_request(%L, ''1 h'', ''h'', if_own => ''renew'', min_hold => ''100 ms'')', r)
			WHEN 'wait' THEN format('take(%L, ''h'', ''exclusive'')', r)
			WHEN 'pause' THEN 'pg_sleep(0.15) IS NULL'
		END
	END;
$$;

-- Wait for the lease, note its token, and release it.
CREATE FUNCTION take(r text, o text, of_kind text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	k kinds := kinds FROM kinds WHERE kind = of_kind;
	which text := r;
BEGIN
	IF of_kind LIKE 'any%' THEN
		which := lease_acquire_any(ARRAY['other', r], '1 h', o, k.wait);
	ELSE
		EXECUTE format('SELECT CASE WHEN granted THEN %L END FROM lease_request(%L, ''1 h'', %L, wait => %L, %s)',
			r, r, o, k.wait, k.options) INTO which;
	END IF;
	INSERT INTO taken SELECT which, o, lease_token(which, o) WHERE which IS NOT NULL;
	RETURN which IS NOT NULL AND lease_release(which, o);
END $$;

-- Fail if this takes too long, and say where the sessions are.
CREATE FUNCTION bounded(since timestamptz, session text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF clock_timestamp() > since + interval 'LIMIT_OF_A_STEP' THEN
		RAISE EXCEPTION 'session % hangs', session
			USING DETAIL = (SELECT string_agg(concat_ws(' ', pid, wait_event_type, wait_event, query), E'\n') FROM pg_stat_activity),
				HINT = (SELECT string_agg(concat_ws(' ', pid, locktype, mode, granted), E'\n') FROM pg_locks);
	END IF;
END $$;

-- Wait until the session is done, sleeps in the queue or waits for a lock; is it done?
CREATE FUNCTION settles(session text, session_pid int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	since timestamptz := clock_timestamp();
BEGIN
	LOOP
		PERFORM bounded(since, session);
		IF dblink_is_busy(session) = 0 THEN
			RETURN true;
		END IF;
		PERFORM pg_stat_clear_snapshot();
		IF EXISTS (SELECT FROM pg_stat_activity WHERE pid = session_pid AND wait_event_type IN ('Lock', 'Extension')) THEN
			RETURN false;
		END IF;
		PERFORM pg_sleep(0.0002);
	END LOOP;
END $$;

CREATE FUNCTION answer(session text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	given text := t.answer FROM dblink_get_result(session, false) AS t(answer text);
BEGIN
	PERFORM * FROM dblink_get_result(session, false) AS t(answer text);
	RETURN given;
END $$;

-- Do steps of the session that holds the lease. If a point is given, the last one stops there, and is not waited for.
CREATE FUNCTION do_steps(steps text[], r text, session_pid int, point text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	since timestamptz;
BEGIN
	FOR i IN 1 .. cardinality(steps) LOOP
		IF point IS NOT NULL AND i = cardinality(steps) THEN
			PERFORM stop_at('h', point);
			PERFORM dblink_send_query('h', step(steps[i], r));
			PERFORM settles('h', session_pid);
			RETURN;
		END IF;
		PERFORM dblink_send_query('h', step(steps[i], r));
		-- A waiter may have been stopped while it locks the resource, or after it has the lease. Then it goes on now.
		IF NOT settles('h', session_pid) AND point IS NOT NULL THEN
			PERFORM pg_advisory_unlock(lock) FROM unnest('{11,12}'::int[]) AS lock
				WHERE EXISTS (SELECT FROM pg_locks WHERE pid = session_pid AND NOT granted);
		END IF;
		since := clock_timestamp();
		WHILE dblink_is_busy('h') = 1 LOOP
			PERFORM bounded(since, 'h'), pg_sleep(0.0005);
		END LOOP;
		PERFORM answer('h');
	END LOOP;
END $$;

-- Let waiters a, b and, if there is a third one, c wait, and the holder h do what it does. The points are those at
-- which a, b and h stop: a and b at once or, if they stop later, not before they sleep. They go on in the given order.
-- Returns the sessions whose waits did not end.
CREATE FUNCTION staged(r text, e events, of_kinds text[], at_points text[], stop_later boolean, continue_order text[], pids int[])
	RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	sessions text[] := ARRAY['a', 'b', 'h', 'c'];
	late text;
	s text;
	n int;
	until timestamptz;
BEGIN
	PERFORM stop_at('h', 'nowhere');
	PERFORM do_steps(e.before, r, pids[3]);
	PERFORM stop_at('a', at_points[1]), stop_at('b', at_points[2]), pg_advisory_lock(13);
	PERFORM pg_advisory_lock(lock) FROM unnest('{11,12}'::int[]) AS lock WHERE NOT stop_later;
	FOREACH n IN ARRAY ARRAY[1, 2, 4] LOOP
		IF of_kinds[n] IS NOT NULL THEN
			PERFORM dblink_send_query(sessions[n], format('SELECT take(%L, %L, %L)', r, sessions[n], of_kinds[n]));
			PERFORM settles(sessions[n], pids[n]);
		END IF;
	END LOOP;

	PERFORM pg_advisory_lock(lock) FROM unnest('{11,12}'::int[]) AS lock WHERE stop_later;
	PERFORM do_steps(e.during, r, pids[3], at_points[3]);
	-- The time of a wait may be over before the waiter goes on.
	IF of_kinds[1] LIKE '%in time' OR of_kinds[2] LIKE '%in time' THEN
		PERFORM pg_sleep(0.12);
	END IF;
	FOREACH s IN ARRAY continue_order LOOP
		n := array_position(sessions, s);
		PERFORM pg_advisory_unlock(10 + n);
		PERFORM settles(s, pids[n]);
	END LOOP;

	until := clock_timestamp() + interval 'LIMIT_OF_A_STEP';
	IF e.during <> '{}' THEN
		WHILE dblink_is_busy('h') = 1 AND clock_timestamp() < until LOOP
			PERFORM pg_sleep(0.0005);
		END LOOP;
		late := CASE WHEN dblink_is_busy('h') = 1 THEN 'h ' END;
		IF late IS NULL THEN
			PERFORM answer('h');
		END IF;
	END IF;
	IF late IS NULL THEN
		PERFORM stop_at('h', 'nowhere');
		PERFORM do_steps(e.after, r, pids[3]);
	END IF;
	FOREACH n IN ARRAY ARRAY[1, 2, 4] LOOP
		CONTINUE WHEN of_kinds[n] IS NULL;
		WHILE dblink_is_busy(sessions[n]) = 1 AND clock_timestamp() < until LOOP
			PERFORM pg_sleep(0.0005);
		END LOOP;
		IF dblink_is_busy(sessions[n]) = 1 THEN
			late := concat(late, sessions[n], ' ');
		END IF;
	END LOOP;
	IF late IS NOT NULL THEN
		PERFORM pg_cancel_backend(pid) FROM unnest(pids) AS pid;
		IF late LIKE 'h%' THEN
			PERFORM answer('h');
		END IF;
		PERFORM dblink_exec('h', 'ROLLBACK', false);
	END IF;
	FOREACH n IN ARRAY ARRAY[1, 2, 4] LOOP
		IF of_kinds[n] IS NOT NULL THEN
			PERFORM answer(sessions[n]);
		END IF;
	END LOOP;
	RETURN late;
END $$;

-- Did a and b, if both wait for the same, get it in the order of their arrival?
CREATE FUNCTION in_order(r text, of_kinds text[], at_points text[]) RETURNS boolean LANGUAGE sql AS $$
	SELECT of_kinds[1] <> 'exclusive' OR of_kinds[2] <> 'exclusive' OR at_points[1] IN ('before a waiter joins', 'in a look', 'after a look')
		OR (SELECT string_agg(owner, '' ORDER BY token) FROM taken WHERE resource = r AND owner IN ('a', 'b')) = 'ab';
$$;

CREATE FUNCTION some_kind() RETURNS text LANGUAGE sql AS 'SELECT kind FROM kinds ORDER BY random() LIMIT 1';
CREATE FUNCTION some_point() RETURNS text LANGUAGE sql AS 'SELECT point FROM points ORDER BY random() LIMIT 1';

-- Orders that are always tried.
CREATE TABLE always (event text, kinds text[], points text[], later boolean, continue_order text[]);
INSERT INTO always SELECT a.* FROM generate_series(1, 3), (VALUES
	-- A waiter that was woken by its alarm must be woken by each change until it sleeps again.
	('shorten after the alarm', '{exclusive,exclusive}'::text[], '{before a waiter tells its refusal,nowhere,nowhere}'::text[], true, '{a,b,h}'::text[]),
	-- A waiter that is called after its look, when its time is over, must call the next one.
	('release', '{in time,exclusive}', '{before a waiter tells its refusal,nowhere,nowhere}', false, '{a,b,h}')) AS a;

CREATE TABLE outcomes (event text, kinds text[], points text[], later boolean, continue_order text[], late text, in_order boolean);

CREATE PROCEDURE play(seconds float8, pids int[]) LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + seconds * interval '1 s';
	c record;
	r text;
	late text;
BEGIN
	PERFORM lease_acquire('other', '1 h', 'nobody');
	COMMIT;
	FOR c IN SELECT e, a.* FROM always AS a JOIN events AS e USING (event) LOOP
		r := 'r' || nextval('resources');
		late := staged(r, c.e, c.kinds, c.points, c.later, c.continue_order, pids);
		INSERT INTO outcomes VALUES (c.event, c.kinds, c.points, c.later, c.continue_order, late, true);
		COMMIT;
		IF late IS NOT NULL THEN
			RETURN;
		END IF;
	END LOOP;
	LOOP
		SELECT (SELECT e FROM events AS e ORDER BY random() LIMIT 1) AS e,
			ARRAY[some_kind(), some_kind(), NULL, (ARRAY[NULL, 'exclusive', 'shared'])[1 + floor(random() * 3)]] AS of_kinds,
			CASE WHEN can_stop() THEN ARRAY[some_point(), some_point(),
				(ARRAY['nowhere', 'before waiters are woken', 'after a look', 'after the resource lock', 'before a waiter tells its refusal'])[1 + floor(random() * 5)]]
				ELSE '{nowhere,nowhere,nowhere}' END AS at_points,
			random() < 0.5 AS later,
			(SELECT array_agg(s ORDER BY random()) FROM unnest(ARRAY['a', 'b', 'h']) AS s) AS o INTO c;
		EXIT WHEN clock_timestamp() > until AND (SELECT count(*) FROM outcomes) >= 20;
		r := 'r' || nextval('resources');
		late := staged(r, c.e, c.of_kinds, c.at_points, c.later, c.o, pids);
		INSERT INTO outcomes VALUES ((c.e).event, c.of_kinds, c.at_points, c.later, c.o, late, late IS NOT NULL OR in_order(r, c.of_kinds, c.at_points));
		COMMIT;
		EXIT WHEN (SELECT count(*) FROM outcomes AS x WHERE x.late IS NOT NULL OR NOT x.in_order) >= 3;
	END LOOP;
END $$;
SQL

my $connect = 'dbname=postgres host=' . $node->host . ' port=' . $node->port;
my $set = join('', map { "SELECT dblink_exec('$_->[0]', 'SET lease_lock.stop_lock = $_->[1]') WHERE can_stop() \\g /dev/null\n" } [ 'a', 11 ], [ 'b', 12 ], [ 'h', 13 ]);
my $pids = join('', map { "SELECT p FROM dblink('$_', 'SELECT pg_backend_pid()') AS x(p int) \\gset ${_}_\n" } 'a', 'b', 'h', 'c');

$node->safe_psql('postgres', <<"SQL");
LOAD 'lease_lock';
SELECT setseed($seed / 1000000.0) \\g /dev/null
SELECT dblink_connect(s, '$connect') FROM unnest(ARRAY['a', 'b', 'h', 'c']) AS s \\g /dev/null
SELECT dblink_exec(s, 'SET client_min_messages = error') FROM unnest(ARRAY['a', 'b', 'h', 'c']) AS s \\g /dev/null
SELECT stop_at('c', 'nowhere') \\g /dev/null
$set
$pids
SET statement_timeout = '$limit s';
CALL play($seconds, ARRAY[:a_p, :b_p, :h_p, :c_p]);
SQL

is($node->safe_psql('postgres', 'SELECT * FROM outcomes WHERE late IS NOT NULL LIMIT 20'), '', 'all waits end');
is($node->safe_psql('postgres', 'SELECT * FROM outcomes WHERE NOT in_order LIMIT 20'), '', 'in the order of arrival');
my $orders = $node->safe_psql('postgres', 'SELECT count(*) FROM outcomes');
cmp_ok($orders, '>=', 10, 'orders were tried');
note("seed $seed: $orders orders");
nothing_left($node, 'every order');

$node->stop;
done_testing();
