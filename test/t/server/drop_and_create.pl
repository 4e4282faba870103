# DROP EXTENSION and CREATE EXTENSION under sessions that remember the objects
# of the old one; and the extension in another schema.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('extension');
my $user = open_session($node);
my $admin = open_session($node);
my $drop = 'DROP EXTENSION lease_lock';
my $create = 'CREATE EXTENSION lease_lock';

# Every way to call keeps plans of its own: as typed, prepared, and in plpgsql
# both as a simple expression and in a query.
my %acquire = (
	typed => "SELECT lease_acquire('r', '1 hour', 'o')",
	prepared => 'EXECUTE acquire',
	expression => "SELECT acquire_in_expression('r')",
	query => "SELECT acquire_in_query('r')");

$user->query_safe(q{
	CREATE FUNCTION acquire_in_expression(resource text) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		RETURN lease_acquire(resource, '1 hour', 'o');
	END $$;
	CREATE FUNCTION acquire_in_query(resource text) RETURNS boolean LANGUAGE plpgsql AS $$
	DECLARE
		granted boolean;
	BEGIN
		SELECT lease_acquire(f.resource, '1 hour', 'o') INTO granted
		FROM (VALUES (acquire_in_query.resource)) AS f (resource);
		RETURN granted;
	END $$;
});
$user->query_safe("PREPARE acquire AS $acquire{typed}");

# The functions work in this session, on the table that is there now.
sub works
{
	my ($session, $name) = @_;

	foreach my $how (sort keys %acquire)
	{
		is($session->query_safe($acquire{$how}), 't', "$name: acquire, $how");
		is($session->query_safe("SELECT lease_token('r', 'o') = (SELECT token FROM lease_lock)"),
			't', "$name: the lease is in the table");
		is($session->query_safe("SELECT lease_release('r', 'o')"), 't', "$name: release");
	}
	$session->query_safe('SET lease_lock.purge_after = 0');
	is($session->query_safe('SELECT lease_purge()'), 1, "$name: purge");
}

works($user, 'as installed');

# in one session
$user->query_safe("$drop; $create");
works($user, 'replaced by the same session');
$user->query_safe("BEGIN; $drop; $create");
works($user, 'replaced in the open transaction');
$user->query_safe('ROLLBACK');
works($user, 'replacement rolled back');
$user->query_safe("BEGIN; $drop; SAVEPOINT s; $create");
$user->query_safe($acquire{typed});
$user->query_safe("ROLLBACK TO s; $create");
works($user, 'replaced twice in one transaction');
$user->query_safe('COMMIT');
works($user, 'then committed');

# between sessions
$admin->query_safe("$drop; $create");
works($user, 'replaced by another session');

$admin->query_safe($drop);
session_fails($user, $acquire{$_}, '42883', qr/function lease_acquire\(.*\) does not exist/,
	"dropped by another session: $_")
  foreach sort keys %acquire;
session_fails($user, 'SELECT * FROM lease_status', '42P01', 'does not exist',
	'dropped by another session: lease_status');
$admin->query_safe($create);
works($user, 'created again by another session');

# A call that has begun when the extension is dropped.
is(scalar $admin->query_safe("BEGIN; $drop; $create"), '', 'replacement begins');
my $pid = begin_query($user, $acquire{typed});
wait_until_blocked($node, $pid);
$admin->query_safe('COMMIT');
is(finish_query($user), 't', 'a call that meets the replacement uses the new table');
is($user->query_safe("SELECT lease_release('r', 'o')"), 't', 'the new functions see its lease');

$admin->query_safe("BEGIN; $drop");
$pid = begin_query($user, $acquire{typed});
wait_until_blocked($node, $pid);
$admin->query_safe('COMMIT');
like(finish_query($user),
	qr/ERROR:  42P01: relation "lease_lock" of extension "lease_lock" does not exist.*HINT:  Run CREATE EXTENSION/s,
	'a call that meets the drop fails with a clear error');
$admin->query_safe($create);

$admin->query_safe("BEGIN; $drop");
$pid = begin_query($user, $acquire{typed});
wait_until_blocked($node, $pid);
$admin->query_safe('ROLLBACK');
is(finish_query($user), 't', 'a call that meets a drop that is rolled back succeeds');
is($user->query_safe("SELECT lease_release('r', 'o')"), 't', 'and so does the session');

# DROP EXTENSION waits for a transaction that wrote a lease ...
foreach my $call ("lease_acquire('r', '1 hour', 'o')", "lease_renew('held', '2 hours', 'o')",
	"lease_release('held', 'o')", "lease_release_all('o')")
{
	$user->query_safe("SELECT lease_acquire('held', '1 hour', 'o')");
	is($user->query_safe("BEGIN; SELECT ($call)::text IN ('true', '1')"), 't', $call);
	$pid = begin_query($admin, $drop);
	wait_until_blocked($node, $pid);
	$user->query_safe('COMMIT');
	unlike(finish_query($admin), qr/ERROR/, "DROP EXTENSION waited for $call");
	session_fails($user, "SELECT $call", '42883', 'does not exist', 'and succeeds after that');
	$admin->query_safe($create);
}

# ... and not for one that wrote none.
foreach my $call ("lease_acquire('held', '1 hour', 'p')", "lease_token('held', 'o') < 0",
	"lease_renew('held', '1 hour', 'p')", "lease_release('held', 'p')")
{
	$user->query_safe("SELECT lease_acquire('held', '1 hour', 'o')");
	is($user->query_safe("BEGIN; SELECT $call"), 'f', $call);
	$admin->query_safe("SET client_min_messages = error; SET lock_timeout = '3min'; $drop; $create; RESET client_min_messages");
	is($user->query_safe("SELECT lease_acquire('held', '1 hour', 'p')"), 't',
		'does not block DROP EXTENSION, and its transaction continues');
	$user->query_safe('ROLLBACK');
}
works($user, 'after all that');

# A function that was removed from the extension but not dropped.
$admin->query_safe(q{
	ALTER EXTENSION lease_lock DROP FUNCTION lease_acquire(text, interval, text);
	DROP EXTENSION lease_lock;
});
session_fails($user, $acquire{typed}, '42P01',
	'relation "lease_lock" of extension "lease_lock" does not exist.*HINT:  Run CREATE EXTENSION lease_lock',
	'a function without its extension');
$admin->query_safe('DROP FUNCTION lease_acquire(text, interval, text)');

# another schema
$admin->query_safe('CREATE SCHEMA "the leases"; CREATE SCHEMA moved');
$admin->query_safe("$create SCHEMA \"the leases\"");
session_fails($user, $acquire{typed}, '42883', 'does not exist', 'other schema: not on the search path');
is($user->query_safe(q{SELECT "the leases".lease_acquire('q', '1 hour', 'o')}), 't', 'other schema: qualified');
is($user->query_safe(q{SELECT "the leases".lease_release('q', 'o')}), 't', 'other schema: release');
is($user->query_safe(q{SET lease_lock.purge_after = 0; SELECT "the leases".lease_purge()}), 1, 'other schema: purge');
$user->query_safe('SET search_path = public, "the leases"');
works($user, 'other schema, on the search path');

# moved under sessions that use it
is($user->query_safe("SELECT lease_acquire('kept', '1 hour', 'o')"), 't', 'before the move');
$admin->query_safe('ALTER EXTENSION lease_lock SET SCHEMA moved');
is($user->query_safe("SELECT moved.lease_acquire('kept', '1 hour', 'p')"), 'f', 'moved: the lease is still held');
session_fails($user, $acquire{typed}, '42883', 'does not exist', 'moved: no longer on the search path');
$user->query_safe('SET search_path = public, moved');
is($user->query_safe("SELECT lease_release('kept', 'o')"), 't', 'moved: release');
is($user->query_safe('SELECT lease_purge()'), 1, 'moved: purge');
works($user, 'moved');
$node->safe_psql('postgres', 'DROP SCHEMA "the leases"');

# moved while an open transaction uses it
$user->query_safe("BEGIN; SELECT lease_acquire('r', '1 hour', 'o')");
$pid = begin_query($admin, 'ALTER EXTENSION lease_lock SET SCHEMA public');
wait_until_blocked($node, $pid);
$user->query_safe("SELECT lease_renew('r', '2 hours', 'o')");
$user->query_safe('COMMIT');
is(finish_query($admin), '', 'moved under an open transaction');
is($user->query_safe("SELECT lease_release('r', 'o')"), 't', 'its lease is there');
$user->query_safe('SELECT lease_purge()');
works($user, 'moved back');

$user->quit;
$admin->quit;
$node->stop;
done_testing();
