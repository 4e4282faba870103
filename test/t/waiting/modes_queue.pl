# Waiters for leases of all modes form one queue. A waiter for the exclusive
# lease stops new readers. Readers that waited for the same writer come in
# together. If several permits are released, no waiter is forgotten, whatever
# the transactions of the others do.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('modes', $WaitTest::NEVER);
my @sessions = map { open_session($node) } 1 .. 4;

sub owners
{
	my ($resource) = @_;

	return "SELECT string_agg(owner, ',' ORDER BY owner) FROM lease_status WHERE resource = '$resource' AND state = 'held'";
}

# A waiting writer stops new readers: behind a committed reader, and behind an open one.
is(look($node, q{SELECT lease_acquire_shared('doc', '1 hour', 'r1')}), 't', 'a reader has the resource');
send_to_wait($node, $sessions[0], q{SELECT lease_acquire('doc', '1 hour', 'w', NULL)});
is(look($node, q{SELECT lease_acquire_shared('doc', '1 hour', 'r2'), lease_acquire_permit('doc', 9, '1 hour', 'r2')}), 'f|f', 'a waiting writer keeps new readers out');
send_to_wait($node, $sessions[1], q{BEGIN; SELECT lease_acquire_shared('doc', '1 hour', 'r3', NULL)});
send_to_wait($node, $sessions[2], q{SELECT lease_acquire_shared('doc', '1 hour', 'r4', NULL)});
is(look($node, q{SELECT granted FROM lease_request('doc', '1 hour', 'r1', mode => 'shared', if_own => 'count')}), 't', 'but a reader may acquire its own lease again');
is(look($node, q{SELECT lease_release('doc', 'r1'), lease_release('doc', 'r1')}), 't|t', 'the reader leaves');
is(answer($sessions[0]), 't', 'the writer comes in');
is(look($node, owners('doc')), 'w', 'alone');

# The writer has one turn: then the readers that came meanwhile are next, all of
# them at once.
send_sql($sessions[0], q{SELECT lease_release('doc', 'w'); SELECT lease_acquire('doc', '1 hour', 'w', NULL)});
is(answer($sessions[1]), 't', 'after one turn of the writer the readers come in');
is(answer($sessions[2]), 't', 'the second one while the first one has its transaction open');
is(look($node, owners('doc')), 'r4', 'it is not committed yet');
$sessions[1]->query_safe('COMMIT');
is(look($node, q{SELECT lease_release('doc', 'r3'), lease_release('doc', 'r4')}), 't|t', 'they leave');
is(answer($sessions[0]), "t\nt", 'and the writer has its next turn');
nothing_left($node, 'doc');

$sessions[3]->query_safe(q{BEGIN; SELECT lease_acquire_shared('open', '1 hour', 'r1')});
send_to_wait($node, $sessions[0], q{SELECT lease_acquire('open', '1 hour', 'w', NULL)}, in_lock_manager());
is(look($node, q{SELECT lease_acquire_shared('open', '1 hour', 'r2')}), 'f', 'a writer that waits behind an open reader keeps new readers out, too');
$sessions[3]->query_safe('ROLLBACK');
is(answer($sessions[0]), 't', 'and is granted the lease when that reader rolls back');
nothing_left($node, 'open');

# Two permits are released at once, and both waiters get one.
is(look($node, q{SELECT lease_acquire_permit('pool', 2, '1 hour', 'a'), lease_acquire_permit('pool', 2, '1 hour', 'b')}), 't|t', 'both permits are taken');
send_to_wait($node, $sessions[0], q{BEGIN; SELECT lease_acquire_permit('pool', 2, '1 hour', 'c', NULL)});
send_to_wait($node, $sessions[1], q{SELECT lease_acquire_permit('pool', 2, '1 hour', 'd', NULL)});
send_to_wait($node, $sessions[2], q{SELECT lease_acquire_permit('pool', 2, '1 hour', 'e', NULL)});
is(look($node, q{SELECT lease_release('pool', 'a'), lease_release('pool', 'b')}), 't|t', 'both are released in one transaction');
is(answer($sessions[0]), 't', 'the first one who waits gets one');
is(answer($sessions[1]), 't', 'and the second one the other, although the first has its transaction open');
is(look($node, owners('pool')), 'd', 'it is not committed yet');
is(look($node, q{SELECT count(*) FROM lease_waiters WHERE owner = 'e'}), 1, 'the third one waits');
$sessions[0]->query_safe('ROLLBACK');
is(answer($sessions[2]), 't', 'and gets the permit that is rolled back');
is(look($node, owners('pool')), 'd,e', 'two have one');
nothing_left($node, 'pool');

# Changes that a session could not see when it began to wait: a permit that an
# open transaction releases, and a permit that ends before those that it saw.
is(look($node, q{SELECT lease_acquire_permit('one', 2, '1 hour', 'a')}), 't', 'one of two permits is taken');
foreach my $end ('released', 'expired')
{
	my $ttl = $end eq 'expired' ? 500 * slowness($node) . ' ms' : '1 hour';

	is($sessions[3]->query_safe("BEGIN; SELECT lease_acquire_permit('one', 2, '$ttl', 'c')"), 't', "$end: the other one in an open transaction");
	send_to_wait($node, $sessions[0], q{SELECT lease_acquire_permit('one', 2, '1 hour', 'w', NULL)});
	is($sessions[3]->query_safe(q{SELECT lease_release('one', 'c')}), 't', "$end: given back") if $end eq 'released';
	$sessions[3]->query_safe('COMMIT');
	is(answer($sessions[0]), 't', "$end: who waits gets it");
	is(look($node, q{SELECT lease_release('one', 'w')}), 't', "$end: and releases it");
}
nothing_left($node, 'one');

# When a writer gives up, the readers that it kept out are woken.
is(look($node, q{SELECT lease_acquire_shared('left', '1 hour', 'r1')}), 't', 'a reader has the resource');
my $writer = send_to_wait($node, $sessions[0], q{SELECT lease_acquire('left', '1 hour', 'w', NULL)});
send_to_wait($node, $sessions[1], q{SELECT lease_acquire_shared('left', '1 hour', 'r2', NULL)});
send_to_wait($node, $sessions[2], q{SELECT lease_acquire_shared('left', '1 hour', 'r3', NULL)});
look($node, "SELECT pg_cancel_backend($writer)");
like(answer($sessions[0]), qr/57014/, 'the writer is cancelled');
is(answer($sessions[1]), 't', 'the first reader behind it comes in');
is(answer($sessions[2]), 't', 'and the second one');
nothing_left($node, 'left');

# A free lease goes to the first waiter. A try beside it learns that others have waited for longer.
is(look($node, q{SELECT lease_acquire('turn', '1 hour', 'a')}), 't', 'a lease is held');
send_to_wait($node, $sessions[0], q{SELECT lease_acquire('turn', '1 hour', 'c', '1 hour')});
is(look($node, q{SELECT string_agg(concat_ws(' ', position, owner, held), ', ' ORDER BY position) FROM lease_contenders WHERE resource = 'turn'}),
	'1 a t, 2 c f', 'lease_contenders shows the holder and the waiter');
is(look($node, q{SELECT lease_release('turn', 'a'), (lease_request('turn', '1 hour', 'd')).reason}), 't|queue', 'a try is refused because of the waiter');
is(answer($sessions[0]), 't', 'the waiter gets it');

$_->quit foreach @sessions;
done_testing();
