# A waiter whose process is stopped does not block the others: when its turn
# has lasted for lease_lock.handoff_timeout it goes to the end of the queue.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);
use WaitTest;

plan skip_all => 'no signal stops a process here' if $windows_os;

my $node = start_waiting_node('stopped_head', $WaitTest::NEVER);
my @sessions = map { open_session($node) } 0 .. 3;
my @pids;

sub queue
{
	return q{SELECT string_agg(owner, ',' ORDER BY position) FROM lease_waiters};
}

sub wait_for_lease
{
	my ($n) = @_;

	$pids[$n] = send_to_wait($node, $sessions[$n], "SELECT lease_acquire('r', '1 hour', 'w$n', NULL)");
	return;
}

# How often a backend went to sleep so far, and how long it used the processor,
# in hundredths of a second.
sub sleeps
{
	my ($pid) = @_;

	return (slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s*(\d+)/m)[0];
}

sub wait_until
{
	my ($condition) = @_;
	my $end = time + $WaitTest::LIMIT;

	usleep(10_000) while !$condition->() && time < $end;
	return $condition->();
}

sub ticks
{
	my ($pid) = @_;
	my @fields = split(/ /, slurp_file("/proc/$pid/stat") =~ s/^.*\) //sr);

	return $fields[11] + $fields[12];
}

# The first waiter is stopped, and the lease is free: the second gets it. When the
# first one goes on, it gets it, too.
sub is_passed_over
{
	my ($name, $first, $second) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	becomes($node, "SELECT lease_token('r', '$second') > 0", 't', "$name: the second gets it")
	  or look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
	is(answer($sessions[1]), 't', "$name: it was granted");
	continue_backend($pids[0]);
	is(look($node, "SELECT lease_release('r', '$second')"), 't', "$name: the lease is released");
	is(answer($sessions[0]), 't', "$name: the first goes on, and gets it");
	is(look($node, "SELECT lease_release('r', '$first')"), 't', "$name: and releases it");
	nothing_left($node, $name);
	return;
}

# Within its time the lease is kept for it.
look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
wait_for_lease($_) foreach 0 .. 1;
stop_backend($pids[0]);
is(look($node, q{SELECT lease_release('r', 'holder')}), 't', 'the lease is released, the first waiter is stopped');
is(look($node, q{SELECT lease_acquire('r', '1 hour', 'passer-by')}), 'f', 'a try is refused, although nobody has the lease');
is(look($node, q{SELECT count(*) FROM lease_status WHERE resource = 'r'}), 0, 'nobody has it');
is(look($node, q{SELECT bool_and(blocked_by_owner IS NULL AND blocked_by_xid IS NULL) FROM lease_waiters}), 't', 'and lease_waiters shows no obstacle');
stays($node, queue(), 'w0,w1', 'it is kept for the first');
continue_backend($pids[0]);
is(answer($sessions[0]), 't', 'the first one gets it when it goes on');
is(look($node, q{SELECT lease_release('r', 'w0')}), 't', 'it is released');
is(answer($sessions[1]), 't', 'then the second');
is(look($node, q{SELECT lease_release('r', 'w1')}), 't', 'and is released');
nothing_left($node, 'in time');

# After that the next waiter gets it. Here and below, only one waiter that is not
# stopped has the short time: on a busy machine, a second one could skip it.
my $handoff = 0.5;
my $long = 3_600_000;
set_handoff($node, 1000 * $handoff, @sessions);
look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
wait_for_lease($_) foreach 0, 1;
set_handoff($node, $long, @sessions[ 2, 3 ]);
wait_for_lease($_) foreach 2, 3;
look($node, "SELECT pg_cancel_backend($pids[3])");
like(answer($sessions[3]), qr/57014/, 'the last one leaves');
stop_backend($pids[0]);

my $released = time;
is(look($node, q{SELECT lease_release('r', 'holder')}), 't', 'the lease is released');
becomes($node, q{SELECT lease_token('r', 'w1') > 0}, 't', 'the second one gets it');
my $passed = time - $released;
cmp_ok($passed, '>=', $handoff, 'when the time of the first is over');
cmp_ok($passed, '<', $WaitTest::LIMIT, 'and not only when a waiter looks by itself');
is(answer($sessions[1]), 't', 'it was granted');
is(look($node, queue()), 'w2,w0', 'the stopped one stands at the end');
is(look($node, q{SELECT lease_acquire('r', '1 hour', 'passer-by')}), 'f', 'a try is refused');
is(look($node, q{SELECT lease_release('r', 'w1')}), 't', 'the lease is released again');
is(answer($sessions[2]), 't', 'the third one gets it');
is(look($node, queue()), 'w0', 'the stopped one is alone');

continue_backend($pids[0]);
becomes($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pids[0] AND " . in_queue(), 1, 'when it continues, it still waits');
is(look($node, queue()), 'w0', 'it is first now');
is(look($node, q{SELECT lease_release('r', 'w2')}), 't', 'the lease is released once more');
is(answer($sessions[0]), 't', 'now it gets it');
is(look($node, q{SELECT lease_release('r', 'w0')}), 't', 'and releases it');
nothing_left($node, 'over time');

# Two in a row are stopped: it takes twice the time, and no more. The sessions are
# new, so nothing else wakes them.
$_->quit foreach @sessions;
set_handoff($node, 1000 * $handoff);
@sessions = map { open_session($node) } 0 .. 2;
look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
wait_for_lease($_) foreach 0 .. 2;
stop_backend($pids[$_]) foreach 0, 1;
$released = time;
is(look($node, q{SELECT lease_release('r', 'holder')}), 't', 'two are stopped, the lease is released');
becomes($node, q{SELECT lease_token('r', 'w2') > 0}, 't', 'the third one gets it')
  or look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
$passed = time - $released;
cmp_ok($passed, '>=', 2 * $handoff, 'when the time of both is over');
cmp_ok($passed, '<', $WaitTest::LIMIT, 'and not only when a waiter looks by itself');
is(look($node, queue()), 'w0,w1', 'the stopped ones keep their order');
is(answer($sessions[2]), 't', 'it was granted');
foreach my $n (0, 1)
{
	continue_backend($pids[$n]);
	is(look($node, "SELECT lease_release_all('w2') + lease_release_all('w0')"), 1, 'the lease is released again');
	is(answer($sessions[$n]), 't', "they go on, and get it: $n");
}
is(look($node, q{SELECT lease_release('r', 'w1')}), 't', 'the last one releases it');
nothing_left($node, 'two');

# The last of four is stopped, too.
$_->quit foreach @sessions;
@sessions = map { open_session($node) } 0 .. 3;
look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
wait_for_lease($_) foreach 0, 1;
set_handoff($node, $long, @sessions[ 2, 3 ]);
wait_for_lease($_) foreach 2, 3;
stop_backend($pids[$_]) foreach 0, 3;
$released = time;
is(look($node, q{SELECT lease_release('r', 'holder')}), 't', 'the first and the last are stopped, the lease is released');
becomes($node, q{SELECT lease_token('r', 'w1') > 0}, 't', 'the second one gets it')
  or look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
cmp_ok(time - $released, '<', $WaitTest::LIMIT, 'long before a waiter looks by itself');
is(answer($sessions[1]), 't', 'it was granted');
foreach my $n (2, 3, 0)
{
	continue_backend($pids[$n]);
	is(look($node, "SELECT count(lease_release('r', owner)) FROM lease_status WHERE resource = 'r'"), 1, 'the lease is released again');
	is(answer($sessions[$n]), 't', "each gets it: $n");
}
is(look($node, q{SELECT lease_release('r', 'w0')}), 't', 'the last one releases it');
nothing_left($node, 'first and last');

# Between them is one that stands aside, since its own owner has the lease. Nobody
# calls it while the first, which is stopped, has its turn.
{
	set_handoff($node, 1000 * $handoff, @sessions);
	look($node, q{SELECT lease_acquire('r', '1 hour', 'o')});
	wait_for_lease(0);
	send_to_wait($node, $sessions[1], q{SELECT lease_acquire('r', '1 hour', 'o', NULL)});
	stop_backend($pids[0]);
	is(look($node, q{SELECT lease_release('r', 'o')}), 't', 'the first is stopped, the second stands aside, the lease is released');
	is_passed_over('aside', 'w0', 'o');
}

# So it is behind one that stood aside when both looked last.
{
	look($node, q{SELECT lease_acquire('r', '1 hour', 'o')});
	$pids[0] = send_to_wait($node, $sessions[0], q{SELECT lease_acquire('r', '1 hour', 'o', NULL)});
	wait_for_lease(1);
	stop_backend($pids[0]);
	is(look($node, q{SELECT lease_transfer('r', 'o', 'p') > 0}), 't', 'the first stands aside, and is stopped; the lease gets another owner');
	my $proc = -e "/proc/$$/status";
	my $before = $proc && sleeps($pids[0]);
	continue_backend($pids[0]);
	ok(wait_until(sub { !$proc || sleeps($pids[0]) > $before }), 'it looks');
	becomes($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pids[0] AND " . in_queue(), 1, 'and waits for its turn now');
	stop_backend($pids[0]);
	is(look($node, q{SELECT lease_release('r', 'p')}), 't', 'it is stopped, and the lease is released');
	is_passed_over('no longer aside', 'o', 'w1');
}

# The first one is stopped while it sleeps until the lease expires. Nobody calls
# it then, and the second one does not know when that is. If the lease expires
# before the first one is stopped, it is tried with twice the time.
SKIP:
{
	skip 'no /proc', 7 if !-e "/proc/$$/status";

	$_->quit foreach @sessions;
	@sessions = map { open_session($node) } 0, 1;
	for (my $ttl = 1;; $ttl *= 2)
	{
		look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
		wait_for_lease($_) foreach 0, 1;
		my $before = sleeps($pids[0]);
		look($node, "SELECT FROM lease_request('r', '$ttl s', 'holder', if_own => 'renew')");	# it ends earlier
		ok(wait_until(sub { sleeps($pids[0]) > $before }), 'the lease will end soon: the first one has looked');
		becomes($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pids[0] AND (state = 'idle' OR " . in_queue() . ')', 1, 'and sleeps until it expires');
		stop_backend($pids[0]);
		last if look($node, q{SELECT lease_token('r', 'holder') > 0}) eq 't';
		die 'it expired each time' if $ttl > 30;
		continue_backend($pids[0]);
		look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
		answer($_) foreach @sessions;
		look($node, q{DELETE FROM lease_lock});
	}
	is_passed_over('it expires', 'w0', 'w1');
}

# The first is stopped and late, but the lease is not free. Those who watch look
# now and then, not all the time.
SKIP:
{
	skip 'no /proc', 7 if !-e "/proc/$$/status";

	my ($reader, $writer) = (q{lease_acquire_shared('r', '1 hour', '%s')}, q{SELECT lease_acquire('r', '1 hour', 'w%d', NULL)});

	look($node, sprintf("SELECT $reader, $reader", 'a', 'b'));
	$pids[$_] = send_to_wait($node, $sessions[$_], sprintf($writer, $_)) foreach 0, 1;
	stop_backend($pids[0]);
	is(look($node, q{SELECT lease_release('r', 'a')}), 't', 'the first is stopped, and one of two readers has gone');
	look($node, "SELECT pg_sleep($handoff + 0.1)");
	my $before = sleeps($pids[1]);
	my $ticks = ticks($pids[1]);
	my $since = time;
	look($node, "SELECT pg_sleep(4 * $handoff)");
	cmp_ok(sleeps($pids[1]) - $before, '<=', 3 * (time - $since) / $handoff, 'the second looks a few times');
	cmp_ok(ticks($pids[1]) - $ticks, '<=', 20, 'and uses little time');
	continue_backend($pids[0]);
	is(look($node, q{SELECT lease_release('r', 'b')}), 't', 'the other one goes');
	becomes($node, q{SELECT count(lease_release('r', owner)) FROM lease_status WHERE resource = 'r'}, 1, 'one of them gets the lease');
	is(answer($_), 't', 'then the other one, too') foreach @sessions;
	is(look($node, q{SELECT lease_release_all('w0') + lease_release_all('w1')}), 1, 'and it is released');
	nothing_left($node, 'late and held');
}

# The only waiter is stopped, so that nobody keeps watch: a try is served when
# its time is over.
set_handoff($node, $long);
look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
wait_for_lease(0);
stop_backend($pids[0]);
is(look($node, q{SELECT lease_release('r', 'holder')}), 't', 'the only waiter is stopped, the lease is released');
is(look($node, q{SELECT lease_acquire('r', '1 hour', 'passer-by')}), 'f', 'a try is refused');
set_handoff($node, 1000 * $handoff);
becomes($node, q{SELECT lease_acquire('r', '1 hour', 'passer-by')}, 't', 'until its time is over');
continue_backend($pids[0]);
becomes($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pids[0] AND " . in_queue(), 1, 'when it continues, it still waits');
is(look($node, q{SELECT lease_release('r', 'passer-by')}), 't', 'the lease is released');
is(answer($sessions[0]), 't', 'it gets it');
nothing_left($node, 'only one');

# A waiter that waits for a lock that blocks its lease is not stuck: it keeps
# its place, however long that takes.
{
	my $locker = open_session($node);
	my @new = map { open_session($node) } 0 .. 2;

	is(look($node, q{SELECT lease_release('r', 'w0')}), 't', 'behind a row lock: the lease is free');
	$locker->query_safe(q{BEGIN; SELECT FROM lease_lock WHERE resource = 'r' FOR UPDATE});
	send_to_wait($node, $new[0], q{SELECT lease_acquire('r', '1 hour', 'n0', NULL)}, in_lock_manager());
	foreach my $n (1, 2)
	{
		send_sql($new[$n], "SELECT lease_acquire('r', '1 hour', 'n$n', NULL)");
		becomes($node, 'SELECT count(*) FROM lease_waiters', $n + 1, "behind a row lock: waiter $n comes");
	}
	look($node, "SELECT pg_sleep(4 * $handoff)");
	is(look($node, queue()), 'n0,n1,n2', 'behind a row lock: all keep their places');
	$locker->query_safe('COMMIT');
	becomes($node, 'SELECT owner FROM lease_status', 'n0', 'behind a row lock: the first one gets it');
	look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
	look($node, q{DELETE FROM lease_lock});
	answer($_) foreach @new;
	nothing_left($node, 'behind a row lock');
}

$node->stop;
done_testing();
