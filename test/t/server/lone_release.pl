# A transaction that only releases leases does not wait for the disk. With
# anything else in it, synchronous_commit decides, in whatever order.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Only commits flush WAL. Session leases need shared memory.
my $node = start_node('lone_release', <<'CONF');
shared_preload_libraries = 'lease_lock'
wal_writer_delay = 10s
wal_writer_flush_after = 512MB
wal_buffers = 16MB
checkpoint_timeout = 1h
bgwriter_delay = 10s
bgwriter_lru_maxpages = 0
autovacuum = off
max_prepared_transactions = 5
lease_lock.purge_interval = 0
CONF
my $session = open_session($node);

$session->query_safe(q{
	CREATE TABLE t (n int);
	INSERT INTO t VALUES (0);
	CREATE UNLOGGED TABLE u (n int);
	CREATE SEQUENCE s;
	CREATE PROCEDURE release_and_go_on(first text, second text) LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM lease_release(first, 'o');
		COMMIT;
		PERFORM lease_release(second, 'o');
	END $$;
	CREATE PROCEDURE release_and_write(first text) LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM lease_release(first, 'o');
		COMMIT;
		PERFORM lease_release(first, 'o');
		UPDATE t SET n = n + 1;
	END $$;
	CREATE FUNCTION release_or_ignore(name text) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		RETURN lease_release(name, 'o');
	EXCEPTION WHEN division_by_zero THEN
		RETURN false;
	END $$;
});

# Run SQL when all WAL is flushed. Was WAL flushed at its end?
sub flushed
{
	my ($sql) = @_;
	my $flush_lsn = q{SELECT pg_current_wal_flush_lsn()};
	my ($before, $after);

	$session->query_safe(q{SELECT lease_acquire('a', '1 hour', 'o'), lease_acquire('b', '1 hour', 'o'), lease_acquire_shared('c', '1 hour', 'o')});
	$session->query_safe(q{
		SELECT lease_break('kept'), lease_break('kept for long'), lease_break('kept after the session');
		SELECT lease_request('kept', '1 hour', 'keeper', min_hold => '1 min'), lease_request('kept for long', '1 min', 'keeper', min_hold => '1 hour'),
			lease_request('kept after the session', NULL, 'keeper', session => true, min_hold => '1 min')});
	$session->query_safe(q{BEGIN; UPDATE t SET n = n + 1; COMMIT});
	$before = $session->query_safe($flush_lsn);
	$session->query_safe($sql);
	$after = $session->query_safe("SELECT pg_current_wal_flush_lsn() > '$before'::pg_lsn, pg_current_wal_insert_lsn() > '$before'::pg_lsn");
	die "nothing was written: $sql" if $after !~ /t$/;
	my ($was_flushed) = split(/\|/, $after);
	$session->query_safe(q{SELECT lease_release_all('o')});
	return $was_flushed;
}

# Test that SQL does not flush. The WAL writer does every ten seconds, which may
# be just then, but not three times in a row.
sub not_flushed
{
	my ($sql, $name) = @_;
	my $was_flushed = 't';

	for (my $i = 0; $i < 3 && $was_flushed ne 'f'; $i++)
	{
		$was_flushed = flushed($sql);
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($was_flushed, 'f', $name);
	return;
}

my $release = q{SELECT lease_release('a', 'o')};
my $update = 'UPDATE t SET n = n + 1';
my %lone = (
	'a release' => $release,
	'a release in a block' => "BEGIN; $release; COMMIT",
	'a release that min_hold keeps for less than the ttl' => q{SELECT lease_release('kept', 'keeper')},
	'a release with its token' => q{SELECT lease_release('a', 'o', lease_token('a', 'o'))},
	'two releases' => q{SELECT lease_release('a', 'o'), lease_release('c', 'o')},
	'two releases in a block' => qq{BEGIN; $release; SELECT count(*) FROM t; SELECT lease_release('b', 'o'); COMMIT},
	'lease_release_all' => q{SELECT lease_release_all('o')},
	'a release, and one that is refused' => qq{BEGIN; $release; SELECT lease_release('b', 'thief'); COMMIT},
	'a release, and a refused try' => qq{BEGIN; $release; SELECT lease_acquire('b', '1 hour', 'thief'); COMMIT},
	'a release in a savepoint' => "BEGIN; SAVEPOINT s; $release; RELEASE s; COMMIT",
	'a release in a function that catches errors' => q{SELECT release_or_ignore('a')},
	'releases in a procedure that commits' => q{CALL release_and_go_on('a', 'b')},
	'a release and a NOTIFY' => "BEGIN; $release; NOTIFY n; COMMIT",
	'a release, and an unlogged table' => "BEGIN; $release; INSERT INTO u VALUES (1); COMMIT");
my %flushed = (
	'a release, then an update' => "BEGIN; $release; $update; COMMIT",
	'an update, then a release' => "BEGIN; $update; $release; COMMIT",
	'an update between two releases' => "BEGIN; $release; $update; SELECT lease_release('b', 'o'); COMMIT",
	'an update in a savepoint, then a release' => "BEGIN; SAVEPOINT s; $update; RELEASE s; $release; COMMIT",
	'a release in a savepoint, then an update' => "BEGIN; SAVEPOINT s; $release; RELEASE s; $update; COMMIT",
	'a release that is rolled back, then an update' => "BEGIN; SAVEPOINT s; $release; ROLLBACK TO s; $update; COMMIT",
	'an update that is rolled back, then a release' => "BEGIN; SAVEPOINT s; $update; ROLLBACK TO s; $release; COMMIT",
	'an update and a release in one statement' => "WITH w AS ($update RETURNING n) SELECT lease_release('a', 'o') FROM w",
	'a number of a sequence, then a release' => "BEGIN; SELECT setval('s', 1); $release; COMMIT",
	'a release, then a number of a sequence' => "BEGIN; $release; SELECT setval('s', 1); COMMIT",
	'a release and DDL' => "BEGIN; $release; ALTER TABLE t SET (fillfactor = 90); COMMIT",
	'a release and a message in the WAL' => "BEGIN; $release; SELECT pg_logical_emit_message(true, 'p', 'c'); COMMIT",
	'a release, then a grant' => "BEGIN; $release; SELECT lease_acquire('new', '1 hour', 'o'); COMMIT",
	'a grant, then a release' => "BEGIN; SELECT lease_acquire('new', '1 hour', 'o'); $release; COMMIT",
	'a release and a renewal' => "BEGIN; $release; SELECT lease_renew('b', '1 hour', 'o'); COMMIT",
	'a release and a transfer' => "BEGIN; $release; SELECT lease_transfer('b', 'o', 'other'); SELECT lease_release('b', 'other'); COMMIT",
	'a release in a procedure that writes later' => q{CALL release_and_write('a')},
	'a release that is prepared' => "BEGIN; $release; PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'",
	'a release that min_hold keeps for longer than the ttl' => q{SELECT lease_release('kept for long', 'keeper')},
	'a release that min_hold keeps for longer than the session' => q{SELECT lease_release('kept after the session', 'keeper')},
	'an update alone' => $update,
	'a grant alone' => q{SELECT lease_acquire('new', '1 hour', 'o')});

# The first time, reading the catalogs may prune their pages, which is logged and counts as a write.
flushed($lone{$_}) foreach sort keys %lone;
not_flushed($lone{$_}, "$_: not flushed") foreach sort keys %lone;
is(flushed($flushed{$_}), 't', "$_: flushed") foreach sort keys %flushed;
is($session->query_safe('SHOW synchronous_commit'), 'on', 'the setting is as before');

# After an error before the commit, the setting is restored as well.
$session->query(qq{BEGIN; $release; COMMIT AND CHAIN; SELECT 1/0; COMMIT});
$session->{stderr} = '';
is($session->query_safe('SHOW synchronous_commit'), 'on', 'also after an error');

$session->query_safe('SET lease_lock.flush_releases = on');
is(flushed($release), 't', 'flush_releases = on: a release is flushed');
$session->query_safe('SET synchronous_commit = off');
not_flushed($release, 'flush_releases = on, synchronous_commit = off: it is not');
$session->query_safe('RESET lease_lock.flush_releases');

# With synchronous_commit = off, what must be flushed still is.
is(flushed($flushed{$_}), 't', "synchronous_commit = off, $_: flushed")
  foreach 'a grant alone', 'a release that min_hold keeps for longer than the ttl', 'a release, then a grant', 'a grant, then a release', 'a release and a renewal', 'a release and a transfer';
not_flushed($update, 'synchronous_commit = off, an update alone: not flushed');
$session->query_safe('SET lease_lock.durable = off');
not_flushed($flushed{'a grant alone'}, 'durable = off, a grant alone: not flushed');
$session->query_safe('SET lease_lock.durable = local');
is(flushed($flushed{'a grant alone'}), 't', 'durable = local, a grant alone: flushed');

# A release that a crash takes back keeps the lease, and nothing else. If min_hold keeps
# it for longer than the ttl, the crash takes nothing back.
$session->query_safe(q{RESET ALL; SELECT lease_acquire('crash', '1 hour', 'o'), lease_request('hourly', '1 min', 'o', min_hold => '1 hour')});
$session->query_safe(q{SELECT lease_release('hourly', 'o')});
# The WAL writer, which would flush the release sooner or later, is stopped. The server kills it after 5 s.
kill('STOP', $session->query_safe(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'}));
$session->query_safe(q{SELECT lease_release('crash', 'o')});
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', q{SELECT lease_acquire('crash', '1 hour', 'other')}), 'f', 'a lost release: the lease is held');
is($node->safe_psql('postgres', q{SELECT lease_release('crash', 'o')}), 't', 'and can be released again');
is($node->safe_psql('postgres', q{SELECT state, expires_in > '50 min' FROM lease_status WHERE resource = 'hourly'}), 'released|t', 'what min_hold keeps stays kept');
$node->stop;

done_testing();
