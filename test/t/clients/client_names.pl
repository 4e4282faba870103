# The table of names in docs/clients.md: each one is declared by its client.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../../..";

# Where a client declares its names, and how.
my %declared = (
	Python => [ 'python/lease_lock/*.py', sub { qr/\b(def|class) $_[0]\b|\b$_[0](: |=)/ } ],
	'Node.js' => [ 'node/src/index.d.ts', sub { qr/class $_[0]\b|\b$_[0]\??[(<:]/ } ],
	Ruby => [ 'ruby/lib/{,*/}*.rb', sub { qr/\b(def|class) $_[0](?!\w)|\b$_[0]: |attr_reader .*:$_[0]\b|KNOWN = .*\b$_[0]\b/ } ],
	Java => [ 'java/src/main/java/*/*.java', sub { qr/\bpublic .*\b$_[0]\(|class $_[0]\b/ } ],
	Go => [ 'go/*.go', sub { qr/\bfunc (\([^)]*\) )?$_[0]\(|\btype $_[0]\b/ } ]);
my %is_prose = map { $_ => 1 } ('driver', 'times', 'also for');

my ($table) = slurp_file("$root/docs/clients.md") =~ /^## The same names\n(.*?)^#/ms;
my ($header, undef, @rows) = map { [ map { s/^\s+|\s+$//gr } (split /\|/)[ 1 .. tr/|// - 1 ] ] } $table =~ /^(\|.*\|)$/mg;

cmp_ok(scalar @rows, '>', 15, 'the table was found');
foreach my $n (1 .. $#$header)
{
	my ($files, $declares) = @{ $declared{ $header->[$n] } };
	my $source = join '', map { slurp_file($_) } glob "$root/clients/$files";
	my %names = map { $_ => 1 } map { $_->[$n] =~ /`([^`]+)`/g } grep { !$is_prose{ $_->[0] } } @rows;

	cmp_ok(scalar keys %names, '>', 20, "$header->[$n]: names");
	is(join(' ', grep { $source !~ $declares->(quotemeta) } sort keys %names), '', "$header->[$n]: all are declared");
}
done_testing();
