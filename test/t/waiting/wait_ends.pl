# Every wait ends. A cancel or timeout reaches a waiter even at the moment when
# its own time is over. A waiter that is stopped, or whose client is gone, does
# not block the others.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

plan skip_all => 'no signal stops a process here' if $windows_os;

my $node = start_waiting_node('wait_ends', <<'CONF');
deadlock_timeout = 1s
client_connection_check_interval = 0
CONF
my $slow = slowness($node);
my $active = q{SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid = };

# While the backend is stopped, its own time runs out, and the server requests an
# end of the wait as well. So it finds both at once. The server's request counts.
# Times are chosen by send_to_short_wait().
sub at_the_same_moment
{
	my ($name, %way) = @_;
	my $holder = open_session($node);
	my $session = open_session($node);

	$holder->query_safe("BEGIN; SELECT lease_acquire('$name', '1 hour', 'holder')");
	my ($pid, $ms) = send_to_short_wait($node, $session, sub {
			my ($set, $wait) = map { s/%d/$_[0]/r } $way{set} // '', $way{wait};

			return "$set\nSELECT lease_acquire('$name', '1 hour', 'w', $wait)";
		}, in_lock_manager(), first => $way{first}, stop => 1);
	look($node, "SELECT $way{do}($pid)") if $way{do};
	becomes($node, "SELECT clock_timestamp() > query_start + interval '$ms ms' + interval '$way{after}' FROM pg_stat_activity WHERE pid = $pid",
		't', "$name: its time has come, too");
	continue_backend($pid);
	becomes($node, "$active$pid", 0, "$name: the wait ends")
	  or look($node, "SELECT pg_cancel_backend($pid)");
	like(answer($session), $way{says}, "$name: and says why");
	($way{set} // '') =~ /statement_timeout/ ? reset_settings($session) : $session->query_safe('RESET ALL');
	is($session->query_safe('SELECT 1'), 1, "$name: the session goes on");
	$holder->query_safe('ROLLBACK');
	nothing_left($node, $name);
	$_->quit foreach $holder, $session;
	return;
}

at_the_same_moment('cancel and end of the wait', wait => q{'%d ms'}, do => 'pg_cancel_backend', after => '200 ms', says => qr/ERROR:  57014: .*user request/);
at_the_same_moment('cancel and deadlock check', wait => 'NULL', do => 'pg_cancel_backend', after => '2500 ms', says => qr/ERROR:  57014: .*user request/);
at_the_same_moment(
	'statement_timeout and deadlock check',
	set => q{SET statement_timeout = '%d ms';},
	first => 2300,
	wait => q{'1 h'},
	after => '500 ms',
	says => qr/ERROR:  57014: .*statement timeout/);
at_the_same_moment(
	'lock_timeout and end of the wait',
	set => q{SET lock_timeout = '%d ms';},
	wait => q{'1 h'},
	after => '2500 ms',
	says => qr/ERROR:  55P03: .*lock timeout/);

# The bounds of many waits and the server's requests, at random: a wait that
# ends by its own bound leaves nothing for the next statement.
{
	my $holder = open_session($node);
	my $session = open_session($node);
	my %count;
	my $timeout = 20 * $slow;

	$holder->query_safe(q{BEGIN; SELECT lease_acquire('random', '1 hour', 'holder')});
	$session->query_safe("SET statement_timeout = '$timeout ms'");
	foreach my $round (1 .. 200)
	{
		my $wait = int($timeout * (0.75 + rand(0.5)));

		$session->query("SELECT lease_acquire('random', '1 hour', 'w', '$wait ms')");
		$count{ $session->{stderr} =~ /57014/ ? 'timeout' : $session->{stderr} eq '' ? 'end' : $session->{stderr} }++;
		$session->{stderr} = '';
		$session->query('SELECT 1');
		# The server tells of a statement_timeout afterwards, if it comes while the statement ends.
		$count{"then $session->{stderr}"}++ if $session->{stderr} !~ /statement timeout|^$/;
		$session->{stderr} = '';
	}
	is(join(', ', sort keys %count), 'end, timeout', 'bounds at random: each wait ends one way or the other');
	note(join(', ', map { "$_: $count{$_}" } sort keys %count));
	$holder->query_safe('ROLLBACK');
	$_->quit foreach $holder, $session;
}

# The first in line waits for a transaction, and is stopped. When that has
# ended, it has its turn, and loses it. The third one leaves the second enough time.
foreach my $others ('waiters', 'a try')
{
	my $holder = open_session($node);
	my @sessions = map { open_session($node) } 0 .. 2;
	my $pid;

	set_handoff($node, 500 * $slow, @sessions);
	$holder->query_safe(q{BEGIN; SELECT lease_acquire('away', '1 hour', 'holder')});
	$pid = send_to_wait($node, $sessions[0], q{SELECT lease_acquire('away', '1 hour', 'w0', NULL)}, in_lock_manager());
	if ($others eq 'waiters')
	{
		send_to_wait($node, $sessions[1], q{SELECT lease_acquire('away', '1 hour', 'w1', '1 h')}, in_lock_manager());
		set_handoff($node, 3_600_000, $sessions[2]);
		send_to_wait($node, $sessions[2], q{SELECT lease_acquire('away', '1 hour', 'w2', '1 h')}, in_lock_manager());
	}
	stop_backend($pid);
	$holder->query_safe('ROLLBACK');
	if ($others eq 'waiters')
	{
		becomes($node, q{SELECT owner FROM lease_status WHERE resource = 'away'}, 'w1', 'stopped behind a transaction: the second one gets it')
		  or look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
		look($node, q{SELECT lease_release('away', 'w1')});
		is(answer($sessions[2]), 't', 'stopped behind a transaction: then the third');
		look($node, q{SELECT lease_release('away', 'w2')});
	}
	else
	{
		becomes($node, q{SELECT lease_acquire('away', '1 hour', 'passer-by')}, 't', 'stopped behind a transaction: a try gets it');
		look($node, q{SELECT lease_release('away', 'passer-by')});
	}
	continue_backend($pid);
	is(answer($sessions[0]), 't', 'stopped behind a transaction: the first one when it goes on');
	look($node, q{SELECT lease_release_all('w0'), lease_release_all('w1')});
	nothing_left($node, "stopped behind a transaction, $others");
	$_->quit foreach $holder, @sessions;
}

# As long as the transaction runs, the waiter keeps its turn, stopped or not. Its
# time begins when the next one finds the lease free. If it takes too long to come
# then, this is tried with twice the time.
for (my $handoff = 500 * $slow;; $handoff *= 2)
{
	my $holder = open_session($node);
	my $first = open_session($node);
	my $second = open_session($node);
	my ($pid, $next);

	set_handoff($node, $handoff, $first, $second);
	$holder->query_safe(q{BEGIN; SELECT lease_acquire('excused', '1 hour', 'holder')});
	$pid = send_to_wait($node, $first, q{SELECT lease_acquire('excused', '1 hour', 'w0', NULL)}, in_lock_manager());
	$next = send_to_wait($node, $second, q{SELECT lease_acquire('excused', '1 hour', 'w1', NULL)}, in_lock_manager());
	stop_backend($pid);
	look($node, "SELECT pg_sleep(3 * $handoff / 1000.0)");
	$holder->query_safe('ROLLBACK');
	becomes($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $next AND (state = 'idle' OR " . in_queue() . ')', 1, 'the next one has looked');
	continue_backend($pid);
	becomes($node, q{SELECT count(*) FROM lease_status WHERE resource = 'excused'}, 1, 'the transaction ends, and a waiter gets the lease');
	my $owner = look($node, q{SELECT owner FROM lease_status WHERE resource = 'excused'});
	look($node, "SELECT lease_release('excused', '$owner')");
	is(answer($_), 't', 'then the other one, too') foreach $first, $second;
	look($node, q{SELECT lease_release_all('w0'), lease_release_all('w1')});
	nothing_left($node, 'excused');
	$_->quit foreach $holder, $first, $second;
	next if $owner ne 'w0' && $handoff < 8000 * $slow;
	is($owner, 'w0', 'late, but while the transaction runs: it keeps its place');
	last;
}

# A waiter whose client is gone leaves the queue, and is granted nothing.
SKIP:
{
	skip 'this platform does not tell', 3 if $^O ne 'linux' && $^O ne 'darwin';

	my $session = open_session($node);
	my $next = open_session($node);

	look($node, q{SELECT lease_acquire('gone', '1 hour', 'holder')});
	send_to_wait($node, $session, q{SELECT lease_acquire('gone', '1 hour', 'w0', '1 h')});
	send_to_wait($node, $next, q{SELECT lease_acquire('gone', '1 hour', 'w1', '1 h')});
	$session->{run}->kill_kill;
	becomes($node, q{SELECT string_agg(owner, ',') FROM lease_waiters}, 'w1', 'a client that was killed leaves the queue');
	look($node, q{SELECT lease_release('gone', 'holder')});
	is(answer($next), 't', 'and the next one gets the lease');
	look($node, q{SELECT lease_release('gone', 'w1')});

	# In the lock manager it is found when the transaction ends, before a grant.
	my $holder = open_session($node);
	$session = open_session($node);
	$holder->query_safe(q{BEGIN; SELECT lease_acquire('gone', '1 hour', 'holder')});
	send_to_wait($node, $session, q{SELECT lease_acquire('gone', '1 hour', 'w0', '1 h')}, in_lock_manager());
	$session->{run}->kill_kill;
	$holder->query_safe('ROLLBACK');
	becomes($node, q{SELECT (SELECT count(*) FROM lease_waiters), (SELECT count(*) FROM lease_status WHERE resource = 'gone')}, '0|0',
		'behind a transaction: nobody is granted the lease');
	$_->quit foreach $holder, $next;
}

$node->stop;
done_testing();
