# An error of the purge worker is logged, the other databases are still purged,
# and failures are retried after longer and longer times.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use PurgeTest;
use Test::More;

my $node = start_purging_node('trouble');
my $psql = sub { return $node->safe_psql('postgres', shift) };

# Several visits to the database postgres, one after the other.
sub some_visits
{
	for my $visit (1 .. 3)
	{
		add_ended($node, 'postgres', 10);
		$node->poll_query_until('postgres', 'SELECT count(*) = 0 ' . ended()) or die 'nothing is purged';
	}
	return;
}

# A damaged lock table in one database.
add_database($node, 'bad');
add_ended($node, 'bad', 10);
is_purged($node, 'bad', 'before');
$node->safe_psql('bad', q{
	CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
	CREATE TRIGGER t AFTER DELETE ON lease_lock EXECUTE FUNCTION nothing();
	INSERT INTO lease_lock VALUES ('ended 1', 0, NULL, '2000-01-01', 0, '2000-01-01', '3', 10, 'x', 0);
});
my $complaint = qr/ERROR:  lock table "lease_lock" has a trigger/;
$node->wait_for_log($complaint);
like(slurp_file($node->logfile), qr/$complaint.*\n.*DETAIL:  The lease functions write.*\n.*HINT:  Drop it.*\n.*CONTEXT:  purge of leases that ended in database "bad"/,
	'an error says what is wrong, and in which database');
some_visits();
is($node->safe_psql('bad', 'SELECT count(*) ' . ended()), 1, 'nothing is purged there');

# From 100 ms on the time between two visits doubles: in 10 s there are 7 of them, and not 100.
set_and_reload($node, 'lease_lock.purge_interval', '100ms');
my $began = time;
my $errors = times_logged($node, $complaint);
$node->poll_query_until('postgres', "SELECT count(*) = 0 " . ended()) or die 'nothing is purged';
cmp_ok($errors, '<', 3 + log(10 * (1 + time - $began) + 10 * ($began - $^T)) / log(2), 'and is not retried all the time');

$node->safe_psql('bad', 'DROP TRIGGER t ON lease_lock');
$node->reload;
is_purged($node, 'bad', 'repaired, and the configuration reloaded');

$node->safe_psql('bad', 'ALTER EXTENSION lease_lock DROP TABLE lease_lock; ALTER TABLE lease_lock RENAME TO lost');
$node->wait_for_log(qr/ERROR:  relation "lease_lock" of extension "lease_lock" does not exist/);
$node->safe_psql('bad', 'DROP EXTENSION lease_lock');
some_visits();
is(times_logged($node, qr/purge worker.*exited with exit code/), 0, 'a worker that fails exits without an error code');

# A database that cannot be connected to: the server logs that itself.
$psql->('CREATE DATABASE broken');
my $oid = $psql->("SELECT oid FROM pg_database WHERE datname = 'broken'");
add_database($node, 'neighbour');
$psql->('CHECKPOINT');
rename($node->data_dir . "/base/$oid", $node->data_dir . "/base/gone") or die "rename: $!";
set_and_reload($node, 'lease_lock.purge_interval', '1ms');
$node->restart;
foreach my $round (1 .. 10)
{
	add_ended($node, 'neighbour', 10);
	is_purged($node, 'neighbour', "beside a database that cannot be connected to, round $round");
}
# From one millisecond on the time between two visits doubles.
my $visits = times_logged($node, qr/The database subdirectory .* is missing/);
cmp_ok($visits, '>', 0, 'the server logs the failed connection');
cmp_ok($visits, '<', 25, 'the time between visits grows');
rename($node->data_dir . "/base/gone", $node->data_dir . "/base/$oid") or die "rename: $!";
$node->safe_psql('broken', 'CREATE EXTENSION lease_lock');
add_ended($node, 'broken', 10);
set_and_reload($node, 'lease_lock.purge_interval', '100ms');
$node->restart;
is_purged($node, 'broken', 'purged when connections are possible again');

# An administrator ends the worker, or cancels what it does.
foreach my $function ('pg_terminate_backend', 'pg_cancel_backend')
{
	add_ended($node, 'postgres', 30000);
	$node->poll_query_until('postgres', "SELECT count(*) > 0 FROM (SELECT $function(pid) FROM pg_stat_activity WHERE "
			. worker_in('postgres') . ') AS ended');
	is_purged($node, 'postgres', "$function of the worker");
}

# ... or the launcher, which comes back after a while, not at once.
my $launcher = $psql->('SELECT pid FROM pg_stat_activity WHERE ' . launcher());
my $ended_at = $psql->("SELECT extract(epoch FROM clock_timestamp()) FROM pg_terminate_backend($launcher, 60000)");
becomes_true($node, 'postgres', 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . launcher(), 'the launcher comes back');
add_ended($node, 'postgres', 10);
is_purged($node, 'postgres', 'pg_terminate_backend of the launcher');
cmp_ok($psql->('SELECT extract(epoch FROM backend_start) FROM pg_stat_activity WHERE ' . launcher()) - $ended_at,
	'>=', 5, 'it does not come back at once');

# Notices cannot be sent, because a session that listens keeps the queue of NOTIFY full.
# Before 17 the queue has no limit that a test could reach.
SKIP:
{
	skip 'the queue of NOTIFY has no setting before 17' if $psql->('SHOW server_version_num') < 170000;
	my $full = qr/ERROR:  too many notifications in the NOTIFY queue.*\n.*CONTEXT:  purge of leases that ended/;

	$node->append_conf('postgresql.conf', "max_notify_queue_pages = 64\nlease_lock.purge_interval = '1 s'");
	$node->restart;
	my ($listener, $notifier) = map { open_session($node) } 0, 1;
	$psql->(q{SELECT lease_watch('', 'stuck', ARRAY['expired'])});
	$listener->query_safe('LISTEN stuck');
	$listener->query_safe('BEGIN; SELECT 1');
	for (my $i = 0; $notifier->{stderr} !~ /ERROR/ && $i < 1000; $i++)
	{
		$notifier->query("SELECT pg_notify('stuck', repeat('x', 7900) || $i)");
	}
	like($notifier->{stderr}, qr/54000: too many notifications/, 'the queue is full');
	$notifier->{stderr} = '';
	$psql->(q{SELECT lease_acquire('untold', '1 ms', 'o')});
	$node->wait_for_log($full);
	add_ended($node, 'postgres', 10);
	is_purged($node, 'postgres', 'although notices cannot be sent');
	$_->quit foreach $listener, $notifier;
	$psql->(q{SELECT lease_unwatch('', 'stuck')});
}

# No slot is left for a worker. The server's own launcher of logical
# replication has one, ours another.
$node->append_conf('postgresql.conf', 'max_worker_processes = 2');
$node->restart;
my $no_slot = qr/WARNING:  could not start a worker to purge leases: no background worker slot is free/;
$node->wait_for_log($no_slot);
add_ended($node, 'postgres', 10);
my $rounds = 'SELECT count(*) > 0 FROM pg_stat_activity WHERE ' . launcher() . ' AND state_change > ';
my $now = $psql->('SELECT clock_timestamp()');
foreach my $round (1 .. 3)
{
	$node->poll_query_until('postgres', $rounds . "'$now'") or die 'no further round';
	$now = $psql->('SELECT clock_timestamp()');
}
is(times_logged($node, $no_slot), 1, 'no slot: logged once, although the launcher tries again');
is($psql->('SELECT lease_purge()'), 10, 'no slot: lease_purge() works');

$node->append_conf('postgresql.conf', 'max_worker_processes = 3');
$node->restart;
add_ended($node, 'postgres', 10);
is_purged($node, 'postgres', 'a slot is enough');

# Not even the launcher finds one.
$node->append_conf('postgresql.conf', 'max_worker_processes = 0');
$node->restart;
is($psql->("SELECT lease_acquire('r', '1 microsecond', 'o'), lease_purge()"), 't|1', 'no launcher: leases work');

$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP/, 'nothing worse happened');
done_testing();
