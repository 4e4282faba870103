# Through PgBouncer in transaction mode, whose clients share two connections.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../../test/t";
use lib $FindBin::RealBin;

use ClientTest;
use LeaseRunTest;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $pgbouncer = can_run([ 'pgbouncer', '/usr/sbin/pgbouncer' ], '--version')
  or plan skip_all => 'no PgBouncer (Debian: pgbouncer)';

my $node = start_node('pooler', 'shared_preload_libraries = lease_lock');
my $folder = PostgreSQL::Test::Utils::tempdir_short();
my $port = $node->port;

append_to_file("$folder/users", qq{"postgres" ""\n});
append_to_file("$folder/pgbouncer.ini", <<"INI");
[databases]
postgres = host=${\$node->host} port=$port

[pgbouncer]
pool_mode = transaction
default_pool_size = 2
unix_socket_dir = $folder
listen_port = $port
auth_type = trust
auth_file = $folder/users
logfile = $folder/log
pidfile = $folder/pid
INI
system_or_bail($pgbouncer, '-q', '-d', "$folder/pgbouncer.ini");
END
{
	my $status = $?;

	kill('TERM', slurp_file("$folder/pid")) if $folder && -e "$folder/pid";
	$? = $status;
}
until_true('PgBouncer', sub { -S "$folder/.s.PGSQL.$port" });
my $pool = "host=$folder port=$port user=postgres dbname=postgres";

# More commands than connections, each of which is renewed several times.
my $ttl = 12 * slowness($node);
my @runs = map {
	start_run($pool, '-v', "--ttl=${ttl}s", "job $_", 'sh', '-c', 'until [ -e "$0" ]; do sleep 0.1; done; echo done', "$folder/go")
} 1 .. 8;
foreach my $run (@runs)
{
	until_true('renewals', sub { $run->{harness}->pump_nb; $run->{err} =~ /renewed.*renewed/s });
}
is($node->safe_psql('postgres', q{SELECT count(*) <= 2 FROM pg_stat_activity WHERE application_name = 'lease_run'
	OR backend_type = 'client backend' AND pid <> pg_backend_pid()}), 't', 'two connections for eight');
append_to_file("$folder/go", '');
is_run(finish_run($_), 0, qr/^done\n$/, qr/released/, 'renewed and released through a pooler') foreach @runs;

# A wait, and a signal that ends it: the cancel request goes through the pooler as well.
$node->safe_psql('postgres', q{SELECT lease_acquire('taken', '1 hour', 'ann')});
my $run = start_run($pool, 'taken', 'true');
until_sql('it waits', $node, 'SELECT count(*) FROM lease_waiters', 1);
kill('TERM', $run->{pid});
is_run(finish_run($run), 143, qr/^$/, qr/^$/, 'a signal ends a wait through a pooler');
is($node->safe_psql('postgres', 'SELECT count(*) FROM lease_waiters'), 0, 'and leaves no waiter');

$node->stop;
done_testing();
