# Watches tell what happened to leases: at commit, in the order of the commits,
# and nothing that was rolled back.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PurgeTest qw(set_and_reload);
use Test::More;
use WaitTest qw(stop_backend continue_backend);

my $node = start_node('watches', <<'CONF');
shared_preload_libraries = 'lease_lock'
lease_lock.purge_interval = 0
max_prepared_transactions = 2
wal_level = replica
max_wal_senders = 2
CONF
my $listener = open_session($node);
$listener->query_safe('LISTEN events; LISTEN more');

# What was told since the last call: "event resource", or what the fields say.
sub told
{
	my ($format) = @_;
	my $out = $listener->query('SELECT 1');
	my @notices;

	while ($out =~ /Asynchronous notification "(\w+)" with payload "(\{.*?\})" received/g)
	{
		my ($channel, $json) = ($1, $2);
		my %f = $json =~ /"(\w+)": "?((?:[^",}\\]|\\.)*)"?/g;

		push @notices, $format ? $format->($channel, \%f, $json) : "$f{event} $f{resource}";
	}
	return join(', ', @notices);
}

# The same, as soon as there is something.
sub told_soon
{
	my $told = '';

	for (my $i = 0; $i < 1800 && $told eq ''; $i++)
	{
		select(undef, undef, undef, 0.1) if $i > 0;
		$told = told(@_);
	}
	return $told;
}

my $sql = sub { return $node->safe_psql('postgres', shift) };

# A session that has seen that there are no watches learns of the first one.
my $early = open_session($node);
$early->query_safe("SELECT lease_acquire('job/early', '1 hour', 'ann')");
$sql->("SELECT lease_watch('job/', 'events')");
$early->query_safe("SELECT lease_release('job/early', 'ann')");
is(told(), 'released job/early', 'the first watch');

# every event
$sql->("SELECT lease_acquire('job/1', '1 hour', 'ann'), lease_acquire('task/1', '1 hour', 'ann')");
is(told(), 'granted job/1', 'granted, with that prefix only');
$sql->("SELECT lease_renew('job/1', '1 hour', 'ann')");
is(told(), '', 'renewals are not told unless they are asked for');
$sql->("SELECT lease_transfer('job/1', 'ann', 'bob')");
is(told(sub { "$_[1]->{event} $_[1]->{owner}" }), 'transferred bob', 'transferred: to whom');
$sql->("SELECT lease_downgrade('job/1', 'bob')");
is(told(sub { "$_[1]->{event} $_[1]->{mode}" }), 'downgraded shared', 'downgraded');
$sql->("SELECT lease_break('job/1')");
is(told(), 'broken job/1', 'broken');
$sql->("SELECT lease_acquire('job/1', '1 microsecond', 'ann')");
$sql->("SELECT lease_acquire('job/1', '1 hour', 'bob')");
is(told(sub { "$_[1]->{event} $_[1]->{owner}" }), 'granted ann, taken_over bob', 'taken over');
$sql->("SELECT lease_release_all('bob')");
is(told(), 'released job/1', 'released');
is($sql->("SELECT count(*) FROM lease_request('job/1', '1 hour', 'ann')"), 1, 'granted');
$sql->("SELECT granted FROM lease_request('job/1', '1 hour', 'bob')");
is(told(), 'granted job/1', 'a refusal tells nothing');

# wanted: told while the waiter waits, and so is a wait by lease_wait()
my $waiter = open_session($node);
begin_query($waiter, "SELECT lease_acquire('job/1', '1 hour', 'bob', '180 s')");
is(told_soon(sub { "$_[1]->{event} $_[1]->{resource} $_[1]->{owner} " . (exists $_[1]->{token} ? 1 : 0) }),
	'wanted job/1 bob 0', 'wanted, while it waits');
$sql->("SELECT lease_release('job/1', 'ann')");
is(finish_query($waiter), 't', 'the holder gave way');
is(told(), 'released job/1, granted job/1', 'which is told, too');
begin_query($waiter, "CALL lease_wait('job/1', '1 hour', 'carl', '180 s')");
is(told_soon(), 'wanted job/1', 'wanted by lease_wait()');
$sql->("SELECT lease_release('job/1', 'bob')");
like(finish_query($waiter), qr{^t}, 'granted');
is(told(), 'released job/1, granted job/1', 'told');
$sql->("SELECT lease_release('job/1', 'carl')");
told();

# A notice has only ASCII characters, which every client's encoding has.
my $latin = open_session($node);
$latin->query_safe(q{SET client_encoding = 'latin1'; LISTEN events});
$sql->(q{SELECT lease_acquire(U&'job/\65E5\672C \+01F600' || E'\n', '1 hour', U&'m\00FCller')});
is(told(sub { $_[2] }), q({"event": "granted", "resource": "job/\u65e5\u672c \ud83d\ude00\n", "token": 0, "mode": "exclusive", "owner": "m\u00fcller"})
		=~ s/"token": 0/'"token": ' . $sql->(q{SELECT token FROM lease_status WHERE owner LIKE 'm%ller'})/er, 'a name in other scripts');
like($latin->query('SELECT 1'), qr/Asynchronous notification "events" with payload .*u65e5/s, 'a client that cannot show it is told, too, and goes on');
$latin->quit;

# A broken lease tells who broke it.
is($sql->(q{CREATE ROLE breaker; GRANT EXECUTE ON FUNCTION lease_break(text) TO breaker; SET ROLE breaker;
	SELECT lease_break(resource) FROM lease_status WHERE resource LIKE 'job/%日本%'}), 't', 'broken');
is(told(sub { "$_[1]->{event} $_[1]->{broken_by}" }), 'broken breaker', 'by whom');

# However many sessions wait, there is at most one announcer, so others keep their workers.
{
	my @waiters = map { open_session($node) } 1 .. 8;

	$sql->(q{SELECT lease_acquire('job/busy', '1 hour', 'ann')});
	begin_query($_, q{DO $$ BEGIN FOR i IN 1 .. 200 LOOP PERFORM lease_acquire('job/busy', '1 hour', 'bob', '1 ms'); END LOOP; END $$; SELECT 'done'})
	  foreach @waiters;
	my $most = $sql->(q{SELECT 0});
	my $observer = open_session($node);
	for (1 .. 200)
	{
		my $now = $observer->query_safe(q{SELECT count(*) FROM pg_stat_get_activity(NULL) AS a WHERE a.backend_type = 'lease_lock announcer'});
		$most = $now if $now > $most;
	}
	is(finish_query($_), 'done', 'waits that end') foreach @waiters;
	cmp_ok($most, '<=', 1, 'one announcer at a time');
	$_->quit foreach @waiters, $observer;
	$sql->(q{SELECT lease_release('job/busy', 'ann')});
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'lease_lock announcer'}), 'it leaves');
	told();

	# It serves one database after the other.
	$sql->('CREATE DATABASE second');
	$node->safe_psql('second', q{CREATE EXTENSION lease_lock; SELECT lease_watch('', 'events'); SELECT lease_acquire('there', '1 hour', 'ann')});
	$sql->(q{SELECT lease_acquire('job/here', '1 hour', 'ann')});
	told();
	my $there = open_session($node, 'second');
	my $listener_there = open_session($node, 'second');
	my $here = open_session($node);
	$listener_there->query_safe('LISTEN events');
	begin_query($here, q{SELECT lease_acquire('job/here', '1 hour', 'bob', '180 s')});
	is(told_soon(), 'wanted job/here', 'a wait in one database');
	my $busy = open_session($node);
	$sql->('CREATE TABLE enough ()');
	begin_query($busy, q{DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM enough) LOOP PERFORM lease_acquire('job/here', '1 hour', 'carl', '100 ms'); END LOOP; END $$; SELECT 'done'});
	like(told_soon(), qr{^wanted job/here}, 'which goes on waiting, again and again');
	# It does so even if new sessions are kept out of that one.
	$sql->('ALTER DATABASE second ALLOW_CONNECTIONS false');
	begin_query($there, q{SELECT lease_acquire('there', '1 hour', 'bob', '180 s')});
	my $out = '';
	for (my $i = 0; $i < 1800 && $out !~ /wanted/; $i++)
	{
		select(undef, undef, undef, 0.1) if $i > 0;
		$out .= $listener_there->query('SELECT 1');
	}
	like($out, qr/"event": "wanted", "resource": "there"/, 'and in another, meanwhile');
	$sql->('ALTER DATABASE second ALLOW_CONNECTIONS true');
	$sql->('INSERT INTO enough DEFAULT VALUES');
	is(finish_query($busy), 'done', 'no more waits');
	$busy->quit;
	$sql->(q{SELECT lease_release('job/here', 'ann')});
	$node->safe_psql('second', q{SELECT lease_release('there', 'ann')});
	is(finish_query($_), 't', 'granted') foreach $here, $there;
	$_->quit foreach $here, $there, $listener_there;
	$sql->(q{SELECT lease_release('job/here', 'bob')});
	$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'second'});
	$sql->('DROP DATABASE second');
	told();

	# While a commit with a notice waits for a standby, nobody can send one. Each announcer would hang, and take a worker
	# slot. So it gives up.
	my ($commit, $waiter) = map { open_session($node) } 1, 2;

	$sql->(q{SELECT lease_acquire('job/standby', '1 hour', 'ann')});
	told();
	set_and_reload($node, 'synchronous_standby_names', 'nobody');
	begin_query($commit, q{BEGIN; CREATE TABLE written (); NOTIFY silence; COMMIT; SELECT 'done'});
	ok($node->poll_query_until('postgres', q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'}), 'a commit waits for a standby');
	begin_query($waiter, q{SELECT lease_acquire('job/standby', '1 hour', 'bob', '180 s')});
	ok($node->poll_query_until('postgres', q{SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'lease_lock announcer' AND wait_event_type = 'Lock'}),
		'and the announcer for the commit');
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'lease_lock announcer'}), 'but not for long');
	set_and_reload($node, 'synchronous_standby_names', '');
	is(finish_query($commit), 'done', 'the commit is over');
	$sql->(q{SELECT lease_release('job/standby', 'ann')});
	is(finish_query($waiter), 't', 'the wait goes on');
	$_->quit foreach $commit, $waiter;
	$sql->(q{SELECT lease_release('job/standby', 'bob')});
	told();
}

# A wait for any of several leases tells of those whose names the queue keeps, and are watched.
{
	my @names = map { "job/n$_" } 1 .. 17;

	$sql->(q{SELECT lease_acquire_all(array_agg(r), '1 hour', 'ann') FROM (SELECT 'job/n' || i FROM generate_series(1, 18) AS i UNION SELECT 'task/n') AS t (r)});
	told();
	my $any = open_session($node);

	begin_query($any, q{SELECT lease_acquire_any(ARRAY['job/n1', 'task/n', 'job/n2'], '1 hour', 'bob', '180 s')});
	is(told_soon(sub { "$_[1]->{resource} $_[1]->{owner}" }), 'job/n1 bob, job/n2 bob', 'both watched leases of three are wanted');
	$sql->(q{SELECT lease_release('task/n', 'ann')});
	is(finish_query($any), 'task/n', 'granted');
	begin_query($any, q{SELECT lease_acquire_any(array_agg('job/n' || i ORDER BY i), '1 hour', 'bob', '180 s') FROM generate_series(1, 18) AS i});
	is(told_soon(), join(', ', map { "wanted $_" } @names), 'the first 17 of 18');
	$sql->(q{SELECT lease_release('job/n18', 'ann')});
	is(finish_query($any), 'job/n18', 'granted');
	$any->quit;
	$sql->(q{SELECT count(lease_break(resource)) FROM lease_status WHERE resource LIKE '%/n%'});
	told();
}

# Stop the announcer between two notices. Waits, again and again, keep it from leaving before it is stopped.
sub stop_announcer
{
	my $busy = open_session($node);
	my $pid;

	$sql->(q{TRUNCATE enough});
	begin_query($busy, q{DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM enough) LOOP PERFORM lease_acquire('job/now', '1 hour', 'carl', '10 ms'); END LOOP; END $$; SELECT 'done'});
	$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'lease_lock announcer' AND state = 'idle'})
	  or die 'no announcer';
	$pid = $sql->(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'lease_lock announcer'});
	stop_backend($pid);
	$sql->('INSERT INTO enough DEFAULT VALUES');
	finish_query($busy);
	$busy->quit;
	return $pid;
}

# A wait that has ended when the announcer comes is not told. One that goes on is, even if that announcer dies.
$sql->(q{SELECT lease_acquire('job/now', '1 hour', 'ann'), lease_acquire('job/later', '1 hour', 'ann')});
told();
foreach my $end ('continues', 'dies')
{
	my ($short, $long) = map { open_session($node) } 1, 2;
	my $pid = stop_announcer();

	is($short->query_safe(q{SELECT lease_acquire('job/now', '1 hour', 'short', '1 ms')}), 'f', 'a wait that ends');
	begin_query($long, q{SELECT lease_acquire('job/later', '1 hour', 'long', '180 s')});
	$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM lease_waiters}) or die 'no waiter';
	$sql->("SELECT pg_terminate_backend($pid)") if $end eq 'dies';
	continue_backend($pid);

	my @owners;
	for (my $i = 0; $i < 1800 && !grep({ $_ eq 'long' } @owners); $i++)
	{
		select(undef, undef, undef, 0.1) if $i > 0;
		push @owners, split(/, /, told(sub { $_[1]->{owner} }));
	}
	is(join(' ', grep { $_ ne 'carl' } @owners), 'long', "the announcer $end: the other wait is told");
	$sql->(q{SELECT lease_release('job/later', 'ann')});
	is(finish_query($long), 't', 'granted');
	$sql->(q{SELECT lease_transfer('job/later', 'long', 'ann')});
	unlike(told(sub { $_[1]->{owner} }), qr/short/, 'and the first one is not');
	$_->quit foreach $short, $long;
}
$sql->(q{SELECT lease_release('job/now', 'ann'), lease_release('job/later', 'ann')});
told();

# nothing that was rolled back, be it to a savepoint
$sql->(q{
	BEGIN;
	SELECT lease_acquire('job/kept', '1 hour', 'ann');
	SAVEPOINT a;
	SELECT lease_acquire('job/undone', '1 hour', 'ann');
	SAVEPOINT b;
	SELECT lease_acquire('job/undone too', '1 hour', 'ann');
	RELEASE b;
	ROLLBACK TO a;
	SAVEPOINT c;
	SELECT lease_acquire('job/inner', '1 hour', 'ann');
	RELEASE c;
	COMMIT;
	BEGIN;
	SELECT lease_release('job/kept', 'ann');
	ROLLBACK;
	SELECT lease_acquire_all(ARRAY['job/a', 'job/b', 'job/kept'], '1 hour', 'bob');
});
is(told(), 'granted job/kept, granted job/inner', 'no event that was rolled back');

# a transaction with events can be prepared, and tells nothing
$sql->("BEGIN; SELECT lease_acquire('job/prepared', '1 hour', 'ann'); PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'");
is(told(), '', 'prepared');

# in the order of the commits
my ($one, $two) = (open_session($node), open_session($node));
$one->query_safe("BEGIN; SELECT lease_acquire('job/first granted', '1 hour', 'one')");
$two->query_safe("BEGIN; SELECT lease_acquire('job/first committed', '1 hour', 'two')");
is(told(), '', 'nothing before the commit');
$two->query_safe('COMMIT');
$one->query_safe('COMMIT');
is(told(), 'granted job/first committed, granted job/first granted', 'in the order of the commits');

# owners are told if the creator of the watch may see them
$sql->(q{
	CREATE ROLE watcher;
	CREATE ROLE holder;
	GRANT EXECUTE ON FUNCTION lease_watch(text, text, text[]) TO watcher;
	SET ROLE watcher;
	SELECT lease_watch('job/secret', 'more');
	RESET ROLE;
	SET ROLE holder;
	SELECT lease_acquire('job/secret', '1 hour', 'password');
});
is(told(sub { "$_[0] " . ($_[1]->{owner} // '-') }), 'events password, more -', 'the owner, if the creator may see it');
$sql->("GRANT holder TO watcher; SELECT lease_release('job/secret', 'password')");
is(told(sub { "$_[0] " . ($_[1]->{owner} // '-') }), 'events password, more password', 'and now');
$sql->(q{
	DROP OWNED BY watcher;
	DROP ROLE watcher;
	SET ROLE holder;
	SELECT lease_acquire('job/secret', '1 hour', 'password'), lease_release('job/secret', 'password')});
is(told(sub { "$_[0] " . ($_[1]->{owner} // '-') }), 'events password, more -, events password, more -', 'not if it was dropped');
like($sql->("SELECT creator FROM lease_watches WHERE channel = 'more'"), qr/^unknown \(OID=\d+\)$/, 'which the view shows');
$sql->("SELECT lease_unwatch('job/secret', 'more')");

# names that are long, or need escapes
$sql->(q{SELECT lease_acquire('job/' || repeat(chr(1), 1020), '1 hour', repeat(chr(2), 1024))});
like(told(sub { $_[2] }), qr/^\{"event": "granted", "resource": "job\/(\\u0001){1020}", "token": \d+, "mode": "exclusive"\}$/,
	'too long for NOTIFY: without the owner');
$sql->(q{SELECT lease_acquire(E'job/"\\\\\n', '1 hour', 'ann')});
like(told(sub { $_[2] }), qr/"resource": "job\/\\"\\\\\\n"/, 'escaped');
$sql->(q{SELECT lease_acquire('job/' || chr(127), '1 hour', 'ann')});
like(told(sub { $_[2] }), qr/"resource": "job\/\\u007f"/, 'no control character');

# Wait until the launcher has ended one more round.
sub wait_for_round
{
	my $now = $sql->('SELECT clock_timestamp()');

	$node->poll_query_until('postgres', "SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'lease_lock purge launcher' AND state_change > '$now' AND state = 'idle'")
	  or die 'no further round';
	return;
}

# expired: told by the worker. Each visit tells what expired since the one before.
# So there is one first, and the leases last longer than their grants take to commit.
$sql->("SELECT lease_watch('exp/', 'more', ARRAY['expired'])");
$sql->("SELECT lease_acquire('exp/held', '1 hour', 'ann'), lease_acquire('exp/released', '1 hour', 'ann')");
$sql->("SELECT lease_release('exp/released', 'ann')");
$node->append_conf('postgresql.conf', "lease_lock.purge_interval = '1 s'");
$node->reload;
wait_for_round();
$sql->("SELECT lease_acquire('exp/1', '5 s', 'ann')");
is(told_soon(), 'expired exp/1', 'expired');

# It is told once, although the worker comes again and again to a row that it cannot remove.
my $locker = open_session($node);
$sql->("SELECT lease_acquire('exp/2', '5 s', 'ann')");
$locker->query_safe('BEGIN; LOCK TABLE lease_lock IN SHARE MODE');
is(told_soon(), 'expired exp/2', 'expired while the table is locked');
wait_for_round() for 1 .. 3;
is(told(), '', 'and not again');
$locker->query_safe('ROLLBACK');
$locker->quit;

$sql->("SELECT granted FROM lease_request('exp/session', NULL, 'ann', session => true)");
like(told_soon(), qr/^expired exp\/session/, 'so is a lease whose session ended');
$node->append_conf('postgresql.conf', 'lease_lock.purge_interval = 0');
$node->reload;

# Ten thousand watches, of different resources: a grant finds the right ones without looking at
# each, and a backend needs little memory to know them.
my $many = open_session($node);
my $rate = q{DO $$ BEGIN PERFORM lease_acquire('x', '1 hour', 'ann'), lease_release('x', 'ann') FROM generate_series(1, 1000); END $$;
	SELECT extract(epoch FROM clock_timestamp() - statement_timestamp()) < 60};
$sql->("SELECT count(lease_watch('many/' || i || '/', 'many')) FROM generate_series(1, 10000) AS i");
is($sql->('SELECT count(*) FROM lease_watches'), 10002, 'ten thousand watches');
$sql->("SELECT lease_watch('many/777', 'more')");
$sql->("SELECT lease_acquire('many/7777/x', '1 hour', 'ann'), lease_acquire('many/778/x', '1 hour', 'ann')");
is(told(), 'granted many/7777/x', 'the right ones are found among them');
is($many->query_safe($rate), 't', 'and events of other resources do not look at each of them');
cmp_ok($many->query_safe("SELECT total_bytes FROM pg_backend_memory_contexts WHERE name = 'lease watches'"), '<', 4_000_000,
	'in little memory');

# Ten thousand watches of one resource: each of them is told, and notices share their text.
$sql->("SELECT count(lease_watch('all/', 'c' || i)) FROM generate_series(1, 10000) AS i");
$listener->query_safe('LISTEN c1; LISTEN c10000');
$many->query_safe("BEGIN; SELECT lease_acquire('all/' || i, '1 hour', 'ann') FROM generate_series(1, 10) AS i");
cmp_ok($many->query_safe("SELECT total_bytes FROM pg_backend_memory_contexts WHERE name = 'TopTransactionContext'"), '<', 30_000_000,
	'a hundred thousand notices in little memory');
$many->query_safe("SAVEPOINT s; SELECT lease_acquire('all/undone', '1 hour', 'ann'); ROLLBACK TO s; COMMIT");
is(told(sub { "$_[0] $_[1]->{resource}" }), join(', ', map { ("c1 all/$_", "c10000 all/$_") } 1 .. 10), 'all of them are told, in order');
is($many->query_safe($rate), 't', 'and other resources cost what they did');
$sql->("SELECT count(lease_unwatch(prefix, channel)) FROM lease_watches WHERE prefix = 'all/'");

# They are not dumped. In the copy they can be set up again.
$node->safe_psql('postgres', 'CREATE DATABASE copy');
$node->command_ok([ 'pg_dump', '-f', $node->basedir . '/dump.sql', $node->connstr('postgres') ], 'a dump');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $node->basedir . '/dump.sql', $node->connstr('copy') ], 'is restored');
is($node->safe_psql('copy', 'SELECT count(*) FROM lease_watches'), 0, 'without watches');
$node->safe_psql('copy', $sql->(q{SELECT string_agg(format('SELECT lease_watch(%L, %L, %L);', prefix, channel, events), ' ') FROM lease_watches WHERE channel = 'jobs'}));
is($node->safe_psql('copy', 'TABLE lease_watches'), $sql->(q{SELECT * FROM lease_watches WHERE channel = 'jobs'}), 'set up again');

# no watches any more
$sql->('SELECT count(lease_unwatch(prefix, channel)) FROM lease_watches');
$early->query_safe("SELECT lease_acquire('job/late', '1 hour', 'ann')");
is(told(), '', 'no watches');

$_->quit foreach $listener, $early, $waiter, $one, $two, $many;
done_testing();
