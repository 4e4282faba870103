# The line of a resource: which waiters are woken, and which ones block no
# others.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use WaitTest;

plan skip_all => 'no signal stops a process here' if $windows_os;

my $node = start_waiting_node('lines', $WaitTest::NEVER);

# How often a backend went to sleep so far.
sub sleeps
{
	my ($pid) = @_;
	my ($n) = slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s*(\d+)/m;

	return $n;
}

# A waiter that leaves the lines of several resources wakes the next one of
# each, not all.
SKIP:
{
	skip 'no /proc', 2 if !-e '/proc/self/status';

	my @sessions = map { open_session($node) } 0 .. 9;
	my $any = q{'{r1,r2,r3,r4,r5,r6,r7,r8}'};
	my (@pids, @before, @woken);

	look($node, q{SELECT count(lease_acquire('r' || i, '1 hour', 'holder')) FROM generate_series(1, 8) AS i});
	push @pids, send_to_wait($node, $sessions[$_], "SELECT lease_acquire_any($any, '1 hour', 'w$_', NULL)") foreach 0 .. 9;
	@before = map { sleeps($_) } @pids;
	look($node, "SELECT pg_cancel_backend($pids[0])");
	like(answer($sessions[0]), qr/57014/, 'any of eight: the first of ten waiters leaves');
	usleep(300_000);
	@woken = grep { sleeps($pids[$_]) > $before[$_] } 1 .. 9;
	cmp_ok(scalar @woken, '<=', 8, 'any of eight: at most one in each line is woken');

	is(look($node, q{SELECT lease_release('r5', 'holder')}), 't', 'any of eight: one is released');
	is(answer($sessions[1]), 'r5', 'any of eight: the second gets it');
	is(look($node, q{SELECT lease_release_all('holder')}), 7, 'any of eight: all others are released');
	like(answer($sessions[$_]), qr/^r\d$/, "any of eight: waiter $_ gets one") foreach 2 .. 8;
	is(look($node, q{SELECT string_agg(owner, ',') FROM lease_waiters}), 'w9', 'any of eight: one waits');
	look($node, q{SELECT lease_release_all('w3')});
	like(answer($sessions[9]), qr/^r\d$/, 'any of eight: until another is released');
	look($node, q{SELECT lease_release_all('w' || i) FROM generate_series(1, 9) AS i});
	nothing_left($node, 'any of eight');
	$_->quit foreach @sessions;
}

# A waiter behind an uncommitted shared lease of its own owner does not block others.
{
	my ($holder, $waiter) = map { open_session($node) } 1, 2;

	$holder->query_safe(q{BEGIN; SELECT lease_acquire_shared('own', '1 hour', 'o')});
	send_to_wait($node, $waiter, q{SELECT lease_acquire_shared('own', '1 hour', 'o', NULL)}, in_lock_manager());
	is(look($node, q{SELECT lease_acquire_shared('own', '1 hour', 'reader')}), 't', 'behind its own owner: other readers pass');
	$holder->query_safe('ROLLBACK');
	is(answer($waiter), 't', 'behind its own owner: it gets the lease when that is gone');
	look($node, q{SELECT lease_release_all('o'), lease_release_all('reader')});
	nothing_left($node, 'own');
	$_->quit foreach $holder, $waiter;
}

# A waiter that was skipped does not count as first: when the waiter behind it
# leaves, the next one is woken.
{
	my @sessions = map { open_session($node) } 0 .. 2;
	my @pids;

	$node->append_conf('postgresql.conf', q{lease_lock.handoff_timeout = '50 ms'});
	$node->reload;
	becomes($node, 'SHOW lease_lock.handoff_timeout', '50ms', 'skipped: a short time');
	look($node, q{SELECT lease_acquire('skip', '1 hour', 'holder')});
	push @pids, send_to_wait($node, $sessions[0], q{SELECT lease_acquire('skip', '1 hour', 'w0', NULL)});
	stop_backend($pids[0]);
	look($node, q{SELECT lease_release('skip', 'holder')});
	becomes($node, q{SELECT lease_acquire('skip', '1 hour', 'holder')}, 't', 'skipped: the only waiter');

	$node->append_conf('postgresql.conf', q{lease_lock.handoff_timeout = '1 h'});
	$node->reload;
	becomes($node, 'SHOW lease_lock.handoff_timeout', '1h', 'skipped: a long time');
	push @pids, send_to_wait($node, $sessions[$_], "SELECT lease_acquire('skip', '1 hour', 'w$_', NULL)") foreach 1, 2;
	stop_backend($pids[1]);
	look($node, q{SELECT lease_release('skip', 'holder')});
	look($node, "SELECT pg_cancel_backend($pids[1])");
	continue_backend($pids[1]);
	like(answer($sessions[1]), qr/57014/, 'skipped: the first behind it is called, and leaves');
	becomes($node, q{SELECT owner FROM lease_status WHERE resource = 'skip'}, 'w2', 'skipped: the next one gets the lease')
	  or look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
	continue_backend($pids[0]);
	look($node, q{SELECT lease_release('skip', 'w2')});
	is(answer($sessions[0]), 't', 'skipped: the stopped one when it goes on');
	look($node, q{SELECT lease_release('skip', 'w0')});
	answer($sessions[2]);
	nothing_left($node, 'skipped');
	$_->quit foreach @sessions;
}

# Mode and permits of waiters are shown.
{
	my @sessions = map { open_session($node) } 0 .. 2;

	look($node, q{SELECT lease_acquire('shown', '1 hour', 'holder')});
	send_to_wait($node, $sessions[0], q{SELECT lease_acquire('shown', '1 hour', 'w0', NULL)});
	send_to_wait($node, $sessions[1], q{SELECT lease_acquire_shared('shown', '1 hour', 'w1', NULL)});
	send_to_wait($node, $sessions[2], q{SELECT lease_acquire_permit('shown', 3, '1 hour', 'w2', NULL)});
	is(look($node, q{SELECT string_agg(concat_ws(' ', owner, mode, permits), ', ' ORDER BY position) FROM lease_waiters}),
		'w0 exclusive, w1 shared, w2 permit 3', 'lease_waiters shows mode and permits');
	look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
	answer($_) foreach @sessions;
	$_->quit foreach @sessions;
}

$node->stop;
done_testing();
