# The bytes that leases take in the WAL, on disk and in memory are still those of test/bench/results/sizes.md, which the
# documents quote (test/bench/check-figures compares those with it).
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $bench = "$FindBin::RealBin/../../bench";

# The rows of item sizes, by what they say.
sub sizes
{
	my ($tables) = @_;
	my ($item) = $tables =~ /^### \(sizes\)(.*?)(?=^### |\z)/msg;

	return $item =~ /^\| ([^|]+?) \| (\d+ (?:bytes|kB|MB)) \|$/mg;
}

my $node = start_node('sizes');
my ($printed, $progress);
{
	local @ENV{qw(PGHOST PGPORT PGUSER)} = ($node->host, $node->port, 'postgres');

	IPC::Run::run([ "$bench/run", 'sizes' ], '<', \undef, '>', \$printed, '2>', \$progress);
	is($?, 0, 'the item runs') or diag($progress);
}
my %kept = sizes(slurp_file("$bench/results/sizes.md"));
my %now = sizes($printed);

# Other versions and machines have other headers, and other records.
my $version = $node->safe_psql('postgres', q{SELECT current_setting('server_version_num')::int / 10000});
my $tolerance = $version == 15 && length pack('p', undef) == 8 ? 0.1 : 0.4;

is(join("\n", sort keys %now), join("\n", sort keys %kept), 'the same rows');
foreach my $what (sort keys %kept)
{
	my ($was, $unit) = split / /, $kept{$what};
	my ($is, $unit_now) = split / /, $now{$what} // '';

	ok(defined $is && $unit eq $unit_now && abs($is - $was) <= $tolerance * $was + ($was && 1), "$what: $kept{$what}")
	  or diag("now: $now{$what}");
}

$node->stop;
done_testing();
