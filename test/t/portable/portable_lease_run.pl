# lease_run works on the portable edition, whose schema is an option; with the extension there as well, that is an error.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..", "$FindBin::RealBin/../../../lease_run/t";

use LeaseRunTest;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

$ENV{LEASE_EDITION} = 'portable';
my $node = start_node('portable_run');
my $nothing = qr/^$/;
my @run = ($node, '--schema=public');

is_run(lease_run($node, 'job', 'true'), 69, $nothing, qr/does not have the extension lease_lock/, 'not without its schema');
is_run(lease_run(@run, 'job', 'sh', '-c', 'echo $((LEASE_TOKEN > 0)); exit 3'), 3, qr/^1\n$/, $nothing, 'it runs under a lease');
is($node->safe_psql('postgres', "SELECT count(*) FROM lease_status WHERE state = 'held'"), 0, 'which is released at its end');
$node->safe_psql('postgres', "SELECT lease_acquire('job', '1 hour', 'ann')");
is_run(lease_run(@run, '-n', 'job', 'true'), 1, $nothing, qr/taken by "ann"/, 'a lease that is taken');
is_run(lease_run(@run, '--wait=5s', 'job', 'true'), 1, $nothing, qr/taken by "ann"/, 'a wait that is over');
my $psql = "psql -XAtq -d '" . $node->connstr('postgres') . "'";
is_run(lease_run(@run, '--wait=2min', 'soon', 'sh', '-c', "$psql -c \"SELECT lease_release('soon', 'ann')\""), 0, qr/^f\n$/, $nothing, 'a wait')
  if $node->safe_psql('postgres', "SELECT lease_acquire('soon', '1 s', 'ann')");
is_run(lease_run(@run, '--ttl=3s', 'long', 'sh', '-c', "sleep 5; $psql -c \"SELECT lease_token('long', '\$LEASE_OWNER') = \$LEASE_TOKEN\""), 0, qr/^t\n$/, $nothing,
	'a command that takes longer than the ttl keeps the lease');
is_run(lease_run(@run, '-n', '--min-hold=20s', 'kept', 'true'), 0, $nothing, $nothing, 'with --min-hold, it runs');
is_run(lease_run(@run, '-n', '--min-hold=20s', 'kept', 'true'), 1, $nothing, qr/taken/, 'and is kept afterwards');
is_run(lease_run(@run, '-s', 'many', 'sh', '-c', "lease_run -s --schema=public -d '" . $node->connstr('postgres') . "' many echo two"), 0, qr/^two\n$/, $nothing, 'shared leases');

$node->safe_psql('postgres', 'CREATE SCHEMA other; CREATE EXTENSION lease_lock SCHEMA other');
is_run(lease_run(@run, 'job', 'true'), 69, $nothing, qr/has the extension lease_lock, and --schema names other functions/, 'not beside the extension');
$node->stop;
done_testing();
