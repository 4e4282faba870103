# From 17 on the wait queue needs no preloading, but a segment of dynamic shared
# memory. If there is no room for it, as in a full /dev/shm, all but session
# leases works all the same: waiters look again and again.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('no_segment', $WaitTest::NEVER . <<'CONF', preload => 0);
lease_lock.poll_interval = 50ms
CONF

if (look($node, 'SHOW server_version_num') < 170000)
{
	$node->stop;
	plan skip_all => 'before 17 a server has no such segments';
}

# A segment is a new file in this folder, since start_node() chooses files.
my $folder = $node->data_dir . '/pg_dynshmem';
my $no_queue = qr/LOG:  lease_lock has no shared memory: could not open shared memory segment/;

END { chmod(0700, $folder) if $folder }	# else nobody could remove it after a failure
chmod(0500, $folder) or die "could not change $folder: $!";

# The first call of a session tries to create the segment, in the middle of a
# transaction.
my $session = open_session($node);
my $log_start = -s $node->logfile;

is($session->query_safe(q{
	BEGIN;
	CREATE TABLE work AS SELECT 1 AS n;
	SAVEPOINT s;
	SELECT lease_acquire('r', '1 hour', 'o');
	INSERT INTO work VALUES (2);
	SELECT lease_acquire('r', '1 hour', 'other'), lease_release('r', 'o');
	RELEASE s;
	SELECT lease_acquire('r', '1 hour', 'o');
	COMMIT;
	SELECT sum(n) FROM work}), "t\nf|t\nt\n3", 'tries and a release in a transaction, which goes on');
like(slurp_file($node->logfile, $log_start), $no_queue, 'the log says why there is no queue');
is(look($node, q{SELECT owner FROM lease_status}), 'o', 'other sessions see it');
is(scalar(() = slurp_file($node->logfile, $log_start) =~ /$no_queue/g), 1, 'a session tries once');

# The server's lock for such segments is free, and no lock is left.
is(look($node, q{SELECT lease_acquire('s', '1 hour', 'o2'), lease_release('s', 'o2')}), 't|t', 'another session, too');
is(look($node, q{SELECT count(*) FROM lease_waiters}), 0, 'lease_waiters is empty');
is(look($node, q{SELECT count(*) FROM pg_locks WHERE pid <> pg_backend_pid()}), 0, 'no lock is left');

# Waiters.
my @waiters = map { open_session($node) } 0, 1;
my @calls = (q{SELECT lease_acquire('r', '1 hour', 'w0', NULL)}, q{CALL lease_wait('r', '1 hour', 'w1', '1 min')});
send_to_wait($node, $waiters[$_], $calls[$_]) foreach 0, 1;
is(look($node, q{SELECT lease_release('r', 'o')}), 't', 'the lease is released');
becomes($node, q{SELECT owner ~ '^w[01]$' FROM lease_status}, 't', 'one waiter gets it');
look($node, q{SELECT lease_release('r', owner) FROM lease_status});
becomes($node, q{SELECT count(*) FROM lease_status}, 1, 'then the other one');
is(answer($_), 't', 'granted') foreach @waiters;
look($node, q{SELECT lease_release('r', owner) FROM lease_status});

# A wait ends on time, in a transaction that goes on, and also by a cancel.
look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
is($session->query_safe(q{BEGIN; INSERT INTO work VALUES (4); SELECT lease_acquire('r', '1 hour', 'w', '200 ms'); COMMIT; SELECT sum(n) FROM work}),
	"f\n7", 'the end of the wait');
my $pid = send_to_wait($node, $session, q{SELECT lease_acquire('r', '1 hour', 'w', NULL)});
look($node, "SELECT pg_cancel_backend($pid)");
like(answer($session), qr/ERROR:  57014/, 'a cancel');

# A session tries while it has locked the resource. Also after that failure, what ends the
# session waits until it has unlocked: until then other calls would wait for its last message.
look($node, q{
	CREATE FUNCTION gate(owner text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_advisory_xact_lock(7) WHERE owner IS NULL;
		RETURN true;
	END $$;
	CREATE INDEX gated ON lease_lock (gate(owner));
	SELECT lease_acquire('gated', '1 hour', 'o');
	SELECT pg_advisory_lock(7)});
my $slow = open_session($node);
my $slow_pid = send_to_wait($node, $slow, q{SELECT lease_release('gated', 'o')}, in_lock_manager());
like(slurp_file($node->logfile, $log_start), qr/\[$slow_pid\].*$no_queue/, 'a session fails to create the segment under a resource lock');
look($node, "SELECT pg_terminate_backend($slow_pid)");
stays($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $slow_pid", 1, 'and is not terminated under that lock');
look($node, q{SELECT pg_advisory_unlock(7)});
becomes($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $slow_pid", 0, 'but after it');
last_words($slow);
look($node, 'DROP INDEX gated');

# A lease that ends with its session needs the segment.
send_sql($session, q{SELECT granted FROM lease_request('session', '1 hour', 'o', session => true)});
like(answer($session), qr/ERROR:  0A000/, 'a session lease is refused');
unlike(slurp_file($node->logfile, $log_start), qr/FATAL(?!:  terminating connection due to administrator command)|PANIC/, 'without an error');

# When there is room again, new sessions have a queue.
chmod(0700, $folder) or die "could not change $folder: $!";
my $new = open_session($node);
send_sql($new, q{SELECT lease_acquire('r', '1 hour', 'new', NULL)});
my $observer = open_session($node);
my $end = time + $WaitTest::LIMIT;
my $seen = '';
while ($seen eq '' && time < $end)
{
	$seen = $observer->query_safe('SELECT owner FROM lease_waiters');
}
is($seen, 'new', 'with room for the segment there is a queue');
is($observer->query_safe(q{SELECT lease_release('r', 'holder')}), 't', 'the lease is released');
is(answer($new), 't', 'and the waiter gets it');

$node->stop;
done_testing();
