# A look goes by transactions as they are at one moment, even if one of them, or
# a savepoint, ends while it settles what it read. So an assertion does not wait
# for a transaction that leaves the lease, and no try is refused because of a
# lease that was never committed.
#
# This needs the library that scripts/check-races builds, which stops at points.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('look_settles');

plan skip_all => 'the library stops nowhere' if !is_for_races($node);

my $other = open_session($node);
my @keepers = map { open_session($node) } 1 .. 2;

# Begin a call that stops at a point. Returns its session and process.
sub begin_call
{
	my ($point, $call) = @_;
	my $session = open_session($node);

	$keepers[0]->query_safe('SELECT pg_advisory_lock(7)');
	$session->query_safe("LOAD 'lease_lock'; SET lease_lock.stop_at = '$point'");
	my $pid = begin_query($session, $call);
	wait_until_blocked($node, $pid);
	return ($session, $pid);
}

# Let the call go on to the same point once more: the lock for which it waits goes to the other keeper as soon as
# the call gives it back.
sub step
{
	my $pid = begin_query($keepers[1], 'SELECT pg_advisory_lock(7)');

	wait_until_blocked($node, $pid);
	$keepers[0]->query_safe('SELECT pg_advisory_unlock(7)');
	finish_query($keepers[1]);
	@keepers = reverse @keepers;
	return;
}

# The answer of the call, or the lock for which it waits.
sub answer
{
	my ($session, $pid) = @_;
	my $activity = "FROM pg_stat_activity WHERE pid = $pid";

	$keepers[0]->query_safe('SELECT pg_advisory_unlock(7)');
	$node->poll_query_until('postgres', "SELECT state = 'idle' OR wait_event = 'transactionid' $activity")
	  or die 'the call neither ends nor waits';
	return 'waits' if $node->safe_psql('postgres', "SELECT state $activity") eq 'active';
	return finish_query($session);
}

# The transaction renews twice, and the look reads all three versions. The second renewal is undone after the
# look has asked for the transactions of n versions. The lease is the same in each.
foreach my $asked (1 .. 3)
{
	$other->query_safe(<<~"SQL");
		SELECT lease_acquire('r$asked', '1 hour', 'a');
		BEGIN; SELECT lease_renew('r$asked', '2 hours', 'a'); SAVEPOINT s; SELECT lease_renew('r$asked', '3 hours', 'a');
		SQL
	my ($session, $pid) = begin_call('while rows are settled', "SELECT lease_assert('r$asked', 'a') > 0");
	step() foreach 2 .. $asked;
	$other->query_safe('ROLLBACK TO s');
	is(answer($session, $pid), 't', "an assertion does not wait for a renewal that is undone in part, after $asked of 3 versions");
	$other->query_safe('COMMIT');
	$session->quit;
}

# The look meets a lease that its transaction releases before it commits. With an index on what changes, the look
# does not find the version after it.
$node->safe_psql('postgres', 'CREATE INDEX ON lease_lock (expires_at)');
foreach my $former ('never used', 'released')
{
	$other->query_safe("SELECT lease_acquire('$former', '1 hour', 'a'); SELECT lease_release('$former', 'a')") if $former eq 'released';
	$other->query_safe("BEGIN; SELECT lease_acquire('$former', '1 hour', 'a')");
	my ($session, $pid) = begin_call('in a look', "SELECT granted, reason, blocked_by FROM lease_request('$former', '1 hour', 'b')");
	$other->query_safe("SELECT lease_release('$former', 'a'); COMMIT");
	is(answer($session, $pid), 't||', "a lease that was never committed refuses nobody: $former");
	$session->quit;
}

$_->quit foreach $other, @keepers;
$node->stop;
done_testing();
