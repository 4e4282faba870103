# A few sessions have filled the server's lock table with their locks: errors
# are clear, no lease is lost, no waiter is forgotten, and everything goes on
# when the locks are released.
#
# The server has two tables, one for locked objects, and one for their holders
# with twice the room. Where these do not share their memory, from 19 on, a
# single session fills only the first, and others can still wait for an object
# that is locked already. So there are several sessions, all with the same
# locks.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('locks', $WaitTest::NEVER . <<'CONF');
max_locks_per_transaction = 10
max_connections = 20
max_prepared_transactions = 0
max_wal_senders = 0
CONF
my $full = 'out of shared memory.*HINT:  You might need to increase "?max_locks_per_transaction"?';

$node->safe_psql('postgres', q{
	CREATE PROCEDURE take_locks(most int) LANGUAGE plpgsql AS $$
	BEGIN
		FOR n IN 1 .. most LOOP
			BEGIN
				PERFORM pg_advisory_lock_shared(n);
			EXCEPTION WHEN out_of_memory THEN
				RAISE NOTICE 'took % locks', n - 1;
				RETURN;
			END;
		END LOOP;
	END $$});

my @hogs = map { open_session($node) } 1 .. 3;

sub give_back_locks
{
	$_->query_safe('SELECT pg_advisory_unlock_all()') foreach @hogs;
	return;
}

# Returns what the sessions say that they took.
sub take_all_locks
{
	my $took = '';

	foreach (@hogs)
	{
		$_->query('CALL take_locks(1000000)');
		$took .= $_->{stderr};
		$_->{stderr} = '';
	}
	return $took;
}

# Once before, since catalog lookups take locks, too.
$_->query_safe('CALL take_locks(1)') foreach @hogs;
give_back_locks();

my $user = open_session($node);
my %waiter = map { $_ => open_session($node) } 1 .. 4;
my @held = map { "held $_" } 1 .. 3;

sub tokens
{
	return look($node, q{SELECT string_agg(resource || ' ' || owner || ' ' || token, ',' ORDER BY resource) FROM lease_status});
}

$user->query_safe("SELECT lease_acquire('$_', '1 hour', 'a')") foreach @held;
$user->query_safe(q{SELECT lease_acquire('free', '1 hour', 'a'), lease_release('free', 'a')});
my $tokens = tokens();

# A grant that stays open, for somebody to wait for.
my $open = open_session($node);
$open->query_safe(q{BEGIN; SELECT lease_acquire('open', '1 hour', 'o')});

# Two waiters, and locks until there are none left.
send_to_wait($node, $waiter{1}, q{SELECT lease_acquire('held 1', '1 hour', 'w1', NULL)});
send_to_wait($node, $waiter{2}, q{CALL lease_wait('held 1', '1 hour', 'w2', NULL)});
my $queue = q{SELECT string_agg(owner || position, ',' ORDER BY position) FROM lease_waiters};

# Once before, since lookups in shared catalogs take locks, too.
is(look($node, $queue), 'w11,w22', 'there are waiters');
like(take_all_locks(), qr/took \d{3,} locks.*took \d+ locks.*took \d+ locks/s, 'all locks are taken');

# Calls that only look work.
is($user->query_safe(q{SELECT lease_acquire('held 2', '1 hour', 'b')}), 'f', 'no locks left: refused try');
is($user->query_safe(q{SELECT lease_token('held 2', 'a') > 0}), 't', 'no locks left: token');
is(look($node, $queue), 'w11,w22', 'no locks left: the waiters wait');

# What writes has to lock its transaction, and cannot.
foreach my $call (
	q{lease_acquire('new', '1 hour', 'b')}, q{lease_acquire('free', '1 hour', 'b')},
	q{lease_acquire('free', '1 hour', 'b', '1 min')}, q{lease_renew('held 2', '1 hour', 'a')},
	q{lease_release('held 1', 'a')}, q{lease_release_all('a')},
	q{lease_acquire('open', '1 hour', 'b', '1 min')})
{
	session_fails($user, "SELECT $call", '53200', $full, "no locks left: $call");
}
session_fails($user, q{CALL lease_wait('free', '1 hour', 'b', '1 min')}, '53200', $full, 'no locks left: lease_wait');
is(tokens(), $tokens, 'all leases are as they were');
is(look($node, $queue), 'w11,w22', 'the queue is as it was');

# Even a transaction that has all its locks needs the resource lock for a moment.
session_fails($open, q{SELECT lease_release('open', 'o')}, '53200', $full, 'no locks left: a release in an open transaction');
$open->query_safe('ROLLBACK');

# A waiter whose turn comes then fails; it does not stay in the queue, and the
# lease is not lost for the others.
give_back_locks();
my $ttl = 8 + 2 * slowness($node);
is($user->query_safe("SELECT lease_acquire('brief', '$ttl s', 'a')"), 't', 'a lease that will expire');
send_to_wait($node, $waiter{3}, q{SELECT lease_acquire('brief', '1 hour', 'w3', NULL)});
send_to_wait($node, $waiter{4}, q{CALL lease_wait('brief', '1 hour', 'w4', NULL)});
take_all_locks();
like(answer($waiter{$_}), qr/ERROR:  53200: $full/s, "waiter $_ fails when its turn comes") foreach 3, 4;
is(look($node, $queue), 'w11,w22', 'and left the queue');

# The locks are given back.
give_back_locks();
is($user->query_safe(q{SELECT lease_acquire('brief', '1 hour', 'b')}), 't', 'the lease that expired can be taken');
is($user->query_safe(q{SELECT lease_acquire('free', '1 hour', 'b', '1 min')}), 't', 'and so can the free one');
is($user->query_safe(q{SELECT lease_release('held 1', 'a')}), 't', 'the release that failed goes through');
is(answer($waiter{1}), 't', 'the first waiter gets its turn');
is($user->query_safe(q{SELECT lease_release('held 1', 'w1')}), 't', 'it is released');
is(answer($waiter{2}), 't', 'the second waiter gets its turn');
is(look($node, q{SELECT string_agg(resource || ' ' || owner, ',' ORDER BY resource) FROM lease_status}),
	'brief b,free b,held 1 w2,held 2 a,held 3 a', 'the holders are as expected');
nothing_left($node, 'locks given back');

$_->quit foreach @hogs, $user, $open, values %waiter;
$node->stop;
done_testing();
