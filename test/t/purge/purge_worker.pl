# With the library preloaded a worker removes leases that ended, and nothing
# else, whatever the database's own settings and objects are.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use PurgeTest;
use Test::More;

my $node = start_purging_node('worker', "max_prepared_transactions = 2\n");
my $psql = sub { return $node->safe_psql('postgres', shift) };

# what it removes
$psql->(q{
	SELECT lease_acquire(r, '1 day', 'o') FROM unnest(ARRAY['held', 'released', 'expired', 'in use', 'asserted', 'prepared']) AS r;
	UPDATE lease_lock SET expires_at = '2000-01-01' WHERE resource IN ('expired', 'in use', 'asserted', 'prepared');
	SELECT lease_release('released', 'o');
});
becomes_true($node, 'postgres', "SELECT count(*) = 0 FROM lease_lock WHERE resource IN ('expired', 'released')",
	'expired and released leases are purged');
is($psql->("SELECT owner FROM lease_lock WHERE resource = 'held'"), 'o', 'a held lease stays');

# where it is seen
my $launcher = $psql->('SELECT pid FROM pg_stat_activity WHERE ' . launcher());
like($launcher, qr/^\d+$/, 'the launcher is in pg_stat_activity');
is($psql->("SELECT datname IS NULL AND usename IS NOT NULL FROM pg_stat_activity WHERE pid = $launcher"), 't',
	'it is in no database');

# tokens go on
$psql->("SELECT lease_acquire('again', '1 day', 'o')");
my $token = $psql->("SELECT lease_token('again', 'o')");
$psql->("UPDATE lease_lock SET expires_at = '2000-01-01' WHERE resource = 'again'");
becomes_true($node, 'postgres', "SELECT count(*) = 0 FROM lease_lock WHERE resource = 'again'", 'purged');
cmp_ok($psql->("SELECT lease_acquire('again', '1 day', 'p') \\gset\nSELECT lease_token('again', 'p')"),
	'>', $token, 'the next token is higher');

# rows that other transactions use are skipped without waiting
my @sessions = map { open_session($node) } 1 .. 2;
$psql->('TRUNCATE lease_lock');
set_and_reload($node, 'lease_lock.purge_interval', '0');
add_ended($node, 'postgres', 20000);
$psql->(q{
	BEGIN;
	SELECT lease_acquire('ended 7', '1 microsecond', 'o');
	PREPARE TRANSACTION 'p';
});
$sessions[0]->query_safe(q{BEGIN; SELECT token FROM lease_lock WHERE resource = 'ended 10000' FOR UPDATE});
$sessions[1]->query_safe(q{BEGIN; SELECT token FROM lease_lock WHERE resource IN ('ended 10001', 'ended 20000') FOR KEY SHARE});
set_and_reload($node, 'lease_lock.purge_interval', '100ms');
becomes_true($node, 'postgres',
	q{SELECT array_agg(resource ORDER BY resource) = ARRAY['ended 10000', 'ended 10001', 'ended 20000', 'ended 7', 'held'] FROM lease_lock},
	'rows in use are skipped, and the rows beside them are purged');
is($psql->('SELECT count(*) FROM pg_locks WHERE NOT granted'), 0, 'nobody waits');
$_->query_safe('COMMIT') foreach @sessions;
$psql->("COMMIT PREPARED 'p'");
is_purged($node, 'postgres', 'rows that are no longer in use');

# It works in short transactions: while one row is left others can see that
# the rest has gone, and an old snapshot does not stop the worker.
$sessions[0]->query_safe(q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM lease_lock});
add_ended($node, 'postgres', 5000);
becomes_true($node, 'postgres', 'SELECT count(*) = 0 ' . ended(), 'beside an old snapshot');
$sessions[0]->query_safe('COMMIT');

set_and_reload($node, 'lease_lock.purge_interval', '0');
add_ended($node, 'postgres', 20000);
my $first_xid = $psql->('SELECT pg_current_xact_id()');
set_and_reload($node, 'lease_lock.purge_interval', '100ms');
is_purged($node, 'postgres', 'many rows');
cmp_ok($psql->('SELECT pg_current_xact_id()') - $first_xid, '>=', 15, 'in many transactions');

# its own settings
$_->quit foreach @sessions;
add_database($node, 'peculiar');
$psql->(qq{
	ALTER DATABASE peculiar SET default_transaction_read_only = on;
	ALTER DATABASE peculiar SET default_transaction_isolation = 'serializable';
	ALTER DATABASE peculiar SET statement_timeout = '1ms';
	ALTER DATABASE peculiar SET search_path = hostile;
	ALTER DATABASE peculiar SET lease_lock.purge_after = '1000d';
});
$ENV{PGOPTIONS} = '-c statement_timeout=0';
# An index function that counts its calls, and objects with names that a
# careless worker would look up.
$node->safe_psql('peculiar', q{
	SET default_transaction_read_only = off;
	CREATE SCHEMA hostile;
	CREATE SEQUENCE hostile.calls;
	CREATE FUNCTION hostile.call(text) RETURNS text IMMUTABLE LANGUAGE plpgsql
		AS $$ BEGIN PERFORM nextval('hostile.calls'); RETURN $1; END $$;
	CREATE FUNCTION hostile.lease_purge() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('hostile.calls') $$;
	CREATE TABLE hostile.lease_lock (LIKE public.lease_lock);
	INSERT INTO hostile.lease_lock VALUES ('not ours', 0, NULL, '2000-01-01', 0, '2000-01-01', '3', 10, 'x', 0);
	INSERT INTO public.lease_lock VALUES
		('old', 0, 'o', '2000-01-01', 0, '2000-01-01', '3', 10, 'x', 1), ('new', 0, 'o', now(), 0, now(), '3', 10, 'x', 1);
	CREATE INDEX ON public.lease_lock (hostile.call(owner));
	CREATE INDEX ON public.lease_lock (owner) WHERE hostile.call(owner) > '';
	SELECT setval('hostile.calls', 1000);
	SELECT public.lease_acquire('held', '1 day', 'o');
});
my $calls = $node->safe_psql('peculiar', 'SELECT last_value FROM hostile.calls');
cmp_ok($calls, '>', 1000, 'a grant evaluates the expressions of indexes');
becomes_true($node, 'peculiar', "SELECT array_agg(resource ORDER BY resource) = ARRAY['held', 'new'] FROM public.lease_lock",
	'settings of the database do not disturb it, and lease_lock.purge_after of the database counts');
is($node->safe_psql('peculiar', 'SELECT last_value FROM hostile.calls'), $calls, 'it calls no function of a user');
is($node->safe_psql('peculiar', 'SELECT count(*) FROM hostile.lease_lock'), 1, 'it takes no other table for its own');

# without a worker
switch_off($node);
add_ended($node, 'postgres', 10);
$node->safe_psql('postgres', 'SELECT pg_sleep(0.5)');
is($psql->('SELECT count(*) ' . ended()), 10, 'an interval of 0 turns it off');
is($psql->('SELECT lease_purge()'), 10, 'lease_purge() works all the same');

unlike(slurp_file($node->logfile), qr/WARNING|ERROR|FATAL|PANIC/, 'no warning or error in the log');
$node->stop;
# A session of the test may still be about to end.
unlike(slurp_file($node->logfile), qr/(?:FATAL|PANIC):  (?!terminating connection)/, 'no error at the end');
done_testing();
