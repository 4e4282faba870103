# Whoever drops the extension, or the lock table, is told how many leases are
# held and how many sessions wait. The waiters end with an error at once.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

# Waiters depend on their wake-ups alone.
my $node = start_waiting_node('drop_in_use', $WaitTest::NEVER, preload => 1);
my @waits = (q{SELECT lease_acquire('a', '1 hour', 'w0', NULL)}, q{CALL lease_wait('a', '1 hour', 'w1', NULL)},
	q{SELECT lease_acquire_any('{a,b}', '1 hour', 'w2', NULL)});
my $hold = q{
	SELECT lease_acquire('a', '1 hour', 'o'), lease_acquire('b', '1 hour', 'o');
	SELECT lease_acquire('released', '1 hour', 'o'), lease_release('released', 'o'), lease_acquire('expired', '1 us', 'o')};

# What psql says to this SQL.
sub said
{
	my ($sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $sql, extra_params => [ '-v', 'VERBOSITY=default' ]);

	return $err;
}

sub waiting_sessions
{
	my @sessions = map { open_session($node) } @waits;

	send_to_wait($node, $sessions[$_], $waits[$_]) foreach 0 .. $#waits;
	return @sessions;
}

my $told = qr/WARNING:  leases are in use while their table is dropped\nDETAIL:  Held leases: 2\. Sessions that wait for a lease: 3\.\nHINT:  /;

# Ways to drop it, and to have it again.
foreach my $way (
	[ 'DROP EXTENSION lease_lock', 'CREATE EXTENSION lease_lock' ],
	[ 'DROP SCHEMA leases CASCADE', 'CREATE EXTENSION lease_lock' ],
	[ 'DROP TABLE lease_lock CASCADE', 'CREATE EXTENSION lease_lock' ])
{
	my ($drop, $create) = @$way;
	my @sessions;

	$node->safe_psql('postgres', 'CREATE SCHEMA leases; ALTER EXTENSION lease_lock SET SCHEMA leases') if $drop =~ /SCHEMA/;
	$node->safe_psql('postgres', 'ALTER ROLE postgres SET search_path = leases, public');
	$node->safe_psql('postgres', $hold);
	@sessions = waiting_sessions();
	$node->safe_psql('postgres', 'ALTER EXTENSION lease_lock DROP TABLE lease_lock') if $drop =~ /TABLE/;

	like(said("BEGIN; $drop; ROLLBACK"), $told, "$drop: told how many");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM lease_waiters()'), 3, "$drop, undone: they wait on");
	is(said('VACUUM FULL lease_lock; CLUSTER lease_lock USING lease_lock_pkey'), '', "$drop: a rewrite of the table is no drop");
	like(said($drop), $told, "$drop: told again");
	like(answer($_), qr/ERROR:  42P01: .*lease_lock" does not exist/, "$drop: a waiter ends with an error") foreach @sessions;
	$_->quit foreach @sessions;
	$node->safe_psql('postgres', $create);
}

# Nothing to tell.
is(said('DROP EXTENSION lease_lock; CREATE EXTENSION lease_lock'), '', 'nothing in use: not told');
is(said('CREATE TEMP TABLE lease_lock (); DROP TABLE pg_temp.lease_lock; CREATE SCHEMA x; CREATE TABLE x.lease_lock (); DROP TABLE x.lease_lock'), '',
	'tables of the same name: not told');

# It waits, as DROP TABLE does, for transactions that changed a lease, and counts what they left.
my $user = open_session($node);
my $dropping = open_session($node);
$user->query_safe(q{BEGIN; SELECT lease_acquire('open', '1 hour', 'o')});
my $pid = $dropping->query_safe('SELECT pg_backend_pid()');
send_sql($dropping, 'DROP EXTENSION lease_lock');
becomes($node, "SELECT count(*) FROM unnest(pg_blocking_pids($pid))", 1, 'waits for an open transaction');
$user->query_safe('COMMIT');
like(answer($dropping), qr/Held leases: 1\. Sessions that wait for a lease: 0\./, 'then drops it, and tells of the lease');

# A table that cannot be read as the lock table can be dropped all the same.
$node->safe_psql('postgres', 'CREATE EXTENSION lease_lock');
$node->safe_psql('postgres', $hold);
is(said('ALTER TABLE lease_lock ADD COLUMN more text; DROP EXTENSION lease_lock'), '', 'an altered table: dropped without reading it');

$_->quit foreach $user, $dropping;
$node->stop;
done_testing();
