# Deadlocks across leases, assertions, row locks and transactions, which neither
# the server nor the owners' names alone show. And using the owner name of another
# role does not make that role's waits fail.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('deadlock_mixed', <<'CONF');
deadlock_timeout = 100ms
lease_lock.handoff_timeout = 1h
CONF

$node->safe_psql('postgres', q{
	CREATE TABLE t (id int);
	INSERT INTO t VALUES (1);
	CREATE ROLE alice;
	CREATE ROLE mallory;
});

# Test that a wait has ended, and end all of them if it has not.
sub ends
{
	my ($session_pid, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	becomes($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $session_pid AND state = 'active'", 0, $name)
	  or look($node, q{SELECT count(pg_cancel_backend(pid)) FROM lease_waiters});
	return;
}

# A has what B waits for in the lock manager, and waits for B's lease.
my %ways = (
	'an asserted lease that ran out' => [
		q{SELECT lease_acquire('a', '1 hour', 'A')}, q{BEGIN; SELECT lease_assert('a', 'A') > 0} ],
	'a row lock on a lease that ran out' => [
		q{SELECT lease_acquire('a', '1 ms', 'A')}, q{BEGIN; SELECT FROM lease_lock WHERE resource = 'a' FOR UPDATE} ],
	'an uncommitted lease' => [ q{BEGIN; SELECT lease_acquire('a', '1 hour', 'A')} ]);

foreach my $way (sort keys %ways)
{
	my ($a, $b) = map { open_session($node) } 1, 2;

	look($node, q{SELECT lease_acquire('b', '1 hour', 'B')});
	$a->query_safe($_) foreach @{ $ways{$way} };
	look($node, q{UPDATE lease_lock SET expires_at = '2000-01-01' WHERE resource = 'a'}) if $way =~ /^an asserted/;
	send_to_wait($node, $b, q{SELECT lease_acquire('a', '1 hour', 'B', NULL)}, in_lock_manager());
	my $pid = $a->query_safe('SELECT pg_backend_pid()');
	send_sql($a, q{SELECT lease_acquire('b', '1 hour', 'A', NULL)});
	ends($pid, "$way: the one that waits for a committed lease fails");
	like(answer($a), qr/ERROR:  40P01: deadlock detected/, "$way: it is told why");
	$a->query_safe('ROLLBACK');
	look($node, q{SELECT lease_release_all('A')});
	is(answer($b), 't', "$way: the other one gets the lease");
	look($node, q{SELECT lease_release_all('B')});
	nothing_left($node, $way);
	$_->quit foreach $a, $b;
}

# The same with a third process in between, which waits for no lease at all.
{
	my ($a, $b, $c) = map { open_session($node) } 1 .. 3;

	look($node, q{SELECT lease_acquire('b', '1 hour', 'B')});
	$a->query_safe(q{BEGIN; UPDATE t SET id = id});
	$c->query_safe(q{BEGIN; SELECT lease_acquire('c', '1 hour', 'C')});
	send_to_wait($node, $c, 'UPDATE t SET id = id', in_lock_manager());
	send_to_wait($node, $b, q{SELECT lease_acquire('c', '1 hour', 'B', NULL)}, in_lock_manager());
	my $pid = $a->query_safe('SELECT pg_backend_pid()');
	send_sql($a, q{SELECT lease_acquire('b', '1 hour', 'A', NULL)});
	ends($pid, 'three processes: one fails');
	like(answer($a), qr/40P01: deadlock.*Process \d+ waits for a lock; blocked by process \d+/s, 'three processes: the error says why');
	$a->query_safe('ROLLBACK');
	answer($c);
	$c->query_safe('ROLLBACK');
	is(answer($b), 't', 'three processes: the others go on');
	look($node, q{SELECT lease_release_all('B')});
	nothing_left($node, 'three processes');
	$_->quit foreach $a, $b, $c;
}

# The session that holds a session lease waits for what the waiter's transaction has locked:
# a row, or a lease under another name than the one it holds.
foreach my $way ('a row', 'a session lease')
{
	my ($a, $b) = map { open_session($node) } 1, 2;

	$b->query_safe(q{SELECT lease_request('b', NULL, 'B', session => true)});
	if ($way eq 'a row')
	{
		$a->query_safe(q{BEGIN; UPDATE t SET id = id});
		send_to_wait($node, $b, 'UPDATE t SET id = id', in_lock_manager());
	}
	else
	{
		$a->query_safe(q{SELECT lease_request('a', NULL, 'A', session => true)});
		send_to_wait($node, $b, q{SELECT lease_acquire('a', '1 hour', 'other B', NULL)});
	}
	my $pid = $a->query_safe('SELECT pg_backend_pid()');
	send_sql($a, q{SELECT lease_acquire('b', '1 hour', 'other A', NULL)});
	ends($pid, "behind a session, $way: the one that waits for the lease fails");
	like(answer($a), qr/40P01: deadlock.*blocked by process \d+/s, "behind a session, $way: it is told why");
	$a->query_safe($way eq 'a row' ? 'ROLLBACK' : q{SELECT lease_release('a', 'A')});
	answer($b);
	look($node, q{SELECT lease_release_all('B'), lease_release_all('other B')});
	nothing_left($node, "behind a session, $way");
	$_->quit foreach $a, $b;
}

# A session that waits for its own session lease is no deadlock: another one can release it.
{
	my $a = open_session($node);

	$a->query_safe(q{SELECT lease_request('a', NULL, 'A', session => true)});
	my $pid = send_to_wait($node, $a, q{SELECT lease_acquire('a', '1 hour', 'other A', NULL)});
	look($node, 'SELECT pg_sleep(0.5)');
	stays($node, 'SELECT pid FROM lease_waiters', $pid, 'behind itself: it waits');
	look($node, q{SELECT lease_release('a', 'A')});
	is(answer($a), 't', 'behind itself: until another session releases the lease');
	look($node, q{SELECT lease_release_all('other A')});
	$a->quit;
}

# H commits before it waits for B's lease, and the commit takes long, here because of a trigger that waits for a lock.
# It will end, and H does not yet sleep.
{
	my ($h, $x, $b, $gate) = map { open_session($node) } 1 .. 4;

	$node->safe_psql('postgres', q{
		CREATE TABLE slow ();
		CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON slow INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_gate();
		CREATE PROCEDURE give_and_wait() LANGUAGE plpgsql AS $$
		DECLARE
			granted bool;
			token bigint;
			expires timestamptz;
		BEGIN
			PERFORM lease_release('h', 'H');
			INSERT INTO slow DEFAULT VALUES;
			CALL lease_wait('b', '1 hour', 'H', NULL, granted, token, expires);
			RAISE NOTICE 'granted: %', granted;
		END $$});
	$gate->query_safe('SELECT pg_advisory_lock(1)');
	$h->query_safe(q{SELECT lease_acquire('h', '1 hour', 'H')});
	$x->query_safe(q{SELECT lease_acquire('x', '1 hour', 'X')});
	$b->query_safe(q{SELECT lease_acquire('b', '1 hour', 'B')});
	send_to_wait($node, $h, 'CALL give_and_wait()', in_lock_manager());
	send_to_wait($node, $x, q{SELECT lease_acquire('h', '1 hour', 'X', NULL)}, in_lock_manager());
	send_to_wait($node, $b, q{SELECT lease_acquire('x', '1 hour', 'B', NULL)});
	look($node, 'SELECT pg_sleep(0.5)');
	stays($node, q{SELECT string_agg(owner, ',' ORDER BY owner) FROM lease_waiters}, 'B,H,X', 'a commit that takes long is no part of a deadlock');
	$gate->query_safe('SELECT pg_advisory_unlock(1)');
	is(answer($x), 't', 'when it is over, the next one has its lease');
	$x->query_safe(q{SELECT lease_release_all('X')});
	is(answer($b), 't', 'and then the one that waited for that');
	$b->query_safe(q{SELECT lease_release_all('B')});
	like(answer($h), qr/granted: t/, 'and H');
	look($node, q{SELECT lease_release_all('H')});
	nothing_left($node, 'after the commit');
	$_->quit foreach $h, $x, $b, $gate;
}

# mallory waits for the victim's lease under the name of alice's owner, for whose
# lease the victim waits. alice is not mallory: nothing is wrong.
sub guess
{
	my ($role) = @_;
	my ($alice, $other, $victim) = map { open_session($node) } 1 .. 3;
	my $waiting = q{SELECT string_agg(owner, ',') FROM lease_waiters};

	$alice->query_safe(q{SET ROLE alice; SELECT lease_acquire('x', '1 hour', 'X')});
	$victim->query_safe(q{SELECT lease_acquire('v', '1 hour', 'V')});
	$other->query_safe("SET ROLE $role");
	send_to_wait($node, $other, q{SELECT lease_acquire('v', '1 hour', 'X', NULL)});
	send_sql($victim, q{SELECT lease_acquire('x', '1 hour', 'V', NULL)});
	if ($role eq 'alice')
	{
		like(answer($victim), qr/40P01/, "$role by her own name: a deadlock");
	}
	else
	{
		becomes($node, $waiting, 'X,V', "$role by another's name: both wait");
		look($node, 'SELECT pg_sleep(1)');
		stays($node, $waiting, 'X,V', "$role by another's name: and wait on");
	}
	look($node, q{SELECT count(pg_cancel_backend(pid)) FROM lease_waiters});
	like(answer($other), qr/57014/, "$role: cancelled");
	like(answer($victim), qr/57014/, "$role: cancelled") if $role ne 'alice';
	look($node, q{SELECT lease_release_all('X'), lease_release_all('V')});
	nothing_left($node, $role);
	$_->quit foreach $alice, $other, $victim;
	return;
}

guess('alice');
guess('mallory');

# mallory acquires a lease under the name of the victim's owner and waits for it. The victim
# is a superuser, and so has mallory's privileges, but it is not mallory's session that waits.
{
	my ($mallory, $other, $victim) = map { open_session($node) } 1 .. 3;
	my $waiting = q{SELECT string_agg(owner, ',') FROM lease_waiters};

	$mallory->query_safe(q{SET ROLE mallory; SELECT lease_acquire('x', '1 hour', 'X'), lease_acquire('m', '1 hour', 'V')});
	$other->query_safe('SET ROLE mallory');
	send_to_wait($node, $other, q{SELECT lease_acquire('m', '1 hour', 'X', NULL)});
	send_sql($victim, q{SELECT lease_acquire('x', '1 hour', 'V', NULL)});
	becomes($node, $waiting, 'X,V', 'a lease under the name of a superuser: both wait');
	look($node, 'SELECT pg_sleep(1)');
	stays($node, $waiting, 'X,V', 'a lease under the name of a superuser: and keep waiting');
	look($node, q{SELECT count(pg_cancel_backend(pid)) FROM lease_waiters});
	like(answer($_), qr/57014/, 'a lease under the name of a superuser: cancelled') foreach $other, $victim;
	look($node, q{SELECT lease_release_all('X'), lease_release_all('V')});
	nothing_left($node, 'a lease under the name of a superuser');
	$_->quit foreach $mallory, $other, $victim;
}

$node->stop;
done_testing();
