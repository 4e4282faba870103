# A holder that is paused until its lease has expired does no harm. If it has
# asserted the lease, nobody takes over until its transaction ends. If it has not,
# its write is refused. The same run without assertions loses writes.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);
use WaitTest;

plan skip_all => 'no signal stops a process here' if $windows_os;

my $seed = $ENV{LEASE_TEST_SEED} // int(rand(1_000_000));
my $rounds = 500;
my $workers = 4;
srand($seed);
note "LEASE_TEST_SEED=$seed";

my $node = start_waiting_node('paused_holder', "synchronous_commit = off\nlease_lock.durable = off\n");
my ($holder, $other) = map { open_session($node) } 1 .. 2;
my $holder_pid = $holder->query_safe('SELECT pg_backend_pid()');

look($node, q{
	CREATE TABLE counter (id int PRIMARY KEY, n int NOT NULL);
	INSERT INTO counter VALUES (1, 0);
	SELECT lease_protect('counter', 'counter:{id}');
});
$_->query_safe(q{SET lease_lock.owner = 'nobody yet'}) foreach $holder, $other;

# The lease runs out.
sub expire
{
	my ($owner) = @_;

	look($node, "UPDATE lease_lock SET expires_at = '2000-01-01' WHERE owner = '$owner'");
	is(look($node, qq{SELECT count(*) FROM lease_status WHERE owner = '$owner' AND state = 'expired'}),
		1, "the time of $owner runs out");
	return;
}

# Paused between the write and the commit.
$holder->query_safe(q{SELECT lease_acquire('counter:1', '1 hour', 'h1')});
$holder->query_safe(q{BEGIN; SET LOCAL lease_lock.owner = 'h1'; UPDATE counter SET n = n + 1;});
stop_backend($holder_pid);
expire('h1');
is($other->query_safe(q{SELECT lease_acquire('counter:1', '1 hour', 'o1')}), 'f', 'inside: a try is refused');
is($other->query_safe(q{SELECT lease_purge()}), 0, 'inside: it is not purged');
send_to_wait($node, $other, q{SELECT lease_acquire('counter:1', '1 hour', 'o1', '1 hour')}, in_lock_manager());
is(look($node, q{SELECT n FROM counter}), 0, 'inside: nothing is written yet');
continue_backend($holder_pid);
$holder->query_safe('COMMIT');
is(answer($other), 't', 'inside: after its commit the lease goes to the other');
$other->query_safe(q{BEGIN; SET LOCAL lease_lock.owner = 'o1'; UPDATE counter SET n = n + 1; COMMIT});
is(look($node, q{SELECT n FROM counter}), 2, 'inside: both writes are there');
is($other->query_safe(q{SELECT lease_release('counter:1', 'o1')}), 't', 'released');

# Paused before it asserts.
foreach my $level ('READ COMMITTED', 'REPEATABLE READ')
{
	$holder->query_safe(q{SELECT lease_acquire('counter:1', '1 hour', 'h2')});
	$holder->query_safe(qq{BEGIN ISOLATION LEVEL $level; SET LOCAL lease_lock.owner = 'h2'; SELECT n FROM counter});
	stop_backend($holder_pid);
	expire('h2');
	is($other->query_safe(q{SELECT lease_acquire('counter:1', '1 hour', 'o2')}), 't', "$level, before: taken over");
	continue_backend($holder_pid);
	session_fails($holder, q{UPDATE counter SET n = 100}, '55000', 'not held by owner "h2"', "$level, before: the write is refused");
	$holder->query_safe('ROLLBACK');
	session_fails($holder, q{SELECT lease_assert('counter:1', 'h2')}, '55000', 'not held by owner "h2"', "$level, before: so is an assert");
	is(look($node, q{SELECT n FROM counter}), 2, "$level, before: nothing was written");
	is($other->query_safe(q{SELECT lease_release('counter:1', 'o2')}), 't', 'released');
}

# Many sessions, paused at random moments. Each reads the counter under its lease, and
# writes the next number if it finds that it still has the lease.
look($node, q{
	CREATE TABLE written (n int);
	CREATE TABLE outcome (written int, refused int);
	CREATE PROCEDURE work(rounds int, checks text, seed float8) LANGUAGE plpgsql AS $$
	DECLARE
		me text;
		read int;
		done int := 0;
		refused int := 0;
		is_long boolean;
		how text;
	BEGIN
		PERFORM setseed(seed);
		FOR i IN 1 .. rounds LOOP
			me := gen_random_uuid();
			-- some must come to an end on the slowest machine
			is_long := random() < 0.2;
			WHILE NOT lease_acquire('counter:1', CASE WHEN is_long THEN 10000 ELSE 2 + 10 * random() END * interval '1 ms', me) LOOP
				COMMIT;
				PERFORM pg_sleep(0.0005);
			END LOOP;
			COMMIT;
			SELECT n INTO read FROM counter;
			COMMIT;
			PERFORM pg_sleep(0.004 * random());

			how := CASE WHEN checks = 'plain' THEN checks WHEN random() < 0.5 THEN 'assert' ELSE 'guard' END;
			BEGIN
				IF how = 'plain' THEN
					IF NOT EXISTS (SELECT FROM lease_status WHERE owner = me AND state = 'held') THEN
						RAISE object_not_in_prerequisite_state;
					END IF;
				ELSIF how = 'assert' THEN
					PERFORM lease_assert('counter:1', me);
				END IF;
				-- the moment that matters: between check and write
				PERFORM pg_sleep(0.01 * random()) WHERE random() < 0.5;
				PERFORM set_config('lease_lock.owner', me, true);
				UPDATE counter SET n = read + 1;
				INSERT INTO written VALUES (read + 1);
				PERFORM pg_sleep(0.004 * random()) WHERE random() < 0.5;
				done := done + 1;
			EXCEPTION WHEN object_not_in_prerequisite_state THEN
				refused := refused + 1;
			END;
			COMMIT;
			IF is_long OR random() < 0.5 THEN
				PERFORM lease_release('counter:1', me);
				COMMIT;
			END IF;
		END LOOP;
		INSERT INTO outcome VALUES (done, refused);
	END $$;
	-- a heartbeat for whoever has the lease, with renewals that stay open for a while
	CREATE PROCEDURE beat(workers int) LANGUAGE plpgsql AS $$
	BEGIN
		WHILE (SELECT count(*) FROM outcome) < workers LOOP
			PERFORM lease_renew(resource, (0.01 + 6 * random()) * interval '1 ms', owner) FROM lease_status WHERE state = 'held';
			PERFORM pg_sleep(0.003 * random());
			IF random() < 0.3 THEN
				ROLLBACK;
			ELSE
				COMMIT;
			END IF;
			PERFORM pg_sleep(0.003 * random());
		END LOOP;
	END $$;
});

# Returns how many writes there were, and how many of them were lost.
sub run_crowd
{
	my ($checks) = @_;
	my @sessions = map { open_session($node) } 0 .. $workers;
	my @pids = map { $_->query_safe('SELECT pg_backend_pid()') } @sessions;
	my $end = time + $WaitTest::LIMIT;
	my $running = q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL %' AND state <> 'idle'};

	look($node, q{TRUNCATE written, outcome;});
	send_sql($sessions[0], "CALL beat($workers)");
	send_sql($_, "CALL work(" . $rounds / $workers . ", '$checks', " . rand() . ")") foreach @sessions[ 1 .. $workers ];
	for (my $pauses = 0;; $pauses++)
	{
		my $pid = $pids[rand @pids];

		last if $pauses % 10 == 0 && look($node, $running) == 0;
		die "$checks: the crowd does not come to an end" if time > $end;
		stop_backend($pid);
		sleep(rand(0.015));
		continue_backend($pid);
		sleep(rand(0.01));
	}
	is(answer($_), '', "$checks: a worker came to its end") foreach @sessions;
	$_->quit foreach @sessions;

	my ($written, $refused) = split /\|/, look($node, q{SELECT sum(written), sum(refused) FROM outcome});
	is($written + $refused, $rounds, "$checks: $rounds rounds, $written written, $refused refused");
	is(look($node, q{SELECT count(*) FROM written}), $written, "$checks: every write was noted");
	return ($written, $written - look($node, q{SELECT n FROM counter}), look($node, q{SELECT count(*) - count(DISTINCT n) FROM written}));
}

sub start_over
{
	my ($protected) = @_;

	look($node, q{
		SELECT lease_unprotect('counter');
		UPDATE counter SET n = 0;
		TRUNCATE lease_lock;
	});
	look($node, q{SELECT lease_protect('counter', 'counter:{id}')}) if $protected;
	return;
}

start_over(1);
my ($written, $lost, $doubled) = run_crowd('assert and guard');
cmp_ok($written, '>', 0, 'with assert: there were writes');
is($lost, 0, 'with assert: none was lost');
is($doubled, 0, 'with assert: none was doubled');
cmp_ok(look($node, q{SELECT sum(refused) FROM outcome}), '>', 0, 'with assert: some came too late, and were refused');

start_over(0);
($written, $lost, $doubled) = run_crowd('plain');
cmp_ok($lost, '>', 0, "without: $lost of $written were lost");
cmp_ok($doubled, '>', 0, "without: $doubled of $written were doubled");

$node->stop;
done_testing();
