# A prepared transaction keeps the leases that it asserted until it ends, even
# across a crash. The session that prepared it no longer counts them as asserted.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
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

# A release that waits for it goes before assertions that come later.
my $release = open_session($node);
my $release_pid = begin_query($release, q{SELECT lease_release('r', 'a')});
my $writer = open_session($node);

wait_until_blocked($node, $release_pid);
$node->safe_psql('postgres', q{UPDATE lease_lock SET expires_at = 'infinity'});
sql_fails($node, q{SET lock_timeout = '10ms'; SELECT lease_assert('r', 'a')}, '55P03', 'lock timeout', 'an assertion waits for the release');
begin_query($writer, q{SELECT lease_assert('r', 'a')});
$node->safe_psql('postgres', q{COMMIT PREPARED 'p'});
is(finish_query($release), 't', 'the release goes first');
like(finish_query($writer), qr/55000.*not held/, 'the assertion that came later fails');
$_->quit foreach $release, $writer;
is($node->safe_psql('postgres', q{SELECT lease_acquire('r', '1 hour', 'b')}), 't', 'it is free when that is committed');

$node->stop;
done_testing();
