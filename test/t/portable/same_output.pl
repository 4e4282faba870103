# The regression tests and isolation specs of the extension have the same output on the portable
# edition, except for the differences that test/portable lists, each with its reason.
#
# It takes minutes, so scripts/check-portable runs it, which sets PORTABLE_LONG.
# PORTABLE_TESTS='sql/acquire specs/try-beside-open-grant' runs these alone.
# PORTABLE_ACCEPT=FOLDER writes the differences that it finds into that folder, instead of comparing them.
use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(basename dirname);
use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'takes minutes: scripts/check-portable runs it' if !$ENV{PORTABLE_LONG};

my $tests = abs_path("$FindBin::RealBin/../..");
my $expected = abs_path("$tests/../expected");
my $differences = "$tests/portable/differences";

# Why a test differs, or does not run at all. No reason is "it takes longer".
my %reasons = map { $_ => 1 } qw(absent protected session settings text stored snapshot expired order open locks);
my %wanted = map { $_ => 1 } split ' ', $ENV{PORTABLE_TESTS} // '';

# The table: a test, "differs" or "not run", and the reasons.
my %table;
foreach (split /\n/, slurp_file("$tests/portable/differences.tsv"))
{
	next if /^#/;
	my ($name, $how, $why) = split /\t/;

	$table{$name} = { how => $how, why => [ split ' ', $why ] };
	ok(-f "$tests/$name" . ($name =~ m{^sql/} ? '.sql' : '.spec'), "$name exists");
	is(join(' ', grep { !$reasons{$_} } @{ $table{$name}{why} }), '', "$name: reasons of the list");
	is($how eq 'differs', !!-f "$differences/" . basename($name) . '.diff', "$name: has a file of differences if it runs");
}

sub spew
{
	my ($file, $text) = @_;

	open my $handle, '>', $file or die "$file: $!";
	print $handle $text;
	close $handle or die "$file: $!";
	return;
}

# As pg_regress sets them.
my $node = start_node('same', <<'CONF');
fsync = off
max_prepared_transactions = 10
datestyle = 'Postgres, MDY'
intervalstyle = postgres_verbose
timezone = PST8PDT
log_statement = none
allow_system_table_mods = on
CONF

$ENV{PG_ABS_SRCDIR} = $tests;
$ENV{PGISOLATIONTIMEOUT} = $ENV{PGISOLATIONTIMEOUT} // 60;	# for some that wait for a waiter that has failed
my $output = "$PostgreSQL::Test::Utils::tmp_check/portable";
mkdir $output;

# isolationtester asks this function whether a session waits. A waiter that sleeps does, too, if it still sleeps after
# some more looks: otherwise, what it has just been granted would be told later than in the extension.
$node->safe_psql('template1', q{
	ALTER FUNCTION pg_catalog.pg_isolation_test_session_is_blocked(int, int[]) RENAME TO is_blocked;
	CREATE FUNCTION pg_catalog.sleeps(int) RETURNS bool LANGUAGE sql AS $$
		SELECT count(*) > 0 FROM pg_stat_get_activity($1)
		WHERE state = 'active' AND wait_event = 'PgSleep' AND query ~ 'lease_(acquire|request|wait)' AND query !~ 'until_waiting|pg_sleep'
	$$;
	CREATE FUNCTION pg_catalog.pg_isolation_test_session_is_blocked(int, int[]) RETURNS bool LANGUAGE plpgsql VOLATILE AS $$
	BEGIN
		IF is_blocked($1, $2) OR NOT sleeps($1) THEN
			RETURN is_blocked($1, $2);
		END IF;
		PERFORM pg_sleep(0.5), pg_stat_clear_snapshot();
		RETURN is_blocked($1, $2) OR sleeps($1);
	END $$});

# Each test in a database of its own, so that what one leaves does not change another.
install_portable($node, 'template1');

sub run_sql
{
	my ($name, $connection) = @_;

	return run_log([ 'psql', '-Xaq', '-v', 'SHOW_CONTEXT=never', '-v', 'HIDE_TABLEAM=on', '-d', $connection ],
		'<', "$tests/sql/$name.sql", '>', "$output/$name.out", '2>&1');
}

# The specs create the extension for each permutation.
sub run_specs
{
	my ($name, $connection) = @_;
	my $spec = slurp_file("$tests/specs/$name.spec");

	$spec =~ s/(CREATE|DROP) EXTENSION lease_lock;/TRUNCATE lease_lock;/g;
	$spec =~ s/wait_event_type = place/wait_event_type IN ('Timeout', place)/g;
	$spec =~ s/wait_event_type (?:= 'Extension'|IN \('Extension', 'Lock'\))/wait_event_type IN ('Timeout', 'Lock')/g;
	spew("$output/$name.spec", $spec);
	local $ENV{PGAPPNAME} = "isolation/$name";
	return run_log([ isolationtester(), $connection ], '<', "$output/$name.spec", '>', "$output/$name.out", '2>&1');
}

sub isolationtester
{
	my $pgxs = qx($ENV{PG_CONFIG} --pgxs);

	return dirname($pgxs) . '/../../src/test/isolation/isolationtester';
}

# Without the numbers of its lines, so that a change elsewhere in a test changes nothing here.
sub difference
{
	my ($name) = @_;
	my @files = grep { -f } "$expected/$name.out", glob "$expected/${name}_[0-9].out";
	my @found = sort { length $a <=> length $b } map { scalar qx(diff -wU0 $_ $output/$name.out) } @files;
	my $found = $found[0];

	$found =~ s/^(---|\+\+\+) .*\n//gm;
	$found =~ s/^\@\@.*\@\@$/\@\@/gm;
	$found =~ s/\d+\.\d+ seconds/n.nnn seconds/g;
	$found =~ s/after \d+ seconds/after N seconds/g;
	$found =~ s/\w{3} \w{3} \d\d \d\d:\d\d:\d\d\.\d+ \d{4} P\wT/<time>/g;
	$found =~ s/\b\d{15}\b/N/g;
	$found =~ s/-{4,}/----/g;		# as wide as the widest value
	$found =~ s/ +/ /g;
	$found =~ s/ $//gm;
	return $found;
}

sub check
{
	my ($kind, $name) = @_;
	my $entry = $table{"$kind/$name"} // { how => 'same' };
	my $file = "$differences/$name.diff";

	return if %wanted && !$wanted{"$kind/$name"} || $entry->{how} eq 'not run';
	$node->safe_psql('postgres', "CREATE DATABASE t_$name" =~ tr/-/_/r);
	(\&{"run_$kind"})->($name, $node->connstr("t_$name" =~ tr/-/_/r));
	my $difference = difference($name);
	if ($ENV{PORTABLE_ACCEPT})
	{
		spew("$ENV{PORTABLE_ACCEPT}/$name.diff", $difference) if $difference ne '';
		return;
	}
	is($difference, -f $file ? slurp_file($file) : '', "$kind/$name: $entry->{how}");
	return;
}

my $since = time;
foreach my $kind ('sql', 'specs')
{
	no strict 'refs';
	foreach (glob "$tests/$kind/*.s*")
	{
		check($kind, basename($_) =~ s/\..*//r);
		note(sprintf '%s: after %d s', basename($_), time - $since);
	}
}
$node->stop;
done_testing();
