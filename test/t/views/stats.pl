# The view lease_stats: what it counts, for which database, since when; and that
# a server without shared memory for it says so.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('stats', <<'CONF');
deadlock_timeout = 100ms
lease_lock.handoff_timeout = 1h
max_prepared_transactions = 2
restart_after_crash = on
CONF
my @counters = qw(granted refused takeovers renewals releases breaks waits wait_timeouts deadlocks handoffs purged);
my %expected;

sub reset_stats
{
	look($node, 'SELECT lease_stats_reset()');
	%expected = map { $_ => 0 } @counters;
	return;
}

# Test that these counters went up by so much, and the others not at all.
sub counted
{
	my ($name, %more) = @_;

	$expected{$_} += $more{$_} foreach keys %more;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(look($node, "SELECT concat_ws(' ', " . join(', ', map { "'$_', $_" } @counters) . ') FROM lease_stats'),
		join(' ', map { "$_ $expected{$_}" } @counters), $name);
	return;
}

sub holds
{
	my ($condition, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(look($node, "SELECT $condition FROM lease_stats"), 't', $name);
	return;
}

holds(q{scope = 'database' AND database = current_database()}, 'this database has counters of its own');
reset_stats();
counted('all begin at zero');
holds(q{wait_time = '0' AND longest_wait = '0' AND handoff_time = '0'}, 'so do the times');
holds(q{cardinality(handoff_counts) = cardinality(handoff_bounds) + 1}, 'there is a count for each bound, and one beyond');
holds(q{handoff_bounds = ARRAY(SELECT interval '16 microseconds' * 2 ^ i FROM generate_series(0, 19) AS i)}, 'bounds are doubled');

# each event on its own
look($node, q{SELECT lease_acquire('r', '1 hour', 'ann')});
counted('a grant', granted => 1);
look($node, q{SELECT lease_acquire('r', '1 hour', 'ann'), lease_acquire('r', '1 hour', 'bob', '0')});
counted('two refused tries', refused => 2);
look($node, q{SELECT lease_renew('r', '2 hours', 'ann')});
counted('a renewal', renewals => 1);
look($node, q{SELECT lease_renew('r', '2 hours', 'bob'), lease_release('r', 'bob'), lease_token('r', 'ann'), lease_release_all('bob')});
counted('what changes nothing does not count');
look($node, q{SELECT lease_acquire('r', '1 hour', 'bob', '20 ms')});
counted('a wait that times out', waits => 1, wait_timeouts => 1);
holds(q{wait_time >= '20 ms' AND longest_wait = wait_time}, 'its time');
look($node, q{SELECT lease_acquire('r', '1 hour', 'bob', '1 ms')});
counted('a shorter one', waits => 1, wait_timeouts => 1);
holds(q{wait_time > longest_wait AND longest_wait >= '20 ms'}, 'the longest is still the other one');
look($node, q{SELECT lease_acquire('free', '1 hour', 'bob', '1 min')});
counted('no wait is needed', granted => 1);
look($node, q{SELECT lease_release('r', 'ann'), lease_release('free', 'bob')});
counted('releases', releases => 2);
look($node, q{SELECT lease_acquire(r, '1 hour', 'all') FROM unnest('{a,b,c}'::text[]) AS r; SELECT lease_release_all('all')});
counted('release of all', granted => 3, releases => 3);
look($node, q{SELECT lease_acquire('r', '1 ms', 'ann'); SELECT pg_sleep(0.002); SELECT lease_acquire('r', '1 hour', 'bob')});
counted('a takeover', granted => 2, takeovers => 1);
look($node, q{SELECT lease_acquire('broken', '1 hour', 'ann'); SELECT lease_break('broken'), lease_break('broken'); DELETE FROM lease_lock WHERE resource = 'broken'});
counted('a break', granted => 1, breaks => 1);
look($node, q{SELECT lease_release('r', 'bob'); SELECT lease_acquire('r', '1 hour', 'ann'); SELECT lease_release('r', 'ann')});
counted('a grant of a released lease is none', granted => 1, releases => 2);
look($node, q{SET lease_lock.purge_after = 0; SELECT lease_purge(); RESET lease_lock.purge_after});
counted('a purge counts its rows', purged => 5);

# counted when they happen
look($node, q{BEGIN; SELECT lease_acquire('r', '1 hour', 'ann'); SAVEPOINT s; SELECT lease_renew('r', '2 hours', 'ann');
	ROLLBACK TO s; SELECT lease_release('r', 'ann'); ROLLBACK});
counted('what is rolled back was counted', granted => 1, renewals => 1, releases => 1);
look($node, q{BEGIN; SELECT lease_acquire('r', '1 hour', 'ann'); PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'});
counted('a prepared transaction counts once', granted => 1);
session_fails(open_session($node), q{SELECT lease_acquire('r', '0', 'ann')}, '22023', 'out of range', 'an error');
counted('does not count');

# hand-offs: released, expired, and neither
my $waiter = open_session($node);
send_to_wait($node, $waiter, q{SELECT lease_acquire('r', '1 hour', 'w', '1 h')});
counted('a wait counts when it begins', waits => 1);
look($node, q{SELECT lease_release('r', 'ann')});
is(answer($waiter), 't', 'a waiter gets a released lease');
counted('a hand-off after a release', granted => 1, releases => 1, handoffs => 1);
send_to_wait($node, $waiter, q{SELECT lease_acquire('r', '1 hour', 'w2', '1 h')});
look($node, q{SELECT FROM lease_request('r', '100 ms', 'w', if_own => 'renew')});	# it ends earlier
is(answer($waiter), 't', 'a waiter gets an expired lease');
counted('a hand-off after an expiry', granted => 1, takeovers => 1, renewals => 1, waits => 1, handoffs => 1);
my $time = look($node, 'SELECT wait_time FROM lease_stats');
my $holder = open_session($node);
$holder->query_safe(q{BEGIN; SELECT lease_release('r', 'w2')});
send_to_wait($node, $waiter, q{SELECT lease_acquire('r', '1 hour', 'w3', '1 min')}, in_lock_manager());
$holder->query_safe('COMMIT');
is(answer($waiter), 't', 'a waiter gets a lease from the lock manager');
counted('nobody called it', granted => 1, releases => 1, waits => 1);
holds("wait_time > '$time'", 'but the wait counts');
holds(q{handoffs = (SELECT sum(n) FROM unnest(handoff_counts) AS n)}, 'the histogram has every hand-off');
holds(q{handoff_time > '0' AND handoff_time < wait_time}, 'a hand-off is part of a wait');

# A hand-off that takes long goes to another bucket: the waiter is stopped
# when it is called.
{
	my $slow = q{(SELECT sum(n) FROM unnest(handoff_counts, handoff_bounds) AS b (n, bound) WHERE coalesce(bound > '200 ms', true))};
	my $before = look($node, "SELECT $slow FROM lease_stats");
	my $pid = send_to_wait($node, $waiter, q{SELECT lease_acquire('r', '1 hour', 'w4', '1 min')});

	stop_backend($pid);
	look($node, q{SELECT lease_release('r', 'w3'), pg_sleep(0)});
	look($node, 'SELECT pg_sleep(0.3)');
	continue_backend($pid);
	is(answer($waiter), 't', 'a stopped waiter gets it in the end');
	counted('a slow hand-off', granted => 1, releases => 1, waits => 1, handoffs => 1);
	holds("$slow = $before + 1", 'is among the slow ones');
}

# a wait that ends in a deadlock, and a wait that is cancelled
{
	my $other = open_session($node);

	look($node, q{SELECT lease_acquire('x', '1 hour', 'x'), lease_acquire('y', '1 hour', 'y')});
	send_to_wait($node, $waiter, q{SELECT lease_acquire('y', '1 hour', 'x', '1 min')});
	session_fails($other, q{SELECT lease_acquire('x', '1 hour', 'y', '1 min')}, '40P01', 'deadlock', 'a deadlock');
	counted('one victim', granted => 2, waits => 2, deadlocks => 1);
	look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
	like(answer($waiter), qr/57014/, 'a wait is cancelled');
	counted('a cancelled wait is no timeout');
	my $pid = send_to_wait($node, $waiter, q{SELECT lease_acquire('y', '1 hour', 'x', '1 min')});
	$time = look($node, 'SELECT wait_time FROM lease_stats');
	look($node, "SELECT pg_terminate_backend($pid, 10000)");
	counted('nor is one whose session ends', waits => 1);
	holds("wait_time > '$time'", 'but the wait counts');
}

# Many sessions at once lose nothing.
{
	reset_stats();
	$node->pgbench('-n -c 8 -t 200', 0, [qr{number of transactions actually processed: 1600/1600}], [qr/^$/],
		'eight sessions', { 'stats' => q{
			\set n random(1, 5)
			SELECT lease_acquire('p' || :n, '1 hour', pg_backend_pid()::text) AS granted \gset
			\if :granted
			SELECT lease_release('p' || :n, pg_backend_pid()::text);
			\endif
		}});
	holds('granted + refused = 1600 AND granted = releases', 'none of their calls is lost');
}

# databases
{
	my $stats = q{SELECT scope, granted FROM lease_stats};

	$node->safe_psql('postgres', 'CREATE DATABASE second');
	$node->safe_psql('second', 'CREATE EXTENSION lease_lock');
	reset_stats();
	$node->safe_psql('second', q{SELECT lease_acquire('r', '1 hour', 'ann')});
	is($node->safe_psql('second', $stats), 'database|1', 'another database has its own counters');
	counted('and does not change those of this one');
	look($node, q{SELECT lease_acquire('second', '1 hour', 'ann')});
	$node->safe_psql('second', 'SELECT lease_stats_reset()');
	is($node->safe_psql('second', $stats), 'database|0', 'it is reset by itself');
	counted('and this one not with it', granted => 1);
}

# reset
{
	my $before = look($node, 'SELECT stats_reset FROM lease_stats');

	sql_fails($node, 'SET ROLE pg_monitor; SELECT lease_stats_reset()', '42501', 'permission denied', 'reset is not for everybody');
	counted('a refused reset changes nothing');
	look($node, 'SELECT lease_stats_reset()');
	holds("stats_reset BETWEEN '$before'::timestamptz + '1 microsecond' AND clock_timestamp()", 'stats_reset is the time of the reset');
	holds('granted = 0', 'and resets');
}

# a crash
{
	look($node, q{SELECT lease_acquire('crash', '1 hour', 'ann')});
	holds('granted = 1', 'counted before the crash');
	my $pid = look($node, 'SELECT pid FROM pg_stat_activity WHERE backend_type = \'checkpointer\'');
	my $began = look($node, 'SELECT clock_timestamp()');
	kill 'KILL', $pid;
	$node->poll_query_until('postgres', "SELECT pg_postmaster_start_time() IS NOT NULL AND pid <> $pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
	  or die 'the server did not come back';
	is($node->safe_psql('postgres', "SELECT granted, stats_reset > '$began' FROM lease_stats"), '0|t', 'counters begin again after a crash');
}
$node->stop;

# One entry: the second database shares what is left over, until the first is gone.
{
	my $few = start_waiting_node('few', "lease_lock.stats_databases = 1\n", preload => 1);
	my $stats = 'SELECT scope, granted FROM lease_stats';
	my $grant = q{SELECT lease_acquire('r', '1 hour', 'ann')};

	$few->safe_psql('postgres', "CREATE DATABASE $_") foreach qw(second third fourth);
	$few->safe_psql($_, 'CREATE EXTENSION lease_lock') foreach qw(second third fourth);
	$few->safe_psql('second', $grant);
	$few->safe_psql('third', $grant);
	is($few->safe_psql('second', $stats), 'database|1', 'few: the first that comes has its own');
	is($few->safe_psql('third', $stats), 'overflow|1', 'few: the next one has not');
	$few->safe_psql('postgres', $grant);
	is($few->safe_psql('third', $stats), 'overflow|2', 'few: and shares with all others');
	$few->safe_psql('postgres', 'DROP DATABASE second');
	is($few->safe_psql('fourth', "$grant; $stats"), "t\ndatabase|1", 'few: the entry of a dropped one is used again, from zero');
	is($few->safe_psql('postgres', $stats), 'overflow|2', 'few: a session keeps the entry that it found first');
	$few->stop;
}

# Not preloaded: from 17 on the same, before that nothing, and no harm.
{
	my $bare = start_waiting_node('bare', '', preload => 0);
	my $version = $bare->safe_psql('postgres', 'SHOW server_version_num');

	is($bare->safe_psql('postgres', q{
			SELECT lease_acquire('r', '1 hour', 'ann'), lease_acquire('r', '1 hour', 'bob'), lease_acquire('r', '1 hour', 'bob', '10 ms');
			SELECT lease_renew('r', '1 hour', 'ann'), lease_release('r', 'ann');
			SELECT lease_stats_reset() IS NOT NULL;
			SELECT lease_acquire('r', '1 hour', 'ann');
			SELECT database, scope, granted FROM lease_stats}),
		"t|f|f\nt|t\nt\nt\npostgres|" . ($version >= 170000 ? 'database|1' : 'none|'), 'not preloaded');
	is($bare->safe_psql('postgres', q{
			SELECT count(v) FROM lease_stats AS s, jsonb_each_text(to_jsonb(s)) AS e (k, v)}),
		$version >= 170000 ? 19 : 2, 'not preloaded: the view says so');
	$bare->stop;
}

done_testing();
