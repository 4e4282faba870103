# Two or three sessions that acquire, release, renew, assert, hand over, break
# and purge leases of all modes on very few resources: no answer contradicts
# another one. scripts/check-races runs this for long, with a library that waits
# at random between look, lock and write.
#
# RACE_SECONDS=n makes it that long, RACE_SEED=n begins with that round.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use RaceLog;
use Test::More;

my $seconds = $ENV{RACE_SECONDS} // 4;
my $seed = $ENV{RACE_SEED} // time % 1_000_000;
my $node = start_node('races', <<'CONF');
fsync = off
autovacuum_naptime = 1s
deadlock_timeout = 50ms
CONF

set_up_races($node);
local $ENV{PGOPTIONS} = '-c statement_timeout=0 -c lease_lock.purge_after=0 -c client_min_messages=info';

# The name of a resource says who uses it: readers only, readers and more permits
# than owners, exclusive owners only, permits of different numbers, everybody.
my @kinds = ([ 'm' ], [ 'm', 'n' ], [ 'x' ], [ 'r' ], [ 'p' ], [ 'q' ], [ 'm', 'r' ]);
my $end = time + $seconds;
my %count;
my $rounds = 0;
my $failed = 0;
my @whats = ('get', 'release', 'renew', 'assert', 'transfer', 'break');

# On a slow machine it takes more rounds until each call had both answers.
sub is_missing
{
	return grep { !$count{"$_ yes"} || !$count{"$_ no"} } @whats;
}

# Short rounds: to compare the answers of one takes longer with the square of its
# length.
while (time < $end || $rounds < 2 * @kinds || $rounds < 20 * @kinds && is_missing())
{
	my $sessions = 2 + $seed % 2;
	my @resources = @{ $kinds[ $seed % @kinds ] };
	my ($calls, $errors) = run_round($node, $seed, $sessions, 0.25, @resources);
	my @found = violations($calls);

	$errors = '' if $errors =~ /\A(?:ERROR:  deadlock detected\n)+\z/;
	if ($errors ne '' || @found)
	{
		diag("round $seed, $sessions sessions on @resources: ", scalar @found, " violations\n", $errors, join("\n", grep { defined } @found[ 0 .. 2 ]));
		last if ++$failed >= 5;
	}
	$count{"$_->{what} " . ($_->{ok} ? 'yes' : 'no')}++ foreach @$calls;
	$seed++;
	$rounds++;
}

is($failed, 0, "the answers of $rounds rounds do not contradict one another");
note(join ', ', map { "$_: $count{$_}" } sort keys %count);
foreach my $what (@whats)
{
	ok($count{"$what yes"} && $count{"$what no"}, "among them: $what, with both answers");
}

$node->stop;
done_testing();
