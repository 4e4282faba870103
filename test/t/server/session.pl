# A lease that was acquired for a session ends with it, however the session ends,
# and its waiters come at once. Nothing else ends it.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseCluster;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

# A waiter that looks by itself, without a wake-up, does so too late for this
# test.
my $conf = "deadlock_timeout = '1000 s'\nmax_prepared_transactions = 2\nmax_locks_per_transaction = 10\nmax_connections = 20\nlease_lock.purge_interval = 0\nlease_lock.handoff_timeout = '1000 s'\nrestart_after_crash = on\nlog_min_messages = warning\n";
my $primary = start_node('session', "$conf\nshared_preload_libraries = 'lease_lock'\n", allows_streaming => 1);
# From 17 on such leases need no preloading.
my @nodes = ($primary);
push @nodes, start_node('plain', $conf) if $primary->safe_psql('postgres', 'SHOW server_version_num') >= 170000;

# Open a session that holds the lease; returns it and its pid.
sub holder
{
	my ($node, $resource, $options) = @_;

	$options //= '';
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
		"SELECT granted, waited < '2 min' FROM lease_request('$name', '1 hour', 'bob', '3 min'" . ($wait_options // '') . ')');

	$node->poll_query_until('postgres',
		"SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $waiter_pid");
	is($node->safe_psql('postgres', "SELECT session_pid = $pid FROM lease_status WHERE resource = '$name'"),
		't', "$name: the session is shown");
	$end->($session, $pid);
	is(finish_query($waiter), 't|t', "$name: the waiter comes at once");
	$waiter->quit;
	eval { $session->quit };
}

# The session that ends waits itself, for another permit, and is the first in the line. It has waited before, so that it
# leaves the line after it has woken the waiters of its lease.
sub hands_on
{
	my ($node, $name) = @_;
	my $permit = "'$name', '1 hour', '%s', %s, mode => 'permit', permits => 2";
	my $waiter = open_session($node);
	my $session = open_session($node);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	$node->safe_psql('postgres', "SELECT lease_acquire('$name: other', '1 hour', 'eve')");
	is($session->query_safe("SELECT lease_acquire('$name: other', '1 hour', 'ann', '10 ms')"), 'f', "$name: has waited before");
	is($session->query_safe('SELECT granted FROM lease_request(' . sprintf($permit, 'ann', "'0'") . ', session => true)'), 't', "$name: granted");
	is($node->safe_psql('postgres', 'SELECT granted FROM lease_request(' . sprintf($permit, 'eve', "'0'") . ')'), 't', "$name: the other permit");
	my $first_pid = begin_query($session, 'SELECT granted FROM lease_request(' . sprintf($permit, 'ann 2', "'3 min'") . ')');
	$node->poll_query_until('postgres', "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $first_pid");
	my $second_pid = begin_query($waiter, "SELECT granted, waited < '2 min' FROM lease_request(" . sprintf($permit, 'bob', "'3 min'") . ')');
	$node->poll_query_until('postgres', "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $second_pid");
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	is(finish_query($waiter), 't|t', "$name: the next waiter comes at once");
	$waiter->quit;
	eval { $session->quit };
	return;
}

foreach my $node (@nodes)
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
	hands_on($node, "$how, waits itself");
}

sub state_of
{
	my ($resource) = @_;
	return $primary->safe_psql('postgres', "SELECT state FROM lease_status WHERE resource = '$resource'");
}

# Errors do not end the session.
{
	my $session = (holder($primary, 'failing'))[0];
	my $watcher = open_session($primary);

	begin_query($watcher, q{DO $$ BEGIN FOR i IN 1 .. 20000 LOOP
			IF (SELECT state FROM lease_status WHERE resource = 'failing') <> 'held' THEN RAISE EXCEPTION 'ended in round %', i; END IF;
		END LOOP; END $$; SELECT 'still there'});
	$session->query(join('', map { "SELECT 1 / 0;\nBEGIN; SELECT pg_advisory_unlock_all(); SELECT 1 / 0; ROLLBACK; DISCARD ALL;\n" } 1 .. 50));
	$session->{stderr} = '';
	is(finish_query($watcher), 'still there', 'transactions fail, and the lease is held all the time');
	is($session->query_safe(q{SELECT lease_token('failing', 'ann') > 0}), 't', 'also for the session itself');
	is($session->query_safe(q{SELECT count(*) FROM pg_locks WHERE locktype IN ('advisory', 'userlock')}), 0, 'it needs no lock');
	$session->quit;
	$watcher->quit;
}

# Nor does a full lock table, which any role can fill.
{
	my $session = (holder($primary, 'crowded'))[0];
	my $hog = open_session($primary);

	$primary->safe_psql('postgres', 'CREATE ROLE hog');
	$hog->query_safe(q{SET ROLE hog});
	$hog->query(q{DO $$ BEGIN FOR i IN 1 .. 1000000 LOOP PERFORM pg_advisory_lock_shared(i); END LOOP; END $$});
	like($hog->{stderr}, qr/out of shared memory/, 'the lock table is full');
	$hog->{stderr} = '';
	session_fails($session, q{SELECT lease_renew('crowded', '1 hour', 'ann')}, '53200', 'out of shared memory', 'a statement fails');
	$session->query('DISCARD ALL; SELECT 1 / 0; SELECT pg_advisory_unlock_all()');
	$session->{stderr} = '';
	$hog->query_safe('SELECT pg_advisory_unlock_all()');
	is(state_of('crowded'), 'held', 'the lease is held');
	is($session->query_safe(q{SELECT lease_token('crowded', 'ann') > 0}), 't', 'also for the session itself');
	$_->quit foreach $session, $hog;
}

# Nobody can keep the leases of others from being granted by asking for sessions.
{
	my $asking = open_session($primary);

	begin_query($asking, q{DO $$ BEGIN FOR i IN 1 .. 100000 LOOP
			PERFORM lease_session_ended(i + (SELECT last_value FROM lease_token_seq)) FROM generate_series(1, 20) AS i;
		END LOOP; END $$});
	my $session = open_session($primary);
	is($session->query_safe(q{SELECT count(*) FROM generate_series(1, 2000) AS i, lease_request('asked ' || i, NULL, 'ann', session => true) WHERE granted}),
		2000, 'a session that asks for sessions disturbs no grant');
	$primary->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'DO%'});
	eval { finish_query($asking) };
	is($session->query_safe(q{SELECT count(*) FROM generate_series(1, 2000) AS i WHERE lease_release('asked ' || i, 'ann')}), 2000, 'nor a release');
	$session->quit;
	eval { $asking->quit };
}

# A prepared transaction behaves as its rows say.
{
	my $session = open_session($primary);

	$session->query_safe(q{BEGIN; SELECT lease_request('prepared', NULL, 'ann', session => true); PREPARE TRANSACTION 'grant'});
	$session->query_safe(q{COMMIT PREPARED 'grant'});
	is(state_of('prepared'), 'held', 'a grant that was prepared');
	$session->query_safe(q{BEGIN; SELECT lease_release('prepared', 'ann'); PREPARE TRANSACTION 'release'});
	$session->query_safe(q{ROLLBACK PREPARED 'release'});
	is(state_of('prepared'), 'held', 'a release that was prepared and rolled back');
	$session->query_safe(q{BEGIN; SELECT lease_request('later', NULL, 'ann', session => true); PREPARE TRANSACTION 'later'});
	$session->quit;
	ok($primary->poll_query_until('postgres', q{SELECT state = 'expired' FROM lease_status WHERE resource = 'prepared'}), 'the session ends');
	is($primary->safe_psql('postgres', q{SELECT granted, reason FROM lease_request('later', '1 hour', 'bob')}), 'f|open', 'its prepared grant is open');
	$primary->safe_psql('postgres', q{COMMIT PREPARED 'later'});
	is(state_of('later'), 'expired', 'once it is committed, the lease has ended');
	is($primary->safe_psql('postgres', q{SELECT granted FROM lease_request('later', '1 hour', 'bob')}), 't', 'and is granted');
}

# Sessions come that have numbers, too, until one of them has the place of a session that has ended.
{
	my $place = sub { $primary->safe_psql('postgres', "SELECT session_number & 262143 FROM lease_lock WHERE resource = '$_[0]'") };
	my $session = (holder($primary, 'place'))[0];
	my $wanted = $place->('place');
	my @others;

	$session->quit;
	ok($primary->poll_query_until('postgres', q{SELECT state = 'expired' FROM lease_status WHERE resource = 'place'}), 'the session ends');
	do
	{
		push @others, (holder($primary, 'place of ' . @others))[0];
	} until ($place->("place of $#others") eq $wanted || @others == 15);
	is($place->("place of $#others"), $wanted, 'another session is in its place');
	is(state_of('place'), 'expired', 'and does not keep the lease');
	$_->quit foreach @others;
}

# Another session with the privileges downgrades it, and it still ends with its session.
{
	my $session = (holder($primary, 'downgraded'))[0];

	is($primary->safe_psql('postgres', q{SELECT lease_downgrade('downgraded', 'ann') > 0}), 't', 'another session downgrades it');
	is(state_of('downgraded'), 'held', 'it is held');
	is($session->query_safe(q{SELECT session_pid = pg_backend_pid() FROM lease_status WHERE resource = 'downgraded'}), 't', 'by its session');
	$session->quit;
	ok($primary->poll_query_until('postgres', q{SELECT state = 'expired' FROM lease_status WHERE resource = 'downgraded'}), 'and ends with it');
}

# What a session asserted that is terminated stays asserted until it is rolled back.
{
	my ($session, $pid) = holder($primary, 'asserted');

	$session->query_safe(q{BEGIN; SELECT lease_assert('asserted', 'ann')});
	$primary->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	ok($primary->poll_query_until('postgres', q{SELECT granted FROM lease_request('asserted', '1 hour', 'bob')}), 'a session that asserted its lease ends');
	eval { $session->quit };
}

# The server is stopped. Afterwards numbers are counted from elsewhere.
my @counts;
foreach my $end ('restart', 'immediate stop', 'kill -9 of the session')
{
	my ($session, $pid) = holder($primary, $end, '');

	push @counts, $primary->safe_psql('postgres', "SELECT session_number >> 18 FROM lease_lock WHERE resource = '$end'");
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

cmp_ok(abs($counts[$_] - $counts[ $_ - 1 ]), '>', 1000, 'no session has the number of one from before') foreach 1 .. 2;

# On a standby it counts as held, until the standby is promoted.
$primary->backup('backup');
my $standby = LeaseCluster->new('standby');
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
