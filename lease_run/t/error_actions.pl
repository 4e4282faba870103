# lease_run does after an error what all clients do: its table is clients/conformance/errors.tsv.
use strict;
use warnings;

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../..";
my %action = (AGAIN => 'again', NOT_AGAIN => 'not again', UNKNOWN => 'unknown');
my %not_here = map { $_ => 1 } ('no connection in time', 'pool closed', 'not the primary');    # of pools and drivers
my %common = map { /^(\S[^\t]*)\t([^\t]+)\t/ && !$not_here{$1} ? ($1 => $2) : () }
  grep { !/^#/ } split(/\n/, slurp_file("$root/clients/conformance/errors.tsv"));
my ($table) = slurp_file("$root/lease_run/connection.c") =~ /\berror_table\[\] = \{(.*?)^\};/ms;
my %ours = map { /\{"([^"]+)", ERROR_(\w+)\}/ ? ($1 => $action{$2}) : () } split(/(?<=\}),/, $table);

cmp_ok(scalar keys %ours, '>', 20, 'a table of errors');
is_deeply(\%ours, \%common, 'is that of all clients');

done_testing();
