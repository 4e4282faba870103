# A superuser makes a router, and moves a partition, in databases whose owners, and
# roles with CREATE there, try to have code of theirs run. None of it runs, nor
# when a role calls the router: not by names of functions, operators and types
# that stand before the server's, not by what a partition says of itself, and not
# by objects that were there before.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RouterTest;
use Test::More;
use WaitTest;

plan skip_all => plproxy_missing() if plproxy_missing();

my $node = start_waiting_node('hostile', "wal_level = replica\nmax_wal_senders = 5\nmax_replication_slots = 5\n");
my $connection = connection($node, 'p0');

$node->safe_psql('postgres', q{
	CREATE ROLE mallory LOGIN;
	CREATE ROLE app LOGIN;
	CREATE DATABASE router OWNER mallory;
	CREATE DATABASE p0 OWNER mallory;
});
is(mark_partition($node, 'p0', 0, 1, 'app'), '', 'a partition');

# What runs with a superuser's rights makes mallory a superuser.
sub is_harmless
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->safe_psql('postgres', q{SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'}), 'f', "$name: nothing of mallory's ran as superuser");
	$node->safe_psql('postgres', 'ALTER ROLE mallory NOSUPERUSER');
	return;
}

# As mallory, in a database: functions for these names that take the chance, if there is one, and operators and types that call one.
sub set_traps
{
	my ($database, $schema, %functions) = @_;
	my $trap = q{BEGIN
			INSERT INTO %1$s.seen VALUES (current_user);
			IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) current_user) THEN ALTER ROLE mallory SUPERUSER; END IF;
			RETURN %2$s; END};
	my $sql = "CREATE TABLE $schema.seen (role pg_catalog.text); GRANT ALL ON $schema.seen TO PUBLIC; GRANT USAGE ON SCHEMA $schema TO PUBLIC;\n";

	foreach my $signature (sort keys %functions)
	{
		my ($result, $value) = @{ $functions{$signature} };

		$sql .= "CREATE FUNCTION $schema.$signature RETURNS $result LANGUAGE plpgsql AS \$trap\$" . sprintf($trap, $schema, $value) . "\$trap\$;\n";
	}
	$node->safe_psql($database, "$sql", extra_params => [ '-U', 'mallory' ]);
	return;
}

sub seen
{
	my ($database, $schema) = @_;

	return $node->safe_psql($database, "SELECT pg_catalog.string_agg(DISTINCT role, ' ') FROM $schema.seen");
}

# Functions of the schema that everybody looks into: an exact match comes before the server's own.
$node->safe_psql('p0', 'GRANT CREATE ON SCHEMA public TO mallory');
set_traps('p0', 'public',
	'quote_ident(name)' => [ 'text', q{'public; ALTER ROLE mallory SUPERUSER'} ],
	'format_type(oid, int)' => [ 'text', q{'text'} ],
	'obj_description(oid, text)' => [ 'text', q{'it'''} ],
	'concat(text, text, numeric)' => [ 'text', q{'x'} ]);
is(make_router($node, $connection), '', 'a router beside functions in public');
is_harmless('a function of the partition that stands in public');
is(seen('p0', 'public'), '', 'nor as anybody else');
$node->safe_psql('router', 'DROP SCHEMA lease_router, plproxy CASCADE');
$node->safe_psql('p0', 'DROP FUNCTION public.quote_ident(name), public.format_type(oid, int), public.obj_description(oid, text), public.concat(text, text, numeric)');

# The owner of the partition decides on the path of everybody there.
$node->safe_psql('p0', 'CREATE SCHEMA evil', extra_params => [ '-U', 'mallory' ]);
set_traps('p0', 'evil',
	'current_setting(text, bool)' => [ 'text', q{'0 of 1'} ],
	'equal(name, name)' => [ 'bool', '$1 OPERATOR(pg_catalog.=) $2' ],
	'equal(oid, oid)' => [ 'bool', '$1 OPERATOR(pg_catalog.=) $2' ],
	'check_domain()' => [ 'bool', 'true' ],
	'pg_get_function_arguments(oid)' => [ 'text', q{'resource text'} ],
	'quote_ident(text)' => [ 'text', q{'public'} ]);
$node->safe_psql('p0', q{
	CREATE OPERATOR evil.= (LEFTARG = name, RIGHTARG = name, FUNCTION = evil.equal);
	CREATE OPERATOR evil.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = evil.equal);
	CREATE DOMAIN evil.text AS pg_catalog.text CHECK (evil.check_domain());
	CREATE DOMAIN evil."interval" AS pg_catalog.interval CHECK (evil.check_domain());
	ALTER DATABASE p0 SET search_path = evil, pg_catalog, public}, extra_params => [ '-U', 'mallory' ]);
is(make_router($node, $connection), '', 'a router to a partition with a path of its own');
is_harmless('the path of the partition');
is($node->safe_psql('router', q{SELECT lease_acquire('r', '1 hour', 'o')}), 't', 'a call as superuser');
is_harmless('a routed call');
is($node->safe_psql('router', q{SELECT lease_token('r', 'o') > 0, count(*) FROM lease_status}, extra_params => [ '-U', 'app' ]), 't|1', 'a call as a role of the application');
is(seen('p0', 'evil'), '', 'nothing of mallory ran as that role');
$node->safe_psql('router', q{SELECT lease_release('r', 'o')});

# The owner of the router's database, too.
$node->safe_psql('router', 'CREATE SCHEMA evil', extra_params => [ '-U', 'mallory' ]);
set_traps('router', 'evil',
	'equal(int, int)' => [ 'bool', '$1 OPERATOR(pg_catalog.=) $2' ],
	'count()' => [ 'bigint', '1' ],
	'quote_literal(text)' => [ 'text', q{'x'} ],
	'current_setting(text, bool)' => [ 'text', q{'0 of 1'} ]);
$node->safe_psql('router', q{
	CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.equal);
	ALTER DATABASE router SET search_path = evil, pg_catalog, public}, extra_params => [ '-U', 'mallory' ]);
is(make_router($node, $connection), '', 'a router in a database with a path of its own');
is_harmless('the path of the router');
my ($stdout, $stderr) = run_command([ contrib('move-partition'), 'check', '--router', $node->connstr('router'), '--partition', 0, '--from', $node->connstr('postgres'),
		'--to', 'host=/nowhere', '--data', $node->basedir . '/moved', '--connection', "$connection connect_timeout=9" ]);
is("$stdout$stderr", '', 'move-partition looks at both');
is_harmless('move-partition');
is(seen('router', 'evil') . seen('p0', 'evil'), '', 'nor as anybody else');
$node->safe_psql('postgres', 'ALTER DATABASE router RESET search_path; ALTER DATABASE p0 RESET search_path');

# Objects that are there before the script.
$node->safe_psql('router', 'DROP SCHEMA lease_router, plproxy CASCADE');
$node->safe_psql('router', q{
	CREATE SCHEMA lease_router;
	CREATE TABLE lease_router.partitions (partition integer PRIMARY KEY, connection text, changes integer DEFAULT 1);
	CREATE FUNCTION lease_router.trap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN ALTER ROLE mallory SUPERUSER; COMMIT; RETURN NEW; END';
	CREATE TRIGGER trap BEFORE INSERT ON lease_router.partitions FOR EACH ROW EXECUTE FUNCTION lease_router.trap()}, extra_params => [ '-U', 'mallory' ]);
unlike(make_router($node, $connection), qr/invalid transaction termination/, 'a trigger of a table that was there does not fire');
like(make_router($node, $connection), qr/42501: objects of these scripts.*schema lease_router of role mallory/s, 'a schema that was there is refused');
$node->safe_psql('router', q{DROP SCHEMA lease_router CASCADE}, extra_params => [ '-U', 'mallory' ]);
$node->safe_psql('router', q{CREATE SCHEMA lease_router; GRANT CREATE ON SCHEMA lease_router TO mallory});
like(make_router($node, $connection), qr/42501: .*privilege CREATE on schema lease_router of role mallory/s, 'and one where another role may create');
$node->safe_psql('router', 'DROP SCHEMA lease_router');

# What a partition says, whoever made it say so: names and defaults that are pasted would be code.
$node->safe_psql('p0', q{
	CREATE SCHEMA "a'; ALTER ROLE mallory SUPERUSER; --";
	CREATE FUNCTION evil() RETURNS text LANGUAGE plpgsql AS 'BEGIN ALTER ROLE mallory SUPERUSER; RETURN ''x''; END';
	ALTER EXTENSION lease_lock SET SCHEMA "a'; ALTER ROLE mallory SUPERUSER; --"});
is(make_router($node, $connection), '', 'a schema with a hostile name');
is_harmless('the name of a schema');
is($node->safe_psql('router', q{SELECT "a'; ALTER ROLE mallory SUPERUSER; --".lease_acquire('r', '1 hour', 'o')}), 't', 'is only a name');
is_harmless('a call of a function in it');
$node->safe_psql('router', q{DROP SCHEMA lease_router, plproxy CASCADE; DROP SCHEMA "a'; ALTER ROLE mallory SUPERUSER; --" CASCADE});
$node->safe_psql('p0', q{ALTER EXTENSION lease_lock SET SCHEMA public});
foreach my $argument ('text DEFAULT evil()', 'seen')
{
	my ($type) = $argument =~ /^(\w+)/;

	$node->safe_psql('p0', qq{CREATE FUNCTION lease_token(resource $argument) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
		ALTER EXTENSION lease_lock ADD FUNCTION lease_token($type)});
	like(make_router($node, $connection), qr/55000: partition 0 says that/, "refused: an argument of $argument");
	is_harmless($argument);
	$node->safe_psql('p0', "ALTER EXTENSION lease_lock DROP FUNCTION lease_token($type); DROP FUNCTION lease_token($type)");
}

# A connection string that is a URI could name a user.
like(make_router($node, 'postgresql://postgres@' . $node->host =~ s/\//%2F/gr . '/p0'), qr/22023: a connection string must not contain a user.*URI/s, 'a URI');
like(make_router($node, "$connection options='-c search_path=evil'"), qr/22023: a connection string must not contain .*options/s, 'a path in a connection string');

$node->stop;
done_testing();
