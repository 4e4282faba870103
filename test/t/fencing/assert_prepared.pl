# A prepared transaction keeps the leases that it asserted until it ends, even
# across a crash. The session that prepared it no longer counts them as asserted.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('assert_prepared', "max_prepared_transactions = 5\nautovacuum = off\n");
my $session = open_session($node);

$session->query_safe(q{SELECT lease_acquire('r', '1 hour', 'a')});
$session->query_safe(q{BEGIN; SELECT lease_assert('r', 'a'); PREPARE TRANSACTION 'p'});
$node->safe_psql('postgres', q{UPDATE lease_lock SET expires_at = '2000-01-01'});

session_fails($session, q{SELECT lease_assert('r', 'a')}, '55000', 'not held', 'the next transaction of the session looks again');
is($session->query_safe(q{SELECT lease_acquire('r', '1 hour', 'b')}), 'f', 'nobody takes it over');
$session->quit;

$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', q{SELECT lease_acquire('r', '1 hour', 'b')}), 'f', 'nobody takes it over after a crash');
sql_fails($node, q{SET lock_timeout = '10ms'; SELECT lease_release('r', 'a')}, '55P03', 'lock timeout', 'a release waits for it');

$node->safe_psql('postgres', q{COMMIT PREPARED 'p'});
is($node->safe_psql('postgres', q{SELECT lease_acquire('r', '1 hour', 'b')}), 't', 'it is free when that is committed');

$node->stop;
done_testing();
