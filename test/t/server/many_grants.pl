# A transaction can be granted as many leases as it likes: a grant leaves no lock in the
# server's lock table, which has little room.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('many', <<'CONF');
max_locks_per_transaction = 64
max_connections = 10
autovacuum_max_workers = 1
max_prepared_transactions = 0
max_wal_senders = 0
fsync = off
CONF
my $session = open_session($node);
my $locks = q{SELECT count(*) FROM pg_locks WHERE locktype NOT IN ('relation', 'virtualxid', 'transactionid')};

foreach (
	[ 'shared leases', 20_000, "lease_acquire_shared('s' || i, '1 h', 'o')" ],
	[ 'permits', 20_000, "lease_acquire_permit('p' || i, 3, '1 h', 'o')" ],
	[ 'exclusive leases', 10_000, "lease_acquire('x' || i, '1 h', 'o')" ],
	[ 'shared leases on one resource', 2_000, "lease_acquire_shared('one', '1 h', 'o' || i)" ],
	[ 'permits on one resource', 2_000, "lease_acquire_permit('other', 2000, '1 h', 'o' || i)" ])
{
	my ($what, $many, $acquire) = @$_;

	$session->query_safe('BEGIN');
	is($session->query_safe("SELECT count(*) FROM generate_series(1, $many) AS i WHERE $acquire"), $many, "$many $what in one transaction");
	is($node->safe_psql('postgres', $locks), 0, "$what: no lock is left");
	$session->query_safe('COMMIT');
	is($node->safe_psql('postgres', q{SELECT count(*) FROM lease_status WHERE state = 'held'}), $many, "$what: all are held");
	$node->safe_psql('postgres', 'TRUNCATE lease_lock');
}

$session->quit;
$node->stop;
done_testing();
