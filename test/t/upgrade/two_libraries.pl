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

# Change what matches in a file, once.
sub edit
{
	my ($file, $from, $to) = @_;
	my $text = slurp_file($file);

	$text =~ s/$from/$to/ or die "nothing in $file matches $from";
	unlink $file;
	append_to_file($file, $text);
	return;
}

# A library that has one function more, and knows one column more, which has the payload that
# a lease was granted with. Objects from an earlier build save time.
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
	edit("$tree/src/model/types.h", qr/(Datum\s+payload;.*\n)(?=\} Lease;)/, "Datum payload;\nDatum note;\n");
	edit("$tree/src/store/columns.h", qr/(NUM_COLUMNS\s+)(\d+)/, 'NUM_COLUMNS (OLDEST_COLUMNS + 1)');
	edit("$tree/src/store/columns.c", qr/(?=\n\};)/, qq(\n{"note", JSONBOID, FIELD(note), NULL_IS(0), true},));
	edit("$tree/src/grant/grant.c", qr/(?=\.payload = request->payload)/, '.note = request->payload, ');
	system_or_bail('make', '-s', '-C', $tree, 'with_llvm=no', 'CLIENT=', 'COPT=-O0', "PG_CONFIG=$bin/pg_config", 'lease_lock.so');
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
ALTER TABLE lease_lock ADD COLUMN note pg_catalog.jsonb;
ALTER TABLE lease_watch ADD COLUMN note pg_catalog.text;
SQL
write_script('two.new--two.newest', 'ALTER TABLE lease_lock ADD COLUMN needed pg_catalog.int4 NOT NULL DEFAULT 1;');

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
session_fails($after, q{SELECT lease_request('n', '1 hour', 'o', payload => '1')}, '42703', 'lock table "lease_lock" has no column "note".*HINT:  Run ALTER EXTENSION lease_lock UPDATE',
	'new library, old objects: what needs the new column');

$after->query_safe(q{ALTER EXTENSION lease_lock UPDATE TO 'two.new'});
is($after->query_safe('SELECT lease_next()'), 't', 'new library, new objects');
works($after, 'new library, new objects');
lacks_next($before, 'old library, new objects, in a session from before');
hands_over($before, $after, 'new objects, from the old library to the new one');
hands_over($after, $before, 'new objects, from the new library to the old one');

# What the old library does to a lease leaves the column that it does not know as it is. In a
# row that it adds, the column is NULL.
my $note = q{SELECT string_agg(slot || ' ' || coalesce(left(note::text, 7), 'none'), ', ' ORDER BY slot) FROM lease_lock WHERE resource = 'n'};
my $chunks = q{SELECT format('SELECT count(*) FROM %s', reltoastrelid::regclass) FROM pg_class WHERE oid = 'lease_lock'::regclass};
my $random = q{(SELECT jsonb_build_object('a', string_agg(md5(random()::text), '')) FROM generate_series(1, 500))};
is($after->query_safe(qq{SELECT granted FROM lease_request('n', '1 hour', 'o', payload => $random)}), 't', 'new library: a lease with a large note');
my $stored = $after->query_safe($after->query_safe($chunks));
is($after->query_safe($note), '0 {"a": "', 'it is there');
foreach (q{lease_renew('n', '2 hours', 'o')}, q{lease_set_payload('n', 'o', '1')}, q{lease_transfer('n', 'o', 'p') > 0},
	q{lease_release('n', 'p')}, q{lease_acquire('n', '1 hour', 'q')}, q{lease_break('n')})
{
	is($before->query_safe("SELECT $_"), 't', "old library: $_");
	is($after->query_safe($note), '0 {"a": "', 'the note is as it was');
}
cmp_ok($after->query_safe($after->query_safe($chunks)), '<', $stored, 'and was stored once; the payload is gone');
is($before->query_safe(q{SELECT lease_acquire('n', '1 hour', 'r'), lease_downgrade('n', 'r') > 0}), 't|t', 'old library: a row of its own');
is($after->query_safe($note), '0 {"a": ", 1 none', 'which has none');
is($before->query_safe(q{SELECT lease_purge(), lease_release('n', 'r')}), '0|t', 'old library: purge and release');
is($after->query_safe(qq{SELECT granted FROM lease_request('n', '1 hour', 'o', payload => '1')}), 't', 'the new library goes on');
is($after->query_safe($note), '0 1, 1 none', 'and has its note');

# The same for watches.
$after->query_safe(q{SELECT lease_watch('n', 'c'); UPDATE lease_watch SET note = 'mine'});
$before->query_safe(q{SELECT lease_watch('n', 'c', '{granted}'), lease_watch('m', 'c')});
is($after->query_safe(q{SELECT string_agg(concat_ws(' ', prefix, events, note), ', ' ORDER BY prefix) FROM lease_watch WHERE prefix = 'n'}),
	'n {granted} mine', 'old library: a watch keeps what it does not know');
is($before->query_safe(q{SELECT lease_unwatch('n', 'c'), lease_unwatch('m', 'c')}), 't|t', 'and removes it');

# A column that must not be NULL says that older libraries cannot go on. They say so, and
# nothing is lost.
$after->query_safe(q{SELECT lease_acquire('kept', '1 hour', 'o')});
$after->query_safe(q{ALTER EXTENSION lease_lock UPDATE TO 'two.newest'});
foreach my $session ($before, $after)
{
	session_fails($session, "SELECT $_", '42P17',
		'lock table "lease_lock" is that of a later version of the extension.*HINT:  If the extension was updated, connect again', "a column that is needed: $_")
	  foreach q{lease_acquire('w', '1 hour', 'o')}, q{lease_release('kept', 'o')}, q{lease_token('kept', 'o')}, 'lease_purge()';
}
$after->query_safe('ALTER EXTENSION lease_lock DROP FUNCTION lease_next(); ALTER TABLE lease_lock DROP COLUMN needed; ALTER EXTENSION lease_lock ADD FUNCTION lease_next()');
is($before->query_safe(q{SELECT lease_release('kept', 'o')}), 't', 'without it, the old library goes on');
works($after, 'and the new one');

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
