# Updates to a later version: the objects of 1.0 work with the installed library,
# and ALTER EXTENSION UPDATE succeeds while sessions use the extension, hold
# leases, or wait for one. The later versions are made up here, since there is
# none yet.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my ($share) = run_command([ 'pg_config', '--sharedir' ]);
my @scripts;

plan skip_all => "cannot write to $share/extension, where new versions would be"
  if !-w "$share/extension";

# An update script of the extension, for as long as this test runs.
sub update_script
{
	my ($from, $to, $sql) = @_;

	push @scripts, "$share/extension/lease_lock--$from--$to.sql";
	unlink $scripts[-1];
	append_to_file($scripts[-1], $sql);
	return;
}

END
{
	unlink @scripts;
}

# What a next version may do: add to what is there, replace it in place, and
# drop and create it anew, so that it has another OID than sessions remember.
update_script('1.0', 'next.1', <<'SQL');
ALTER SEQUENCE lease_token_seq OWNED BY NONE;
ALTER TABLE lease_lock SET (fillfactor = 60);
CREATE INDEX lease_lock_next ON lease_lock (role);
DROP FUNCTION lease_wait_graph();
DROP VIEW lease_contenders, lease_status;
CREATE VIEW lease_status AS SELECT resource, owner, token, expires_at, 'next' AS version FROM lease_lock
	WHERE owner IS NOT NULL;
GRANT SELECT ON lease_status TO PUBLIC;
DROP FUNCTION lease_token(pg_catalog.text, pg_catalog.text);
CREATE FUNCTION lease_token(resource pg_catalog.text, owner pg_catalog.text) RETURNS pg_catalog.int8
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
CREATE OR REPLACE FUNCTION lease_renew(resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text)
	RETURNS pg_catalog.bool AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10;
DROP FUNCTION lease_acquire(pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.interval);
CREATE FUNCTION lease_acquire(resource pg_catalog.text, ttl pg_catalog.interval, owner pg_catalog.text,
		wait pg_catalog.interval)
	RETURNS pg_catalog.bool AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
CREATE FUNCTION lease_next() RETURNS pg_catalog.text LANGUAGE sql RETURN 'next';
SQL

# A version whose table the library cannot write: it has a column that must not be NULL.
update_script('next.1', 'next.2', q{ALTER TABLE lease_lock ADD COLUMN from_next pg_catalog.jsonb NOT NULL DEFAULT '{}';});
update_script('next.2', 'next.1', 'ALTER TABLE lease_lock DROP COLUMN from_next;');

my $node = start_waiting_node('update', '');
my $admin = open_session($node);
my $update = "ALTER EXTENSION lease_lock UPDATE TO 'next.1'";

sub begin_again
{
	$admin->query_safe('DROP EXTENSION IF EXISTS lease_lock CASCADE');
	$admin->query_safe("CREATE EXTENSION lease_lock VERSION '1.0'");
	return;
}

sub version_is
{
	my ($version, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($admin->query_safe(q{SELECT extversion FROM pg_extension WHERE extname = 'lease_lock'}), $version, $name);
	return;
}

# Version 1.0 is what it was when it was released: its objects, and what they
# answer.
begin_again();
version_is('1.0', 'version 1.0 can be created');

my $functions = q{FROM pg_proc AS p JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
	WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
		AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'lease_lock')};

cmp_ok($admin->query_safe("SELECT count(fmgr_c_validator(p.oid)) $functions AND prolang = 13"),
	'>=', 9, 'the library has every function that version 1.0 calls');
is( $admin->query_safe(qq{
		SELECT string_agg(name, ' ') FROM unnest(ARRAY[
			'lease_acquire(text,interval,text)', 'lease_acquire(text,interval,text,interval)',
			'lease_renew_several(text[],interval,text)', 'lease_assert_token(text,bigint)', 'lease_release(text,text)',
			'lease_release_all(text)', 'lease_renew(text,interval,text)', 'lease_token(text,text)', 'lease_purge()',
			'lease_waiters()']) AS name
		WHERE to_regprocedure(name) NOT IN (SELECT p.oid $functions)}),
	'', 'version 1.0 has all its functions');

sub all_functions_work
{
	my ($session, $name) = @_;
	my @steps = (
		[ q{SELECT lease_acquire('f', '1 hour', 'a')}, 't' ],
		[ q{SELECT lease_acquire('f', '1 hour', 'b', '10 ms')}, 'f' ],
		[ q{CALL lease_wait('f', '1 hour', 'b', '10 ms')}, 'f||' ],
		[ q{SELECT lease_renew('f', '2 hours', 'a')}, 't' ],
		[ q{SELECT lease_token('f', 'a') = (SELECT token FROM lease_status WHERE resource = 'f')}, 't' ],
		[ q{SELECT count(*) FROM lease_waiters}, 0 ],
		[ q{SELECT lease_release('f', 'a')}, 't' ],
		[ q{SELECT lease_acquire('f', '1 hour', 'b', '1 s')}, 't' ],
		[ q{SELECT lease_release_all('b')}, 1 ],
		[ q{SET lease_lock.purge_after = 0; SELECT lease_purge() > 0; RESET lease_lock.purge_after}, 't' ]);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($session->query_safe($_->[0]), $_->[1], "$name: $_->[0]") foreach @steps;
	return;
}

all_functions_work($admin, '1.0');

# Sessions that have used everything, one of them with a lease, go on.
my $user = open_session($node);
$user->query_safe(q{PREPARE acquire AS SELECT lease_acquire($1, '1 hour', 'me')});
$user->query_safe(q{PREPARE token AS SELECT lease_token($1, 'me')});
$user->query_safe('PREPARE status AS SELECT resource, owner FROM lease_status ORDER BY resource');
is($user->query_safe(q{EXECUTE acquire('kept')}), 't', 'a lease from before the update');
all_functions_work($user, 'before the update');
my $token = $user->query_safe(q{EXECUTE token('kept')});

$admin->query_safe($update);
version_is('next.1', 'updated beside a session that is connected');
is($user->query_safe(q{EXECUTE token('kept')}), $token, 'the lease is still held, with its token');
is($user->query_safe(q{EXECUTE acquire('kept')}), 'f', 'a prepared statement: refused');
is($user->query_safe(q{EXECUTE acquire('new')}), 't', 'a prepared statement: granted');
is($user->query_safe('EXECUTE status'), "kept|me\nnew|me", 'a prepared statement: the view that took the place of another');
cmp_ok($user->query_safe(q{EXECUTE token('new')}), '>', $token, 'tokens go on');
is($user->query_safe('SELECT lease_next()'), 'next', 'what the update added is there');
is($user->query_safe(q{SELECT lease_release('new', 'me')}), 't', 'release');
all_functions_work($user, 'after the update');
is($user->query_safe(q{SELECT lease_renew('kept', '2 hours', 'me'), lease_release('kept', 'me')}), 't|t',
	'the lease from before can be renewed and released');

# Beside a transaction that wrote a lease: the update waits for it where it
# changes the table, and the transaction does not fail.
begin_again();
$user->query_safe(q{BEGIN; SELECT lease_acquire('open', '1 hour', 'me')});
my $pid = begin_query($admin, $update);
wait_until_blocked($node, $pid);
is($user->query_safe(q{SELECT lease_renew('open', '2 hours', 'me')}), 't', 'an open transaction goes on while the update waits');
$user->query_safe('COMMIT');
is(finish_query($admin), '', 'and the update after it');
is($user->query_safe(q{SELECT lease_release('open', 'me')}), 't', 'its lease is there');

# Beside waiters, in the queue and in the procedure.
begin_again();
my %waiter = map { $_ => open_session($node) } 'function', 'procedure';
is($user->query_safe(q{SELECT lease_acquire('busy', '1 hour', 'me')}), 't', 'a lease that others wait for');
send_to_wait($node, $waiter{function}, q{SELECT lease_acquire('busy', '1 hour', 'w1', NULL)});
send_to_wait($node, $waiter{procedure}, q{CALL lease_wait('busy', '1 hour', 'w2', NULL)});

# The waiting function holds no lock on the table; the update waits for nobody.
$admin->query_safe("SET lock_timeout = '3min'");
$admin->query_safe("BEGIN; $update");
send_sql($user, q{SELECT lease_release('busy', 'me')});
$node->poll_query_until('postgres', 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted')
  or die 'the release does not wait for the update';
$admin->query_safe('COMMIT');
is(answer($user), 't', 'a release that met the update');
is(answer($waiter{function}), 't', 'the first waiter gets the lease');
is($user->query_safe(q{SELECT lease_release('busy', 'w1')}), 't', 'which is released with the new functions');
is(answer($waiter{procedure}), 't', 'the second waiter gets the lease');
is($user->query_safe(q{SELECT lease_release('busy', 'w2')}), 't', 'and that one is released');
version_is('next.1', 'updated beside waiters');
nothing_left($node, 'after the update');

# The update comes while they wait and is rolled back.
begin_again();
is($user->query_safe(q{SELECT lease_acquire('busy', '1 hour', 'me')}), 't', 'once more');
send_to_wait($node, $waiter{function}, q{SELECT lease_acquire('busy', '1 hour', 'w1', NULL)});
$admin->query_safe("BEGIN; $update; ROLLBACK");
is($user->query_safe(q{SELECT lease_release('busy', 'me')}), 't', 'released after an update that was rolled back');
is(answer($waiter{function}), 't', 'the waiter gets the lease');
is($user->query_safe(q{SELECT lease_release('busy', 'w1')}), 't', 'and releases it');
version_is('1.0', 'it is still version 1.0');

# A table with a column that must not be NULL, and that the library does not know, is from a
# newer version. The library refuses to use it and says what to do, in a waiter as well.
$admin->query_safe($update);
is($user->query_safe(q{SELECT lease_acquire('safe', '1 hour', 'me')}), 't', 'before a column is added');
send_to_wait($node, $waiter{function}, q{SELECT lease_acquire('safe', '1 hour', 'w1', NULL)});
$admin->query_safe(q{ALTER EXTENSION lease_lock UPDATE TO 'next.2'});
foreach my $call (q{lease_release('safe', 'me')}, q{lease_renew('safe', '2 hours', 'me')},
	q{lease_acquire('safe', '1 hour', 'you')}, q{lease_token('safe', 'me')})
{
	session_fails($user, "SELECT $call", '42P17',
		'lock table "lease_lock" is that of a later version.*HINT:  .*updated.*connect again', "newer table: $call");
}
$admin->query_safe(q{ALTER EXTENSION lease_lock UPDATE TO 'next.1'});
is($user->query_safe(q{SELECT lease_token('safe', 'me') > 0}), 't', 'no lease was lost');
is($user->query_safe(q{SELECT lease_release('safe', 'me')}), 't', 'released');
is(answer($waiter{function}), 't', 'a waiter that did not look meanwhile gets it');
nothing_left($node, 'at the end');

$_->quit foreach $user, $admin, values %waiter;
$node->stop;
done_testing();
