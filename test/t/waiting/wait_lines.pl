# The line of a resource: which waiters are woken, and which ones block no
# others.
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

# Those who wait for any of several are served in the order of arrival, also if
# all become free at once.
{
	my @sessions = map { open_session($node) } 0 .. 5;
	my $any = q{'{r1,r2,r3,r4}'};
	my @overtaken;

	foreach my $round (1 .. 20)
	{
		is(look($node, q{SELECT count(*) FROM generate_series(1, 4) AS i WHERE lease_acquire('r' || i, '1 hour', 'holder')}), 4, "round $round: all are held");
		send_to_wait($node, $sessions[$_], "SELECT lease_acquire_any($any, '1 hour', 'w$_', NULL)") foreach 0 .. 5;
		look($node, q{SELECT lease_release_all('holder')});
		becomes($node, q{SELECT count(*) FROM lease_waiters}, 2, "round $round: four of six get one");
		push @overtaken, look($node, q{SELECT string_agg(owner, ' ') FROM lease_waiters WHERE owner < 'w4'});
		answer($_) foreach @sessions[0 .. 3];	# a waiter leaves the queue before it commits
		look($node, q{SELECT lease_release_all(owner) FROM lease_lock WHERE owner IS NOT NULL});
		becomes($node, q{SELECT count(*) FROM lease_waiters}, 0, "round $round: and then the others");
		answer($_) foreach @sessions[4, 5];
		look($node, q{SELECT lease_release_all(owner) FROM lease_lock WHERE owner IS NOT NULL});
	}
	is(join('', @overtaken), '', 'any of four: nobody is overtaken');
	$_->quit foreach @sessions;
}

# Two wait for either of two leases, and each has one of them in an open
# transaction. They sleep, and do not wake each other again and again.
SKIP:
{
	skip 'no /proc', 3 if !-e '/proc/self/status';

	my @sessions = map { open_session($node) } 1, 2;
	my (@pids, $before, $since);

	$sessions[$_]->query_safe("BEGIN; SELECT lease_acquire('r$_', '1 hour', 'w$_')") foreach 0, 1;
	push @pids, send_to_wait($node, $sessions[$_], "SELECT lease_acquire_any('{r0,r1}', '1 hour', 'w$_', NULL)") foreach 0, 1;
	($before, $since) = (sleeps($pids[0]), time);
	usleep(500_000);
	cmp_ok(sleeps($pids[0]) - $before, '<=', 10 + 5 * (time - $since), 'either of two: both sleep');
	look($node, "SELECT pg_cancel_backend($pids[0])");
	like(answer($sessions[0]), qr/57014/, 'either of two: one gives up');
	$sessions[0]->query_safe('ROLLBACK');
	is(answer($sessions[1]), 'r0', 'either of two: the other gets its lease');
	$_->quit foreach @sessions;
	nothing_left($node, 'either of two');
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

# Wait for a resource, and run SQL in a deferred trigger at the commit before the sleep.
look($node, q{
	CREATE TABLE commits (do_sql text);
	CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE NEW.do_sql; RETURN NULL; END $$;
	CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON commits DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION at_commit();
	CREATE PROCEDURE wait_and_do(resource text, do_sql text) LANGUAGE plpgsql AS $$
	DECLARE
		ok boolean;
		token bigint;
		expires timestamptz;
	BEGIN
		INSERT INTO commits VALUES (do_sql);
		CALL lease_wait(resource, '1 hour', 'w', NULL, ok, token, expires);
	END $$});

# A waiter that was woken between its look and its sleep looks again. Here the
# trigger waits for a lock, which uses up the set latch. And one that tries another
# lease is not taken for the waiter: that would count as away, for the other transaction.
foreach (
	[ 'woken after its look', q{SELECT pg_advisory_xact_lock(1)}, q{SELECT pg_advisory_xact_lock(1)}, in_lock_manager() ],
	[ 'a trigger tries another', q{SELECT lease_acquire('other', '1 hour', 't')}, q{SELECT lease_acquire('other', '1 hour', 'open')}, in_queue() ])
{
	my ($name, $at_commit, $before, $place) = @$_;
	my ($waiter, $other) = map { open_session($node) } 1, 2;
	my $pid;

	look($node, qq{SELECT lease_acquire('$name', '1 hour', 'holder')});
	$other->query_safe("BEGIN; $before");
	$pid = send_to_wait($node, $waiter, "CALL wait_and_do('$name', \$\$$at_commit\$\$)", $place);
	is(look($node, qq{SELECT lease_release('$name', 'holder')}), 't', "$name: the lease is released");
	$other->query_safe('ROLLBACK') if $place eq in_lock_manager();
	becomes($node, "SELECT owner FROM lease_status WHERE resource = '$name'", 'w', "$name: the waiter gets it")
	  or look($node, "SELECT pg_cancel_backend($pid)");
	answer($waiter);
	$other->query_safe('ROLLBACK') if $place ne in_lock_manager();
	look($node, q{SELECT lease_release_all('w')});
	nothing_left($node, $name);
	$_->quit foreach $waiter, $other;
}

# Only the first waiter is told that a lease was released within its min_hold.
# The next one learns it when the first one leaves.
{
	my @sessions = map { open_session($node) } 0, 1;
	my ($min_hold, $end, $released, $left, $waiting) = 750;

	# Again with twice the min_hold if it was over too early.
	do
	{
		$min_hold *= 2;
		look($node, q{SELECT lease_release_all('w0')});
		answer($sessions[1]);
		look($node, q{SELECT lease_release_all('w1')});

		$end = time + $min_hold / 1000;
		look($node, qq{SELECT granted FROM lease_request('kept', '2 hours', 'holder', min_hold => '$min_hold ms')});
		my $pid = send_to_wait($node, $sessions[0], q{SELECT lease_acquire('kept', '1 hour', 'w0', NULL)});
		send_to_wait($node, $sessions[1], q{SELECT lease_acquire('kept', '1 hour', 'w1', NULL)});
		$released = look($node, q{SELECT lease_release('kept', 'holder')});
		look($node, "SELECT pg_cancel_backend($pid)");
		$left = answer($sessions[0]);
		$waiting = look($node, q{SELECT count(*) FROM lease_waiters});
	} while (time > $end && $min_hold < 1000 * $WaitTest::LIMIT);

	is($released, 't', 'released within min_hold');
	like($left, qr/57014/, 'released within min_hold: the first waiter leaves');
	is($waiting, 1, 'released within min_hold: the next one still waits');
	becomes($node, q{SELECT owner FROM lease_status WHERE resource = 'kept'}, 'w1', 'released within min_hold: it gets the lease after that')
	  or look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
	answer($sessions[1]);
	look($node, q{SELECT lease_release_all('w1')});
	nothing_left($node, 'released within min_hold');
	$_->quit foreach @sessions;
}

# A waiter for any of two that is called for both takes one, and leaves the other
# to the next one.
{
	my ($any, $one) = map { open_session($node) } 1, 2;
	my $pid;

	look($node, q{SELECT lease_acquire('a', '1 hour', 'holder'), lease_acquire('b', '1 hour', 'holder')});
	$pid = send_to_wait($node, $any, q{SELECT lease_acquire_any('{a,b}', '1 hour', 'any', NULL)});
	send_to_wait($node, $one, q{SELECT lease_acquire('b', '1 hour', 'one', NULL)});
	stop_backend($pid);
	is(look($node, q{SELECT lease_release('a', 'holder')}), 't', 'called for a: it is released');
	is(look($node, q{SELECT lease_release('b', 'holder')}), 't', 'called for a: so is b');
	continue_backend($pid);
	is(answer($any), 'a', 'called for a: it gets that');
	becomes($node, q{SELECT owner FROM lease_status WHERE resource = 'b'}, 'one', 'called for a: the next one gets b')
	  or look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
	answer($one);
	look($node, q{SELECT lease_release_all('any'), lease_release_all('one')});
	nothing_left($node, 'called for a');

	# Called for b, it finds a free first, and leaves b to the next one.
	look($node, q{SELECT lease_acquire('a', '1 hour', 'holder'), lease_acquire('b', '1 hour', 'holder')});
	$pid = send_to_wait($node, $any, q{SELECT lease_acquire_any('{a,b}', '1 hour', 'any', NULL)});
	send_to_wait($node, $one, q{SELECT lease_acquire('b', '1 hour', 'one', NULL)});
	stop_backend($pid);
	is(look($node, q{SELECT lease_release('b', 'holder')}), 't', 'called for b: it is released');
	is(look($node, q{SELECT lease_release('a', 'holder')}), 't', 'called for b: so is a');
	continue_backend($pid);
	is(answer($any), 'a', 'called for b: it gets a');
	becomes($node, q{SELECT owner FROM lease_status WHERE resource = 'b'}, 'one', 'called for b: the next one gets that')
	  or look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
	answer($one);
	look($node, q{SELECT lease_release_all('any'), lease_release_all('one')});
	nothing_left($node, 'called for b');

	# It alone knows when b is free, since it was first. It gets a, and tells.
	# Again with twice the min_hold if it was over too early.
	my ($min_hold, $end, $released, $got) = 750;
	do
	{
		$min_hold *= 2;
		look($node, q{SELECT lease_release_all('any')});
		answer($one);
		look($node, q{SELECT lease_release_all('one')});

		$end = time + $min_hold / 1000;
		look($node, qq{SELECT lease_acquire('a', '1 hour', 'holder'), granted FROM lease_request('b', '2 hours', 'holder', min_hold => '$min_hold ms')});
		send_to_wait($node, $any, q{SELECT lease_acquire_any('{a,b}', '1 hour', 'any', NULL)});
		send_to_wait($node, $one, q{SELECT lease_acquire('b', '1 hour', 'one', NULL)});
		$released = look($node, q{SELECT lease_release('b', 'holder')}) . look($node, q{SELECT lease_release('a', 'holder')});
		$got = answer($any);
	} while (time > $end && $min_hold < 1000 * $WaitTest::LIMIT);

	is($released, 'tt', 'knows of b: both are released, b within min_hold');
	is($got, 'a', 'knows of b: it gets a');
	becomes($node, q{SELECT owner FROM lease_status WHERE resource = 'b'}, 'one', 'knows of b: the next one gets that in time')
	  or look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
	answer($one);
	look($node, q{SELECT lease_release_all('any'), lease_release_all('one')});
	nothing_left($node, 'knows of b');
	$_->quit foreach $any, $one;
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
