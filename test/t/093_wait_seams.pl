# What waiters of one kind hear when somebody else's transaction does more
# than one thing: nothing here depends on how long a step takes, since who
# misses a wake-up would sleep for an hour.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('seams', "${WaitTest::NEVER}max_prepared_transactions = 5\n");

sub held_by
{
	my ($resource, $owners, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return becomes($node, "SELECT string_agg(owner, ' ' ORDER BY owner) FROM lease_status
		WHERE resource = '$resource' AND state = 'held'", $owners, $name);
}

# A reader that has its turn in a transaction that stays open.
foreach my $kind ([ 'shared', "lease_acquire_shared('%s', '1 hour', '%s', NULL)" ],
	[ 'permit', "lease_acquire_permit('%s', 3, '1 hour', '%s', NULL)" ])
{
	my ($r, $call) = @$kind;
	my @sessions = map { open_session($node) } 1 .. 3;

	look($node, "SELECT lease_acquire('$r', '1 hour', 'writer')");
	$sessions[0]->query_safe('BEGIN');
	send_to_wait($node, $sessions[$_], 'SELECT ' . sprintf($call, $r, "o$_"), in_queue()) foreach 0 .. 2;
	look($node, "SELECT lease_release('$r', 'writer')");
	held_by($r, 'o1 o2', "$r: those behind an open transaction have their turn meanwhile");
	$sessions[0]->query_safe('COMMIT');
	held_by($r, 'o0 o1 o2', "$r: and all of them in the end");
	$_->quit foreach @sessions;
}

$node->stop;
done_testing();
