# Wake-ups of waiters when a transaction of another session makes more than one
# change. No result depends on how long a step takes, since a waiter that misses
# a wake-up would sleep for an hour.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('seams', "${WaitTest::NEVER}max_prepared_transactions = 5\n");

# A repeated look would hide there that a wake-up is lost.
my $only_wake_ups = is_for_races($node) && 'in a build for races, waiters do not look again each second';

sub held_by
{
	my ($resource, $owners, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return becomes($node, "SELECT string_agg(owner, ' ' ORDER BY owner) FROM lease_status
		WHERE resource = '$resource' AND state = 'held'", $owners, $name);
}

# A reader that has its turn in a transaction that stays open.
foreach my $kind ([ 'shared', "lease_acquire_shared('%s', '1 hour', '%s', NULL)" ],
	[ 'permit', "lease_acquire_permit('%s', 3, '1 hour', '%s', NULL)" ])
{
	my ($r, $call) = @$kind;
	my @sessions = map { open_session($node) } 1 .. 3;

	look($node, "SELECT lease_acquire('$r', '1 hour', 'writer')");
	$sessions[0]->query_safe('BEGIN');
	send_to_wait($node, $sessions[$_], 'SELECT ' . sprintf($call, $r, "o$_"), in_queue()) foreach 0 .. 2;
	look($node, "SELECT lease_release('$r', 'writer')");
	held_by($r, 'o1 o2', "$r: those behind an open transaction have their turn meanwhile");
	$sessions[0]->query_safe('COMMIT');
	held_by($r, 'o0 o1 o2', "$r: and all of them in the end");
	$_->quit foreach @sessions;
}

# A transaction gives one permit back and renews another one.
{
	my $session = open_session($node);

	look($node, "SELECT lease_acquire_permit('renewed', 2, '1 hour', 'a'), lease_acquire_permit('renewed', 2, '1 hour', 'b')");
	send_to_wait($node, $session, "SELECT lease_acquire_permit('renewed', 2, '1 hour', 'c', NULL)", in_queue());
	look($node, "BEGIN; SELECT lease_release('renewed', 'a'); SELECT lease_renew('renewed', '2 hours', 'b'); COMMIT");
	held_by('renewed', 'b c', 'a permit that was released is given away, whatever else the transaction did');
	$session->quit;
}

# The end of a prepared transaction wakes no waiter. So a waiter for one of
# several leases of such transactions looks again by itself.
SKIP:
{
	skip $only_wake_ups, 2 if $only_wake_ups;
	foreach my $end ('ROLLBACK', 'COMMIT')
	{
		my $r = lc $end;
		my $session = open_session($node);

		foreach my $i (1, 2)
		{
			my $take = "SELECT lease_acquire_permit('$r', 2, '1 hour', 'p$i')";

			look($node, $end eq 'ROLLBACK' ? "BEGIN; $take; PREPARE TRANSACTION '$r $i'"
				: "$take; BEGIN; SELECT lease_release('$r', 'p$i'); PREPARE TRANSACTION '$r $i'");
		}
		send_to_wait($node, $session, "SELECT lease_acquire_permit('$r', 2, '1 hour', 'w', NULL)", in_queue());
		look($node, "$end PREPARED '$r 2'");
		held_by($r, $end eq 'ROLLBACK' ? 'w' : 'p1 w', "$end PREPARED lets a waiter have the permit");
		look($node, "ROLLBACK PREPARED '$r 1'");
		$session->quit;
	}
}

# A waiter for any of several leases notices in time that one of them has
# expired, although a transaction has another one, and not only when it looks by
# itself. On a busy machine the first tries may take as long.
{
	my $session = open_session($node);
	my $wait = 5 * slowness($node);
	my $least = $wait;

	look($node, qq{
		SELECT lease_acquire('open', '1 hour', 'x'), lease_release('open', 'x');
		CREATE FUNCTION wait_for_end() RETURNS float8 LANGUAGE plpgsql AS \$\$
		DECLARE
			begun_at timestamptz := clock_timestamp();
		BEGIN
			PERFORM lease_acquire('ends', '100 ms', 'x');
			PERFORM lease_acquire_any(ARRAY['open', 'ends'], '1 hour', 'w', '$wait s');
			PERFORM lease_release('ends', 'w');
			RETURN extract(epoch FROM clock_timestamp() - begun_at);
		END \$\$});
	$session->query_safe(q{BEGIN; SELECT lease_acquire_shared('open', '1 hour', 'reader')});
	for (1 .. 20)
	{
		my $seconds = look($node, 'SELECT wait_for_end()');
		$least = $seconds if $seconds < $least;
		last if $least < 0.16 * $wait;
	}
	cmp_ok($least, '<', 0.16 * $wait, 'any of several: the end of one is noticed beside an open transaction');
	$session->quit;
}

# Limits also apply to the new owner of a transferred lease.
{
	look($node, "SELECT lease_acquire('mine', '1 hour', 'm'), lease_acquire('given', '1 hour', 'g')");
	sql_fails($node, "SET lease_lock.max_leases_per_owner = 1; SELECT lease_transfer('given', 'g', 'm')",
		'53400', 'too many leases', 'a transferred lease counts for its new owner');
	is(look($node, "SELECT lease_transfer('given', 'g', 'h') > 0"), 't', 'without a limit it is transferred');
}

# A waiter for any of several leases, behind transactions whose end wakes
# nobody.
SKIP:
{
	skip $only_wake_ups, 2 if $only_wake_ups;
	my $holder = open_session($node);
	my $session = open_session($node);

	look($node, "SELECT lease_acquire('any 1', '1 hour', 'x')");
	look($node, "BEGIN; SELECT lease_acquire('any 2', '1 hour', 'y'); PREPARE TRANSACTION 'p'");
	send_to_wait($node, $session, "SELECT lease_acquire_any(ARRAY['any 1', 'any 2'], '1 hour', 'z', NULL)", in_queue());
	look($node, "ROLLBACK PREPARED 'p'");
	held_by('any 2', 'z', 'any of several: a prepared grant is rolled back');

	answer($session);

	look($node, "SELECT lease_acquire('any 3', '1 ms', 'x')");
	$holder->query_safe(q{BEGIN; SELECT FROM lease_lock WHERE resource = 'any 3' FOR KEY SHARE});
	send_to_wait($node, $session, "SELECT lease_acquire_any(ARRAY['any 1', 'any 3'], '1 hour', 'z', NULL)", in_queue());
	$holder->query_safe('COMMIT');
	held_by('any 3', 'z', 'any of several: a row lock is given up');
	$_->quit foreach $holder, $session;
}

# An exclusive waiter behind a shared lease or permit that is not committed.
{
	my @sessions = map { open_session($node) } 1 .. 2;

	look($node, "SELECT lease_acquire_shared('open', '1 hour', 'gone'), lease_release('open', 'gone')");
	my $xid = $sessions[0]->query_safe("BEGIN; SELECT lease_acquire_shared('open', '1 hour', 'one')");
	$xid = $sessions[0]->query_safe('SELECT CAST(pg_current_xact_id() AS xid)');
	send_to_wait($node, $sessions[1], "SELECT lease_acquire('open', '1 hour', 'two', NULL)", in_lock_manager());
	is(look($node, "SELECT blocked_by_xid FROM lease_waiters WHERE resource = 'open'"), $xid,
		'lease_waiters shows a waiter behind an open shared lease');
	$sessions[0]->query_safe('ROLLBACK');
	is(answer($sessions[1]), 't', 'and goes on when it ends');
	$_->quit foreach @sessions;
}

# A deadlock in which one of the leases is a permit that is not committed.
{
	my @sessions = map { open_session($node) } 1 .. 2;

	look($node, "SELECT lease_acquire('circle 2', '1 hour', 'two'), lease_acquire_shared('circle 1', '1 hour', 'gone'), lease_release('circle 1', 'gone')");
	$sessions[0]->query_safe("BEGIN; SET deadlock_timeout = '50ms'; SELECT lease_acquire_shared('circle 1', '1 hour', 'one')");
	$sessions[1]->query_safe("SET deadlock_timeout = '50ms'");
	send_sql($sessions[0], "SELECT lease_acquire('circle 2', '1 hour', 'other', NULL)");
	becomes($node, q{SELECT count(*) FROM lease_waiters WHERE resource = 'circle 2'}, 1, 'one waits for two');
	send_sql($sessions[1], "SELECT lease_acquire('circle 1', '1 hour', 'two', '1 min')");
	becomes($node, 'SELECT deadlocks FROM lease_stats', 1, 'a deadlock with a permit of an open transaction is found');
	like(answer($sessions[0]), qr/ERROR:  40P01/, 'by the one that sleeps in the queue');
	is(answer($sessions[1]), 't', 'and the other one goes on');
	look($node, "SELECT lease_release('circle 2', 'two')");
	$_->quit foreach @sessions;
}

# An owner that waits for a resource on which it has a permit itself.
{
	my $session = open_session($node);

	look($node, "SELECT lease_acquire_permit('twice', 3, '1 hour', 'a')");
	send_to_wait($node, $session, "SELECT lease_acquire_permit('twice', 3, '1 hour', 'a', NULL)", in_queue());
	is(look($node, "SELECT lease_acquire_permit('twice', 3, '1 hour', 'b')"), 't', 'a waiter behind its own permit does not block others');
	look($node, "SELECT lease_release('twice', 'a')");
	held_by('twice', 'a b', 'and is granted the permit afterwards');
	$session->quit;
}

$node->stop;
done_testing();
