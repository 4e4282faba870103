# Databases and extensions are created and dropped while the purge worker runs,
# and the worker does not block that.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use PurgeTest;
use Test::More;
use WaitTest qw(answer becomes continue_backend look send_sql stop_backend);

# Far more than one batch of the worker.
my $many = 50_000;

my $node = start_purging_node('databases', "max_wal_size = 4GB\nfsync = off\n");
my $psql = sub { return $node->safe_psql('postgres', shift) };

# Give the worker much to do in a database, and stop it while it rests between
# two of its first batches. The pages are full, but for those that are purged, and
# the last one.
sub stop_worker_in
{
	my ($dbname) = @_;

	for my $attempt (1 .. 100)
	{
		my $left = $many;

		switch_off($node);
		$node->safe_psql($dbname, 'TRUNCATE lease_lock');
		add_ended($node, $dbname, $many);
		add_ended($node, $dbname, $many + 200);
		look($node, q{ALTER SYSTEM SET lease_lock.purge_interval = '100ms'});
		look($node, 'SELECT pg_reload_conf()');
		for (my $looks = 0; $looks < 1000 && $left > $many / 2; $looks++)
		{
			my $pid = look($node, 'SELECT pid FROM pg_stat_activity WHERE ' . worker_in($dbname) . q{ AND query LIKE 'purging%' AND xact_start IS NULL});
			next if !$pid || !eval { stop_backend($pid); 1 };
			my $answer = ask_beside_stopped($node, $dbname, 'SELECT count(*), '
				. "NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid AND xact_start IS NOT NULL) " . ended());
			($left, my $rests) = split /\|/, $answer if $answer;

			return $pid if $left > $many / 2 && $left < $many && $rests eq 't';
			continue_backend($pid);
		}
	}
	die "no worker in $dbname";
}

# Run a statement that wants the database for itself, while the worker is in
# it; the worker goes on when the statement has begun to wait for it to leave.
# It leaves before all is done, as is seen in the database named last.
sub run_beside_worker
{
	my ($dbname, $statement, $afterwards) = @_;
	my $worker = stop_worker_in($dbname);
	my $session = open_session($node);

	set_and_reload($node, 'lease_lock.purge_interval', '0');
	send_sql($session, $statement);
	becomes($node, q{SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND classid = 'pg_database'::regclass
			AND mode IN ('ShareLock', 'AccessExclusiveLock') AND granted}
		. " AND objid = (SELECT oid FROM pg_database WHERE datname = '$dbname')",
		'1', "$statement: begins while the worker is there");
	continue_backend($worker);
	is(answer($session), '', "$statement: succeeds");
	$session->quit;
	cmp_ok($node->safe_psql($afterwards, 'SELECT count(*) ' . ended()), '>', $many / 4, "$statement: the worker left")
	  if $afterwards;
	set_and_reload($node, 'lease_lock.purge_interval', '100ms');
	return;
}

# A row that moves to a block that the worker has left is not forgotten. No page has
# room for two versions of the row, so each goes to another page: to one that is
# purged and vacuumed, or to the last one.
my $worker = stop_worker_in('postgres');
my $block = q{SELECT (ctid::text::point)[0] FROM lease_lock WHERE resource = 'held'};
my $block_before = $psql->($block);
$psql->('ALTER TABLE lease_lock ALTER payload SET STORAGE PLAIN');
for (my $end = time + $PostgreSQL::Test::Utils::timeout_default; time < $end && $psql->($block) >= $block_before / 2;)
{
	$psql->('VACUUM lease_lock');	# again, since a snapshot of another session can keep the old rows
	$psql->(q{SELECT lease_set_payload('held', 'o', to_jsonb(string_agg(md5(n::text), ''))) FROM generate_series(1, 150) AS n});
}
cmp_ok($psql->($block), '<', $block_before / 2, 'the row has moved');
continue_backend($worker);
becomes_true($node, 'postgres', 'SELECT count(*) = 0 ' . ended(), 'the worker goes on');
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_activity WHERE ' . worker_in('postgres')) for 1 .. 3;
$psql->(q{UPDATE lease_lock SET expires_at = '2000-01-01'});
becomes_true($node, 'postgres', 'SELECT count(*) = 0 FROM lease_lock', 'and comes back for the row that moved');

# the extension comes, goes, and comes again
$psql->('CREATE DATABASE plain');
$psql->("SELECT lease_acquire('r', '1 microsecond', 'o')");
becomes_true($node, 'postgres', 'SELECT count(*) = 0 FROM lease_lock', 'the worker runs');
foreach my $round ('first', 'second')
{
	$node->safe_psql('plain', 'CREATE EXTENSION lease_lock');
	add_ended($node, 'plain', 10);
	is_purged($node, 'plain', "the extension is new, $round time");
	$node->safe_psql('plain', 'DROP EXTENSION lease_lock');
	becomes_true($node, 'postgres', 'SELECT count(*) = 0 FROM pg_stat_activity WHERE ' . worker_in('plain'), 'the worker leaves');
}

# The extension and a lease, in one transaction that stays open while the worker comes and goes.
my $creator = open_session($node, 'plain');
$creator->query_safe(q{BEGIN; CREATE EXTENSION lease_lock; SELECT lease_acquire('r', '1 microsecond', 'o')});
# Each round begins and ends once. On a slow machine one follows the other, so that it is hardly ever seen idle.
foreach my $change (1 .. 6)
{
	my $now = $psql->('SELECT clock_timestamp()');

	$node->poll_query_until('postgres', 'SELECT count(*) > 0 FROM pg_stat_activity WHERE ' . launcher() . " AND state_change > '$now'")
	  or die 'no further round';
}
$creator->query_safe('COMMIT');
$creator->quit;
becomes_true($node, 'plain', 'SELECT count(*) = 0 FROM lease_lock', 'the first lease in an extension that was not yet committed');
$node->safe_psql('plain', 'DROP EXTENSION lease_lock');

# A copy. The launcher learns of it by a grant.
add_database($node, 'template');
run_beside_worker('template', 'CREATE DATABASE copy TEMPLATE template', 'copy');
$node->safe_psql('copy', q{SELECT lease_acquire('granted', '1 day', 'o')});
is_purged($node, 'copy', 'in the copy');
is_purged($node, 'template', 'in the one copied');

run_beside_worker('copy', 'ALTER DATABASE copy RENAME TO "re ""named"', 're "named');
is_purged($node, 're "named', 'renamed');

run_beside_worker('template', 'DROP DATABASE template');

# A database that is closed while there is work, and opened again.
add_database($node, 'closed');
$worker = stop_worker_in('closed');
$psql->('ALTER DATABASE closed ALLOW_CONNECTIONS false');
continue_backend($worker);
becomes_true($node, 'postgres', 'SELECT count(*) = 0 FROM pg_stat_activity WHERE ' . worker_in('closed'), 'closed: the worker leaves');
add_ended($node, 'postgres', 10);
is_purged($node, 'postgres', 'the others go on');
$psql->('ALTER DATABASE closed ALLOW_CONNECTIONS true');
is_purged($node, 'closed', 'opened again');

# A dump is restored.
add_database($node, 'restored');
$node->safe_psql('restored', 'DROP EXTENSION lease_lock');
my $dump = "$PostgreSQL::Test::Utils::tmp_check/dump.sql";
$node->command_ok([ 'pg_dump', '-f', $dump, 'closed' ], 'dump');
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-1', '-f', $dump, 'restored' ], 'restore');
add_ended($node, 'restored', 10);
is_purged($node, 'restored', 'restored');

# What somebody does to the table in an open transaction. The worker does not
# wait for it, nor does the other databases' purge.
my $session = open_session($node, 'closed');
$session->query_safe('SET client_min_messages = error');
foreach my $statement (
	'LOCK TABLE lease_lock',
	'LOCK TABLE lease_lock IN SHARE MODE',
	'TRUNCATE lease_lock',
	'DROP EXTENSION lease_lock',
	'DROP EXTENSION lease_lock; CREATE EXTENSION lease_lock',
	'ALTER EXTENSION lease_lock SET SCHEMA other',
	'ALTER EXTENSION lease_lock UPDATE',
	'ALTER TABLE lease_lock ADD COLUMN c int')
{
	$node->safe_psql('closed', 'CREATE SCHEMA IF NOT EXISTS other');
	$session->query_safe("BEGIN; $statement");
	add_ended($node, 'postgres', 10);
	becomes_true($node, 'postgres',
		q{SELECT count(*) = 0 } . ended(), "$statement: other databases are purged");
	is($psql->('SELECT count(*) FROM pg_locks WHERE NOT granted'), 0, "$statement: nobody waits");
	$session->query_safe('ROLLBACK');
	add_ended($node, 'closed', 10);
	is_purged($node, 'closed', $statement);
}

# Statements that need an exclusive lock on the table get it, although a worker
# uses the table again and again.
$worker = stop_worker_in('closed');
continue_backend($worker);
$session->query_safe("SET lock_timeout = '3min'");
$session->query_safe($_)
  foreach 'VACUUM FULL lease_lock', 'REINDEX TABLE CONCURRENTLY lease_lock', 'ALTER EXTENSION lease_lock UPDATE',
  'TRUNCATE lease_lock', 'DROP EXTENSION lease_lock', 'CREATE EXTENSION lease_lock';
pass('maintenance, drop and new creation beside the worker');
$session->quit;

# One worker at a time, however many databases there are.
my $ndatabases = 12;
add_database($node, "d$_") foreach 1 .. $ndatabases;
add_ended($node, "d$_", 5000) foreach 1 .. $ndatabases;
my $most = 0;
my $left = 1;
while ($left)
{
	my $workers = $psql->(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'lease_lock purge worker'});
	$most = $workers if $workers > $most;
	$left = grep { $node->safe_psql("d$_", 'SELECT count(*) ' . ended()) > 0 } 1 .. $ndatabases;
}
cmp_ok($most, '<=', 1, "one worker for $ndatabases databases");

# A sleeping launcher does not delay a procedure signal barrier.
set_and_reload($node, 'lease_lock.purge_interval', '1d');
$psql->('CREATE DATABASE last');
$psql->('DROP DATABASE last');
pass('databases are created and dropped beside a launcher that sleeps');

# From 19 on, DROP DATABASE ends the worker in the database, and the server logs
# that. The server also logs it when ask_beside_stopped() had to give up, and when
# a table with leases is dropped.
my $expected = qr/FATAL:  (?:terminating background worker "lease_lock purge worker"|connection to client lost)|WARNING:  leases are in use while/;
my @complaints = grep { /WARNING|ERROR|FATAL|PANIC/ && !/$expected/ } split /\n/, slurp_file($node->logfile);
is(join("\n", @complaints), '', 'no warning or error in the log');
$node->stop;
done_testing();
