# No request is refused because the worker is removing the row of the lease: a
# try that meets an open batch looks again. A worker that is stopped in the middle
# of a batch delays a try only for a short time.
#
# PURGE_TRIES=n makes more tries.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use PurgeTest;
use Test::More;
use Time::HiRes qw(time);
use WaitTest qw(continue_backend look stop_backend);

my $node = start_purging_node('tries', "max_connections = 30\nlease_lock.durable = off\nsynchronous_commit = off\n");
my $psql = sub { return $node->safe_psql('postgres', shift) };
set_and_reload($node, 'lease_lock.purge_interval', '1ms');

# Every client has resources of its own, which are free whenever it tries: a
# try that is refused stops it. There are many more of them, so that batches
# are long, and each is met by purge in between. Only a try that waited for a whole
# second may be refused, when the machine gives the worker no time; that is rare.
$psql->('CREATE SEQUENCE excused MINVALUE 0');
my $script = "$PostgreSQL::Test::Utils::tmp_check/tries.sql";
append_to_file($script, q{
	SELECT sum(1 / (lease_acquire(client || ' ' || n, '1 microsecond', 'o') OR :waited)::int)
		FROM generate_series(1, 300) AS n, CAST(:client_id AS text) AS client;
	\set n random(1, 300)
	SELECT 1 / (lease_acquire(:client_id || ' ' || :n, '1 microsecond', 'o') OR :waited)::int;
	SELECT 1 / (lease_acquire(:client_id || ' ' || :n, '1 microsecond', 'o') OR :waited)::int;
	SELECT 1 / (lease_acquire_all(ARRAY[:client_id || ' ' || :n, :client_id || ' ' || 1 + :n % 300], '1 microsecond', 'o') OR :waited)::int;
} =~ s/:waited/clock_timestamp() > statement_timestamp() + '0.9 s' AND nextval('excused') >= 0/gr);
my ($purged_before) = $psql->("SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'lease_lock'");
$node->command_ok([ 'pgbench', '-n', '-c', '8', '-t', $ENV{PURGE_TRIES} // 40, '--max-tries=1', '-f', $script, $node->connstr('postgres') ],
	'tries beside the worker are all granted');
cmp_ok($psql->(q{SELECT nextval('excused')}), '<', 8 * ($ENV{PURGE_TRIES} // 40), 'at once, but for one in 300');
becomes_true($node, 'postgres',
	"SELECT n_tup_del > $purged_before + 1000 FROM pg_stat_user_tables WHERE relname = 'lease_lock'",
	'the worker was there');

# Stop the worker in the middle of a batch.
# An exclusive lease, and two permits, on neighbouring rows.
my $add = q{
	INSERT INTO lease_lock (resource, slot, owner, token, granted_at, expires_at, role, xid, mode, holds)
	SELECT v.name || ' ' || n, v.slot, 'o' || v.slot, 0, t, t, 10, pg_current_xact_id(), v.mode, 1
	FROM generate_series(1, 10000) AS n, CAST('2000-01-01' AS timestamptz) AS t,
		(VALUES ('ended', 0, 'x'), ('permit', 1, 'p'), ('permit', 2, 'p')) AS v(name, slot, mode)
	ON CONFLICT DO NOTHING};
my ($pid, $row);
foreach my $attempt (1 .. 100)
{
	add_ended($node, 'postgres', 1);
	$psql->($add);
	foreach my $look (1 .. 1000)
	{
		last if $pid = look($node, 'SELECT pid FROM pg_stat_activity WHERE ' . worker_in('postgres') . ' AND backend_xid IS NOT NULL');
	}
	next if !$pid || !eval { stop_backend($pid); 1 };
	$row = ask_beside_stopped($node, 'postgres', q{SELECT 'ended ' || split_part(l.resource, ' ', 2) FROM lease_lock AS l JOIN pg_stat_activity AS a ON l.xmax = a.backend_xid
		WHERE a.pid = } . $pid . ' GROUP BY 1 HAVING count(*) = 3 LIMIT 1');
	last if $row;
	continue_backend($pid);
}
ok($row, "the worker is stopped while it removes \"$row\"");
my $begun_at = time;
is(look($node, "SELECT lease_acquire('$row', '1 day', 'o')"), 'f', 'a try is refused then');
cmp_ok(time - $begun_at, '<', $WaitTest::LIMIT, 'and returns in time');
is(look($node, "SELECT lease_acquire('free', '1 day', 'o')"), 't', 'others are granted');

# Permits: that all places are taken names no transaction, and the worker has both of them.
my $permits = $row =~ s/ended/permit/r;
$begun_at = time;
is(look($node, "SELECT lease_acquire_permit('$permits', 2, '1 day', 'o')"), 'f', 'a permit is refused as well');
cmp_ok(time - $begun_at, '>', 0.9, 'after a wait for the worker');
is(look($node, "SELECT lease_acquire('held', '1 day', 'other')"), 'f', 'or refused');

# A waiter goes on when the batch is over.
my $session = open_session($node);
my $waiter = begin_query($session, "SELECT lease_acquire('$row', '1 millisecond', 'o', '1 minute')");
wait_until_blocked($node, $waiter);
continue_backend($pid);
is(finish_query($session), 't', 'a waiter is granted when the worker goes on');
$session->quit;
is_purged($node, 'postgres', 'the worker goes on');
$node->stop;
done_testing();
