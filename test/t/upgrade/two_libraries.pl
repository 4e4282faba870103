# Two builds of the library in one server, as during an upgrade: sessions that were connected before the file was
# replaced go on with the old library, beside those that have the new one. Either works with the objects of the other's
# version, or says what it lacks.
use strict;
use warnings;

use File::Copy 'copy';
use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseCluster;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my ($share) = run_command([ 'pg_config', '--sharedir' ]);
my ($headers) = run_command([ 'pg_config', '--includedir-server' ]);
my $folder = "$share/extension";
my @written;

plan skip_all => "cannot write to $folder, where other versions would be" if !-w $folder;
plan skip_all => "no headers of the server in $headers" if !-e "$headers/postgres.h";

END
{
	unlink @written;
}

# A library that has one function more. Objects from an earlier build save time.
sub build_next_library
{
	my $source = "$FindBin::RealBin/../../..";
	my $tree = PostgreSQL::Test::Utils::tempdir();
	my ($bin) = run_command([ 'pg_config', '--bindir' ]);

	system_or_bail('cp', '-Rp', (map { "$source/$_" } qw(Makefile META.json lease_lock.control sql src)), $tree);
	append_to_file("$tree/src/server/next.c", <<'C');
#include "postgres.h"

#include "server/server.h"

PG_FUNCTION_INFO_V1(lease_next);

Datum
lease_next(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(true);
}
C
	system_or_bail('make', '-s', '-C', $tree, 'with_llvm=no', 'CLIENT=', "PG_CONFIG=$bin/pg_config", 'lease_lock.so');
	return "$tree/lease_lock.so";
}

# The objects load the library from a path of the test's own, where it can be replaced.
my $library = PostgreSQL::Test::Utils::tempdir_short() . '/lease_lock';

sub write_script
{
	my ($versions, $sql) = @_;

	push @written, "$folder/lease_lock--$versions.sql";
	unlink $written[-1];
	append_to_file($written[-1], $sql =~ s/MODULE_PATHNAME/$library/gr);
	return;
}

# As a package manager does it: sessions that have loaded the old file keep it.
sub install_library
{
	my ($file) = @_;

	copy($file, "$library.new") or die "cannot copy $file: $!";
	rename "$library.new", "$library.so" or die "cannot replace $library.so: $!";
	return;
}

my ($current) = slurp_file("$folder/lease_lock.control") =~ /^default_version = '(.*)'/m;
my ($lib) = run_command([ 'pg_config', '--pkglibdir' ]);
my $old = "$lib/lease_lock.so";
my $new = build_next_library();

write_script('two.old', slurp_file("$folder/lease_lock--$current.sql"));
write_script('two.old--two.new', <<'SQL');
CREATE FUNCTION lease_next() RETURNS pg_catalog.bool AS 'MODULE_PATHNAME' LANGUAGE C;
SQL

my $node = LeaseCluster->new('two');
$node->init;
$node->start;

sub works
{
	my ($session, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is( $session->query_safe(q{SELECT lease_acquire('w', '1 hour', 'o'), lease_renew('w', '1 hour', 'o'),
			lease_token('w', 'o') > 0, lease_acquire('w', '1 hour', 'p'), lease_release('w', 'o')}),
		't|t|t|f|t', "$name: acquire, renew, token, refusal, release");
	return;
}

sub hands_over
{
	my ($holder, $waiter, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($holder->query_safe(q{SELECT lease_acquire('r', '1 hour', 'holder')}), 't', "$name: a lease");
	is($waiter->query_safe(q{SELECT lease_acquire('r', '1 hour', 'waiter')}), 'f', "$name: is seen");
	send_to_wait($node, $waiter, q{SELECT lease_acquire('r', '1 hour', 'waiter', NULL)});
	is($holder->query_safe(q{SELECT lease_release('r', 'holder')}), 't', "$name: released");
	is(answer($waiter), 't', "$name: the waiter gets it");
	is($waiter->query_safe(q{SELECT lease_release('r', 'waiter')}), 't', "$name: and releases it");
	return;
}

sub lacks_next
{
	my ($session, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	session_fails($session, 'SELECT lease_next()', '42883', 'could not find function "lease_next" in file "' . $library, $name);
	works($session, $name);
	return;
}

install_library($old);
$node->safe_psql('postgres', q{CREATE EXTENSION lease_lock VERSION 'two.old'});
my $before = open_session($node);
works($before, 'old library');

install_library($new);
my $after = open_session($node);
works($after, 'new library, old objects');
is( $after->query_safe(q{SELECT count(fmgr_c_validator(p.oid)) > 0 FROM pg_proc AS p
		WHERE probin = (SELECT probin FROM pg_proc WHERE proname = 'lease_token')}),
	't', 'the new library has all functions that the old objects call');
hands_over($before, $after, 'from the old library to the new one');
hands_over($after, $before, 'from the new library to the old one');

$after->query_safe(q{ALTER EXTENSION lease_lock UPDATE TO 'two.new'});
is($after->query_safe('SELECT lease_next()'), 't', 'new library, new objects');
works($after, 'new library, new objects');
lacks_next($before, 'old library, new objects, in a session from before');

install_library($old);
my $downgraded = open_session($node);
lacks_next($downgraded, 'old library, new objects, in a new session');

# Objects from before the first release, without a sequence that the library needs.
$downgraded->query_safe(q{ALTER EXTENSION lease_lock DROP SEQUENCE lease_era_seq; DROP SEQUENCE lease_era_seq});
my $latest = open_session($node);
session_fails($latest, q{SELECT lease_acquire('r', '1 hour', 'o')},
	'42P01', 'relation "lease_era_seq".*HINT:  Run ALTER EXTENSION lease_lock UPDATE', 'objects that lack a sequence');

$_->quit foreach $before, $after, $downgraded, $latest;
$node->stop;
done_testing();
