# A partition of leases moves to another server twice, and is split, while eight
# clients acquire leases through the router and directly: no lease ever has two
# holders, and tokens only grow. Until the router points to the new server, every
# step can be undone.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use IPC::Run;
use LeaseCluster;
use LeaseTest;
use PostgreSQL::Test::Utils;
use RouterTest;
use Test::More;

plan skip_all => plproxy_missing() if plproxy_missing();
plan skip_all => 'takes a minute: scripts/soak runs it, or PG_TEST_EXTRA=lease_lock_long' unless ($ENV{PG_TEST_EXTRA} // '') =~ /lease_lock_long/;

my $conf = "shared_preload_libraries = 'lease_lock'\nmax_prepared_transactions = 5\nautovacuum = off\nwal_sender_timeout = 0\nmax_connections = 60\n";
my $front = start_node('front', $conf);
my $old = start_node('old', $conf, allows_streaming => 1);
my @routed = map { connection($old, "p$_") } 0, 1;

$front->safe_psql('postgres', 'CREATE DATABASE router');
make_partition($old, $_, 2) foreach 0, 1;

# The owner of a partition may put functions before the server's and those of the extension: no step calls them.
$old->safe_psql('p1', q{
	CREATE SCHEMA evil;
	CREATE FUNCTION evil.lease_break(text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''lease_break() of the path was called''; END';
	CREATE FUNCTION evil.split_part(text, text, integer) RETURNS text LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''split_part() of the path was called''; END';
	GRANT USAGE ON SCHEMA evil TO PUBLIC;
	ALTER DATABASE p1 SET search_path = evil, pg_catalog, public});
is(make_router($front, @routed), '', 'a router to two partitions on one server');
$front->command_ok([ 'psql', '-Xq', '-d', $front->connstr('router'), '-v', 'ON_ERROR_STOP=1', '-f', contrib('workload.sql') ], 'a workload');

# Server that a partition will move to: a place and a port, nothing else yet.
sub new_place
{
	my ($name) = @_;

	return LeaseCluster->new($name);
}

# Options of move-partition for partition $number.
sub move
{
	my ($step, $number, $from, $to) = @_;
	my ($stdout, $stderr) = run_command([ contrib('move-partition'), $step, '--router', $front->connstr('router'), '--partition', $number,
			'--from', $from->connstr('postgres'), '--to', $to->connstr('postgres'), '--data', $to->data_dir,
			'--connection', connection($to, 'p1'),
			'--options', '-p ' . $to->port . ' -c unix_socket_directories=' . $to->host ]);

	note("$step $number: $stdout\n$stderr");
	return "$stdout$stderr";
}

sub start_clients
{
	my ($seconds, @ways) = @_;
	my $number = 0;

	return map {
		$number++;
		IPC::Run::start([ 'psql', '-Xq', '-d', $front->connstr('router'), '-c',
				"CALL lease_demo.work('$_ $number', '$_', 24, clock_timestamp() + '$seconds s')" ],
			'>', \my $out, '2>', "$PostgreSQL::Test::Utils::log_path/client_$number.log");
	} @ways;
}

# Seconds for which nobody was granted anything in partition 1, the longest of them.
my $gap = q{SELECT round(max(extract(epoch FROM gap)), 2) FROM (SELECT got - lag(got) OVER (ORDER BY got) AS gap
	FROM lease_demo.held WHERE lease_router.logical_partition(resource) % 2 = 1) AS g};

sub no_harm
{
	my ($name) = @_;
	my ($grants, $double, $fallen, $errors) = split(/\|/, $front->safe_psql('router', 'SELECT * FROM lease_demo.counts'));

	note($front->safe_psql('router', q{SELECT count(*), left(message, 300) FROM lease_demo.errors GROUP BY 2 ORDER BY 1 DESC}));
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok($grants, '>', 200, "$name: $grants grants, $errors errors in the pauses");
	is($double, 0, "$name: no double holder");
	is($fallen, 0, "$name: no token that fell");
	return;
}

# A server as move-partition started it, for the rest of the test.
sub adopt
{
	my ($node) = @_;

	$node->_update_pid(1);
	return;
}

my $second = new_place('second');
my $third = new_place('third');
my $fourth = new_place('fourth');

# It refuses to begin a move that it could not finish.
like(move('check', 7, $old, $second), qr/no partition 7/, 'a partition that is not there');
like(move('check', 1, $front, $second), qr/the old server has /, 'another server than that of the partition');
$old->safe_psql('p1', q{BEGIN; SELECT lease_acquire('prepared', '1 hour', 'o'); PREPARE TRANSACTION 'open'});
like(move('check', 1, $old, $second), qr/prepared transactions have to end first: 'open'/, 'a prepared transaction');
$old->safe_psql('p1', q{ROLLBACK PREPARED 'open'});
is(move('check', 1, $old, $second), '', 'checked');
like(move('drain', 1, $old, $second), qr/could not connect|connection to server/, 'drain: not without a copy');

# Undo.
like(move('replica', 1, $old, $second), qr/bytes behind/, 'replica');
like(move('replica', 1, $old, $second), qr/bytes behind/, 'replica: again');
$old->safe_psql('p1', q{BEGIN; SELECT lease_acquire('prepared', '1 hour', 'o'); PREPARE TRANSACTION 'open'});
like(move('drain', 1, $old, $second), qr/open again: .* prepared transactions: 'open'/, 'drain: not beside a prepared transaction');
is($front->safe_psql('router', q{SELECT bool_and(lease_acquire('open ' || i, '1 hour', 'o')) FROM generate_series(1, 8) AS i}), 't', 'all goes on');
$old->safe_psql('p1', q{ROLLBACK PREPARED 'open'});
like(move('promote', 1, $old, $second), qr/not drained/, 'promote: not before drain');

# A session that may still enter, but that nobody sees yet.
my $late = IPC::Run::start([ 'psql', '-Xq', '-d', $old->connstr('p1') . " options='-c post_auth_delay=" . 3 * slowness($old) . "'", '-c', 'SELECT pg_sleep(60)' ],
	'>', \my $late_out, '2>', \my $late_err);
$old->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.objid
	WHERE d.datname = 'p1' AND l.classid = 'pg_database'::regclass}) or die 'nobody is about to enter';
like(move('drain', 1, $old, $second), qr/nobody is in the partition/, 'drain');
$late->finish;
like($late_err, qr/terminating connection/, 'drain waited for a late session, and ended it');
like(move('point', 1, $old, $second), qr/not promoted/, 'point: not before promote');
is($old->psql('p1', 'SELECT 1'), 2, 'the partition is closed');
like(move('undo', 1, $old, $second), qr/open where it was/, 'undo: after drain');
is($front->safe_psql('router', q{SELECT bool_and(lease_acquire('undone ' || i, '1 hour', 'o')) FROM generate_series(1, 8) AS i}), 't', 'all goes on');
like(move('replica', 1, $old, $second), qr/bytes behind/, 'replica: once more');

# A copy that lacks the last grants is not promoted.
my @senders = split(/\n/, $old->safe_psql('postgres', 'SELECT pid FROM pg_stat_replication'));
kill('STOP', @senders) == 1 or die 'no sender to stop';
$front->safe_psql('router', q{SELECT count(lease_acquire('last ' || i, '1 hour', 'o')) FROM generate_series(1, 8) AS i});
move('drain', 1, $old, $second);
{
	local $ENV{MOVE_TIMEOUT} = 1;
	like(move('promote', 1, $old, $second), qr/does not get the last of it/, 'promote: not without all that was granted');
}
kill('CONT', @senders);
like(move('promote', 1, $old, $second), qr/closed on both/, 'promote');
like(move('undo', 1, $old, $second), qr/open where it was/, 'undo: after promote');
ok(!-e $second->data_dir, 'nothing is left of the copy');
is($old->safe_psql('postgres', 'SELECT count(*) FROM pg_replication_slots'), 0, 'nor of its slot');
$front->safe_psql('router', q{SELECT lease_release_all('o')});

# The first move, all in one, beside eight clients.
$front->safe_psql('router', q{SELECT lease_acquire('kept ' || i, '1 hour', 'keeper') FROM generate_series(1, 8) AS i});
my $slow = slowness($old);
my @clients = start_clients(40 * $slow, ('router') x 6, ('direct') x 2);
$front->poll_query_until('router', 'SELECT count(*) > 100 FROM lease_demo.held');
like(move('run', 1, $old, $second), qr/the pause was ([\d.]+) s.*gone from the old server/s, 'the first move');
adopt($second);
$front->poll_query_until('router', q{SELECT max(got) > clock_timestamp() - interval '1 s' FROM lease_demo.held
	WHERE lease_router.logical_partition(resource) % 2 = 1});

# The second, step by step, each of them twice.
foreach my $step (qw(check replica drain promote point finish))
{
	move($step, 1, $second, $third);
	unlike(move($step, 1, $second, $third), qr/move-partition: |ERROR/, "the second move: $step, and again");
}
adopt($third);
like(move('run', 1, $second, $third), qr/check: the router points to the new server already/, 'all of it, once more');
like(move('undo', 1, $second, $third), qr/move the partition back instead/, 'no undo after that');
$_->finish foreach @clients;
no_harm('two moves');
note('longest time without a grant in the partition: ' . $front->safe_psql('router', $gap) . ' s');
is($third->safe_psql('postgres', q{SELECT string_agg(datname, ' ' ORDER BY 1) FROM pg_database WHERE datname LIKE 'p_'}), 'p1', 'the partition is on the third server');
is($old->safe_psql('postgres', q{SELECT string_agg(datname, ' ' ORDER BY 1) FROM pg_database WHERE datname LIKE 'p_'}), 'p0', 'the other one where it was');
is($front->safe_psql('router', q{SELECT count(*) FROM lease_status WHERE owner = 'keeper' AND state = 'held'}), 8, 'leases moved along');

# Two partitions become three servers and four partitions.
my @doubled = map { $front->safe_psql('router', "SELECT connection FROM lease_router.partitions WHERE partition = $_") } 0, 1, 0, 1;
is(make_router($front, @doubled), '', 'each partition twice');
$front->safe_psql('router', 'TRUNCATE lease_demo.held, lease_demo.errors');
@clients = start_clients(16 * $slow, ('router') x 6, ('direct') x 2);
$front->poll_query_until('router', 'SELECT count(*) > 50 FROM lease_demo.held');
like(move('run', 3, $third, $fourth), qr/each server has its half/, 'half of a partition moves');
adopt($fourth);
$_->finish foreach @clients;
no_harm('split');
foreach my $node ([ $third, 1 ], [ $fourth, 3 ])
{
	is($node->[0]->safe_psql('p1', "SELECT bool_and(lease_router.logical_partition(resource) % 4 = $node->[1]) FROM lease_status WHERE state = 'held'"),
		't', "partition $node->[1] has its own names only");
}
is($front->safe_psql('router', q{SELECT count(*) FROM lease_status WHERE owner = 'keeper' AND state = 'held'}), 8, 'every lease is there, and once');
is(make_router($front, map { $front->safe_psql('router', "SELECT connection FROM lease_router.partitions WHERE partition = $_") } 0 .. 3),
	'', 'the router can be made again');

$_->stop foreach $fourth, $third, $second, $old, $front;
done_testing();

# A stopped sender would keep its server from being shut down.
END
{
	my $status = $?;

	kill('CONT', @senders);
	$? = $status;
}
