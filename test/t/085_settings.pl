# The documentation names every setting of the extension, and says of each what
# the server says.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $docs = "$FindBin::RealBin/../../docs";
my $node = start_node('settings', "shared_preload_libraries = 'lease_lock'");

# Rows of the table: setting, type, unit, default, range, context.
sub documented
{
	my @rows;

	foreach my $line (grep { /^\| \[`lease_lock\./ } split /\n/, slurp_file("$docs/operations.md"))
	{
		my @cells = map { s/^\s+|\s+$//gr } (split /\|/, $line, -1)[ 1 .. 6 ];
		my ($name, $anchor) = $cells[0] =~ /^\[`([a-z_.]+)`\]\(reference\.md#([a-z_]+)\)$/
		  or die "cannot read: $line";
		is($anchor, $name =~ s/\.//r, "$name: the link goes to its own section");
		$cells[0] = $name;
		$cells[3] =~ s/^`(.*)`$/$1/;
		push @rows, join(' | ', @cells);
	}
	return sort @rows;
}

my @actual = sort split /\n/, $node->safe_psql('postgres', q{
	SELECT concat_ws(' | ', name, vartype, coalesce(unit, ''), boot_val,
		CASE WHEN vartype = 'enum' THEN array_to_string(enumvals, ', ')
			WHEN min_val IS NOT NULL THEN min_val || ' to ' || max_val
			ELSE '' END, context)
	FROM pg_settings WHERE name LIKE 'lease\_lock.%'});

cmp_ok(scalar @actual, '>=', 4, 'the extension has settings');
is_deeply([ documented() ], \@actual, 'docs/operations.md has the table of pg_settings');

my $reference = slurp_file("$docs/reference.md");
foreach my $name (map { (split / /)[0] } @actual)
{
	like($reference, qr/^### \Q$name\E$/m, "docs/reference.md has a section about $name");
}

# Each has a description that ends like a sentence.
is($node->safe_psql('postgres', q{
		SELECT string_agg(name, ' ') FROM pg_settings
		WHERE name LIKE 'lease\_lock.%' AND (short_desc NOT LIKE '%.' OR extra_desc NOT LIKE '%.')}),
	'', 'descriptions are sentences');

$node->stop;
done_testing();
