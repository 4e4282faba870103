# Databases and extensions come and go while the purge worker runs, and it is
# in nobody's way.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PurgeTest;
use Test::More;

# Enough for visits to follow upon each other for longer than the five seconds
# that CREATE, ALTER and DROP DATABASE wait for others to leave.
my $many = 300_000;

my $node = start_purging_node('databases', "max_wal_size = 4GB\nfsync = off\n");
my $psql = sub { return $node->safe_psql('postgres', shift) };

# Put the worker to long work in a database, and wait until it is there.
sub keep_busy
{
	my ($dbname) = @_;

	add_ended($node, $dbname, $many);
	$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . worker_in($dbname))
	  or die "no worker in $dbname";
	return;
}

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

# A database that nobody granted a lease in since it is there: a copy.
add_database($node, 'template');
$psql->('ALTER DATABASE template ALLOW_CONNECTIONS false');
$psql->(q{SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = 'template'});
$psql->('ALTER DATABASE template ALLOW_CONNECTIONS true');
keep_busy('template');
$psql->('CREATE DATABASE copy TEMPLATE template');
pass('a database is copied while the worker is in it');
cmp_ok($node->safe_psql('copy', 'SELECT count(*) ' . ended()), '>', 0, 'the copy has leases that ended');
is_purged($node, 'copy', 'in the copy');
is_purged($node, 'template', 'in the one copied');

keep_busy('copy');
$psql->('ALTER DATABASE copy RENAME TO "re ""named"');
pass('a database is renamed while the worker is in it');
is_purged($node, 're "named', 'renamed');

keep_busy('template');
$psql->('DROP DATABASE template');
pass('a database is dropped while the worker is in it');

# A database that is closed while there is work, and opened again.
add_database($node, 'closed');
keep_busy('closed');
$psql->('ALTER DATABASE closed ALLOW_CONNECTIONS false');
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
$session->query_safe('SET client_min_messages = warning');
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
	my $seen = $psql->('SELECT clock_timestamp()');
	add_ended($node, 'postgres', 10);
	becomes_true($node, 'postgres',
		q{SELECT count(*) = 0 } . ended() , "$statement: other databases are purged");
	is($psql->('SELECT count(*) FROM pg_locks WHERE NOT granted'), 0, "$statement: nobody waits");
	$session->query_safe('ROLLBACK');
	add_ended($node, 'closed', 10);
	is_purged($node, 'closed', $statement);
}

# Statements that need the table for themselves get it, although there is
# always a worker that has it again in a moment.
keep_busy('closed');
$session->query_safe("SET lock_timeout = '10s'");
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

# A sleeping launcher does not hold up what all processes have to confirm.
set_and_reload($node, 'lease_lock.purge_interval', '1d');
$psql->('CREATE DATABASE last');
$psql->('DROP DATABASE last');
pass('databases are created and dropped beside a launcher that sleeps');

unlike(slurp_file($node->logfile), qr/WARNING|ERROR|FATAL|PANIC/, 'nothing to complain of');
$node->stop;
done_testing();
