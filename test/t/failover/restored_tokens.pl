# Tokens grow across a restore from a dump, a recovery to a point in the past
# and a copied database; and a sequence that cannot promise that is refused.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use FailoverTest;
use LeaseCluster;
use LeaseTest;
use List::Util qw(max min);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = LeaseCluster->new('source');
$node->init(has_archiving => 1, allows_streaming => 1);
$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION lease_lock');
grant_tokens($node, 'backup', 10);
$node->backup('backup');

# An old dump, restored into another database of the same server.
my $dump = $PostgreSQL::Test::Utils::tmp_check . '/past.sql';
grant_tokens($node, 'dump', 10);
$node->command_ok([ 'pg_dump', '-f', $dump, $node->connstr('postgres') ], 'a dump');
my $target = $node->safe_psql('postgres', q{SELECT pg_create_restore_point('past')});
my @told = grant_tokens($node, 'after', 50);

sub first_token
{
	my ($server, $dbname) = @_;

	return $server->safe_psql($dbname, q{SELECT lease_acquire('first of the copy', '1 hour', 'o') OR NULL; SELECT lease_token('first of the copy', 'o')}) =~ s/^t\n//r;
}

$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('restored'), '-f', $dump ], 'the dump is restored');
cmp_ok(first_token($node, 'restored'), '>', max(@told), 'restored: tokens above all that were told');

# Over the database itself, again and again, in every way; and without a dump.
my $archive = $PostgreSQL::Test::Utils::tmp_check . '/past.archive';
my $clean = $PostgreSQL::Test::Utils::tmp_check . '/clean.sql';
my $to_restored = $node->connstr('restored');
$node->command_ok([ 'pg_dump', '-Fc', '-f', $archive, $node->connstr('restored') ], 'an archive');
$node->command_ok([ 'pg_dump', '--clean', '--if-exists', '-f', $clean, $node->connstr('postgres') ], 'a dump that cleans');
my %restore = (
	'DROP EXTENSION and a dump' => sub { $node->safe_psql('restored', 'DROP EXTENSION lease_lock'); $node->safe_psql('restored', slurp_file($dump)) },
	'a dump that cleans' => sub { $node->safe_psql('restored', slurp_file($clean)) },
	'pg_restore --clean' => sub { system_or_bail('pg_restore', '--exit-on-error', '--clean', '--if-exists', '-d', $to_restored, $archive) },
	'pg_restore --data-only' => sub { system_or_bail('pg_restore', '--exit-on-error', '--data-only', '-d', $to_restored, $archive) },
	'DROP and CREATE EXTENSION' => sub { $node->safe_psql('restored', 'DROP EXTENSION lease_lock; CREATE EXTENSION lease_lock') });
my $last = first_token($node, 'restored');
foreach my $round (1 .. 4)
{
	foreach my $way (sort keys %restore)
	{
		$restore{$way}->();
		my ($first, $highest) = split /\|/, $node->safe_psql('restored', q{
			DO $$ BEGIN PERFORM lease_acquire('new ' || i, '1 hour', 'o') FROM generate_series(1, 2000) AS i; END $$;
			SELECT min(token), max(token) FROM lease_lock WHERE resource LIKE 'new %';
			DELETE FROM lease_lock});
		cmp_ok($first, '>', $last, "$way, time $round: tokens above all that were told");
		$last = $highest;
	}
}
push @told, $last;
cmp_ok($last, '<', 2**53, 'tokens are whole numbers for JavaScript, too');

$node->safe_psql('template1', "CREATE DATABASE copied TEMPLATE postgres");
cmp_ok(first_token($node, 'copied'), '>', max(@told), 'a database made from a template begins an era');

$node->safe_psql('postgres', 'SELECT pg_switch_wal()');
my $past = LeaseCluster->new('past');
$past->init_from_backup($node, 'backup', has_restoring => 1, standby => 0);
$past->append_conf('postgresql.conf', "recovery_target_name = 'past'\nrecovery_target_action = promote");
$past->start;
$past->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
is($past->safe_psql('postgres', q{SELECT count(*) FROM lease_lock WHERE resource LIKE 'after%'}), 0, 'recovered to the past');
cmp_ok(first_token($past, 'postgres'), '>', max(@told), 'recovered: tokens above all that were told');
$past->stop;

# The sequence is altered.
my $session = open_session($node);
foreach my $change ([ 'CACHE 10', 'CACHE 1' ], [ 'INCREMENT 2', 'INCREMENT 1' ], [ 'CYCLE', 'NO CYCLE' ], [ 'INCREMENT -1', 'INCREMENT 1' ])
{
	$session->query_safe(q{SELECT lease_acquire('before', '1 hour', 'o'), lease_release('before', 'o')});
	$node->safe_psql('postgres', "ALTER SEQUENCE lease_token_seq $change->[0]");
	session_fails($session, q{SELECT lease_acquire('altered', '1 hour', 'o')}, '42P17', 'token sequence "lease_token_seq" was altered.*HINT', "$change->[0]: refused");
	is($session->query_safe(q{SELECT lease_acquire('after 1', '1 hour', 'other'), lease_renew('after 1', '1 hour', 'o')}), 'f|t', "$change->[0]: what needs no token works");
	$node->safe_psql('postgres', "ALTER SEQUENCE lease_token_seq $change->[1]");
	is($session->query_safe(q{SELECT lease_acquire('altered', '1 hour', 'o'), lease_release('altered', 'o')}), 't|t', "$change->[1]: granted again");
}
$node->safe_psql('postgres', 'ALTER SEQUENCE lease_token_seq SET UNLOGGED');
session_fails($session, q{SELECT lease_acquire('altered', '1 hour', 'o')}, '42P17', 'was altered', 'SET UNLOGGED: refused');
$node->safe_psql('postgres', 'ALTER SEQUENCE lease_token_seq SET LOGGED');
is($session->query_safe(q{SELECT lease_acquire('altered', '1 hour', 'o')}), 't', 'SET LOGGED: granted again');
$session->quit;
$node->stop;

done_testing();
