# What a waiter knows of its line, and what it owes the others. A waiter that
# misses a wake-up would sleep for an hour, so no result depends on how long a
# step takes.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);
use WaitTest;

plan skip_all => 'no signal stops a process here' if $windows_os;

my $node = start_waiting_node('each_other', $WaitTest::NEVER);

# Test that the sessions with these pids have their answers, and cancel them if not.
sub all_answer
{
	my ($name, @pids) = @_;
	my $list = join(',', @pids);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	becomes($node, "SELECT count(*) FROM pg_stat_activity WHERE pid IN ($list) AND state = 'active'", 0, $name)
	  or look($node, "SELECT count(pg_cancel_backend(pid)) FROM unnest(ARRAY[$list]) AS pid");
	return;
}

sub pid_of
{
	my ($session) = @_;

	return $session->query_safe('SELECT pg_backend_pid()');
}

# A session has a resource in its transaction, loses it, and wants it again,
# while another one waits for that transaction: it goes first.
my %again = (
	'released' => [
		q{SELECT lease_acquire('r', '1 hour', 'a')},
		q{SELECT lease_release('r', 'a')},
		q{SELECT lease_acquire('r', '1 hour', 'a', NULL)}, q{lease_acquire('r', '1 hour', 'b', NULL)} ],
	'asserted and expired' => [
		q{SELECT lease_acquire('r', '1 hour', 'a'); COMMIT; BEGIN; SELECT lease_assert('r', 'a') > 0},
		q{SELECT 1},
		q{SELECT lease_acquire('r', '1 hour', 'a', NULL)}, q{lease_acquire('r', '1 hour', 'b', NULL)} ],
	'a second permit' => [
		q{SELECT lease_acquire_permit('r', 2, '1 hour', 'a')},
		q{SELECT 1},
		q{SELECT lease_acquire_permit('r', 2, '1 hour', 'c', NULL)}, q{lease_acquire('r', '1 hour', 'b', NULL)} ],
	'a second reader' => [
		q{SELECT lease_acquire_shared('r', '1 hour', 'a')},
		q{SELECT 1},
		q{SELECT lease_acquire_shared('r', '1 hour', 'c', NULL)}, q{lease_acquire('r', '1 hour', 'b', NULL)} ],
	'any of several' => [
		q{SELECT lease_acquire('r', '1 hour', 'a')},
		q{SELECT lease_release('r', 'a')},
		q{SELECT lease_acquire('r', '1 hour', 'a', NULL)}, q{lease_acquire_any('{other,r}', '1 hour', 'b', NULL) IS NOT NULL} ]);

foreach my $way (sort keys %again)
{
	my ($a, $b) = map { open_session($node) } 1, 2;
	my ($first, $then, $again, $other) = @{ $again{$way} };
	my $pid = pid_of($a);

	look($node, q{SELECT lease_acquire('other', '1 hour', 'holder')});
	$a->query_safe("BEGIN; $first");
	look($node, q{UPDATE lease_lock SET expires_at = '2000-01-01' WHERE resource = 'r'}) if $way eq 'asserted and expired';
	my $waiter = send_to_wait($node, $b, "SELECT $other", $way eq 'any of several' ? in_queue() : in_lock_manager());
	$a->query_safe($then);
	send_sql($a, $again);
	all_answer("$way: the session of the transaction goes first", $pid);
	is(answer($a), 't', "$way: it has the lease");
	$a->query_safe('ROLLBACK; SELECT lease_release_all(o) FROM unnest(ARRAY[$$a$$, $$c$$]) AS o');
	look($node, q{SELECT lease_release_all('a')});
	all_answer("$way: then the other one", $waiter);
	is(answer($b), 't', "$way: it has the lease after that");
	look($node, q{SELECT lease_release_all(o) FROM unnest(ARRAY['a', 'b', 'c', 'holder']) AS o});
	nothing_left($node, $way);
	$_->quit foreach $a, $b;
}

# The other way round: the session wants it first, and the waiter before it
# finds only then that it must wait for the session's transaction.
{
	my ($a, $b) = map { open_session($node) } 1, 2;

	look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
	$a->query_safe(q{BEGIN; SELECT lease_acquire_shared('s', '1 hour', 'a')});
	my $waiter = send_to_wait($node, $b, q{SELECT lease_acquire_any('{r,s}', '1 hour', 'b', NULL)});
	my $pid = pid_of($a);
	send_sql($a, q{SELECT lease_acquire_shared('s', '1 hour', 'c', NULL)});
	all_answer('behind a waiter: the session of the transaction goes first', $pid);
	is(answer($a), 't', 'behind a waiter: it has the lease');
	$a->query_safe('ROLLBACK');
	all_answer('behind a waiter: then the other one', $waiter);
	is(answer($b), 's', 'behind a waiter: it has one as well');
	look($node, q{SELECT lease_release_all(o) FROM unnest(ARRAY['b', 'holder']) AS o});
	nothing_left($node, 'behind a waiter');
	$_->quit foreach $a, $b;
}

# A waiter was not woken, because it will look by itself before the lease ends.
# It leaves before: the next one must know when that is. On a slow machine the
# first one may look before it leaves, which is right as well.
foreach my $way ('is cancelled', 'gets another lease', 'runs out of time')
{
	my ($first, $second) = map { open_session($node) } 1, 2;
	my $wait = 4 * slowness($node);

	look($node, q{SELECT lease_acquire('r', '1 hour', 'holder'), lease_acquire('other', '1 hour', 'holder')});
	send_to_wait($node, $first, "SELECT lease_acquire_any('{r,other}', '1 hour', 'first', '$wait s')");
	my $waiter = send_to_wait($node, $second, q{SELECT lease_acquire('r', '1 hour', 'second', NULL)});
	look($node, "SELECT granted FROM lease_request('r', 1.5 * interval '$wait s', 'holder', if_own => 'renew')");
	look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters WHERE owner = 'first'}) if $way eq 'is cancelled';
	look($node, q{SELECT lease_release('other', 'holder')}) if $way eq 'gets another lease';
	answer($first);
	all_answer("the first $way: the next one gets the lease when it ends", $waiter);
	is(answer($second), 't', "the first $way: it has it");
	look($node, q{SELECT lease_release_all(o) FROM unnest(ARRAY['first', 'second', 'holder']) AS o});
	nothing_left($node, "the first $way");
	$_->quit foreach $first, $second;
}

# The first waits for more than the next one: when it gets something else, the
# next one may have room.
{
	my ($any, $reader) = map { open_session($node) } 1, 2;

	look($node, q{SELECT lease_acquire_shared('r', '1 hour', 'other reader'), lease_acquire('other', '1 hour', 'holder')});
	send_to_wait($node, $any, q{SELECT lease_acquire_any('{r,other}', '1 hour', 'any', NULL)});
	my $waiter = send_to_wait($node, $reader, q{SELECT lease_acquire_shared('r', '1 hour', 'reader', NULL)});
	look($node, q{SELECT lease_release('other', 'holder')});
	is(answer($any), 'other', 'a writer gets another lease');
	all_answer('a writer gets another lease: the reader behind it gets its lease', $waiter);
	is(answer($reader), 't', 'a writer gets another lease: it has it');
	look($node, q{SELECT lease_release_all(o) FROM unnest(ARRAY['any', 'reader', 'other reader']) AS o});
	nothing_left($node, 'a writer gets another lease');
	$_->quit foreach $any, $reader;
}

# A waiter for any of several stands aside where a lease of its own owner blocks it, and only there.
{
	my $any = open_session($node);

	look($node, q{SELECT lease_acquire_shared('r', '1 hour', 'me'), lease_acquire_shared('other', '1 hour', 'you')});
	send_to_wait($node, $any, q{SELECT lease_acquire_any('{r,other}', '1 hour', 'me', NULL)});
	is(look($node, q{SELECT lease_acquire_shared('r', '1 hour', 'reader')}), 't', 'any, behind its own lease: readers pass');
	is(look($node, q{SELECT reason FROM lease_request('other', '1 hour', 'reader', mode => 'shared')}), 'queue', 'any, behind another lease: they do not');
	look($node, q{SELECT lease_release('r', 'reader'), lease_release('r', 'me')});
	is(answer($any), 'r', 'any, behind its own lease: it gets the resource when that is gone');
	look($node, q{SELECT lease_release_all(o) FROM unnest(ARRAY['me', 'you']) AS o});
	nothing_left($node, 'any, behind its own lease');
	$any->quit;
}

# A backend is stopped while it holds the lock of the resource. A wait ends in
# time all the same. An index expression runs under that lock.
{
	my ($stopped, $waiter) = map { open_session($node) } 1, 2;

	look($node, q{
		SELECT lease_acquire('r', '1 hour', 'x'), lease_release('r', 'x');
		CREATE FUNCTION slow(owner text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
		BEGIN
			IF owner = 'stopped' THEN
				PERFORM pg_advisory_xact_lock(1);
			END IF;
			RETURN owner;
		END $$;
		CREATE INDEX slow ON lease_lock (slow(owner));
		SELECT pg_advisory_lock(1)});
	send_to_wait($node, $stopped, q{SELECT lease_acquire('r', '1 hour', 'stopped')}, in_lock_manager());
	foreach my $wait (q{'1 s'}, q{NULL})
	{
		$waiter->query_safe(q{SET lock_timeout = '1 s'}) if $wait eq 'NULL';
		my $pid = pid_of($waiter);
		send_sql($waiter, "SELECT lease_acquire('r', '1 hour', 'waiter', $wait)");
		all_answer("behind a resource lock, wait $wait: it ends", $pid);
		like(answer($waiter), $wait eq 'NULL' ? qr/55P03/ : qr/^f$/, "behind a resource lock, wait $wait: in time");
	}
	look($node, 'SELECT pg_advisory_unlock(1)');
	is(answer($stopped), 't', 'behind a resource lock: the other one has the lease');
	look($node, q{DROP INDEX slow; SELECT lease_release_all('stopped')});
	nothing_left($node, 'behind a resource lock');
	$_->quit foreach $stopped, $waiter;
}

$node->stop;
done_testing();
