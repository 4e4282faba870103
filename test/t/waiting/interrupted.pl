# Everything that can end a wait early, in every place that waits: the error is
# the right one, nothing is left behind, and the session can go on.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

# Where a waiter waits: what the other session does to block it, and how the lease
# becomes free.
my %places = (
	'held lease' => {
		block => q{SELECT lease_acquire('%s', '1 hour', 'holder')},
		free => q{SELECT lease_release('%s', 'holder')},
		where => in_queue(),
	},
	'open transaction' => {
		block => q{BEGIN; SELECT lease_acquire('%s', '1 hour', 'holder')},
		free => q{ROLLBACK},
		where => in_lock_manager(),
	},
	'row lock' => {
		before => q{SELECT lease_acquire('%s', '1 hour', 'holder'), lease_release('%s', 'holder')},
		block => q{BEGIN; SELECT count(*) FROM (SELECT FROM lease_lock WHERE resource = '%s' FOR UPDATE) AS t},
		free => q{COMMIT},
		where => in_lock_manager(),
	},
	'row lock behind others' => {
		before => q{SELECT lease_acquire('%s', '1 hour', 'holder'), lease_release('%s', 'holder')},
		block => q{BEGIN; SELECT count(*) FROM (SELECT FROM lease_lock WHERE resource = '%s' FOR UPDATE) AS t},
		queue => q{BEGIN; SELECT count(*) FROM (SELECT FROM lease_lock WHERE resource = '%s' FOR UPDATE) AS t; COMMIT},
		free => q{COMMIT},
		where => in_lock_manager(),
	},
);

# What ends the wait, and with which error. Times are chosen by send_to_short_wait().
my %ways = (
	'statement_timeout' => { set => q{SET statement_timeout = '%d ms'}, says => qr/ERROR:  57014: .*statement timeout/ },
	'lock_timeout' => { set => q{SET lock_timeout = '%d ms'}, says => qr/ERROR:  55P03: .*lock timeout/ },
	'end of the wait' => { wait => q{'%d ms'}, says => qr/^f$/ },
	'end of the wait before lock_timeout' => { set => q{SET lock_timeout = '1 h'}, wait => q{'%d ms'}, says => qr/^f$/ },
	'cancel' => { do => 'pg_cancel_backend', says => qr/ERROR:  57014: .*user request/ },
	'terminate' => { do => 'pg_terminate_backend', gone => 1, says => qr/FATAL:  57P01/ },
	'disconnect' => { set => q{SET client_connection_check_interval = '100 ms'}, gone => 1 },
);

# The place, with this resource.
sub place_for
{
	my ($where, $resource) = @_;
	my %place = %{ $places{$where} };

	s/%s/$resource/g foreach values %place;
	return %place;
}

sub interrupt
{
	my ($node, $mode, $where, $how, $call) = @_;
	my %way = %{ $ways{$how} };
	my $name = "$mode, $call at $where: $how";
	my %place = place_for($where, $name);
	my $sql = $call eq 'lease_wait' ? 'CALL lease_wait' : 'SELECT lease_acquire';
	my $blocker = open_session($node);
	my $session = open_session($node);
	my $other = open_session($node) if $place{queue};

	$blocker->query_safe($place{before}) if $place{before};
	$blocker->query_safe($place{block});
	send_to_wait($node, $other, $place{queue}, in_lock_manager()) if $place{queue};
	my ($pid) = send_to_short_wait($node, $session, sub {
			my ($set, $wait) = map { s/%d/$_[0]/r } $way{set} // 'SET lock_timeout = 0', $way{wait} // q{'1 h'};

			return "$set;\n$sql('$name', '1 hour', 'waiter', $wait)";
		}, $place{where});

	look($node, "SELECT $way{do}($pid)") if $way{do};
	if ($how eq 'disconnect')
	{
		$session->{run}->kill_kill;
		becomes($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", 0, "$name: the backend ends");
	}
	else
	{
		like($way{gone} ? last_words($session) : answer($session), $way{says}, "$name: ends as expected");
	}

	becomes($node, "SELECT (SELECT count(*) FROM lease_waiters), (SELECT count(*) FROM pg_locks WHERE pid = $pid)",
		'0|0', "$name: no waiter and no lock is left");

	# The session can wait again, in the same place, and with success.
	if ($way{gone})
	{
		$session = open_session($node);
	}
	else
	{
		$how eq 'statement_timeout' ? reset_settings($session) : $session->query_safe('RESET ALL');
	}
	send_to_wait($node, $session, "SELECT lease_acquire('$name', '1 hour', 'again', '1 h')", $place{where});
	$blocker->query_safe($place{free});
	is(answer($session), 't', "$name: another wait is granted");
	is($session->query_safe("SELECT lease_release('$name', 'again')"), 't', "$name: and releases it");
	nothing_left($node, $name);
	$_->quit foreach $session, $blocker, $other // ();
	return;
}

# In a transaction the error can be caught, and the wait leaves no trace.
sub catch
{
	my ($node, $mode, $where) = @_;
	my $name = "$mode, caught at $where";
	my %place = place_for($where, $name);
	my $blocker = open_session($node);
	my $session = open_session($node);

	$blocker->query_safe($place{before}) if $place{before};
	$blocker->query_safe($place{block});
	$session->query_safe(q{BEGIN; SAVEPOINT s; SET LOCAL statement_timeout = '200 ms'});
	session_fails($session, "SELECT lease_acquire('$name', '1 hour', 'waiter', '1 h')", '57014', 'timeout', "$name: ends");
	$session->query_safe('ROLLBACK TO s');
	is(look($node, 'SELECT count(*) FROM lease_waiters'), 0, "$name: no waiter is left in the open transaction");
	send_to_wait($node, $session, "SELECT lease_acquire('$name', '1 hour', 'waiter', '1 h')", $place{where});
	$blocker->query_safe($place{free});
	is(answer($session), 't', "$name: the same transaction waits again, and is granted");
	$session->query_safe('COMMIT');
	is(look($node, "SELECT lease_release('$name', 'waiter')"), 't', "$name: it keeps the lease");
	nothing_left($node, $name);
	$_->quit foreach $session, $blocker;
	return;
}

sub run_all
{
	my ($mode, $conf, %params) = @_;
	my $node = start_waiting_node($mode, $WaitTest::NEVER . $conf, %params);

	foreach my $where (sort keys %places)
	{
		foreach my $how (sort keys %ways)
		{
			next if $how eq 'disconnect' && ($windows_os || $^O eq 'darwin');
			interrupt($node, $mode, $where, $how, $_) foreach 'lease_acquire', 'lease_wait';
		}
		catch($node, $mode, $where);
	}

	# An exception handler that goes on in the same statement.
	$node->safe_psql('postgres', q{
		CREATE FUNCTION insist(r text) RETURNS boolean LANGUAGE plpgsql AS $$
		BEGIN
			FOR i IN 1 .. 1000 LOOP
				BEGIN
					RETURN lease_acquire(r, '1 hour', 'waiter', '1 h');
				EXCEPTION WHEN lock_not_available THEN
					RAISE WARNING 'try %', i;
				END;
			END LOOP;
		END $$;
	});
	my $blocker = open_session($node);
	my $session = open_session($node);
	$blocker->query_safe(q{BEGIN; SELECT lease_acquire('insist', '1 hour', 'holder')});
	$session->query_safe(q{SET lock_timeout = '400 ms'});
	send_sql($session, q{SELECT insist('insist')});
	$session->{run}->pump until $session->{stderr} =~ /try 2/;
	$blocker->query_safe('ROLLBACK');
	like(answer($session), qr/^t/, "$mode: an exception handler can try again");
	nothing_left($node, $mode);

	$node->stop;
	return;
}

run_all('queue', '');
done_testing();
