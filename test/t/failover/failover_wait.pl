# With lease_lock.failover_wait nothing is granted for that long after a
# failover, so that leases that it lost run out before anybody else gets them.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use FailoverTest;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

plan skip_all => 'needs /proc of Linux' if !-e "/proc/$$/stat";

my $primary = start_primary('primary', "shared_preload_libraries = 'lease_lock'\n");
my $wait = 10 + 4 * slowness($primary);
$primary->append_conf('postgresql.conf', "lease_lock.failover_wait = ${wait}s");
$primary->reload;
is($primary->safe_psql('postgres', q{SELECT lease_acquire('known', '1 hour', 'o'), lease_acquire('mine', '1 hour', 'o')}),
	't|t', 'a new database does not wait');
my $standby = start_standby($primary, 'standby');
stop_senders($primary);
is($primary->safe_psql('postgres', qq{SELECT lease_acquire('lost', '$wait s', 'o')}), 't', 'a lease that will be lost');
my $lost_at = time;
lose($primary);
$standby->promote;

my $waiter = open_session($standby);
my ($granted, $blocked_for) = split(/\|/,
	$standby->safe_psql('postgres', q{SELECT granted, extract(epoch FROM blocked_for) FROM lease_request('lost', '1 min', 'thief')}));
is($granted, 'f', 'refused');
cmp_ok($blocked_for, '<=', $wait, 'lease_request says for how long: at most the setting');
cmp_ok($blocked_for, '>', 0, 'and more than nothing');
begin_query($waiter, q{SELECT lease_acquire('lost', '1 hour', 'waiter', '10 min')});
is($standby->safe_psql('postgres', q{SELECT lease_acquire('other', '1 min', 'o')}), 'f', 'refused, whatever the resource');
is($standby->safe_psql('postgres', q{SELECT lease_acquire_shared('other', '1 min', 'o')}), 'f', 'and the mode');
is($standby->safe_psql('postgres', q{SELECT lease_renew('known', '2 hours', 'o')}), 't', 'a renewal works');
is($standby->safe_psql('postgres', q{SELECT lease_release('mine', 'o')}), 't', 'a release works');
is($standby->safe_psql('postgres', q{SELECT lease_assert('known', 'o') > 0}), 't', 'an assertion works');
$standby->restart;
eval { $waiter->quit };
$waiter = open_session($standby);
is($standby->safe_psql('postgres', q{SELECT lease_acquire('other', '1 min', 'o')}), 'f', 'a restart does not end it');
begin_query($waiter, q{SELECT lease_acquire('lost', '1 hour', 'waiter', '10 min')});

is(finish_query($waiter), 't', 'a waiter is granted the lease');
cmp_ok(time - $lost_at, '>=', $wait, 'when the lost lease has run out');
is($standby->safe_psql('postgres', q{SELECT lease_acquire('lost', '1 hour', 'thief')}), 'f', 'it is granted once');
is($standby->safe_psql('postgres', q{SELECT lease_acquire('other', '1 min', 'o')}), 't', 'others are granted, too');
unlike(slurp_file($standby->logfile), qr/HINT:  .*failover_wait/, 'no hint, since the setting is set');
$waiter->quit;
$standby->stop;

done_testing();
