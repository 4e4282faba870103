# The purge worker is sent to no database in which nothing happens: it comes
# where leases were granted, until their rows are gone.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use PurgeTest;
use Test::More;

my $node = start_purging_node('idle', "log_min_messages = debug1\nmax_prepared_transactions = 1\n");
my $psql = sub { return $node->safe_psql('postgres', shift) };

# How many workers were started?
sub visits
{
	return times_logged($node, qr/starting background worker process "lease_lock purge worker"/);
}

# Wait until the launcher has begun so many rounds.
sub rounds
{
	my ($count) = @_;

	for (1 .. $count)
	{
		my $now = $psql->('SELECT clock_timestamp()');

		$node->poll_query_until('postgres', 'SELECT count(*) > 0 FROM pg_stat_activity WHERE ' . launcher() . " AND state_change > '$now'")
		  or die 'no further round';
	}
	return;
}

set_and_reload($node, 'lease_lock.purge_interval', '10ms');
$psql->(q{SELECT lease_acquire('r', '1 day', 'o')});
my $before = visits();
rounds(3);
cmp_ok(visits(), '>', $before, 'a database with a lease is visited');

# A grant that is not committed when the worker comes must not be forgotten.
$psql->(q{SELECT lease_release('r', 'o')});
$psql->(q{BEGIN; SELECT lease_acquire('open', '1 ms', 'o'); PREPARE TRANSACTION 'open'});
becomes_true($node, 'postgres', q{SELECT count(*) = 0 FROM lease_lock WHERE resource = 'r'}, 'what was released is purged');
rounds(5);
$psql->(q{COMMIT PREPARED 'open'});
becomes_true($node, 'postgres', 'SELECT count(*) = 0 FROM lease_lock', 'and so is what was granted in the open transaction');

rounds(3);
$before = visits();
rounds(20);
is(visits(), $before, 'an empty lock table is not visited, nor are other databases');

$psql->(q{SELECT lease_acquire('s', '1 microsecond', 'o')});
becomes_true($node, 'postgres', 'SELECT count(*) = 0 FROM lease_lock', 'a grant brings the worker back');

# A large table in which nothing ends is not read all the time. The time between two readings is
# a multiple of what one costs, so it is longer on a slow machine. What ends is found all the same.
$psql->(q{SELECT count(lease_acquire('live ' || n, '1 day', 'o')) FROM generate_series(1, 50000) AS n});
$psql->('VACUUM lease_lock');
set_and_reload($node, 'lease_lock.purge_interval', '200ms');
rounds(2);
my $readings = q{SELECT heap_blks_read + heap_blks_hit FROM pg_statio_user_tables WHERE relname = 'lease_lock'};
my $blocks = $psql->(q{SELECT pg_relation_size('lease_lock') / 8192});
my $blocks_read = $psql->($readings);
my $since = time;
rounds(40);
SKIP:
{
	skip 'so busy a machine that visits are as rare as readings may be', 1 if time > $since + 15;
	cmp_ok($psql->($readings) - $blocks_read, '<', 20 * $blocks, 'a large table in which nothing ends is seldom read');
}
$psql->(q{UPDATE lease_lock SET expires_at = '2000-01-01' WHERE resource = 'live 1'});
becomes_true($node, 'postgres', q{SELECT count(*) = 49999 FROM lease_lock}, 'and what ends is removed');

$node->stop;
done_testing();
