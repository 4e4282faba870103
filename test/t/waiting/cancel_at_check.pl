# A cancel and a statement_timeout end a wait in the lock manager, even if they
# come at the same moment as a check for deadlocks, after which the wait goes on.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

plan skip_all => 'no signal stops a process here' if $windows_os;

my $node = start_waiting_node('cancel_at_check', "deadlock_timeout = 300ms\nlease_lock.handoff_timeout = 1h\n");

# While the waiter is stopped, the time of its check comes, and so does what ends
# the wait. When it goes on, it meets both at once. The server has one flag for
# all of these, which the first error clears.
sub meets_both
{
	my ($how, $set, $do, $says) = @_;
	my $blocker = open_session($node);
	my $session = open_session($node);

	$blocker->query_safe("BEGIN; SELECT lease_acquire('$how', '1 hour', 'holder')");
	my ($pid, $ms) = send_to_short_wait($node, $session,
		sub { return sprintf("$set;\n", $_[0]) . "SELECT lease_acquire('$how', '1 hour', 'waiter', '1 hour')" },
		in_lock_manager(), first => 4000, stop => 1);
	look($node, "SELECT $do($pid)") if $do;

	# A check comes after at most as much time again, and two times deadlock_timeout.
	my ($waited) = look($node, "SELECT extract(epoch FROM clock_timestamp() - query_start) FROM pg_stat_activity WHERE pid = $pid");
	my $passed = 2 * $waited + $ms / 1000 + 2;
	becomes($node, "SELECT clock_timestamp() > query_start + '$passed s'::interval FROM pg_stat_activity WHERE pid = $pid",
		't', "$how: the time of the check has come");
	continue_backend($pid);
	my $ended = becomes($node, "SELECT state FROM pg_stat_activity WHERE pid = $pid", 'idle', "$how: the wait ends");
	look($node, "SELECT pg_terminate_backend($pid)") if !$ended;
	like($ended ? answer($session) : last_words($session), $says, "$how: with the right error");
	$blocker->query_safe('ROLLBACK');
	nothing_left($node, $how);
	$_->quit foreach $session, $blocker;
	return;
}

meets_both('cancel', 'SET statement_timeout = 0', 'pg_cancel_backend', qr/ERROR:  57014: .*user request/);
meets_both('statement_timeout', q{SET statement_timeout = '%d ms'}, '', qr/ERROR:  57014: .*statement timeout/);

$node->stop;
done_testing();
