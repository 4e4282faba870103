# Sixteen sessions at all isolation levels acquire, assert, renew, transfer, release, break and roll
# back leases of the portable edition, while others are killed: no two holders work at once, no work
# under an assertion is lost, and tokens grow.
#
# PORTABLE_SECONDS=n makes it that long.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use IPC::Run;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = $ENV{PORTABLE_SECONDS} // 4;
my $players = 16;

$ENV{LEASE_EDITION} = 'portable';
my $node = start_node('stress', <<'CONF');
fsync = off
synchronous_commit = off
autovacuum_naptime = 1s
max_connections = 50
CONF

# The witnesses. A holder that has asserted its lease locks seats of the resource, as its mode
# allows; the locks end with its transaction, at the same moment as the assertion. And an exclusive
# holder continues a list that has no gaps.
$node->safe_psql('postgres', q{
	CREATE TABLE seat (resource text, slot int, PRIMARY KEY (resource, slot));
	INSERT INTO seat SELECT r, s FROM unnest('{a,b,c}'::text[]) AS r, generate_series(0, 3) AS s;
	CREATE TABLE work (resource text, n int8, token int8, level text, PRIMARY KEY (resource, n));
	CREATE TABLE seen (level text, mode text);

	CREATE FUNCTION one_of(VARIADIC list text[]) RETURNS text LANGUAGE sql AS
		'SELECT list[1 + floor(random() * cardinality(list))::int]';

	CREATE FUNCTION sit(r text, mode text) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		seats int;
	BEGIN
		IF mode = 'exclusive' THEN
			seats := count(*) - 3 FROM (SELECT FROM seat WHERE resource = r FOR UPDATE SKIP LOCKED) AS s;
		ELSIF mode = 'shared' THEN
			seats := count(*) FROM (SELECT FROM seat WHERE resource = r AND slot = 0 FOR SHARE SKIP LOCKED) AS s;
		ELSE
			seats := count(*) FROM (SELECT FROM seat WHERE resource = r AND slot > 0 LIMIT 1 FOR UPDATE SKIP LOCKED) AS s;
		END IF;
		IF seats <> 1 THEN
			RAISE SQLSTATE 'HELD2' USING MESSAGE = format('two holders: %s of %s, %s', mode, r, seats);
		END IF;
	END $$;

	-- What a holder does under its lease.
	CREATE FUNCTION work(r text, me text, mode text) RETURNS bool LANGUAGE plpgsql AS $$
	DECLARE
		t int8;
		l text = current_setting('transaction_isolation');
	BEGIN
		BEGIN
			t := lease_assert(r, me);
		EXCEPTION WHEN object_not_in_prerequisite_state THEN
			RETURN false;
		END;
		PERFORM sit(r, mode);
		PERFORM pg_sleep(random() * 0.01);
		IF mode = 'exclusive' THEN
			INSERT INTO work SELECT r, coalesce(max(n), 0) + 1, t, l FROM work WHERE resource = r;
		END IF;
		INSERT INTO seen VALUES (l, mode);
		RETURN true;
	END $$;

	CREATE PROCEDURE play(me text) LANGUAGE plpgsql AS $$
	DECLARE
		until timestamptz = clock_timestamp() + interval '5 s';
		r text;
		mode text;
		ok bool;
	BEGIN
		WHILE clock_timestamp() < until LOOP
			PERFORM set_config('default_transaction_isolation', one_of('read committed', 'read committed', 'repeatable read', 'serializable'), false);
			COMMIT;
			r := one_of('a', 'b', 'c');
			mode := one_of('exclusive', 'exclusive', 'shared', 'permit');
			IF random() < 0.1 THEN
				PERFORM FROM seat, pg_sleep(random() * 0.02);		-- an old snapshot
			END IF;
			BEGIN
				SELECT granted INTO ok FROM lease_request(r, random() * interval '30 ms' + interval '1 ms', me,
					CASE WHEN current_setting('transaction_isolation') = 'read committed' AND random() < 0.5 THEN interval '20 ms' ELSE '0' END,
					mode, CASE mode WHEN 'permit' THEN 3 END, one_of('refuse', 'count', 'renew'),
					CASE WHEN random() < 0.1 THEN interval '3 ms' END);
				IF random() < 0.1 THEN
					RAISE SQLSTATE 'UNDO1';
				END IF;
			EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
				ok := false;
			END;
			IF random() < 0.1 THEN
				ROLLBACK;
				ok := false;
			ELSE
				COMMIT;
			END IF;
			WHILE ok LOOP
				ok := work(r, me, mode);
				COMMIT;
				CASE one_of('work', 'renew', 'transfer', 'release', 'release', 'leave')
					WHEN 'renew' THEN ok := lease_renew(r, '10 ms', me);
					WHEN 'transfer' THEN ok := lease_transfer(r, me, me || 'x') IS NOT NULL AND lease_transfer(r, me || 'x', me) IS NOT NULL;
					WHEN 'release' THEN ok := lease_release(r, me) AND false;
					WHEN 'leave' THEN ok := false;
					ELSE NULL;
				END CASE;
				IF random() < 0.1 THEN
					ROLLBACK;
				END IF;
				COMMIT;
			END LOOP;
			IF random() < 0.02 THEN
				PERFORM lease_break(r, random() * interval '5 ms');
			ELSIF random() < 0.02 THEN
				PERFORM lease_purge();
			END IF;
			COMMIT;
		END LOOP;
	END $$});

# Each player is a loop of sessions, since some fail, and some are killed.
my $stop = "$PostgreSQL::Test::Utils::tmp_check/stress_stop";
my @runs;
my @reports;
local $ENV{PGOPTIONS} = '-c lease_lock.purge_after=0';
foreach my $me (1 .. $players)
{
	push @reports, "$PostgreSQL::Test::Utils::tmp_check/player$me";
	push @runs, IPC::Run::start(
		[ 'sh', '-c', 'while [ ! -e "$1" ] && kill -0 "$PPID"; do psql -Xqv VERBOSITY=verbose -d "$2" -c "$3"; done', 'sh', $stop,
			$node->connstr('postgres') . ' application_name=player', "CALL play('p$me')" ],
		'<', \undef, '>', '/dev/null', '2>', $reports[-1]);
}

# So long, and until each kind of holder was there.
my $killer = open_session($node);
$killer->query_safe('SET client_min_messages = error');		# a session may have ended meanwhile: a warning
my $kinds = "SELECT count(DISTINCT level || ' ' || mode) FROM seen";
my $kills = 0;
my $until = time + $seconds;
do
{
	$killer->query_safe('SELECT pg_sleep(0.2)');
	$kills += $killer->query_safe("SELECT count(pg_terminate_backend(pid))
		FROM (SELECT pid FROM pg_stat_activity WHERE application_name = 'player' ORDER BY random() LIMIT 1) AS p");
} while (time < $until || $killer->query_safe($kinds) < 9 && time < $until + $LeaseTest::FILE_LIMIT / 2);
append_to_file($stop, '');
$_->finish foreach @runs;
$killer->quit;

my %errors;
foreach (map { split /\n/ } map { slurp_file($_) } @reports)
{
	next if /^psql:.*failed: FATAL:  terminating connection/;	# killed while it connected
	$errors{$1}++ if /^psql:.*(could not connect|failed)/ || /^(?:psql:.*)?(?:ERROR|FATAL):  (\w{5}: .*)/;
}
is(join("\n", grep { !/^(40001|57P01): / } sort keys %errors), '', 'no error but 40001 and those of killed sessions');
note("$_: $errors{$_}") foreach sort keys %errors;

is($node->safe_psql('postgres', 'SELECT count(*) FROM (SELECT resource FROM work GROUP BY resource HAVING max(n) <> count(*)) AS w'),
	0, 'no work under an assertion is lost');
is($node->safe_psql('postgres', 'SELECT count(*) FROM (SELECT token, lag(token) OVER (PARTITION BY resource ORDER BY n) AS before FROM work) AS w
	WHERE token < before'), 0, 'tokens grow');
is($node->safe_psql('postgres', $kinds), 9, 'holders of each mode worked at each isolation level');
cmp_ok($kills, '>', 0, 'sessions were killed');
note("$kills killed, ", $node->safe_psql('postgres', 'SELECT count(*) FROM seen'), ' works, of them ',
	$node->safe_psql('postgres', 'SELECT count(*) FROM work'), ' exclusive');
$node->stop;
done_testing();
