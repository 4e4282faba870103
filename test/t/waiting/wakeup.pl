# When waiters are woken: by a commit and not before, never by a change that is
# rolled back, and at the end of a lease, even if that end changes.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use List::Util qw(max min);
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('wakeup', $WaitTest::NEVER . <<'CONF');
max_prepared_transactions = 10
wal_level = replica
max_wal_senders = 2
synchronous_standby_names = 'nobody'
synchronous_commit = local
lease_lock.durable = local
lease_lock.flush_releases = on
CONF
my $holder = open_session($node);
my @sessions = map { open_session($node) } 0 .. 2;
my @pids;

sub wait_for_lease
{
	my ($n, $place, $ttl) = @_;

	$ttl //= '1 hour';
	$pids[$n] = send_to_wait($node, $sessions[$n], "SELECT lease_acquire('r', '$ttl', 'w$n', '1 h')", $place);
	return;
}

# Send the first waiter to wait for a lease that expires; returns when that is, and
# for how many milliseconds the holder has it.
sub wait_for_expiry
{
	my ($first) = @_;
	my $expires;
	my (undef, $ms) = send_to_short_wait($node, $sessions[0], sub {
			$expires = look($node, qq{SELECT lease_release('r', 'w0'), lease_acquire('r', '$_[0] ms', 'holder') \\gset
				SELECT expires_at FROM lease_status WHERE resource = 'r'});
			return q{SELECT lease_acquire('r', '1 hour', 'w0', '1 h')};
		}, in_queue(), first => $first);

	return ($expires, $ms);
}

# How many of them wait in this place.
sub waiting
{
	my ($place, @n) = @_;

	return 'SELECT count(*) FROM pg_stat_activity WHERE pid IN (' . join(',', @pids[@n]) . ") AND $place";
}

sub granted_in_turn
{
	my ($name, @n) = @_;

	foreach my $n (@n)
	{
		is(answer($sessions[$n]), 't', "$name: waiter $n gets it");
		is(look($node, "SELECT lease_release('r', 'w$n')"), 't', "$name: and releases it");
	}
	nothing_left($node, $name);
	return;
}

# A commit that waits for a standby has not been made visible to others. A
# waiter that was woken already would have looked, and would wait for the
# transaction instead of the lease.
foreach my $isolation ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my $name = "commit, $isolation";
	my $slow = open_session($node);
	my $pid = $slow->query_safe('SELECT pg_backend_pid()');

	look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
	wait_for_lease($_) foreach 0, 1;
	is($slow->query_safe("BEGIN ISOLATION LEVEL $isolation; SELECT lease_release('r', 'holder')"), 't', "$name: the lease is released");
	is(look($node, waiting(in_queue(), 0, 1)), 2, "$name: nobody is woken by that");
	$slow->query_safe('SET LOCAL synchronous_commit = on');
	send_sql($slow, 'COMMIT');
	becomes($node, "SELECT wait_event FROM pg_stat_activity WHERE pid = $pid", 'SyncRep', "$name: the commit hangs");
	stays($node, waiting(in_queue(), 0, 1), 2, "$name: nobody is woken before it is visible");
	look($node, "SELECT pg_cancel_backend($pid)");
	granted_in_turn($name, 0, 1);
	like(answer($slow), qr/committed locally/, "$name: it was committed");
	$slow->quit;
}

# A release that is rolled back gives nobody the lease. Earlier waiters keep
# sleeping. A waiter that comes meanwhile waits for the transaction, and then for
# the lease.
foreach my $undo ('ROLLBACK', 'ROLLBACK TO SAVEPOINT', 'error', 'disconnect')
{
	my $session = open_session($node);

	look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
	wait_for_lease(0);
	is($session->query_safe(q{BEGIN; SAVEPOINT s; SELECT lease_release('r', 'holder')}), 't', "$undo: the lease is released");
	wait_for_lease(1, in_lock_manager());
	is(look($node, q{SELECT string_agg(owner, ',') FROM lease_waiters WHERE blocked_by_owner = 'holder' AND blocked_by_xid IS NOT NULL}),
		'w0,w1', "$undo: lease_waiters shows the transaction");
	is(look($node, "SELECT pg_blocking_pids($pids[1]) = ARRAY[pid] FROM pg_locks WHERE locktype = 'transactionid' AND transactionid = "
			. '(SELECT max(blocked_by_xid::text)::xid FROM lease_waiters) AND granted'),
		't', "$undo: and the server knows who blocks whom");
	is(look($node, waiting(in_queue(), 0)), 1, "$undo: who was there before sleeps");

	$undo eq 'error' ? session_fails($session, 'SELECT 1 / 0', '22012', 'zero', "$undo: an error")
	  : $undo eq 'disconnect' ? $session->quit
	  : $session->query_safe($undo eq 'ROLLBACK' ? 'ROLLBACK' : 'ROLLBACK TO s');

	becomes($node, waiting(in_queue(), 0, 1), 2, "$undo: both wait for the lease");
	stays($node, q{SELECT string_agg(owner, ',') FROM lease_waiters WHERE blocked_by_owner = 'holder' AND blocked_by_xid IS NULL},
		'w0,w1', "$undo: and nobody gets it");
	is(look($node, q{SELECT lease_token('r', 'holder') > 0}), 't', "$undo: the holder has it still");

	is($session->query_safe(q{SELECT lease_release('r', 'holder'); COMMIT}), 't', "$undo: it is released again in the same transaction")
	  if $undo eq 'ROLLBACK TO SAVEPOINT';
	is(look($node, q{SELECT lease_release('r', 'holder')}),
		$undo eq 'ROLLBACK TO SAVEPOINT' ? 'f' : 't', "$undo: the release that counts");
	granted_in_turn($undo, 0, 1);
	$session->quit if $undo ne 'disconnect';
}

# A grant that is rolled back leaves the lease free: the waiter gets it. This
# call writes inside of a savepoint of its own, which it has released.
foreach my $undo ('ROLLBACK', 'ROLLBACK TO s')
{
	is($holder->query_safe(q{BEGIN; SAVEPOINT s; SELECT lease_acquire_all('{r}', '1 hour', 'holder')}), 't', "grant, $undo: granted");
	wait_for_lease(0, in_lock_manager());
	wait_for_lease(1, in_lock_manager());
	$holder->query_safe($undo);
	becomes($node, q{SELECT lease_token('r', 'w0') > 0}, 't', "grant, $undo: the first waiter gets it")
	  or look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
	granted_in_turn("grant, $undo", 0, 1);
	$holder->query_safe('ROLLBACK') if $undo ne 'ROLLBACK';
}

# Release and grant in one transaction, with waiters: the grant is refused.
look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
wait_for_lease(0);
is($holder->query_safe(q{BEGIN; SELECT lease_release('r', 'holder'), lease_acquire('r', '1 hour', 'holder'); COMMIT}),
	't|f', 'a session that releases comes after the waiters');
granted_in_turn('again', 0);

# One transaction releases more leases than the list of changes can hold.
{
	look($node, q{SELECT count(lease_acquire('many' || i, '1 hour', 'holder')) FROM generate_series(1, 100) AS i});
	send_to_wait($node, $sessions[$_], "SELECT lease_acquire('many' || $_ * 49 + 1, '1 hour', 'w$_', '1 h')") foreach 0 .. 2;
	is(look($node, q{SELECT lease_release_all('holder')}), 100, 'a hundred leases are released at once');
	is(answer($sessions[$_]), 't', "a waiter of one of them gets it: $_") foreach 0 .. 2;
	look($node, q{SELECT lease_release_all('w0'), lease_release_all('w1'), lease_release_all('w2')});
	nothing_left($node, 'many');
}

# The waiter has an expired lease when it expires, and never too early.
{
	my @late;

	foreach my $try (1 .. 5)
	{
		my ($expires) = wait_for_expiry(400);

		is(answer($sessions[0]), 't', 'granted at expiry');
		push @late, look($node, "SELECT extract(epoch FROM granted_at - '$expires') * 1000 FROM lease_status WHERE resource = 'r'");
		is(look($node, q{SELECT lease_release('r', 'w0')}), 't', 'and released');
	}
	note("ms after expiry: @late");
	cmp_ok(min(@late), '>=', 0, 'never before it');
	cmp_ok(max(@late), '<', 1000 * $WaitTest::LIMIT, 'and not only when the waiter looks by itself');
}

# A renewal moves the end that the waiters see. If it comes too late, it is tried
# with twice the time.
{
	my ($ms, $expires) = (500);

	until ($expires)
	{
		(undef, $ms) = wait_for_expiry(2 * $ms);
		wait_for_lease(1);
		$expires = look($node, qq{SELECT lease_renew('r', 2 * interval '$ms ms', 'holder') \\gset
			SELECT expires_at FROM lease_status WHERE owner = 'holder'});
		granted_in_turn('too late', 0, 1) if !$expires;
	}
	is(answer($sessions[0]), 't', 'granted after a renewal');
	my $late = look($node, "SELECT extract(epoch FROM granted_at - '$expires') * 1000 FROM lease_status WHERE resource = 'r'");
	cmp_ok($late, '>=', 0, 'not before the new end');
	cmp_ok($late, '<', 1000 * $WaitTest::LIMIT, 'within the limit of it');
	is(look($node, q{SELECT lease_release('r', 'w0')}), 't', 'and released');
	granted_in_turn('renewal', 1);
}

# A waiter that sleeps until the end of a long lease wakes up earlier if the
# next lease ends earlier. The sessions are new, so nothing else wakes them.
{
	$_->quit foreach @sessions;
	@sessions = map { open_session($node) } 0 .. 2;
	look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
	wait_for_lease(0, in_queue(), '500 ms');
	wait_for_lease(1);
	is(look($node, q{SELECT lease_release('r', 'holder')}), 't', 'a long lease is released');
	is(answer($sessions[0]), 't', 'the first waiter gets it for a short time');
	my $since = time;
	is(answer($sessions[1]), 't', 'and the second when that is over');
	cmp_ok(time - $since, '<', $WaitTest::LIMIT, 'not only when it looks by itself');
	is(look($node, q{SELECT lease_release('r', 'w1')}), 't', 'and releases it');
	nothing_left($node, 'shorter');
}

# A change by hand wakes nobody. The waiter finds it after deadlock_timeout.
{
	look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
	$sessions[0]->query_safe(q{SET deadlock_timeout = '200 ms'});
	wait_for_lease(0);
	look($node, q{UPDATE lease_lock SET expires_at = clock_timestamp() WHERE resource = 'r'});
	granted_in_turn('by hand', 0);
	$sessions[0]->query_safe('RESET deadlock_timeout');
}

# A prepared transaction has the lease until it ends, from whatever session.
foreach my $end ('COMMIT PREPARED', 'ROLLBACK PREPARED')
{
	foreach my $what ('release', 'acquire')
	{
		my $name = "$end of $what";
		my $free = $what eq 'release' ? $end eq 'COMMIT PREPARED' : $end eq 'ROLLBACK PREPARED';

		if ($what eq 'release')
		{
			look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
			wait_for_lease(0);
			wait_for_lease(1);
			is($holder->query_safe(q{BEGIN; SELECT lease_release('r', 'holder'); PREPARE TRANSACTION 'p'}), 't', "$name: prepared");
			becomes($node, waiting(in_lock_manager(), 0), 1, "$name: the first waiter waits for the transaction");
			stays($node, waiting(in_queue(), 1), 1, "$name: the second for its turn");
		}
		else
		{
			is($holder->query_safe(q{BEGIN; SELECT lease_acquire('r', '1 hour', 'holder'); PREPARE TRANSACTION 'p'}), 't', "$name: prepared");
			wait_for_lease(0, in_lock_manager());
			wait_for_lease(1, in_lock_manager());
		}
		is(look($node, q{SELECT bool_and(blocked_by_xid = transaction) FROM lease_waiters, pg_prepared_xacts}),
			't', "$name: lease_waiters shows it");
		is(look($node, q{SELECT lease_acquire('r', '1 hour', 'x', '100 ms')}), 'f', "$name: a wait of 100 ms ends");

		look($node, "$end 'p'");
		if (!$free)
		{
			becomes($node, waiting(in_queue(), 0, 1), 2, "$name: all wait for the lease again");
			is(look($node, q{SELECT lease_release('r', 'holder')}), 't', "$name: the holder releases it");
		}
		granted_in_turn($name, 0, 1);
	}
}

$node->stop;
done_testing();
