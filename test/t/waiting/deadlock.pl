# Deadlocks between leases: there is one victim, and its error describes the
# circle. Also deadlocks that include rows, which the server finds.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WaitTest;

my $node = start_waiting_node('deadlock', <<'CONF');
deadlock_timeout = 100ms
lease_lock.handoff_timeout = 1h
CONF

sub wait_sql
{
	my ($call, $resource, $owner, $wait) = @_;

	$wait //= q{'1 h'};
	return $call eq 'lease_wait' ? "CALL lease_wait('$resource', '1 hour', '$owner', $wait)"
	  : "SELECT lease_acquire('$resource', '1 hour', '$owner', $wait)";
}

# Each of n owners holds a lease and waits for that of the next one. The last
# one closes the circle and is the victim, unless its deadlock_timeout leaves
# the search to the others.
sub circle
{
	my ($n, $call, %params) = @_;
	my $name = "$n leases, $call" . ($params{patient} ? ', patient victim' : '');
	my @sessions = map { open_session($node) } 0 .. $n - 1;
	my $last = $n - 1;
	my @pids;

	$sessions[$_]->query_safe("SELECT lease_acquire('r$_', '1 hour', 'o$_')") foreach 0 .. $last;
	$sessions[$last]->query_safe(q{SET deadlock_timeout = '1 h'}) if $params{patient};

	# So that an earlier member finds the circle.
	foreach my $i (0 .. $last - 1)
	{
		$pids[$i] = send_to_wait($node, $sessions[$i], wait_sql($call, 'r' . ($i + 1), "o$i"));
	}
	$pids[$last] = $sessions[$last]->query_safe('SELECT pg_backend_pid()');
	my $since = time;
	send_sql($sessions[$last], wait_sql($call, 'r0', "o$last"));
	my $error = answer($sessions[$last]);
	my $passed = time - $since;

	like($error, qr/ERROR:  40P01: deadlock detected while waiting for the lease on "r0"/, "$name: the last one is the victim");
	cmp_ok($passed, '<', $WaitTest::LIMIT, "$name: soon") if !$params{patient};
	foreach my $i (0 .. $last)
	{
		my $next = ($i + 1) % $n;

		like($error, qr/Process $pids[$i] waits for the lease on "r$next" for owner "o$i"; held by the owner of process $pids[$next]\./,
			"$name: the detail lists member $i");
	}
	is(() = $error =~ /^(?:DETAIL:  )?Process /mg, $n, "$name: and nobody else");

	stays($node, q{SELECT string_agg(owner, ',' ORDER BY owner) FROM lease_waiters},
		join(',', map { "o$_" } 0 .. $last - 1), "$name: the others wait on");

	# The victim releases, and so does each session when it gets its lease.
	foreach my $i (reverse 0 .. $last)
	{
		is($sessions[$i]->query_safe("SELECT lease_release_all('o$i') > 0"), 't', "$name: owner $i releases");
		is(answer($sessions[ $i - 1 ]), 't', "$name: so that " . ($i - 1) . ' goes on') if $i > 0;
	}
	nothing_left($node, $name);
	is(look($node, 'SELECT count(*) FROM lease_status'), 0, "$name: all is released");
	$_->quit foreach @sessions;
	return;
}

foreach my $call ('lease_acquire', 'lease_wait')
{
	circle($_, $call) foreach 2, 3, 5;
}
circle(3, 'lease_acquire', patient => 1);

# A waiter outside of the circle is not affected.
{
	my @sessions = map { open_session($node) } 0 .. 2;

	$sessions[$_]->query_safe("SELECT lease_acquire('r$_', '1 hour', 'o$_')") foreach 0, 1;
	send_to_wait($node, $sessions[0], wait_sql('lease_acquire', 'r1', 'o0'));
	send_to_wait($node, $sessions[2], wait_sql('lease_acquire', 'r1', 'o2'));
	send_sql($sessions[1], wait_sql('lease_acquire', 'r0', 'o1'));
	like(answer($sessions[1]), qr/ERROR:  40P01/, 'beside others: the victim');
	stays($node, q{SELECT string_agg(owner, ',') FROM lease_waiters}, 'o0,o2', 'beside others: the others still wait');
	look($node, q{SELECT lease_release('r1', 'o1')});
	is(answer($sessions[0]), 't', 'beside others: the first goes on');
	look($node, q{SELECT lease_release('r1', 'o0')});
	is(answer($sessions[2]), 't', 'beside others: then the other one');
	look($node, q{SELECT lease_release_all('o0'), lease_release_all('o2')});
	nothing_left($node, 'beside others');
	$_->quit foreach @sessions;
}

# An owner may have several sessions. Waiting for a lease of its own, or all of
# them for one another's, is no deadlock.
{
	my @sessions = map { open_session($node) } 0, 1;

	look($node, q{SELECT lease_acquire('r0', '1 hour', 'o'), lease_acquire('r1', '1 hour', 'o')});
	send_to_wait($node, $sessions[0], wait_sql('lease_acquire', 'r0', 'o'));
	send_to_short_wait($node, $sessions[1], sub { wait_sql('lease_acquire', 'r1', 'o', "'$_[0] ms'") }, in_queue(), first => 800);
	is(answer($sessions[1]), 'f', 'who waits for a lease of its own runs out of time');
	look($node, q{SELECT lease_release('r0', 'o')});
	is(answer($sessions[0]), 't', 'or gets it');
	look($node, q{SELECT lease_release_all('o')});
	nothing_left($node, 'own lease');
	$_->quit foreach @sessions;
}

# An expired lease blocks nobody, so there is no deadlock, whatever its owner
# waits for.
{
	my @sessions = map { open_session($node) } 0, 1;
	my $wait = sub {
		my ($ms) = @_;

		look($node, q{SELECT lease_release('r1', 'o0')});    # if it ran out too early
		look($node, qq{SELECT lease_acquire('r1', '$ms ms', 'o1')});
		$_->query_safe("SET deadlock_timeout = '" . ($ms + 500) . " ms'") foreach @sessions;
		return wait_sql('lease_acquire', 'r1', 'o0');
	};

	look($node, q{SELECT lease_acquire('r0', '1 hour', 'o0')});
	send_to_short_wait($node, $sessions[0], $wait, in_queue(), first => 1000);
	send_to_wait($node, $sessions[1], wait_sql('lease_acquire', 'r0', 'o1'));
	is(answer($sessions[0]), 't', 'a lease of the circle runs out before it is found');
	stays($node, q{SELECT string_agg(owner, ',') FROM lease_waiters}, 'o1', 'the other one still waits');
	look($node, q{SELECT lease_release('r0', 'o0')});
	is(answer($sessions[1]), 't', 'and gets it');
	look($node, q{SELECT lease_release_all('o0'), lease_release_all('o1')});
	nothing_left($node, 'expired');
	$_->quit foreach @sessions;
}

# A row and a lease that was taken in an open transaction: the server's detector
# sees both waits and ends one of them, in whatever order they came.
$node->safe_psql('postgres', 'CREATE TABLE account (id int PRIMARY KEY, n int); INSERT INTO account VALUES (1, 0)');
foreach my $call ('lease_acquire', 'lease_acquire later')
{
	my $lease = open_session($node);
	my $row = open_session($node);
	my $wait_row = 'UPDATE account SET n = n + 1 WHERE id = 1';
	my $wait_lease = wait_sql('lease_acquire', 'mixed', 'row');

	$lease->query_safe(q{BEGIN; SELECT lease_acquire('mixed', '1 hour', 'lease')});
	$row->query_safe('BEGIN; SELECT n FROM account WHERE id = 1 FOR UPDATE');

	# The first session is patient, so that the other one is the victim.
	if ($call eq 'lease_acquire')
	{
		$row->query_safe(q{SET LOCAL deadlock_timeout = '1 h'});
		send_to_wait($node, $row, $wait_lease, in_lock_manager());
		send_sql($lease, $wait_row);
		like(answer($lease), qr/ERROR:  40P01: deadlock detected/, 'mixed: the waiter for the row gets the error');
		is(answer($row), 't', 'mixed: the waiter for the lease gets it');
		$lease->query_safe('ROLLBACK');
		$row->query_safe('COMMIT');
		is(look($node, q{SELECT lease_release('mixed', 'row')}), 't', 'mixed: and holds it');
	}
	else
	{
		$lease->query_safe(q{SET LOCAL deadlock_timeout = '1 h'});
		send_to_wait($node, $lease, $wait_row, in_lock_manager());
		send_sql($row, $wait_lease);
		like(answer($row), qr/ERROR:  40P01: deadlock detected/, 'mixed: the waiter for the lease gets the error');
		$row->query_safe('ROLLBACK');
		is(answer($lease), '', 'mixed: the waiter for the row gets it');
		$lease->query_safe('COMMIT');
		is(look($node, q{SELECT lease_release('mixed', 'lease')}), 't', 'mixed: its lease is committed');
	}
	nothing_left($node, 'mixed');
	$_->quit foreach $lease, $row;
}

# Half of a circle waits behind an open transaction, the other half behind a
# committed lease: the server's detector does not see it. The member that sleeps
# in the queue gets the error, since a waiter in the lock manager cannot be
# woken. Its error ends its transaction, so the other one may not be seen to wait.
foreach my $open (q{lease_acquire('r0', '1 hour', 'a')}, q{lease_renew('r0', '2 hours', 'a')})
{
	my $transaction = open_session($node);
	my $other = open_session($node);

	look($node, q{SELECT lease_acquire('r0', '1 hour', 'a')}) if $open =~ /renew/;
	look($node, q{SELECT lease_acquire('r1', '1 hour', 'b')});
	is($transaction->query_safe("BEGIN; SELECT $open"), 't', "$open: begins");
	send_to_wait($node, $transaction, wait_sql('lease_acquire', 'r1', 'a'));
	send_sql($other, wait_sql('lease_acquire', 'r0', 'b'));
	like(answer($transaction), qr/ERROR:  40P01: deadlock detected while waiting for the lease on "r1"/,
		"$open: the transaction is told");
	$transaction->query_safe('ROLLBACK');
	look($node, q{SELECT lease_release('r0', 'a')}) if $open =~ /renew/;
	is(answer($other), 't', "$open: the other one goes on");
	look($node, q{SELECT lease_release_all('a'), lease_release_all('b')});
	nothing_left($node, $open);
	$_->quit foreach $transaction, $other;
}

$node->stop;
done_testing();
