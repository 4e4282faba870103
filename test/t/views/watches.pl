# Watches tell what happened to leases: at commit, in the order of the commits,
# and nothing that was rolled back.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

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

# A notice has only ASCII characters, which every client's encoding has.
my $latin = open_session($node);
$latin->query_safe(q{SET client_encoding = 'latin1'; LISTEN events});
$sql->(q{SELECT lease_acquire(U&'job/\65E5\672C \+01F600' || E'\n', '1 hour', U&'m\00FCller')});
is(told(sub { $_[2] }), q({"event": "granted", "resource": "job/\u65e5\u672c \ud83d\ude00\n", "token": 0, "mode": "exclusive", "owner": "m\u00fcller"})
		=~ s/"token": 0/'"token": ' . $sql->(q{SELECT token FROM lease_status WHERE owner LIKE 'm%ller'})/er, 'a name in other scripts');
like($latin->query('SELECT 1'), qr/Asynchronous notification "events" with payload .*u65e5/s, 'a client that cannot show it is told, too, and goes on');
$latin->quit;

# A broken lease tells who broke it.
is($sql->(q{CREATE ROLE breaker; GRANT EXECUTE ON FUNCTION lease_break(text, interval) TO breaker; SET ROLE breaker;
	SELECT lease_break(resource) FROM lease_status WHERE resource LIKE 'job/%日本%'}), 't', 'broken');
is(told(sub { "$_[1]->{event} $_[1]->{broken_by}" }), 'broken breaker', 'by whom');

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

# Each is told, also if its row is removed at once, and if it expires while a worker is there.
$node->append_conf('postgresql.conf', "lease_lock.purge_interval = '100 ms'\nlease_lock.purge_after = 0");
$node->reload;
$sql->(q{SELECT count(lease_acquire('exp/many ' || n, '8 s' + n * interval '1 ms', 'ann')) FROM generate_series(1, 2000) AS n});
$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM lease_lock WHERE resource LIKE 'exp/many %'}) or die 'not purged';
is(scalar split(/, /, told()), 2000, 'each of many that are purged at once');
$node->append_conf('postgresql.conf', 'lease_lock.purge_interval = 0');
$node->reload;

# So is a lease in a database that the launcher did not know, although it has long expired when a
# round begins: no round began since the grant.
$sql->('CREATE DATABASE unknown');
$node->safe_psql('unknown', q{CREATE EXTENSION lease_lock; SELECT lease_watch('', 'late', ARRAY['expired'])});
{
	my $usual = $listener;

	$listener = open_session($node, 'unknown');
	$listener->query_safe('LISTEN late');
	$node->safe_psql('unknown', "SELECT lease_acquire('long ago', '1 ms', 'ann')");
	$node->append_conf('postgresql.conf', "lease_lock.purge_interval = '1 ms'");
	$node->reload;
	is(told_soon(), 'expired long ago', 'a lease that expired before the next round began');
	$node->append_conf('postgresql.conf', 'lease_lock.purge_interval = 0');
	$node->reload;
	$listener->quit;
	$listener = $usual;
}

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

# The table's owner can alter the table. A lease is written all the same, with the watches that
# the session knows; a new session knows none.
foreach (
	[ 'another type', 'ALTER TABLE lease_watch ALTER creator TYPE bigint', 'ALTER TABLE lease_watch ALTER creator TYPE oid' ],
	[ 'an index on an expression', 'CREATE INDEX odd ON lease_watch (lower(prefix))', 'DROP INDEX odd' ],
	[ 'no primary key', 'ALTER TABLE lease_watch DROP CONSTRAINT lease_watch_pkey', 'ALTER TABLE lease_watch ADD PRIMARY KEY (prefix, channel)' ])
{
	my ($name, $alter, $undo) = @$_;
	my $log_start = -s $node->logfile;

	$sql->("CREATE DATABASE altered");
	$node->safe_psql('altered', q{CREATE EXTENSION lease_lock; ALTER EXTENSION lease_lock DROP VIEW lease_watches; DROP VIEW lease_watches});
	$node->safe_psql('altered', "SELECT lease_watch('', 'c')");
	my $user = open_session($node, 'altered');
	my $hears = qr/Asynchronous notification "c" with payload "\{"event": "granted", "resource": "$name/;
	$user->query_safe('LISTEN c');
	$user->query_safe("SELECT lease_acquire('first', '1 hour', 'ann')");

	$node->safe_psql('altered', $alter);
	my $answer = $user->query("SELECT lease_acquire('$name', '1 hour', 'ann')") . $user->query('SELECT 1');
	like($answer, qr/^t$/m, "$name: a lease is granted");
	like($answer, $hears, "$name: by a session that knows the watch, and tells it");
	like($node->safe_psql('altered', "SELECT lease_release('$name', 'ann')"), qr/^t$/, "$name: and released in a new session");
	like(slurp_file($node->logfile, $log_start), qr/LOG:  lease_lock does not read its table of watches "lease_watch", which was altered/, "$name: the log tells it");
	sql_fails($node, "SELECT $_", '42P17', 'table of watches "lease_watch" was altered.*HINT:  Undo', "$name: $_", dbname => 'altered')
	  foreach q{lease_watch('a', 'c')}, q{lease_unwatch('', 'c')};
	$node->safe_psql('altered', $undo);
	$node->safe_psql('altered', "SELECT lease_watch('more', 'c')");
	$user->quit;
	$sql->('DROP DATABASE altered');
}

# A row with NULL, or with a channel that NOTIFY does not allow, is no watch.
$sql->('ALTER TABLE lease_watch ALTER events DROP NOT NULL');
$sql->("INSERT INTO lease_watch VALUES ('nothing/', 'events', NULL, 10), ('nothing/', '', '{granted}', 10), ('nothing/', repeat('x', 64), '{granted}', 10), ('nothing/', 'more', '{granted}', 10)");
$sql->("SELECT lease_acquire('nothing/1', '1 hour', 'ann')");
is(told(sub { "$_[0] $_[1]->{resource}" }), 'more nothing/1', 'a row with NULL, or with another channel, is no watch');
$sql->("DELETE FROM lease_watch WHERE prefix = 'nothing/'");

# no watches any more
$sql->('SELECT count(lease_unwatch(prefix, channel)) FROM lease_watches');
$early->query_safe("SELECT lease_acquire('job/late', '1 hour', 'ann')");
is(told(), '', 'no watches');

$_->quit foreach $listener, $early, $one, $two, $many;
done_testing();
