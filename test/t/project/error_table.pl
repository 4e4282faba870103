# The tables of errors in the reference: each SQLSTATE that the library raises is
# in one of them, and in one only, so that it tells the caller what to do.
use strict;
use warnings;

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../../..";
my ($headers) = run_command([ 'pg_config', '--includedir-server' ]);
my %sqlstate;

foreach (split /\n/, slurp_file("$headers/utils/errcodes.h"))
{
	my ($name, @characters) = /^#define (ERRCODE_\w+) MAKE_SQLSTATE\('(.)','(.)','(.)','(.)','(.)'\)/ or next;

	$sqlstate{$name} = join '', @characters;
}

my ($errors) = slurp_file("$root/docs/reference.md") =~ /^## Errors\n(.*?)^## /ms;
my (%table, $table);
foreach (split /\n/, $errors)
{
	$table = $1 if /^### (.*)/;
	$table{$1}{$table} = 1 if /^\| ([0-9A-Z]{5}) \|/;
}
my %things = map { $_ => 1 } map { keys %$_ } values %table;
is(join(', ', sort keys %things), 'Ask the administrator, Begin again, Fix the call, Retry', 'a table for each thing to do');
is(join(' ', keys %{ $table{$_} }), (keys %{ $table{$_} })[0], "$_ is in one table") foreach sort keys %table;

# Of the library: errors, not lines of the log, which have no class.
my %raised;
foreach my $file (glob "$root/src/*.c $root/src/*/*.c")
{
	my $source = slurp_file($file);
	my $name = $file =~ s/.*\///r;

	while ($source =~ /(?:ereport\((\w+),|errcode\()([^;]*?)errmsg/gs)
	{
		my ($level, $text) = ($1 // 'ERROR', $2);
		$raised{$1} = $name while $level eq 'ERROR' && $text =~ /(ERRCODE_\w+)/g;
	}
}
delete @raised{qw(ERRCODE_SUCCESSFUL_COMPLETION ERRCODE_WARNING ERRCODE_INTERNAL_ERROR ERRCODE_IO_ERROR ERRCODE_DATA_CORRUPTED)};
cmp_ok(scalar keys %raised, '>', 15, 'the library raises errors');
ok($table{ $sqlstate{$_} // '' }, ($sqlstate{$_} // 'unknown') . " ($_) of $raised{$_} is in the tables") foreach sort keys %raised;

done_testing();
