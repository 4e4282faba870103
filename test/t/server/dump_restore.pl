# A dump carries neither leases nor tokens: nobody holds a lease in the restored
# database, and its tokens go on above those that are out already.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('dump');
my $tmp = $PostgreSQL::Test::Utils::tmp_check;

# The database works, knows no lease, and hands out tokens above this one.
sub restored_works
{
	my ($dbname, $schema, $highest, $name) = @_;
	my $call = sub {
		return $node->safe_psql($dbname, "SELECT $schema." . shift);
	};

	is($node->safe_psql($dbname, "SELECT count(*) FROM $schema.lease_lock"),
		0, "$name: leases are not restored");
	is($call->("lease_token('r1', 'o')"), '', "$name: nobody holds a token");
	is($call->("lease_acquire('r1', '1 hour', 'new')"), 't', "$name: a lease can be acquired");
	cmp_ok($call->("lease_token('r1', 'new')"),
		'>', $highest, "$name: tokens go on above those from before");
	is($call->("lease_acquire('r1', '1 hour', 'other')"), 'f', "$name: a held lease is refused");
	is($call->("lease_renew('r1', '2 hours', 'new')"), 't', "$name: a lease can be renewed");
	is($node->safe_psql($dbname, "SELECT resource, owner, state FROM $schema.lease_status"),
		'r1|new|held', "$name: lease_status shows it");
	is($call->("lease_release('r1', 'new')"), 't', "$name: a lease can be released");
	is($node->safe_psql($dbname, "SELECT has_function_privilege('sweeper', '$schema.lease_purge()', 'EXECUTE'), "
			. "has_function_privilege('plain', '$schema.lease_purge()', 'EXECUTE')"),
		't|f', "$name: privileges are as before");
}

$node->safe_psql('postgres', 'CREATE ROLE sweeper; CREATE ROLE plain;');

# The same in the default schema and in one of its own, whose name needs quotes.
foreach my $schema ('public', '"the leases"')
{
	my $dbname = $schema eq 'public' ? 'in_public' : 'in_schema';

	$node->safe_psql('postgres', "CREATE DATABASE $dbname");
	$node->safe_psql($dbname, qq{
		CREATE SCHEMA IF NOT EXISTS $schema;
		CREATE EXTENSION lease_lock SCHEMA $schema;
		GRANT EXECUTE ON FUNCTION $schema.lease_purge() TO sweeper;
		SELECT $schema.lease_acquire('r' || n, '1 hour', 'o') FROM generate_series(1, 100) AS n;
		SELECT $schema.lease_release('r2', 'o');
	});
	my $highest = $node->safe_psql($dbname, "SELECT max(token) FROM $schema.lease_lock");
	cmp_ok($highest, '>=', 100, "$dbname: tokens are out");

	my @dump = ('pg_dump', '-d', $node->connstr($dbname));

	# plain
	$node->command_ok([ @dump, '-f', "$tmp/$dbname.sql" ], "$dbname: plain dump");
	unlike(slurp_file("$tmp/$dbname.sql"), qr/^COPY .*lease_lock/m, "$dbname: plain dump has no leases");
	$node->safe_psql('postgres', "CREATE DATABASE ${dbname}_plain");
	$node->command_ok(
		[ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr("${dbname}_plain"), '-f', "$tmp/$dbname.sql" ],
		"$dbname: plain dump is restored");
	restored_works("${dbname}_plain", $schema, $highest, "$dbname, plain");

	# custom
	$node->command_ok([ @dump, '-Fc', '-f', "$tmp/$dbname.dump" ], "$dbname: custom dump");
	$node->safe_psql('postgres', "CREATE DATABASE ${dbname}_custom");
	$node->command_ok(
		[ 'pg_restore', '--exit-on-error', '-d', $node->connstr("${dbname}_custom"), "$tmp/$dbname.dump" ],
		"$dbname: custom dump is restored");
	restored_works("${dbname}_custom", $schema, $highest, "$dbname, custom");

	# restored, dumped and restored again
	$highest = $node->safe_psql("${dbname}_custom", "SELECT max(token) FROM $schema.lease_lock");
	$node->command_ok(
		[ 'pg_dump', '-d', $node->connstr("${dbname}_custom"), '-Fc', '-f', "$tmp/${dbname}2.dump" ],
		"$dbname: dump of a restored database");
	$node->safe_psql('postgres', "CREATE DATABASE ${dbname}_again");
	$node->command_ok(
		[ 'pg_restore', '--exit-on-error', '-d', $node->connstr("${dbname}_again"), "$tmp/${dbname}2.dump" ],
		"$dbname: it is restored");
	restored_works("${dbname}_again", $schema, $highest, "$dbname, again");
}

# One schema of a database: a dump of schemas leaves extensions out unless told.
{
	my $highest = $node->safe_psql('in_schema', 'SELECT max(token) FROM "the leases".lease_lock');

	$node->command_ok(
		[
			'pg_dump', '-d', $node->connstr('in_schema'), '--schema="the leases"',
			'--extension=lease_lock', '-f', "$tmp/schema.sql"
		],
		'schema: dump');
	$node->safe_psql('postgres', 'CREATE DATABASE one_schema');
	$node->command_ok(
		[ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('one_schema'), '-f', "$tmp/schema.sql" ],
		'schema: dump is restored');
	# A dump of schemas has the privileges of extensions' members, too.
	restored_works('one_schema', '"the leases"', $highest, 'schema');
}

$node->stop;
done_testing();
