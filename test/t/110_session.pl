# A lease that was acquired for a session ends with it, however the session ends,
# and its waiters come at once. Nothing else ends it.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A waiter that looks by itself, without a wake-up, does so too late for this
# test.
my $conf = "deadlock_timeout = '1000 s'\nmax_prepared_transactions = 2\nmax_locks_per_transaction = 1000\nlease_lock.purge_interval = 0\nrestart_after_crash = on\nlog_min_messages = warning\n";
my $primary = start_node('session', "$conf\nshared_preload_libraries = 'lease_lock'\n", allows_streaming => 1);
my $plain = start_node('plain', $conf);

# Open a session that holds the lease; returns it and its pid.
sub holder
{
	my ($node, $resource, $options) = @_;
	my $session = open_session($node);

	is($session->query_safe("SELECT granted FROM lease_request('$resource', NULL, 'ann', session => true$options)"),
		't', "$resource: granted");
	return ($session, $session->query_safe('SELECT pg_backend_pid()'));
}

# Somebody waits, the session ends, and the waiter has the lease.
sub comes_at_once
{
	my ($node, $name, $end, $options, $wait_options) = @_;
	my ($session, $pid) = holder($node, $name, $options // '');
	my $waiter = open_session($node);
	my $waiter_pid = begin_query($waiter,
		"SELECT granted, waited < '20 s' FROM lease_request('$name', '1 hour', 'bob', '60 s'" . ($wait_options // '') . ')');

	$node->poll_query_until('postgres',
		"SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $waiter_pid");
	is($node->safe_psql('postgres', "SELECT session_pid = $pid FROM lease_status WHERE resource = '$name'"),
		't', "$name: the session is shown");
	$end->($session, $pid);
	is(finish_query($waiter), 't|t', "$name: the waiter comes at once");
	$waiter->quit;
	eval { $session->quit };
}

foreach my $node ($primary, $plain)
{
	my $how = $node->name;

	comes_at_once($node, "$how exit", sub { $_[0]->quit });
	comes_at_once($node, "$how exit in a transaction", sub {
		$_[0]->query_safe("BEGIN; SELECT lease_acquire('other', '1 hour', 'ann')");
		$_[0]->quit;
	});
	comes_at_once($node, "$how exit before the release is committed", sub {
		$_[0]->query_safe("BEGIN; SELECT lease_release('$how exit before the release is committed', 'ann')");
		$_[0]->quit;
	});
	comes_at_once($node, "$how terminate", sub { $node->safe_psql('postgres', "SELECT pg_terminate_backend($_[1])") });
	comes_at_once($node, "$how error, then exit", sub { $_[0]->query('SELECT 1 / 0'); $_[0]->{stderr} = ''; $_[0]->quit });
	comes_at_once($node, "$how release", sub { $_[0]->query_safe("SELECT lease_release('$how release', 'ann')") });
	comes_at_once($node, "$how release by another session",
		sub { $node->safe_psql('postgres', "SELECT lease_release('$how release by another session', 'ann')") });
	comes_at_once($node, "$how break", sub { $node->safe_psql('postgres', "SELECT lease_break('$how break')") });
	comes_at_once($node, "$how permit", sub { $_[0]->quit },
		", mode => 'permit', permits => 1", ", mode => 'permit', permits => 1");
	comes_at_once($node, "$how reader", sub { $_[0]->quit }, ", mode => 'shared'");
}

# Failed transactions do not end the session.
{
	# With many leases it takes a while until the locks are back that the server
	# releases with the transaction. The last one is watched.
	my $session = open_session($primary);
	my $many = 'FROM generate_series(1, 2000) AS i';

	is($session->query_safe("SELECT count(*) $many, lease_request('many ' || i, NULL, 'ann', session => true) WHERE granted"),
		2000, 'many leases of one session');
	$session->query_safe("SELECT granted FROM lease_request('failing', NULL, 'ann', session => true)");
	my $token = $session->query_safe("SELECT lease_token('failing', 'ann')");
	my $watcher = open_session($primary);

	begin_query($watcher, "DO \$\$ BEGIN FOR i IN 1 .. 300000 LOOP
			IF lease_session_ended($token) THEN RAISE EXCEPTION 'ended in round %', i; END IF;
		END LOOP; END \$\$; SELECT 'still there'");
	$session->query(join('', map { "SELECT 1 / 0;\nBEGIN; SELECT pg_advisory_unlock_all(); SELECT 1 / 0; ROLLBACK; DISCARD ALL;\n" } 1 .. 50));
	$session->{stderr} = '';
	is(finish_query($watcher), 'still there', 'transactions fail, and the lease is held all the time');
	is($session->query_safe("SELECT lease_token('failing', 'ann')"), $token, 'also for the session itself');
	is($session->query_safe("SELECT count(*), min(mode) FROM pg_locks WHERE locktype = 'userlock' AND objid = $token"),
		'2|ExclusiveLock', 'with its two locks');
	is($session->query_safe("SELECT count(*) $many WHERE lease_release('many ' || i, 'ann')"), 2000, 'the others are released');

	session_fails($session, "BEGIN; SELECT lease_request('prepared', NULL, 'ann', session => true); PREPARE TRANSACTION 'p'",
		'0A000', 'cannot PREPARE', 'a grant for the session cannot be prepared');
	is($session->query_safe("SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'"), 2, 'it leaves no lock');

	# A release can. It does not count before it is committed.
	$session->query_safe("BEGIN; SELECT lease_release('failing', 'ann'); PREPARE TRANSACTION 'p'");
	$session->query_safe("ROLLBACK PREPARED 'p'");
	is($session->query_safe("SELECT lease_token('failing', 'ann')"), $token, 'a release that was prepared and rolled back');

	# Nor does the session notice when others end its leases. It lets go of their locks
	# with its next grants, as many of them as there may be, and keeps those that it has.
	my $locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'userlock' AND pid = pg_backend_pid()";
	$session->query_safe("SELECT count(*) FROM generate_series(1, 20) AS i, lease_request('ended ' || i, NULL, 'ann', session => true)");
	is($session->query_safe($locks), 42, 'leases of one session, with two locks each');
	$session->query_safe("BEGIN; SELECT lease_release('ended 1', 'ann'); PREPARE TRANSACTION 'p'");
	$session->query_safe("COMMIT PREPARED 'p'");
	$watcher->query_safe("SELECT lease_release('ended ' || i, 'ann') FROM generate_series(2, 10) AS i");
	$watcher->query_safe("SELECT lease_break('ended ' || i) FROM generate_series(11, 19) AS i");
	$session->query_safe("SELECT lease_request('brief', NULL, 'ann', session => true); SELECT lease_release('brief', 'ann')") foreach 1 .. 12;
	is($session->query_safe($locks), 4, 'those that others have ended are unlocked');
	is($watcher->query_safe("SELECT string_agg(resource, ',' ORDER BY resource COLLATE \"C\") FROM lease_status WHERE session_pid IS NOT NULL"),
		'ended 20,failing', 'and no others');

	# Nor does it let go of a lease whose row is replaced while it looks, because it is renewed.
	my @renewers = map { open_session($primary) } 1 .. 2;
	begin_query($_, q{DO $$ BEGIN FOR i IN 1 .. 3000 LOOP PERFORM lease_renew('ended 20', '1 hour', 'ann'); COMMIT; END LOOP; END $$; SELECT 'renewed'})
	  foreach @renewers;
	$session->query_safe(q{DO $$ BEGIN
		FOR i IN 1 .. 3000 LOOP PERFORM lease_request('brief', NULL, 'ann', session => true), lease_release('brief', 'ann'); COMMIT; END LOOP; END $$});
	is($session->query_safe($locks), 4, 'a lease that is renewed at the same time keeps its locks');
	is(finish_query($_), 'renewed', 'it was renewed all the time') foreach @renewers;
	$_->quit foreach @renewers;

	# An idle session that is terminated leaves no lock, whatever failed before.
	$session->quit;
	$watcher->quit;
	ok($primary->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'userlock'"),
		'no lock is left');
}

# The server is stopped.
foreach my $end ('restart', 'immediate stop', 'kill -9 of the session')
{
	my ($session, $pid) = holder($primary, $end, '');

	if ($end eq 'restart')
	{
		$primary->restart;
	}
	elsif ($end eq 'immediate stop')
	{
		$primary->stop('immediate');
		$primary->start;
	}
	else
	{
		kill 9, $pid;
		$primary->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	}
	is($primary->safe_psql('postgres', "SELECT state, session_pid FROM lease_status WHERE resource = '$end'"),
		'expired|', "$end: the lease has ended");
	is($primary->safe_psql('postgres', "SELECT granted FROM lease_request('$end', '1 hour', 'bob')"),
		't', "$end: another one gets it");
	eval { $session->quit };
}

# On a standby it counts as held, until the standby is promoted.
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
my ($session) = holder($primary, 'promotion', '');
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', "SELECT state, lease_token('promotion', 'ann') > 0 FROM lease_status WHERE resource = 'promotion'"),
	'held|t', 'held on the standby');
$standby->promote;
is($standby->safe_psql('postgres', "SELECT state, lease_token('promotion', 'ann') FROM lease_status WHERE resource = 'promotion'"),
	'expired|', 'ended by the promotion');
is($standby->safe_psql('postgres', "SELECT granted FROM lease_request('promotion', '1 hour', 'bob')"), 't', 'and granted to another one');
$session->quit;

done_testing();
