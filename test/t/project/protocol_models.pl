# The models of the protocol (test/model) have no error within small bounds; models that are broken as the code once was
# violate a claim; and the functions exist that their steps stand for. scripts/check-model explores the large bounds.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../../..";
my $readme = slurp_file("$root/test/model/README.md");
my ($output, $errors);

sub check
{
	my ($option) = @_;

	IPC::Run::run([ "$root/scripts/check-model", $option ], '<', \undef, '>', \$output, '2>', \$errors);
	is($?, 0, "check-model $option") or diag($output, $errors);
	return;
}

# A cell of the table names files, each with the functions in it: `wait/turns.c` `take_turn()` `give_turn()`.
my ($steps) = $readme =~ /^## Steps and functions$(.*?)^## /ms;
my (@lacking, $functions);

foreach my $cell ($steps =~ /^\| .*$/mg)
{
	my $text;

	foreach my $word ($cell =~ /`([a-z_\/]+\.c|[a-z_]+\(\))`/g)
	{
		if ($word =~ /\.c$/) { $text = slurp_file("$root/src/$word"); next }
		$functions++;
		push @lacking, $word if $text !~ /^(static )?([A-Za-z_]+ +\**)?\Q${\ substr($word, 0, -1)}\E/m;
	}
}
is("@lacking", '', 'the functions exist that the steps name');
cmp_ok($functions, '>=', 60, 'functions are named');

my %switches = map { $_ => 1 } map { slurp_file($_) =~ /\b(B_[A-Z_]+)/g } glob "$root/test/model/*.pml";
is(join(' ', grep { $readme !~ /\| `$_` \|/ } sort keys %switches), '', 'the table of broken models has all of them');

SKIP:
{
	skip 'spin is not installed', 3 if system('command -v spin && command -v gcc >/dev/null') != 0;
	check('--quick');
	cmp_ok(scalar(() = $output =~ /^ok - .* states/mg), '>=', 2, 'models without an error');
	cmp_ok(scalar(() = $output =~ /^ok - .* is violated/mg), '>=', 2, 'broken models');
}

done_testing();
