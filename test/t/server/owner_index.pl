# An index on the owner changes no result, whatever other sessions do meanwhile; the log names it once; it runs nothing of users.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('owner_index', "shared_preload_libraries = 'lease_lock'\nlease_lock.purge_interval = 0\nautovacuum = off\n");
my $create = 'CREATE INDEX by_owner ON lease_lock (owner, kept_for)';

# The hint: not for a small table, once for a large one, in whatever session.
my $log_start = -s $node->logfile;
my $hint = qr/HINT: .*CREATE INDEX CONCURRENTLY ON public.lease_lock \(owner, kept_for\)/;
$node->safe_psql('postgres', q{SELECT lease_acquire('a', '1 hour', 'o'), lease_renew_all('1 hour', 'o')});
unlike(slurp_file($node->logfile, $log_start), $hint, 'small table: no hint');
$node->safe_psql('postgres', q{SELECT lease_acquire('many ' || i, '1 hour', repeat('x', 1000)) FROM generate_series(1, 6000) AS i \g /dev/null});
$node->safe_psql('postgres', $_)
  foreach q{SET lease_lock.max_leases_per_owner = 3; SELECT lease_acquire('b', '1 hour', 'o')}, q{SELECT lease_renew_all('1 hour', 'o')}, q{SELECT lease_release_all('o')};
is(() = slurp_file($node->logfile, $log_start) =~ /$hint/g, 1, 'large table: once in the log');
$node->restart;
$node->safe_psql('postgres', "$create; SELECT lease_release_all('o')");
is(() = slurp_file($node->logfile, $log_start) =~ /$hint/g, 1, 'large table with an index: not in the log');
$node->safe_psql('postgres', 'DROP INDEX by_owner; TRUNCATE lease_lock');

# Broken HOT chains: the versions of before the index have other owners than the newest one.
# An old snapshot keeps them, and makes the server mark the index with indcheckxmin.
my $old = open_session($node);
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
$node->safe_psql('postgres', q{SELECT lease_acquire('r' || i, '1 hour', 'a') FROM generate_series(1, 20) AS i \g /dev/null
	SELECT lease_transfer('r' || i, 'a', 'b') FROM generate_series(1, 20) AS i WHERE i % 2 = 0 \g /dev/null
	SELECT lease_renew('r' || i, '2 hours', 'b') FROM generate_series(1, 20) AS i WHERE i % 4 = 0 \g /dev/null});
$node->safe_psql('postgres', $create);
is($node->safe_psql('postgres', q{SELECT indcheckxmin FROM pg_index WHERE indexrelid = 'by_owner'::regclass}), 't', 'broken HOT chains: the server avoids the index');
sub by_index
{
	my ($session, $call) = @_;

	return $session->query_safe("BEGIN; SELECT $call, pg_stat_get_xact_numscans('by_owner'::regclass) > 0; ROLLBACK");
}
my $session = open_session($node);
is(by_index($session, q{lease_renew_all('3 hours', 'b')}), '10|t', 'broken HOT chains: all leases of the new owner, by the index');
is(by_index($session, q{lease_renew_all('3 hours', 'a')}), '10|t', 'broken HOT chains: and none of those it has no longer');
$old->query_safe('COMMIT');
is(by_index($old, q{lease_renew_all('3 hours', 'b')}), '10|t', 'broken HOT chains: the same in the session of the old snapshot');

# A rollback revives what the index did not have when it was built.
is($session->query_safe(q{BEGIN; SAVEPOINT s; SELECT count(lease_transfer('r2', 'b', 'c')); DROP INDEX by_owner; CREATE INDEX by_owner ON lease_lock (owner, kept_for);
	SELECT lease_renew_all('3 hours', 'c'), lease_renew_all('3 hours', 'b'); ROLLBACK TO s; SELECT lease_renew_all('3 hours', 'c'), lease_renew_all('3 hours', 'b'); COMMIT}),
	"1\n1|9\n0|10", 'an index of the same transaction');

# The same at random, with all kinds of changes in several transactions, with and without the index.
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE result (step int, what text, number int8);
CREATE PROCEDURE play(indexed bool) LANGUAGE plpgsql AS $$
DECLARE
	r text; o text; counted int8;
BEGIN
	PERFORM setseed(0.42);
	TRUNCATE lease_lock;
	COMMIT;
	FOR i IN 1 .. 600 LOOP
		r := 'r' || floor(random() * 15); o := 'o' || floor(random() * 4);
		CASE floor(random() * 9)
			WHEN 0 THEN PERFORM lease_release(r, o);
			WHEN 1 THEN PERFORM lease_renew(r, '2 hours', o);
			WHEN 2 THEN PERFORM lease_transfer(r, o, 'o0') WHERE NOT EXISTS (SELECT FROM lease_lock WHERE resource = r AND owner = 'o0');
			WHEN 3 THEN PERFORM lease_acquire_shared(r, '1 hour', o);
			WHEN 4 THEN PERFORM lease_request(r, '1 hour', o, min_hold => '30 minutes');
			WHEN 5 THEN UPDATE lease_lock SET expires_at = now() WHERE resource = r;
			WHEN 6 THEN PERFORM lease_break(r);
			ELSE PERFORM lease_acquire(r, '1 hour', o);
		END CASE;
		IF random() < 0.3 THEN
			ROLLBACK;
		ELSE
			COMMIT;
		END IF;
		IF indexed AND i % 100 = 50 THEN
			DROP INDEX IF EXISTS by_owner;
			CREATE INDEX by_owner ON lease_lock (owner, kept_for);
		END IF;
		o := 'o' || i % 4;
		INSERT INTO result SELECT i, 'renewed ' || o, lease_renew_all('1 hour', o);
		-- the highest limit that refuses another lease is the number of those that count
		counted := 0;
		LOOP
			PERFORM set_config('lease_lock.max_leases_per_owner', (counted + 1)::text, true);
			BEGIN
				PERFORM lease_acquire('one more', '1 hour', o);
				RAISE no_data_found;
			EXCEPTION
				WHEN no_data_found THEN EXIT;
				WHEN configuration_limit_exceeded THEN counted := counted + 1;
			END;
		END LOOP;
		PERFORM set_config('lease_lock.max_leases_per_owner', '0', true);
		INSERT INTO result SELECT i, 'counted ' || o, counted;
		IF i % 37 = 0 THEN
			INSERT INTO result SELECT i, 'released ' || o, lease_release_all(o);
		END IF;
		COMMIT;
	END LOOP;
END $$;
DROP INDEX by_owner;
CALL play(false);
ALTER TABLE result RENAME TO result_without;
CREATE TABLE result (LIKE result_without);
CALL play(true);
SQL
is($node->safe_psql('postgres', 'SELECT * FROM ((TABLE result EXCEPT TABLE result_without) UNION ALL (TABLE result_without EXCEPT TABLE result)) AS different ORDER BY 1 LIMIT 5'),
	'', 'at random: the same with and without an index');
cmp_ok($node->safe_psql('postgres', q{SELECT max(number) FROM result WHERE what ~ 'counted'}), '>', 2, 'at random: owners had several leases');

# The definition of an index is not evaluated to find out whether it can be used.
$node->safe_psql('postgres', <<'SQL');
TRUNCATE lease_lock;
DROP INDEX by_owner;
CREATE FUNCTION trap(n int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('trap.is_set', true) = 'on' THEN RAISE 'trapped'; END IF;
	RETURN true;
END $$;
CREATE INDEX by_owner ON lease_lock (owner, kept_for) WHERE trap(1);
SQL
is($node->safe_psql('postgres', q{SET trap.is_set = 'on'; SELECT lease_renew_all('1 hour', 'o'), lease_release_all('o')}), '0|0', 'a predicate with a function of a user: not evaluated');
sql_fails($node, q{SET trap.is_set = 'on'; SELECT lease_acquire('r', '1 hour', 'o')}, 'P0001', 'trapped', 'but by a grant, which has to write to that index');
$session->quit;
$old->quit;
$node->stop;

done_testing();
