# Python: psycopg 3 and psycopg2 with the same program.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use ClientTest;
use Test::More;

foreach my $driver (qw(psycopg psycopg2))
{
	SKIP:
	{
		my $python = can_run([ 'python3', '/usr/bin/python3' ], '-c', "import $driver")
		  or skip "no Python with $driver (Debian: python3-$driver)", 1;
		my $node = start_client_node($driver, 'item');

		is(run_client($node, [ $python, 'psycopg_client.py', $driver ]),
			<<'PRINTED', "$driver: leases, and errors by their class");
renamed by the holder: chair 1
renewed: True
busy: item:1
and again: table 2
late write: 55000 ObjectNotInPrerequisiteState
stale version: 40001 SerializationFailure
deadlock: 40P01 DeadlockDetected
write without a lease: 22023 InvalidParameterValue
assert without a lease: 55000 ObjectNotInPrerequisiteState
null: 22004 NullValueNotAllowed
empty: 22023 InvalidParameterValue
read only: 25006 ReadOnlySqlTransaction
the lease of another role: 42501 InsufficientPrivilege
PRINTED
		is($node->safe_psql('postgres', 'SELECT * FROM item WHERE lock_version > 0'),
			'1|table|2', "$driver: what was written by holders, and nothing else");
		is($node->safe_psql('postgres', 'SELECT resource FROM lease_status'),
			'vault', "$driver: nothing is left leased");
		$node->stop;
	}
}

done_testing();
