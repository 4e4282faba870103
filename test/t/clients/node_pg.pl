# Node.js: node-postgres.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use ClientTest;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

# Debian's Node.js finds Debian's library. Another one needs a copy, which npm
# fetches for this test.
my $node_js = can_run([ 'node', '/usr/bin/node' ], '-e', 'require("pg")');
if (!$node_js)
{
	my $folder = PostgreSQL::Test::Utils::tempdir();

	$ENV{NODE_PATH} = "$folder/node_modules";
	$node_js = can_run([ 'node' ], '-e', '0')
	  && can_run([ 'npm' ], 'install', '--prefix', $folder, '--cache', "$folder/cache", '--ignore-scripts',
		'--no-audit', '--no-fund', '--fetch-timeout=600000', '--fetch-retries=4', '--fetch-retry-maxtimeout=10000', 'pg')
	  && can_run([ 'node' ], '-e', 'require("pg")');
	plan skip_all => 'no Node.js with pg (Debian: node-pg; or npm and a network)' if !$node_js;
}

my $node = start_client_node('node_pg', 'item');

is(run_client($node, [ $node_js, 'node_pg_client.js' ]), <<'PRINTED', 'leases, and errors by their code');
renamed by the holder: chair 1
renewed: true
busy: item:1
and again: table 2
late write: 55000
stale version: 40001
deadlock: 40P01
write without a lease: 22023
assert without a lease: 55000
null: 22004
empty: 22023
read only: 25006
the lease of another role: 42501
PRINTED
is($node->safe_psql('postgres', 'SELECT * FROM item WHERE lock_version > 0'),
	'1|table|2', 'what was written by holders, and nothing else');
is($node->safe_psql('postgres', 'SELECT resource FROM lease_status'),
	'vault', 'nothing is left leased');

$node->stop;
done_testing();
