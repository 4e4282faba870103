# DROP waits for transactions that changed a lease, not for leases that are held.
# Sessions that wait for one end with an error when they look next.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('drop_in_use', "lease_lock.handoff_timeout = 1h\n");
my @waits = (q{SELECT lease_acquire('a', '1 hour', 'w0', NULL)}, q{CALL lease_wait('a', '1 hour', 'w1', NULL)},
	q{SELECT lease_acquire_any('{a,b}', '1 hour', 'w2', NULL)});
my @sessions = map { open_session($node) } @waits;
my ($user, $dropping) = map { open_session($node) } 1, 2;
my $pid = $dropping->query_safe('SELECT pg_backend_pid()');

$user->query_safe(q{SELECT lease_acquire('a', '1 hour', 'o'), lease_acquire('b', '1 hour', 'o')});
send_to_wait($node, $sessions[$_], $waits[$_]) foreach 0 .. $#waits;
$user->query_safe(q{BEGIN; SELECT lease_acquire('open', '1 hour', 'o')});
send_sql($dropping, 'DROP EXTENSION lease_lock');
becomes($node, "SELECT count(*) FROM unnest(pg_blocking_pids($pid))", 1, 'waits for an open transaction');
$user->query_safe('COMMIT');
is(answer($dropping), '', 'then drops it');
like(answer($_), qr/ERROR:  42P01: .*lease_lock" does not exist/, 'a waiter ends with an error') foreach @sessions;

$_->quit foreach @sessions, $user, $dropping;
$node->stop;
done_testing();
