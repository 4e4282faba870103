# The manual page and --help say what the page of the documentation says.
use strict;
use warnings;

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

my $bin = "$FindBin::RealBin/..";
my $page = slurp_file("$bin/../docs/lease_run.md");
my ($version) = slurp_file("$bin/../META.json") =~ /^\t"version": "(.*)",$/m;

is(scalar `"$^X" "$bin/make_man" $version <"$bin/../docs/lease_run.md"`, slurp_file("$bin/lease_run.1"),
	'lease_run.1 is made from docs/lease_run.md: make -C lease_run lease_run.1');

my %documented = map { $_ => 1 } map { /`(--[a-z-]+)/g } grep { /^`/ } split(/\n/, $page);
my $help = `lease_run --help`;
my %in_help = map { $_ => 1 } $help =~ /^ .*?(--[a-z-]+)/mg;
is(join(' ', sort keys %in_help), join(' ', sort keys %documented), '--help and the page have the same options');
is(join("\n", grep { length > 80 } split(/\n/, $help)), '', '--help fits into 80 columns');

done_testing();
