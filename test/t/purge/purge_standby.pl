# A standby has no purge worker, since it cannot write; it gets one when it is
# promoted, and until then follows what the primary's worker does.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseCluster;
use LeaseTest;
use PostgreSQL::Test::Utils;
use PurgeTest;
use Test::More;

my $primary = start_purging_node('primary', '', allows_streaming => 1);
my $launchers = 'SELECT count(*) FROM pg_stat_activity WHERE ' . launcher();

$primary->backup('backup');
my $standby = LeaseCluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;

add_ended($primary, 'postgres', 1000);
is_purged($primary, 'postgres', 'primary');
becomes_true($standby, 'postgres', 'SELECT count(*) = 0 ' . ended(), 'the standby follows');
is($primary->safe_psql('postgres', $launchers), 1, 'the primary has a launcher');
is($standby->safe_psql('postgres', $launchers), 0, 'the standby has none');

# What ended while the primary did not purge is still there after promotion.
switch_off($primary);
add_ended($primary, 'postgres', 1000);
my $token = $primary->safe_psql('postgres', "SELECT lease_token('held', 'o')");
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', 'SELECT count(*) ' . ended()), 1000, 'the standby does not purge');
unlike(slurp_file($standby->logfile), qr/WARNING|ERROR|FATAL|PANIC/, 'and logs no warning');

$primary->stop;
$standby->promote;
is_purged($standby, 'postgres', 'promoted');
is($standby->safe_psql('postgres', $launchers), 1, 'promoted: a launcher');
is($standby->safe_psql('postgres', "SELECT lease_token('held', 'o')"), $token, 'promoted: the token is kept');
cmp_ok($standby->safe_psql('postgres', "SELECT lease_acquire('ended 1', '1 day', 'o') \\gset\nSELECT lease_token('ended 1', 'o')"),
	'>', $token, 'promoted: the next one is higher');

$standby->stop;
done_testing();
