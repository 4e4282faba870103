# lease_purge() as a job of pg_cron, on a server without the purge worker.
# Needs Debian's postgresql-NN-cron; takes until the next full minute.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseCluster;
use LeaseTest;
use PostgreSQL::Test::Utils;
use PurgeTest;
use Test::More;

my ($sharedir) = run_command([ 'pg_config', '--sharedir' ]);
plan skip_all => 'pg_cron is not installed' if !-e "$sharedir/extension/pg_cron.control";

my $node = LeaseCluster->new('cron');
$node->init;
$node->append_conf('postgresql.conf', <<"CONF");
shared_preload_libraries = 'pg_cron'
cron.use_background_workers = on
cron.database_name = 'postgres'
cron.host = ''
CONF
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION lease_lock; CREATE EXTENSION pg_cron');
add_ended($node, 'postgres', 100);
$node->safe_psql('postgres', "SELECT cron.schedule('lease-purge', '* * * * *', 'SELECT lease_purge()')");

is_purged($node, 'postgres', 'by pg_cron');
becomes_true($node, 'postgres', "SELECT count(*) >= 1 FROM cron.job_run_details WHERE status = 'succeeded'",
	'the job succeeded');

$node->stop;
done_testing();
