# A call that waits for transactions which lock the lease ends, even if the next
# transaction always begins before the last one ends.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

# Few transactions can be open at a time, so a call gives up after few of them.
my $node = start_node('overtaken', <<'CONF');
fsync = off
autovacuum_max_workers = 1
max_connections = 8
max_prepared_transactions = 0
max_wal_senders = 0
max_worker_processes = 1
CONF
my ($caller, @lockers) = map { open_session($node) } 1 .. 3;
my $lock = q{BEGIN; SELECT FROM lease_lock WHERE resource = 'r' FOR SHARE};

# Of two transactions that lock the row by hand, one is always open.
sub is_overtaken
{
	my ($call) = @_;
	my $steps = 0;

	$lockers[0]->query_safe($lock);
	my $pid = send_to_wait($node, $caller, "SELECT $call", in_lock_manager());
	until (++$steps > 2000 || look($node, "SELECT state FROM pg_stat_activity WHERE pid = $pid") eq 'idle')
	{
		$lockers[1]->query_safe($lock);
		$lockers[0]->query_safe('COMMIT');
		@lockers[0, 1] = @lockers[1, 0];
	}
	$lockers[0]->query_safe('COMMIT');
	like(answer($caller), qr/ERROR:  55P03: lease on "r" is always locked.*by hand/s, "$call gives up");
	return;
}

look($node, q{SELECT lease_acquire('r', '1 hour', 'a')});
is_overtaken($_) foreach q{lease_renew('r', '2 hours', 'a')}, q{lease_release('r', 'a')}, q{lease_break('r')};
is(look($node, q{SELECT lease_release('r', 'a')}), 't', 'without them, the lease is released');
is(look($node, q{SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'}), '0', 'no ending lock is left');

$node->stop;
done_testing();
