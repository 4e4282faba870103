# When a process of the purge is killed the server goes through crash recovery,
# as for any of its processes: no lease is lost, no token is handed out twice,
# and the purge continues.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use PurgeTest;
use Test::More;
use Time::HiRes qw(usleep);
use WaitTest qw(stop_backend);

my $node = start_purging_node('killed', "restart_after_crash = on\nmax_wal_size = 4GB\n");
my $psql = sub { return $node->safe_psql('postgres', shift) };
my $contents = q{SELECT string_agg(concat_ws(' ', resource, owner, token, granted_at, expires_at, role, xid), ', ' ORDER BY resource)
	FROM lease_lock WHERE resource NOT LIKE 'ended %'};
my $crashed = qr/all server processes terminated; reinitializing/;

# Kill a process that meets the condition on its row in pg_stat_activity, and
# see that it took the server down.
sub kill_process
{
	my ($condition) = @_;
	my $crashes = times_logged($node, $crashed);
	my $observer = open_session($node);
	my $looks = 0;
	my $pid;

	# It is stopped first, since a worker may leave before it is killed.
	until (($pid = $observer->query_safe("SELECT pid FROM pg_stat_activity WHERE $condition"))
		&& eval { stop_backend($pid); 1 })
	{
		# A worker may have removed all rows before we came to look.
		add_ended($node, 'postgres', 100_000) if ++$looks % 1000 == 0;
	}
	kill('KILL', $pid) == 1 or die "could not kill $pid: $!";

	usleep(10_000) while times_logged($node, $crashed) == $crashes;
	eval { $observer->{run}->finish };
	# No query, or psql may be gone before it could be sent.
	$node->poll_query_until('postgres', undef, '') or die 'the server does not come back';
	return;
}

$psql->(q{
	SELECT lease_acquire('lease ' || n, '1 day', 'o') FROM generate_series(1, 1000) AS n;
	SELECT lease_renew('lease ' || n, '2 days', 'o') FROM generate_series(1, 1000, 7) AS n;
});

foreach my $victim (
	[ 'worker', worker_in('postgres') ],
	[ 'worker in its transaction', worker_in('postgres') . ' AND backend_xid IS NOT NULL' ],
	[ 'launcher', launcher() ])
{
	my ($name, $condition) = @$victim;

	add_ended($node, 'postgres', 100_000);
	my $before = $psql->($contents);
	$psql->("SET synchronous_commit = off; SELECT lease_acquire('last $name', '1 day', 'o')");
	my $last = $psql->("SELECT lease_token('last $name', 'o')");

	kill_process($condition);
	is($psql->($contents . " AND resource <> 'last $name'"), $before, "$name killed: leases are whole");
	is($psql->("SELECT lease_token('last $name', 'o')"), $last, "$name killed: the last one, too");
	is($psql->("SELECT lease_acquire('last $name', '1 day', 'other')"), 'f', "$name killed: it is held");
	cmp_ok($psql->("SELECT lease_acquire('next $name', '1 day', 'o') \\gset\nSELECT lease_token('next $name', 'o')"),
		'>', $last, "$name killed: the next token is higher");
	is_purged($node, 'postgres', "$name killed: it goes on");
	is($psql->('SELECT count(*) FROM pg_stat_activity WHERE ' . launcher()), 1, "$name killed: one launcher");
}

# Killed together with everything else.
add_ended($node, 'postgres', 100_000);
my $before = $psql->($contents);
$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . worker_in('postgres'))
  or die 'no worker';
$node->stop('immediate');
$node->start;
is($psql->($contents), $before, 'immediate stop: no lease is lost');
is_purged($node, 'postgres', 'immediate stop: it goes on');

$psql->('CREATE EXTENSION amcheck');
is($psql->("SELECT count(*) FROM bt_index_check('lease_lock_pkey', true)"), 1, 'the index has every row');

$node->stop;
done_testing();
