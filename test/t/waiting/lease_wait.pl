# The procedure waits without a snapshot and without a transaction, so nothing
# has to wait for the procedure.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('lease_wait', $WaitTest::NEVER);
my $session = open_session($node);
my $holds = 'SELECT backend_xid IS NOT NULL, backend_xmin IS NOT NULL, '
  . '(SELECT count(*) FROM pg_locks AS l WHERE l.pid = a.pid) FROM pg_stat_activity AS a WHERE pid = ';

$node->safe_psql('postgres', q{
	CREATE TABLE t AS SELECT i FROM generate_series(1, 1000) AS i;
	CREATE TABLE log (id serial, what text);
	CREATE PROCEDURE work(r text, o text) LANGUAGE plpgsql AS $$
	DECLARE
		granted boolean;
		token bigint;
		expires timestamptz;
		n int;
	BEGIN
		INSERT INTO log (what) VALUES ('before ' || o);
		CALL lease_wait(r, '1 hour', o, '1 min', granted, token, expires);
		INSERT INTO log (what) VALUES (o || ' ' || granted);
		COMMIT;
		PERFORM lease_release(r, o);
		SELECT count(*) INTO n FROM t;
	END $$;
	CREATE PROCEDURE work_in_loop(o text) LANGUAGE plpgsql AS $$
	DECLARE
		granted boolean;
		token bigint;
		expires timestamptz;
		r record;
	BEGIN
		FOR r IN SELECT 'loop' || i AS resource FROM generate_series(1, 3) AS i LOOP
			CALL lease_wait(r.resource, '1 hour', o, '1 min', granted, token, expires);
			INSERT INTO log (what) VALUES (o || ' ' || r.resource || ' ' || granted);
		END LOOP;
	END $$;
	CREATE PROCEDURE work_with_handler(r text, o text) LANGUAGE plpgsql AS $$
	DECLARE
		granted boolean;
		token bigint;
		expires timestamptz;
	BEGIN
		CALL lease_wait(r, '1 hour', o, '1 min', granted, token, expires);
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END $$;
	CREATE FUNCTION wait_in_function(r text) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		granted boolean;
		token bigint;
		expires timestamptz;
	BEGIN
		CALL lease_wait(r, '1 hour', 'x', '1 min', granted, token, expires);
	END $$;
});

sub hold
{
	my ($resource) = @_;

	return is(look($node, "SELECT lease_acquire('$resource', '1 hour', 'holder')"), 't', "$resource is held");
}

# Results, without waiting and with.
like($session->query_safe(q{CALL lease_wait('free', '1 hour', 'a', '1 min')}), qr/^t\|\d+\|\d{4}-/, 'a free lease is granted');
is($session->query_safe(q{CALL lease_wait('free', '1 hour', 'a', '0')}), 'f||', 'a held one is refused without a wait');
is($session->query_safe(q{CALL lease_wait('free', '1 hour', 'a', '20 ms')}), 'f||', 'and after one');
is(look($node, q{SELECT lease_release('free', 'a')}), 't', 'the first call was committed');

# What it holds while it waits; at READ COMMITTED and above.
foreach my $isolation ('read committed', 'repeatable read', 'serializable')
{
	hold('r');
	$session->query_safe("SET default_transaction_isolation = '$isolation'");
	my $pid = send_to_wait($node, $session, q{CALL lease_wait('r', '1 hour', 'w', '1 min')});

	# Its own virtual transaction is a lock, too.
	is(look($node, $holds . $pid), 'f|f|1', "$isolation: no snapshot, no transaction id, no lock");
	look($node, 'DELETE FROM t WHERE i > 100');
	my ($rc, $out, $err) = $node->psql('postgres', 'VACUUM (VERBOSE) t');
	unlike($err, qr/[1-9]\d* (?:are )?dead (?:tuples|row versions|but not yet removable|cannot be removed)/,
		"$isolation: VACUUM removes what was deleted meanwhile");
	is($node->safe_psql('postgres', q{
			CREATE EXTENSION IF NOT EXISTS pageinspect;
			SELECT count(*) FROM generate_series(0, pg_relation_size('t') / current_setting('block_size')::int - 1) AS block,
				heap_page_items(get_raw_page('t', block::int)) WHERE lp_flags = 1}), 100, "$isolation: only live rows are left")
	  if $node->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'pageinspect'});
	look($node, 'INSERT INTO t SELECT i FROM generate_series(101, 1000) AS i');
	is(look($node, q{SELECT lease_release('r', 'holder')}), 't', "$isolation: released");
	is(answer($session), 't', "$isolation: it gets the lease");
	is(look($node, q{SELECT lease_release('r', 'w')}), 't', "$isolation: committed");
}
$session->query_safe('RESET default_transaction_isolation');

# From a procedure: what came before is committed, what comes after works.
{
	my $name = '1 procedure' . 'x' x 900;

	hold($name);
	my $pid = send_to_wait($node, $session, "CALL work('$name', 'w')");
	is(look($node, q{SELECT string_agg(what, ',' ORDER BY id) FROM log}), 'before w', 'a procedure: what came before is committed');
	is(look($node, $holds . $pid), 'f|f|1', 'a procedure: nothing is held');
	is(look($node, "SELECT lease_release('$name', 'holder')"), 't', 'a procedure: released');
	is(answer($session), '', 'a procedure: it goes on');
	is(look($node, q{SELECT string_agg(what, ',' ORDER BY id) FROM log}), 'before w,w true', 'a procedure: to its end');
	look($node, 'TRUNCATE log');

	hold("loop$_") foreach 1 .. 3;
	$pid = send_to_wait($node, $session, q{CALL work_in_loop('w')});
	foreach my $i (1 .. 3)
	{
		becomes($node, q{SELECT resource FROM lease_waiters}, "loop$i", "a loop: waits for lease $i");
		is(look($node, "SELECT lease_release('loop$i', 'holder')"), 't', "a loop: lease $i is released");
	}
	is(answer($session), '', 'a loop: it goes on');
	is(look($node, q{SELECT string_agg(what, ',' ORDER BY id) FROM log}), 'w loop1 true,w loop2 true,w loop3 true', 'a loop: to its end');
	nothing_left($node, 'a loop');
}

# Where it cannot commit, it fails with a clear error.
hold('blocked');
$session->query_safe('BEGIN');
session_fails($session, q{CALL lease_wait('blocked', '1 hour', 'x', '1 min')}, '2D000',
	'transaction block.*HINT:  .*lease_acquire', 'an error in a transaction block');
$session->query_safe('ROLLBACK');
session_fails($session, q{SELECT wait_in_function('blocked')}, '2D000', 'HINT:  ', 'an error in a function');
session_fails($session, q{DO $$ DECLARE g bool; t bigint; e timestamptz; BEGIN BEGIN CALL lease_wait('blocked', '1 hour', 'x', '1 min', g, t, e); EXCEPTION WHEN division_by_zero THEN END; END $$},
	'2D000', '', 'an error below an exception handler');
my $loop = q{DO $$ DECLARE q record; g bool; t bigint; e timestamptz; BEGIN
	FOR q IN UPDATE row SET n = n + 1 RETURNING n LOOP CALL lease_wait('%s', '1 hour', 'x', '1 min', g, t, e); ASSERT g; END LOOP; END $$};
$session->query_safe(q{CREATE TEMPORARY TABLE row (n int); INSERT INTO row VALUES (0)});
$session->query_safe(sprintf($loop, 'loop over a write'));
session_fails($session, sprintf($loop, 'blocked'), '55000', 'cursor loop that is not read-only', 'an error in a loop over a statement that writes');
session_fails($session, q{CALL work_with_handler('blocked', 'x')}, '2D000', '', 'an error below a handler in a procedure');
session_fails($session, q{CALL lease_wait('blocked', '1 hour', NULL, '1 min')}, '22004', 'owner', 'NULL is an error');
$session->query_safe('SET default_transaction_read_only = on');
session_fails($session, q{CALL lease_wait('blocked', '1 hour', 'x', '1 min')}, '25006', 'lease_wait', 'an error in a read-only transaction');
$session->query_safe('RESET default_transaction_read_only');
nothing_left($node, 'errors');

# After an error in the wait the session can wait again.
my $pid = send_to_wait($node, $session, q{CALL lease_wait('blocked', '1 hour', 'x', '1 min')});
look($node, "SELECT pg_cancel_backend($pid)");
like(answer($session), qr/57014/, 'cancelled');
send_to_wait($node, $session, q{CALL work('blocked', 'w')});
look($node, q{SELECT lease_release('blocked', 'holder')});
is(answer($session), '', 'it waits again, and gets the lease');
nothing_left($node, 'again');
# The commit before it sleeps does whatever a commit does: here, it makes the
# session's first temporary table stay.
hold('with table');
my $fresh = open_session($node);
send_to_wait($node, $fresh, q{DO $$ DECLARE g bool; t bigint; e timestamptz; BEGIN
	CREATE TEMP TABLE t (); CALL lease_wait('with table', '1 hour', 'w', '1 min', g, t, e); ASSERT g; END $$});
look($node, q{SELECT lease_release('with table', 'holder')});
is(answer($fresh), '', 'a temporary table made in the same transaction');
nothing_left($node, 'a temporary table');
$fresh->quit;
ok(slurp_file($node->logfile) !~ /TRAP|WARNING|PANIC/, 'no warning in the log');

$node->stop;
done_testing();
