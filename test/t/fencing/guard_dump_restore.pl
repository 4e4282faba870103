# A protected table is protected after dump and restore, which brings its rows
# back before its triggers. A restore of rows alone must disable the triggers.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('guard_dump');
my $tmp = $PostgreSQL::Test::Utils::tmp_check;

foreach my $schema ('public', '"the leases"')
{
	my $dbname = $schema eq 'public' ? 'in_public' : 'in_schema';
	my $triggers = q{SELECT string_agg(pg_get_triggerdef(oid), E'\n' ORDER BY tgrelid::regclass::text, tgname) FROM pg_trigger WHERE NOT tgisinternal};
	my @dump = ('pg_dump', '-d', $node->connstr($dbname));

	$node->safe_psql('postgres', "CREATE DATABASE $dbname");
	$node->safe_psql($dbname, qq{
		CREATE SCHEMA IF NOT EXISTS $schema;
		CREATE EXTENSION lease_lock SCHEMA $schema;
		CREATE SCHEMA app;
		CREATE TABLE app.workitem (id int PRIMARY KEY, "what's up" text, version int NOT NULL DEFAULT 0);
		INSERT INTO app.workitem SELECT g, 'it''s' FROM generate_series(1, 100) AS g;
		SELECT $schema.lease_protect('app.workitem', E'it''s \\\\ "{id}" {what''s up}');
		CREATE TRIGGER version BEFORE UPDATE ON app.workitem FOR EACH ROW EXECUTE FUNCTION $schema.lease_version('version');
		CREATE TABLE app.part (region text, id int) PARTITION BY LIST (region);
		CREATE TABLE app.north PARTITION OF app.part FOR VALUES IN ('north');
		INSERT INTO app.part VALUES ('north', 1);
		SELECT $schema.lease_protect('app.part', '{region}', 'update, delete');
	});
	my $before = $node->safe_psql($dbname, $triggers);
	is(scalar(() = $before =~ /^CREATE TRIGGER/mg), 7, "$dbname: triggers and partitions' triggers") or diag $before;

	$node->command_ok([ @dump, '-f', "$tmp/$dbname.sql" ], "$dbname: plain dump");
	$node->command_ok([ @dump, '-Fc', '-f', "$tmp/$dbname.dump" ], "$dbname: custom dump");
	$node->command_ok([ @dump, '--data-only', '-n', 'app', '-f', "$tmp/$dbname.data.sql" ], "$dbname: dump of the data");
	$node->safe_psql('postgres', "CREATE DATABASE ${dbname}_$_") foreach 'plain', 'custom';
	$node->command_ok(
		[ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr("${dbname}_plain"), '-f', "$tmp/$dbname.sql" ],
		"$dbname: plain dump is restored");
	$node->command_ok(
		[ 'pg_restore', '--exit-on-error', '-d', $node->connstr("${dbname}_custom"), "$tmp/$dbname.dump" ],
		"$dbname: custom dump is restored");

	foreach my $restored ("${dbname}_plain", "${dbname}_custom")
	{
		is($node->safe_psql($restored, $triggers), $before, "$restored: the triggers are the same");
		is($node->safe_psql($restored, 'SELECT count(*) FROM app.workitem'), 100, "$restored: the rows are there");
		sql_fails($node, 'UPDATE app.workitem SET version = 1', '22023', 'lease_lock.owner is not set', "$restored: a write is refused", dbname => $restored);
		sql_fails($node, 'DELETE FROM app.north', '22023', 'lease_lock.owner is not set', "$restored: to a partition, too", dbname => $restored);
		sql_fails($node, 'TRUNCATE app.north', '0A000', 'cannot truncate', "$restored: and TRUNCATE of it", dbname => $restored);
		is($node->safe_psql($restored, qq{
				SELECT $schema.lease_acquire(E'it''s \\\\ "1" it''s', '1 hour', 'me') AS acquired;
				SET lease_lock.owner = 'me';
				UPDATE app.workitem SET version = version + 1 WHERE id = 1 RETURNING version;
			}), "t\n1", "$restored: who has the lease can write");
		is($node->safe_psql($restored, "SELECT $schema.lease_unprotect('app.workitem'), $schema.lease_unprotect('app.part')"),
			't|t', "$restored: it can be undone");
	}

	# Rows without triggers, into tables that have them.
	$node->safe_psql($dbname, 'SET session_replication_role = replica; DELETE FROM app.workitem; DELETE FROM app.part');
	$node->command_fails_like(
		[ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($dbname), '-f', "$tmp/$dbname.data.sql" ],
		qr/lease_lock.owner is not set for the lease on "it's \\\\ \\"1\\" it's"/, "$dbname: data only is refused");
	$node->safe_psql($dbname, 'SET session_replication_role = replica; DELETE FROM app.part');
	$node->command_ok(
		[
			'pg_restore', '--exit-on-error', '--data-only', '--disable-triggers', '-n', 'app',
			'-d', $node->connstr($dbname), "$tmp/$dbname.dump"
		],
		"$dbname: data only is restored past the triggers");
	is($node->safe_psql($dbname, 'SELECT count(*) FROM app.workitem'), 100, "$dbname: the rows are back");
	sql_fails($node, 'DELETE FROM app.workitem', '22023', 'lease_lock.owner is not set', "$dbname: protected again", dbname => $dbname);

	# DROP EXTENSION fails while a table is protected.
	sql_fails($node, 'DROP EXTENSION lease_lock', '2BP01', 'other objects depend on it', "$dbname: tables depend on the extension", dbname => $dbname);
	$node->safe_psql($dbname, 'CREATE SCHEMA moved; ALTER EXTENSION lease_lock SET SCHEMA moved');
	sql_fails($node, 'DELETE FROM app.workitem', '22023', 'lease_lock.owner is not set', "$dbname: protected when the extension was moved", dbname => $dbname);
	$node->safe_psql($dbname, 'DROP EXTENSION lease_lock CASCADE');
	is($node->safe_psql($dbname, $triggers), '', "$dbname: no trigger is left");
	$node->safe_psql($dbname, 'DELETE FROM app.workitem');
}

$node->stop;
done_testing();
