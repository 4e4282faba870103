# Without the library preloaded servers before 17 have no queue. Waiters look
# again and again: the results are the same, except that there is no order and no deadlock detection.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WaitTest;

my $node = start_waiting_node('polling', $WaitTest::NEVER . "lease_lock.poll_interval = '50 ms'\nmax_prepared_transactions = 10\n", preload => 0);

if (look($node, 'SHOW server_version_num') >= 170000)
{
	$node->stop;
	plan skip_all => 'this server has a queue in any case';
}

my @sessions = map { open_session($node) } 0 .. 3;
my $blocker = open_session($node);

sub wait_sql
{
	my ($call, $owner, $wait) = @_;

	return $call eq 'lease_wait' ? "CALL lease_wait('r', '1 hour', '$owner', $wait)"
	  : "SELECT lease_acquire('r', '1 hour', '$owner', $wait)";
}

# Whether it is granted.
sub wait_with
{
	my ($session, @wait) = @_;

	send_sql($session, wait_sql(@wait));
	return answer($session);
}

foreach my $call ('lease_acquire', 'lease_wait')
{
	my ($pid, $since);

	# Release, one holder at a time, in some order.
	look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
	send_to_wait($node, $sessions[$_], wait_sql($call, "w$_", q{'1 min'})) foreach 0 .. 3;
	is(look($node, 'SELECT count(*) FROM lease_waiters'), 0, "$call: lease_waiters shows nobody");
	is(look($node, q{SELECT lease_release('r', 'holder')}), 't', "$call: released");
	my %granted;
	foreach (0 .. 3)
	{
		becomes($node, q{SELECT count(*) FROM lease_status}, 1, "$call: somebody gets it");
		my $owner = look($node, q{SELECT owner FROM lease_status});
		$granted{$owner} = 1;
		is(look($node, "SELECT lease_release('r', '$owner')"), 't', "$call: and releases it");
	}
	is(join(',', sort keys %granted), 'w0,w1,w2,w3', "$call: each had it once");
	is(answer($_), 't', "$call: granted") foreach @sessions;

	# Time out, expiry, renewal.
	look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
	$since = time;
	is(wait_with($sessions[0], $call, 'w0', q{'300 ms'}), 'f', "$call: refused at the end of the wait");
	cmp_ok(time - $since, '>=', 0.3, "$call: not before");
	cmp_ok(time - $since, '<', $WaitTest::LIMIT, "$call: and not only when the lease ends");
	look($node, q{SELECT lease_release('r', 'holder'), lease_acquire('r', '400 ms', 'holder')});
	my $expires = look($node, q{SELECT expires_at FROM lease_status});
	is(wait_with($sessions[0], $call, 'w0', q{'1 min'}), 't', "$call: granted at expiry");
	is(look($node, "SELECT granted_at >= '$expires' FROM lease_status"), 't', "$call: not before");

	# A rollback of a release gives nobody the lease.
	look($node, q{SELECT lease_release('r', 'w0')});
	look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
	$blocker->query_safe(q{BEGIN; SELECT lease_release('r', 'holder')});
	$pid = send_to_wait($node, $sessions[0], wait_sql($call, 'w0', q{'1 min'}), in_lock_manager());
	$blocker->query_safe('ROLLBACK');
	becomes($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND " . in_queue(), 1, "$call: waits on after a rollback");
	is(look($node, q{SELECT owner FROM lease_status}), 'holder', "$call: the holder has it");
	$blocker->query_safe(q{BEGIN; SELECT lease_release('r', 'holder'); PREPARE TRANSACTION 'p'});
	becomes($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND " . in_lock_manager(), 1, "$call: waits for a prepared transaction");
	look($node, q{COMMIT PREPARED 'p'});
	is(answer($sessions[0]), 't', "$call: granted when that is committed");

	# Interrupted, in both places, with the right error and nothing left.
	foreach my $place (in_queue(), in_lock_manager())
	{
		my $where = $place eq in_queue() ? 'held lease' : 'open transaction';

		$blocker->query_safe(q{BEGIN; SELECT lease_release('r', 'w0')}) if $place eq in_lock_manager();
		foreach my $way ([ 'SET statement_timeout = %d', '57014' ], [ 'pg_cancel_backend', '57014' ], [ 'SET lock_timeout = %d', '55P03' ])
		{
			my ($do, $state) = @$way;

			next if $state eq '55P03' && $where eq 'held lease';
			($pid) = send_to_short_wait($node, $sessions[1], sub {
					return ($do =~ /^SET/ ? sprintf("$do;\n", $_[0]) : '') . wait_sql($call, 'w1', q{'1 h'});
				}, $place);
			look($node, "SELECT $do($pid)") if $do !~ /^SET/;
			like(answer($sessions[1]), qr/ERROR:  $state/, "$call at $where: $do");
			$do =~ /statement_timeout/ ? reset_settings($sessions[1]) : $sessions[1]->query_safe('RESET ALL');
			is(look($node, "SELECT count(*) FROM pg_locks WHERE pid = $pid"), 0, "$call at $where, $do: no lock is left");
		}
		my $victim = open_session($node);
		$pid = send_to_wait($node, $victim, wait_sql($call, 'w1', q{'1 min'}), $place);
		look($node, "SELECT pg_terminate_backend($pid)");
		like(last_words($victim), qr/FATAL:  57P01/, "$call at $where: terminated");
		is(wait_with($sessions[1], $call, 'w1', q{'100 ms'}), 'f', "$call at $where: the end of the wait");
		$blocker->query_safe('COMMIT') if $place eq in_lock_manager();
	}

	# Owners that wait for each other run out of time.
	$sessions[0]->query_safe('SET deadlock_timeout = 50');
	is($sessions[0]->query_safe(q{SELECT lease_acquire('a', '1 hour', 'o0')}), 't', "$call: one lease of two");
	is($sessions[1]->query_safe(q{SELECT lease_acquire('r', '1 hour', 'o1')}), 't', "$call: and the other");
	send_to_wait($node, $sessions[1], q{SELECT lease_acquire('a', '1 hour', 'o1', '1 min')});
	is(wait_with($sessions[0], $call, 'o0', q{'500 ms'}), 'f', "$call: a deadlock is not found, the wait ends");
	look($node, q{SELECT lease_release('a', 'o0')});
	is(answer($sessions[1]), 't', "$call: the other goes on");
	look($node, q{SELECT lease_release_all('o1')});
	is(look($node, 'SELECT count(*) FROM pg_locks WHERE NOT granted'), 0, "$call: no waiting lock is left");
}

$node->stop;
done_testing();
