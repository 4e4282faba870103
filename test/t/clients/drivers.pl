# The table of drivers in docs/drivers.md says what happens: the calls are made
# by each driver that is here, and what they print is compared.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";
use ClientTest;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no Python at /usr/bin/python3' if !can_run(['/usr/bin/python3'], '-c', '0');

my $node = start_node('drivers', "listen_addresses = '127.0.0.1'\n");
my $page = slurp_file("$FindBin::RealBin/../../../docs/drivers.md");
my ($printed, $missing);

# Versions differ.
sub row_of
{
	return shift =~ s/^(\| [^|]*?) \(\d[^()]*\)( \|)/$1$2/r;
}

{
	local %ENV = (%ENV, PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', PGUSER => 'postgres');

	ok(IPC::Run::run([ '/usr/bin/python3', "$ClientTest::CLIENTS/bindings/run" ], '<', \'', '>', \$printed, '2>', \$missing),
		'all drivers that are here make the calls')
	  or note($missing);
}

my %documented = map { row_of($_) => 1 } grep { /^\|/ } split(/\n/, $page);
my @rows = split(/\n/, $printed);

cmp_ok(scalar @rows, '>', 3, 'there are drivers');
foreach my $row (map { row_of($_) } @rows)
{
	my ($driver) = $row =~ /^\| ([^|]*) \|/;

	ok($documented{$row}, 'in the documents: ' . ($driver // $row)) or note("printed: $row");
}
note($missing);

$node->stop;
done_testing();
