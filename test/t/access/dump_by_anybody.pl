# Whoever may dump the database can dump it with its leases in use: its owner, a
# member of pg_read_all_data, a superuser. No dump contains an owner or a
# payload. A plain owner can restore it where a superuser created the extension.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";
use LeaseCluster;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('dump_by_anybody');
my $tmp = $PostgreSQL::Test::Utils::tmp_check;

$node->safe_psql('postgres', 'CREATE ROLE dbo LOGIN; CREATE ROLE reader LOGIN; GRANT pg_read_all_data TO reader');
$node->safe_psql('postgres', 'CREATE DATABASE owned OWNER dbo');
$node->safe_psql('owned', q{
	CREATE EXTENSION lease_lock;
	SELECT granted FROM lease_request('r', '1 hour', 'the password', payload => '{"card": "the number"}');
	SELECT lease_watch('job/', 'jobs')});
$node->safe_psql('owned', q{
	CREATE TABLE item (id int PRIMARY KEY, name text);
	INSERT INTO item VALUES (1, 'chair');
	SELECT lease_protect('item', 'item:{id}')}, extra_params => [ '-U', 'dbo' ]);

sub as
{
	my ($role, $dbname) = @_;

	return ('-U', $role, '-d', $node->connstr($dbname));
}

my %dump = ('plain' => [], '-s' => ['-s'], '-a' => ['-a'], '-Fc' => ['-Fc']);
foreach my $role ('dbo', 'reader', 'postgres')
{
	foreach my $how (sort keys %dump)
	{
		my $file = "$tmp/$role.$how";

		command_checks_all([ 'pg_dump', @{ $dump{$how} }, as($role, 'owned'), '-f', $file ], 0, [qr/^$/], [qr/^$/], "$role: pg_dump, $how");
		unlike(slurp_file($file), qr/the (?:password|number)|lease_(?:lock|watch|token_seq|era_seq|era_began_seq) \(|SEQUENCE SET/,
			"$role, $how: no owner, payload, watch or token");
	}
	command_checks_all([ 'pg_dumpall', '--no-role-passwords', '-U', $role, '-d', $node->connstr('postgres'), '-f', "$tmp/$role.all" ],
		0, [qr/^$/], [qr/^$/], "$role: pg_dumpall");
	unlike(slurp_file("$tmp/$role.all"), qr/the (?:password|number)/, "$role, pg_dumpall: no owner or payload");
}

# The database works; its leases, items and guards are as they should be.
sub restored_works
{
	my ($cluster, $dbname, $name) = @_;
	my $sql = sub { return $cluster->safe_psql($dbname, shift) };

	is($sql->('SELECT count(*) FROM lease_lock'), 0, "$name: no leases");
	is($sql->('SELECT count(*) FROM lease_watches'), 0, "$name: no watches");
	is($sql->('TABLE item'), '1|chair', "$name: the data");
	sql_fails($cluster, q{UPDATE item SET name = 'x'}, '22023', 'lease_lock.owner is not set', "$name: guarded", dbname => $dbname);
	cmp_ok($sql->(q{SELECT token FROM lease_request('r', '1 hour', 'o')}), '>',
		$node->safe_psql('owned', 'SELECT max(token) FROM lease_lock'), "$name: tokens above those of before");
	return;
}

# A superuser restores everything.
foreach my $role ('dbo', 'reader', 'postgres')
{
	$node->safe_psql('postgres', "CREATE DATABASE by_$role");
	$node->command_ok([ 'pg_restore', '--exit-on-error', as('postgres', "by_$role"), "$tmp/$role.-Fc" ], "dumped by $role: restored");
	restored_works($node, "by_$role", "dumped by $role");
}

# The owner of a database restores it, after a superuser has created the
# extension. Only the comment on the extension is not his.
foreach my $how ('pg_restore', 'psql')
{
	my $dbname = "as_owner_$how";

	$node->safe_psql('postgres', "CREATE DATABASE $dbname OWNER dbo");
	$node->safe_psql($dbname, 'CREATE EXTENSION lease_lock');
	if ($how eq 'psql')
	{
		$node->command_ok([ 'pg_dump', '--no-comments', as('dbo', 'owned'), '-f', "$tmp/no_comments" ], 'a dump without comments');
		$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', as('dbo', $dbname), '-f', "$tmp/no_comments" ], "restored as owner by $how");
	}
	else
	{
		$node->command_ok([ 'pg_restore', '--exit-on-error', '--no-comments', as('dbo', $dbname), "$tmp/dbo.-Fc" ], "restored as owner by $how");
	}
	restored_works($node, $dbname, "as owner by $how");
}

# Data alone, into a database that granted leases before those of the dump: its
# tokens go on, and a new era is above those in the data.
$node->safe_psql('as_owner_psql', q{SELECT lease_release_all('o')});
$node->safe_psql('postgres', 'CREATE DATABASE later');
$node->safe_psql('later', q{
	CREATE EXTENSION lease_lock;
	CREATE TABLE account (fence bigint);
	INSERT INTO account SELECT token FROM lease_request('account', '1 hour', 'o')});
$node->safe_psql('as_owner_psql', 'CREATE TABLE account (fence bigint)');
$node->command_ok([ 'pg_dump', '-a', as('postgres', 'later'), '-f', "$tmp/data" ], 'a dump of data alone');
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', as('postgres', 'as_owner_psql'), '-f', "$tmp/data" ], 'data alone: restored');
$node->safe_psql('as_owner_psql', 'SELECT lease_new_era()');
is($node->safe_psql('as_owner_psql', q{SELECT token > fence FROM account, lease_request('account', '1 hour', 'o')}), 't',
	'data alone, and a new era: tokens above those in the data');

# A whole cluster.
my $other = LeaseCluster->new('restored_cluster');
$other->init;
$other->start;
$other->command_ok([ 'psql', '-Xq', '-d', $other->connstr('postgres'), '-f', "$tmp/postgres.all" ], 'pg_dumpall: restored');
restored_works($other, 'owned', 'pg_dumpall');

$_->stop foreach $node, $other;
done_testing();
