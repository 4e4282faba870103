# From every version that was released: an update leads to the same objects as
# a new installation, beside a session that holds a lease, one that waits, and
# one that is merely connected. The scripts of released versions are in
# test/old_versions. A later version is made up here, so that this is tested
# before there is one.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $old_versions = "$FindBin::RealBin/../../old_versions";
my ($share) = run_command([ 'pg_config', '--sharedir' ]);
my $folder = "$share/extension";
my @written;

plan skip_all => "cannot write to $folder, where other versions would be" if !-w $folder;

# A script of the extension, for as long as this test runs.
sub write_script
{
	my ($versions, $sql) = @_;

	push @written, "$folder/lease_lock--$versions.sql";
	unlink $written[-1];
	append_to_file($written[-1], $sql);
	return;
}

END
{
	unlink @written;
}

my $node = start_waiting_node('released', '');
my %session = map { $_ => open_session($node) } 'admin', 'holder', 'waiter', 'idle';

sub create
{
	my ($version) = @_;

	$session{admin}->query_safe('DROP EXTENSION IF EXISTS lease_lock');
	$session{admin}->query_safe("CREATE EXTENSION lease_lock VERSION '$version'");
	return;
}

# All members of the extension, with comments, privileges and settings, as
# pg_upgrade would create them anew.
sub objects
{
	my ($dump) = run_command(
		[ 'pg_dump', '--binary-upgrade', '--schema-only', '--no-sync', '-d', $node->connstr('postgres') ]);

	# Identifiers of objects and transactions differ, tokens go on, and newer programs add a random key.
	$dump =~ s/^.*(?:binary_upgrade_set_next|binary_upgrade_create_empty_extension|relfrozenxid|WHERE\ oid|setval
		|\\(?:un)?restrict).*\n//mgx;
	return $dump;
}

sub objects_of
{
	my ($version) = @_;

	create($version);
	return objects();
}

sub update_beside_sessions
{
	my ($from, $to) = @_;

	create($from);
	$session{$_}->query_safe(q{SELECT count(*) FROM lease_status}) foreach qw(holder idle);
	is($session{holder}->query_safe(q{SELECT lease_acquire('r', '1 hour', 'holder')}), 't', "$from: a lease is held");
	my $token = $session{holder}->query_safe(q{SELECT lease_token('r', 'holder')});
	send_to_wait($node, $session{waiter}, q{SELECT lease_acquire('r', '1 hour', 'waiter', NULL)});

	$session{admin}->query_safe("ALTER EXTENSION lease_lock UPDATE TO '$to'");
	is($session{holder}->query_safe(q{SELECT lease_token('r', 'holder')}), $token, "$from to $to: the lease is still held");
	is($session{holder}->query_safe(q{SELECT lease_renew('r', '1 hour', 'holder'), lease_release('r', 'holder')}),
		't|t', "$from to $to: its holder renews and releases it");
	is(answer($session{waiter}), 't', "$from to $to: the waiter gets it");
	cmp_ok($session{waiter}->query_safe(q{SELECT lease_token('r', 'waiter')}),
		'>', $token, "$from to $to: with a higher token");
	is($session{idle}->query_safe(q{SELECT lease_acquire('r', '1 hour', 'idle')}),
		'f', "$from to $to: a session that was connected sees it");
	is($session{waiter}->query_safe(q{SELECT lease_release('r', 'waiter')}), 't', "$from to $to: released");
	return;
}

# The version that lease_lock.control names, and one after it.
my ($current) = slurp_file("$folder/lease_lock.control") =~ /^default_version = '(.*)'/m;
my $addition = <<'SQL';
CREATE FUNCTION lease_next(resource pg_catalog.text) RETURNS pg_catalog.text LANGUAGE sql RETURN resource;
COMMENT ON FUNCTION lease_next(pg_catalog.text) IS 'made up';
REVOKE ALL ON FUNCTION lease_next(pg_catalog.text) FROM PUBLIC;
SQL

if (-e "$folder/lease_lock--$current.sql")
{
	write_script('made.up', slurp_file("$folder/lease_lock--$current.sql") . $addition);
	write_script("$current--made.up", $addition);
	update_beside_sessions($current, 'made.up');
	is(objects(), objects_of('made.up'), "updated from $current, or installed: the same objects");

	# The comparison finds what an update script forgets.
	foreach my $forgotten ('COMMENT', 'REVOKE')
	{
		write_script("$current--made.up", $addition =~ s/^$forgotten.*\n//mr);
		create($current);
		$session{admin}->query_safe(q{ALTER EXTENSION lease_lock UPDATE TO 'made.up'});
		isnt(objects(), objects_of('made.up'), "an update script without its $forgotten leads elsewhere");
	}

	# A library that is older than the objects: the update is refused, and the
	# objects stay as they were.
	write_script("$current--too.new", <<'SQL');
CREATE FUNCTION lease_too_new() RETURNS pg_catalog.bool AS 'MODULE_PATHNAME' LANGUAGE C;
SQL
	create($current);
	my $before = objects();
	session_fails($session{admin}, q{ALTER EXTENSION lease_lock UPDATE TO 'too.new'},
		'42883', 'could not find function "lease_too_new"', 'a library that is older than the update');
	is(objects(), $before, 'which changed nothing');
}

my @frozen = glob "$old_versions/lease_lock--*.sql";
cmp_ok(scalar @frozen, '>', 0, 'there are frozen versions');
foreach my $script (@frozen)
{
	my ($version) = $script =~ /--(.*)\.sql$/;

	# A frozen version does not change: a change needs a new version, and an update script.
	if ($version eq $current)
	{
		is(slurp_file("$folder/lease_lock--$version.sql"), slurp_file($script),
			"version $version is as it was frozen (before its release: test/old_versions/freeze)");
		next;
	}
	write_script($version, slurp_file($script));
	update_beside_sessions($version, $current);
	is(objects(), objects_of($current), "updated from $version, or installed: the same objects");
}

nothing_left($node, 'at the end');
$_->quit foreach values %session;
$node->stop;
done_testing();
