# On a standby and in a read-only transaction, functions that write fail with a
# clear error, and the others work. After a promotion, the standby continues with
# the leases and tokens of the primary.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseCluster;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my @writing = (
	[ 'lease_acquire', "'free', '1 hour', 'o'" ],
	[ 'lease_acquire', "'held', '1 hour', 'o'" ],
	[ 'lease_release', "'held', 'o'" ],
	[ 'lease_release', "'free', 'o'" ],
	[ 'lease_release_all', "'o'" ],
	[ 'lease_renew', "'held', '1 hour', 'o'" ],
	[ 'lease_purge', '' ]);

my $primary = start_node('primary', 'autovacuum = off', allows_streaming => 1);

$primary->backup('backup');
my $standby = LeaseCluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;

$primary->safe_psql('postgres', q{
	SELECT lease_acquire('held', '1 hour', 'o');
	SELECT lease_acquire('expired', '1 microsecond', 'o');
	SELECT lease_acquire('released', '1 hour', 'o');
	SELECT lease_release('released', 'o');
	SELECT lease_renew('held', '2 hours', 'o');
});
# An open transaction on the primary that is changing leases.
my $open = open_session($primary);
$open->query_safe(q{
	BEGIN;
	SELECT lease_release('held', 'o');
	SELECT lease_acquire('granted', '1 hour', 'o');
});
$primary->wait_for_catchup($standby);

my $token = $primary->safe_psql('postgres', "SELECT lease_token('held', 'o')");

# What works without writing: on the standby, and in a read-only transaction.
sub answers_only
{
	my ($node, $begin, $name) = @_;

	sql_fails($node, "$begin; SELECT $_->[0]($_->[1])", '25006',
		"cannot execute $_->[0]\\(\\)", "$name: $_->[0]($_->[1])")
	  foreach @writing;
	is($node->safe_psql('postgres', "$begin; SELECT lease_token('held', 'o')"),
		$token, "$name: lease_token of a held lease");
	is($node->safe_psql('postgres', "$begin; SELECT lease_token('$_', 'o')"),
		'', "$name: lease_token of one $_")
	  foreach 'expired', 'released', 'granted', 'unknown';
	is($node->safe_psql('postgres', "$begin; SELECT resource, owner, token, state FROM lease_status WHERE resource = 'held'"),
		"held|o|$token|held", "$name: lease_status");
	is($node->safe_psql('postgres', "$begin; SELECT resource, state FROM lease_status ORDER BY resource"),
		"expired|expired\nheld|held", "$name: lease_status of all");
}

answers_only($standby, "BEGIN ISOLATION LEVEL $_", "standby, $_")
  foreach 'READ COMMITTED', 'REPEATABLE READ';
answers_only($primary, "BEGIN READ ONLY, ISOLATION LEVEL $_", "read only, $_")
  foreach 'READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE';

$open->query_safe('COMMIT');
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', "SELECT lease_token('held', 'o') IS NULL, lease_token('granted', 'o') > $token"),
	't|t', 'the standby follows');

# promotion
my $highest = $primary->safe_psql('postgres', q{
	SELECT lease_acquire('last', '1 hour', 'o');
	SELECT max(token) FROM lease_lock}) =~ s/^t\n//r;
$primary->wait_for_catchup($standby);
$open->quit;
$primary->stop;
my $reader = open_session($standby);
is($reader->query_safe("SELECT lease_token('last', 'o')"), $highest, 'a session from before the promotion');
$standby->promote;
is($standby->safe_psql('postgres', "SELECT lease_acquire('last', '1 hour', 'other')"),
	'f', 'promoted: a held lease is refused');
is($standby->safe_psql('postgres', "SELECT lease_renew('last', '2 hours', 'o')"), 't', 'promoted: renewal');
foreach my $resource ('held', 'expired', 'released', 'unknown')
{
	is($reader->query_safe("SELECT lease_acquire('$resource', '1 hour', 'new')"),
		't', "promoted: a lease that is free is granted, $resource");
	cmp_ok(my $new = $reader->query_safe("SELECT lease_token('$resource', 'new')"),
		'>', $highest, 'promoted: with a higher token');
	$highest = $new;
}
is($reader->query_safe("SELECT lease_release('last', 'o')"), 't', 'promoted: release');
is($reader->query_safe('SET lease_lock.purge_after = 0; SELECT lease_purge()'), 1, 'promoted: purge');

$reader->quit;
$standby->stop;
done_testing();
