# A waiter that has found the lease free and taken its turn leaves before it
# writes, and so do those that were called beside it. Then the next waiter gets
# the lease, by a wake-up: nothing else would let it look. A lock on the token
# sequence holds a waiter between its turn and its write.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

plan skip_all => 'no signal stops a process here' if $windows_os;

my $node = start_waiting_node('turn_given_up', $WaitTest::NEVER);
my $cancelled = qr/ERROR:  57014: .*user request/;

# Keep all sessions from drawing a token.
sub lock_tokens
{
	my $session = open_session($node);

	$session->query_safe('BEGIN; ALTER SEQUENCE lease_token_seq CACHE 1');
	return $session;
}

# Have a session wait for a lease without limit; returns the pid.
sub wait_for
{
	my ($session, $resource, $owner) = @_;

	return send_to_wait($node, $session, "SELECT lease_acquire('$resource', '1 hour', '$owner', NULL)");
}

# End the wait of a backend that waits for the token sequence.
sub cancel_with_turn
{
	my ($session, $pid, $name) = @_;

	becomes($node, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid", 'Lock', "$name has taken its turn");
	look($node, "SELECT pg_cancel_backend($pid)");
	like(answer($session), $cancelled, "$name is cancelled");
	return;
}

# Owner x holds the lease, so a waiter of x stands aside. When x releases it, that
# waiter is woken, and the first of the others is called.
{
	my ($own, $called, $last) = map { open_session($node) } 1 .. 3;
	my ($own_pid, $called_pid, $tokens);

	look($node, q{SELECT lease_acquire('aside', '1 hour', 'x')});
	$own_pid = wait_for($own, 'aside', 'x');
	$called_pid = wait_for($called, 'aside', 'called');
	wait_for($last, 'aside', 'last');
	stop_backend($called_pid);
	$tokens = lock_tokens();
	is(look($node, q{SELECT lease_release('aside', 'x')}), 't', 'aside: released');
	becomes($node, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $own_pid", 'Lock', 'aside: the one of the same owner has taken its turn');
	look($node, "SELECT pg_cancel_backend($called_pid)");
	continue_backend($called_pid);
	like(answer($called), $cancelled, 'aside: the called one is cancelled before it looks');
	cancel_with_turn($own, $own_pid, 'aside: the one of the same owner');
	$tokens->query_safe('ROLLBACK');
	is(answer($last), 't', 'aside: the last one gets the lease');
	$_->quit foreach $own, $called, $last, $tokens;
	nothing_left($node, 'aside');
}

# The first waiter is called and stopped. The second one, which has little
# patience, skips it.
{
	my ($late, $second, $last) = map { open_session($node) } 1 .. 3;
	my ($late_pid, $second_pid, $tokens);

	look($node, q{SELECT lease_acquire('late', '1 hour', 'x')});
	$late_pid = wait_for($late, 'late', 'late');
	set_handoff($node, 10, $second);
	$second_pid = wait_for($second, 'late', 'second');
	set_handoff($node, 3600_000, $last);
	wait_for($last, 'late', 'last');
	stop_backend($late_pid);
	$tokens = lock_tokens();
	is(look($node, q{SELECT lease_release('late', 'x')}), 't', 'late: released');
	cancel_with_turn($second, $second_pid, 'late: the second one');
	$tokens->query_safe('ROLLBACK');
	is(answer($last), 't', 'late: the last one gets the lease');
	look($node, q{SELECT lease_release('late', 'last')});
	continue_backend($late_pid);
	is(answer($late), 't', 'late: the first one gets it at last');
	$_->quit foreach $late, $second, $last, $tokens;
	nothing_left($node, 'late');
}

$node->stop;
done_testing();
