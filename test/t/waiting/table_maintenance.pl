# Maintenance of the lock table while sessions wait for leases: it does not have
# to wait for them, and they continue, or fail with a clear error.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

# Nobody is woken by these commands: the waiters find out when they look again.
my $node = start_waiting_node('maintenance', <<'CONF');
deadlock_timeout = 200ms
lease_lock.handoff_timeout = 1h
CONF

sub wait_sql
{
	my ($call, $owner) = @_;

	return $call eq 'lease_wait' ? "CALL lease_wait('r', '1 hour', '$owner', '1 min')"
	  : "SELECT lease_acquire('r', '1 hour', '$owner', '1 min')";
}

# What is done, and whether the leases are there afterwards.
my @commands = (
	[ 'VACUUM FULL lease_lock', 'kept' ],
	[ 'VACUUM (FREEZE) lease_lock', 'kept' ],
	[ 'CLUSTER lease_lock USING lease_lock_pkey', 'kept' ],
	[ 'REINDEX TABLE lease_lock', 'kept' ],
	[ 'REINDEX TABLE CONCURRENTLY lease_lock', 'kept' ],
	[ 'ALTER TABLE lease_lock SET (fillfactor = 60)', 'kept' ],
	[ 'CREATE INDEX ON lease_lock (owner)', 'kept' ],
	[ 'CREATE SCHEMA other; ALTER EXTENSION lease_lock SET SCHEMA other; ALTER EXTENSION lease_lock SET SCHEMA public', 'kept' ],
	[ 'TRUNCATE lease_lock', 'gone' ],
	[ 'DELETE FROM lease_lock', 'gone' ],
	[ 'DROP EXTENSION lease_lock; CREATE EXTENSION lease_lock', 'gone' ],
	[ 'DROP EXTENSION lease_lock', 'dropped' ],
);

foreach my $call ('lease_acquire', 'lease_wait')
{
	foreach (@commands)
	{
		my ($command, $leases) = @$_;
		my $name = "$call, $command";
		my @sessions = map { open_session($node) } 0, 1;
		my $queue = q{SELECT count(*) FROM lease_waiters};
		my @pids;

		# This command waits until no statement has an older snapshot. A function
		# that waits for a lease has one, and lease_wait() has none.
		my $behind = $command =~ /CONCURRENTLY/ && $call eq 'lease_acquire';

		look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
		push @pids, send_to_wait($node, $sessions[$_], wait_sql($call, "w$_")) foreach 0, 1;

		sql_fails($node, "SET lock_timeout = '300 ms'; $command", '55P03', 'lock timeout', "$name: waits for an older snapshot")
		  if $behind;
		# Dropped and created in one transaction: no waiter may look in between.
		my $lines = join('', map { "$_;\n" } split(/; /, $command));
		$lines = "BEGIN;\n${lines}COMMIT;\n" if $leases eq 'gone' && $command =~ /DROP EXTENSION/;
		is($node->psql('postgres', "SET lock_timeout = '3 min';\n$lines", on_error_stop => 1),
			0, "$name: is not held up")
		  if !$behind;

		if ($leases eq 'dropped')
		{
			like(answer($sessions[$_]), qr/ERROR:  42P01: .*extension "lease_lock" does not exist.*HINT:/s,
				"$name: waiter $_ is told") foreach 0, 1;
			is(look($node, 'SELECT count(*) FROM pg_locks WHERE pid IN (' . join(',', @pids) . ')'), 0, "$name: no lock is left");
			$node->safe_psql('postgres', 'CREATE EXTENSION lease_lock');
			is($sessions[$_]->query_safe("SELECT lease_acquire('back $_', '1 ms', 'x', '1 min')"), 't', "$name: the session goes on")
			  foreach 0, 1;
		}
		else
		{
			if ($leases eq 'kept')
			{
				is(look($node, $queue), 2, "$name: they wait on");
				is(look($node, q{SELECT lease_release('r', 'holder')}), 't', "$name: the lease is released");
			}
			is(answer($sessions[0]), 't', "$name: the first waiter gets it");
			is(look($node, q{SELECT lease_release('r', 'w0')}), 't', "$name: and releases it");
			is(answer($sessions[1]), 't', "$name: then the second");
			is(look($node, q{SELECT lease_release('r', 'w1')}), 't', "$name: and releases it");
		}
		nothing_left($node, $name);
		look($node, 'DROP SCHEMA IF EXISTS other') if $command =~ /SCHEMA other/;
		# One of the TOAST table as well, which REINDEX would warn of.
		look($node, q{DO $$ DECLARE i regclass; BEGIN
			SELECT indexrelid INTO i FROM pg_index WHERE NOT indisvalid AND indexrelid::regclass::text LIKE 'pg_toast.%';
			IF i IS NOT NULL THEN EXECUTE 'DROP INDEX ' || i; END IF; END $$}) if $behind;
		look($node, 'REINDEX TABLE lease_lock') if $behind;
		is(look($node, q{SELECT count(*) FROM pg_class WHERE relname LIKE 'lease_lock%\_ccnew%'}), $behind ? 1 : 0, "$name: no half-made index")
		  if $command =~ /CONCURRENTLY/;
		look($node, q{DROP INDEX IF EXISTS lease_lock_pkey_ccnew}) if $behind;
		$_->quit foreach @sessions;
	}
}

# A session that locks the table delays the waiters, but they can be canceled.
foreach my $call ('lease_acquire', 'lease_wait')
{
	my $locker = open_session($node);
	my $session = open_session($node);

	look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
	$locker->query_safe('BEGIN; LOCK TABLE lease_lock');
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	send_sql($session, wait_sql($call, 'w'));
	becomes($node, "SELECT cardinality(pg_blocking_pids($pid))", 1, "$call: the table is locked");
	look($node, "SELECT pg_cancel_backend($pid)");
	like(answer($session), qr/57014/, "$call: a cancel gets through");
	$locker->query_safe('ROLLBACK');
	look($node, q{SELECT lease_release('r', 'holder')});
	nothing_left($node, "$call, locked table");
	$_->quit foreach $locker, $session;
}

is($node->safe_psql('postgres', q{SELECT lease_acquire('r', '1 hour', 'x'), lease_release('r', 'x')}), 't|t', 'the server works');
ok(slurp_file($node->logfile) !~ /PANIC|TRAP|was terminated by signal/, 'nothing crashed');

# A wait ends on time although the table is locked: before it begins, or while the
# waiter sleeps behind a lease. So does one with lock_timeout.
{
	my ($locker, $waiter) = map { open_session($node) } 0, 1;
	my $lock = 'BEGIN; LOCK TABLE lease_lock IN SHARE MODE';	# as REINDEX has it

	$node->safe_psql('postgres', q{CREATE EXTENSION IF NOT EXISTS lease_lock; SELECT lease_acquire('held', '1 hour', 'holder')});
	foreach my $call (
		q{SELECT lease_acquire('r', '1 hour', 'w', '%s')},
		q{SELECT lease_acquire_any(ARRAY['r', 's'], '1 hour', 'w', '%s') IS NOT NULL},
		q{SELECT granted OR reason <> 'open' FROM lease_request('r', '1 hour', 'w', wait => '%s')},
		q{CALL lease_wait('r', '1 hour', 'w', '%s')})
	{
		$locker->query_safe($lock);
		send_sql($waiter, "SET statement_timeout = '1 min'; " . sprintf($call, '300 ms'));
		is(answer($waiter), 'f', "$call: ends while the table is locked");
		$locker->query_safe('COMMIT');
	}

	$locker->query_safe($lock);
	$waiter->query_safe(q{SET lock_timeout = '100 ms'});
	session_fails($waiter, q{SELECT lease_acquire('r', '1 hour', 'w', '1 min')}, '55P03', 'lock timeout', 'lock_timeout ends a wait while the table is locked');
	$waiter->query_safe(q{RESET lock_timeout});
	$locker->query_safe('COMMIT');

	my ($pid, $ms) = send_to_short_wait($node, $waiter, sub { "SELECT lease_acquire('held', '1 hour', 'w', '$_[0] ms')" });
	$locker->query_safe($lock);
	is(answer($waiter), 'f', 'a waiter behind a lease: the wait ends while the table is locked');
	is(look($node, "SELECT count(*) FROM pg_locks WHERE pid = $pid AND locktype IN ('relation', 'userlock')"), '0', 'and it has no lock');
	$locker->query_safe('COMMIT');

	# Nor does the search for a deadlock wait for the table, or for its primary key.
	foreach my $statement ('LOCK TABLE lease_lock', 'REINDEX INDEX lease_lock_pkey')
	{
		$waiter->query_safe(q{SET deadlock_timeout = '300 ms'});
		send_to_short_wait($node, $waiter, sub { "SELECT lease_acquire('held', '1 hour', 'w', '$_[0] ms')" }, undef, first => 3000);
		$locker->query_safe("BEGIN; $statement");
		is(answer($waiter), 'f', "$statement: the wait ends, although it searches for a deadlock meanwhile");
		$locker->query_safe('COMMIT');
	}
	is($waiter->query_safe(q{SELECT lease_acquire('r', '1 hour', 'w', '1 min')}), 't', 'a lease is granted afterwards');
	$_->quit foreach $locker, $waiter;
}

$node->stop;
done_testing();
