# PgBouncer in transaction mode: many clients on two server connections. A lease
# belongs to its owner, not to a connection, and SET LOCAL to its transaction.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use ClientTest;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes 'usleep';

my $pgbouncer = can_run([ 'pgbouncer', '/usr/sbin/pgbouncer' ], '--version')
  or plan skip_all => 'no PgBouncer (Debian: pgbouncer)';

my $node = start_client_node('pgbouncer', 'item');
my $folder = PostgreSQL::Test::Utils::tempdir_short();
my $port = PostgreSQL::Test::Cluster::get_free_port();

# Which server connection did what.
$node->safe_psql('postgres', q{
	CREATE TABLE log (id int GENERATED ALWAYS AS IDENTITY, client int, what text, pid int DEFAULT pg_backend_pid());
	GRANT INSERT ON log TO app;
});

# From 1.21 on, prepared statements with a name work, too.
my ($version) = (run_command([ $pgbouncer, '--version' ]))[0] =~ /PgBouncer (\d+\.\d+)/;
my ($major, $minor) = split(/\./, $version);
my $by_name = $major > 1 || $minor >= 21;

append_to_file("$folder/users", qq{"app" ""\n});
append_to_file("$folder/pgbouncer.ini", <<"INI");
[databases]
postgres = host=${\$node->host} port=${\$node->port}

[pgbouncer]
pool_mode = transaction
default_pool_size = 2
max_client_conn = 100
unix_socket_dir = $folder
listen_port = $port
auth_type = trust
auth_file = $folder/users
ignore_startup_parameters = extra_float_digits
logfile = $folder/log
pidfile = $folder/pid
INI
append_to_file("$folder/pgbouncer.ini", "max_prepared_statements = 100\n") if $by_name;
system_or_bail($pgbouncer, '-q', '-d', "$folder/pgbouncer.ini");
END
{
	my $status = $?;

	kill('TERM', slurp_file("$folder/pid")) if $folder && -e "$folder/pid";
	$? = $status;
}
my $app = "host=$folder port=$port user=app dbname=postgres";

foreach (1 .. 200)
{
	last if -S "$folder/.s.PGSQL.$port";
	usleep(50_000);
}

# The programs of the other tests work through it as they are.
SKIP:
{
	my $python = can_run([ 'python3', '/usr/bin/python3' ], '-c', 'import psycopg2')
	  or skip 'no Python with psycopg2', 1;

	like(run_client($node, [ $python, 'psycopg_client.py', 'psycopg2' ], host => $folder, port => $port),
		qr/^and again: table 2\nlate write: 55000 .*^deadlock: 40P01 /ms, 'psycopg2 through PgBouncer');
}

# Each reads a number under a lease and writes it back plus one in another
# transaction: two at a time would lose a count. The extended protocol sends
# parameters in unnamed prepared statements. No session waits here: a waiter
# occupies a server connection, which the holder may need to continue.
append_to_file("$folder/count.sql", <<'SQL');
\set id random(1, 5)
SELECT gen_random_uuid() AS me \gset
SELECT lease_acquire('item:' || :id, '1 minute', :me) AS granted \gset
\if :granted
	INSERT INTO log (client, what) VALUES (:client_id, 'acquired');
	SELECT lock_version AS n FROM item WHERE id = :id \gset
	BEGIN;
	SELECT set_config('lease_lock.owner', :me, true);
	UPDATE item SET lock_version = :n + 1 WHERE id = :id;
	COMMIT;
	SELECT 1 / lease_release('item:' || :id, :me)::int;
	INSERT INTO log (client, what) VALUES (:client_id, 'released');
\endif
SQL

# A thread for each client: pgbench stops its thread while it prepares, and all
# that has a connection must be able to go on.
foreach my $protocol ('extended', $by_name ? 'prepared' : ())
{
	my $counted = q{SELECT (SELECT sum(lock_version) FROM item) - (SELECT count(*) FROM log WHERE what = 'released')};
	my $before = $node->safe_psql('postgres', $counted);

	command_checks_all(
		[
			'pgbench', '--no-vacuum', "--protocol=$protocol", '--client=16', '--jobs=16', '--transactions=40',
			"--file=$folder/count.sql", $app
		],
		0, [qr/processed: 640\/640\n/], [qr/^$/], "$protocol: 16 clients on 2 connections");
	is($node->safe_psql('postgres', $counted), $before, "$protocol: no count was lost");
}
is($node->safe_psql('postgres', 'SELECT count(DISTINCT pid) FROM log'),
	2, 'two server connections served all');
cmp_ok($node->safe_psql('postgres', q{
	SELECT count(*) FROM (SELECT what, pid, lag(pid) OVER (PARTITION BY client ORDER BY id) AS pid_before FROM log) AS l
	WHERE what = 'released' AND pid <> pid_before}),
	'>', 0, 'leases that one connection took were released through another');

# A value of SET LOCAL ends with the transaction, whichever client has the
# connection next.
my @results = map {
	$node->psql('postgres', $_, connstr => $app, on_error_stop => 0, stderr => \my $stderr,
		extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
	$stderr =~ /ERROR:  (\S+)/ ? $1 : 'written';
} (
	q{SELECT lease_acquire('item:1', '1 minute', 'holder')},
	q{UPDATE item SET name = 'without'},
	(q{BEGIN; SET LOCAL lease_lock.owner = 'holder'; UPDATE item SET name = 'held' WHERE id = 1; COMMIT}) x 4,
	(q{UPDATE item SET name = 'without' WHERE id = 1}) x 4);
is("@results", 'written 22023 written written written written 22023 22023 22023 22023',
	'an owner that was set with SET LOCAL does not reach the next client');
is($node->safe_psql('postgres', 'SELECT name FROM item WHERE id = 1'), 'held', 'and writes nothing there');

$node->stop;
done_testing();
