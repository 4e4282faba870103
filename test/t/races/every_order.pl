# Two sessions each make a call on the same resource. Whatever the order of their
# steps, the results and the leases at the end are those of one call after the
# other, as the calls give them when they do not overlap. The test goes through
# all states of the resource and all pairs of calls, in random order.
#
# One of the calls meets an open transaction of the other session. If the library
# was built by scripts/check-races, the test also stops the first session at each
# point between look, lock, write and unlock.
#
# RACE_SECONDS=n makes it that long, RACE_SEED=n repeats an order.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = $ENV{RACE_SECONDS} // 6;
my $seed = $ENV{RACE_SEED} // time % 1_000_000;
my $node = start_node('every_order', <<'CONF');
fsync = off
CONF

plan skip_all => 'dblink is not installed'
  if $node->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'dblink'}) eq '0';
$node->safe_psql('postgres', slurp_file("$FindBin::RealBin/every_order.sql"));

my $connect = 'dbname=postgres host=' . $node->host . ' port=' . $node->port;
sub play
{
	my ($old) = @_;

	$node->safe_psql('postgres', <<"SQL");
LOAD 'lease_lock';
SELECT dblink_connect('a', '$connect'), dblink_connect('b', '$connect'), dblink_connect('old', '$connect') \\g /dev/null
SELECT * FROM dblink_exec('old', '$old'), dblink('old', 'SELECT count(*) FROM pg_class') AS old(classes int) \\g /dev/null
SELECT p FROM dblink('a', 'SELECT pg_backend_pid()') AS a(p int) \\gset a_
SELECT p FROM dblink('b', 'SELECT pg_backend_pid()') AS b(p int) \\gset b_
SELECT dblink_exec(s, 'SET lease_lock.purge_after = 0'), stop_at(s, 'nowhere') FROM unnest(ARRAY['a', 'b']) AS s \\g /dev/null
CALL play($seconds / 2.0, $seed, ARRAY[:a_p, :b_p]);
INSERT INTO outcomes (state, is_right) SELECT 'held by c, then by b', NOT refused_by_different_moments(ARRAY[:a_p, :b_p]) WHERE can_stop();
SQL
	return;
}

# At first a look finds the versions of a row one after the other, from the oldest to the newest.
# With an index on what changes, each version has index entries, and the newest comes first.
# With an old snapshot, all versions stay.
play('RESET ALL');
$node->safe_psql('postgres', 'CREATE INDEX ON lease_lock (expires_at)');
play('BEGIN ISOLATION LEVEL REPEATABLE READ');

# A row moves to a new block of the table after a scan has begun. It is found nevertheless.
sub moved_row_is_found
{
	my $big = q{to_jsonb(repeat('x', 7000))};
	my $scan = open_session($node, 'moves');
	my $other = open_session($node, 'moves');
	my $pid;

	$node->safe_psql('moves', 'CREATE EXTENSION lease_lock; ALTER TABLE lease_lock ALTER payload SET STORAGE PLAIN');
	$other->query_safe("SELECT lease_acquire('r', '1 hour', 'a'), lease_request('first block', '1 hour', 'b', payload => $big), pg_advisory_lock(7)");
	$scan->query_safe(q{LOAD 'lease_lock'; SET lease_lock.stop_at = 'when a scan begins'});
	$pid = begin_query($scan, q{SELECT lease_release_all('a')});
	wait_until_blocked($node, $pid);
	$other->query_safe(q{SET lease_lock.stop_at = 'nowhere'} . ";SELECT lease_request('r', '1 hour', 'a', if_own => 'renew', payload => $big)");
	$other->query_safe('SELECT pg_advisory_unlock(7)');
	is(finish_query($scan), '1', 'a row that moves while a scan begins is found');
	$scan->quit;
	$other->quit;
	return;
}

# A transaction that a look has met, and that has ended before the decision, is no reason to refuse. So the rows of a purge
# refuse nobody, also when the next batch has begun meanwhile.
sub ended_transaction_refuses_nobody
{
	my ($call) = @_;
	my $try = open_session($node, 'moves');
	my $purge = open_session($node, 'moves');
	my $pid;

	$purge->query_safe(q{SELECT lease_acquire_permit('ended', 2, '1 hour', o) FROM unnest(ARRAY['a', 'b']) AS o;
		SELECT lease_request('ended', '1 microsecond', o, mode => 'permit', permits => 2, if_own => 'renew') FROM unnest(ARRAY['a', 'b']) AS o;
		SELECT pg_advisory_lock(7); SET lease_lock.purge_after = 0; BEGIN; SELECT lease_purge()});
	$try->query_safe(q{LOAD 'lease_lock'; SET lease_lock.stop_at = 'after a look'});
	$pid = begin_query($try, "SELECT $call");
	wait_until_blocked($node, $pid);
	$purge->query_safe('COMMIT; SELECT pg_advisory_unlock(7)');
	is(finish_query($try), 't', "a transaction that has ended refuses nobody: $call");
	$purge->query_safe(q{SELECT lease_release_all('o')});
	$try->quit;
	$purge->quit;
	return;
}

if ($node->safe_psql('postgres', q{LOAD 'lease_lock'; SELECT can_stop()}) eq 't')
{
	$node->safe_psql('postgres', 'CREATE DATABASE moves');
	moved_row_is_found();
	ended_transaction_refuses_nobody($_)
	  foreach q{lease_acquire('ended', '1 hour', 'o')}, q{lease_acquire_permit('ended', 2, '1 hour', 'o')};
}

is($node->safe_psql('postgres', 'SELECT * FROM outcomes WHERE NOT is_right ORDER BY 1, 2, 4 LIMIT 20'),
	'', 'two calls that overlap have the results of one after the other');
my $orders = $node->safe_psql('postgres', 'SELECT count(*) FROM outcomes');
cmp_ok($orders, '>=', 10, 'orders were tried');
note("seed $seed: $orders orders at ", $node->safe_psql('postgres', 'SELECT count(DISTINCT point) FROM outcomes'), ' points');

$node->stop;
done_testing();
