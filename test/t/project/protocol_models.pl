# The models of the protocol (test/model) have no error within small bounds; models that are broken as the code once was
# violate a claim; and the functions exist that their steps stand for. scripts/check-model explores the large bounds.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use Test::More;

my $check = "$FindBin::RealBin/../../../scripts/check-model";
my ($output, $errors);

sub check
{
	my ($option) = @_;

	IPC::Run::run([ $check, $option ], '<', \undef, '>', \$output, '2>', \$errors);
	is($?, 0, "check-model $option") or diag($output, $errors);
	return;
}

check('--functions');
cmp_ok(scalar(() = $output =~ /^ok - \w+\(\) is in/mg), '>=', 60, 'functions are named');

SKIP:
{
	skip 'spin is not installed', 3 if system('command -v spin && command -v gcc >/dev/null') != 0;
	check('--quick');
	cmp_ok(scalar(() = $output =~ /^ok - .* states/mg), '>=', 2, 'models without an error');
	cmp_ok(scalar(() = $output =~ /^ok - .* is violated/mg), '>=', 2, 'broken models');
}

done_testing();
