# Leases on two servers with two partitions each, behind a router by PL/Proxy:
# the answers and errors are those of a single server, a wait ends when the
# router's session is cancelled or its client is gone, and a server that is
# down takes only its own names along.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use ClientTest qw(can_run);
use IPC::Run;
use LeaseTest;
use PostgreSQL::Test::Utils;
use RouterTest;
use Test::More;
use WaitTest;

plan skip_all => plproxy_missing() if plproxy_missing();

# p0 and p2 are on the first server, with the router and a database that does
# without one; p1 and p3 on the second.
my $first = start_waiting_node('first', "deadlock_timeout = 1s\n");
my $second = start_waiting_node('second', "deadlock_timeout = 1s\n");
my @nodes = ($first, $second, $first, $second);

$first->safe_psql('postgres', 'CREATE DATABASE router');
make_partition($nodes[$_], $_, 4, 'app other') foreach 0 .. 3;
my @connections = map { connection($nodes[$_], "p$_") } 0 .. 3;

is(mark_partition($first, 'p0', 0, 4, 'app'), '', 'a partition can be made again');
like(mark_partition($first, 'p0', 0, 8), qr/55000: this database is partition 0 of 4 already/, 'but not another one');
like(mark_partition($first, 'postgres', 4, 4), qr/22023: there is no partition "4 of 4"/, 'a number too high');
like(mark_partition($first, 'postgres', 0, 3), qr/22023: there is no partition "0 of 3"/, 'three partitions');

# What router.sql refuses, it refuses before it makes anything.
like(make_router($first, @connections[ 0 .. 2 ]), qr/22023: 3 partitions are given: it has to be a power of two/, 'three partitions');
like(make_router($first), qr/22023: 1 partitions are given/, 'no partition');
like(make_router($first, @connections[ 0, 3, 2, 1 ]), qr/55000: partition 1 of 4 says that it is 3 of 4/, 'swapped connection strings');
like(make_router($first, @connections[ 0, 1 ]), qr/55000: partition 0 of 2 says that it is 0 of 4/, 'too few partitions');
like(make_router($first, connection($first, 'postgres')), qr/55000: partition 0 is not prepared/, 'a database that is no partition');
is($first->safe_psql('router', q{SELECT count(*) FROM pg_namespace WHERE nspname = 'lease_router'}), 0, 'nothing is left of a refused router');

$first->safe_psql('router', q{
	CREATE ROLE early LOGIN;
	GRANT CREATE ON DATABASE router TO early;
	GRANT CREATE ON SCHEMA public TO early;
	SET ROLE early;
	CREATE FUNCTION lease_token(resource text, owner text) RETURNS bigint LANGUAGE sql AS $$ SELECT 1::bigint $$});
like(make_router($first, @connections), qr/42501: objects of these scripts belong to a role that is no superuser.*lease_token\(text,text\) of role early/s, 'a function of somebody else');
$first->safe_psql('router', 'SET ROLE early; DROP FUNCTION lease_token; CREATE SCHEMA plproxy');
like(make_router($first, @connections), qr/42501: .*schema plproxy of role early/s, 'a schema of somebody else');
$first->safe_psql('router', 'DROP SCHEMA plproxy; DROP OWNED BY early');

is(make_router($first, @connections), '', 'a router to four partitions');
is(make_router($first, @connections), '', 'can be made again');
like(make_router($first, $connections[0]), qr/0A000: the router has 4 partitions, and 1 are given.*Splitting/s, 'another number of partitions');
like(make_router($first, @connections, @connections[ 0, 1, 2, 2 ]), qr/0A000: the router has 4 partitions, and 8 are given/, 'others than each twice');
is(make_router($first, @connections, @connections), '', 'each of them twice');
$first->safe_psql('router', 'TRUNCATE lease_router.partitions');
is(make_router($first, @connections), '', 'four again');

# The partition of each name.
my %known = ('order:1' => 200, 'é' => 74, '{order:1}/x' => 200, 'x{order:1}{y}' => 200, '{}order' => undef, 'a{b' => undef, '' => 227);
foreach my $name (sort keys %known)
{
	my $expected = $known{$name} // "get_byte(sha256('$name'), 0)";

	is($first->safe_psql('router', "SELECT lease_router.logical_partition('$name') = $expected"), 't', "partition of \"$name\"");
}
$first->safe_psql('router', q{SELECT count(lease_acquire('spread ' || i, '1 hour', 'spread')) FROM generate_series(1, 64) AS i});
foreach my $number (0 .. 3)
{
	is($nodes[$number]->safe_psql("p$number",
			"SELECT count(*) > 3 AND bool_and(lease_router.logical_partition(resource) % 4 = $number) FROM lease_status"),
		't', "partition $number has names of its own");
}
is($first->safe_psql('router', q{SELECT lease_release_all('spread'), count(*) FROM lease_status}), '64|64', 'all of them are seen and released');

# The same calls with and without the router. Names in one statement have a tag in common, or they are refused.
my $direct = open_session($first);
my $routed = open_session($first, 'router');

sub answer_of
{
	my ($session, $sql) = @_;
	my $rows = $session->query($sql);
	my @errors = grep { /^(ERROR|DETAIL|HINT)/ } split(/\n/, $session->{stderr});

	$session->{stderr} = '';
	s/^(ERROR:  \S+: )\S+\(\d+\): \[p\d\] REMOTE ERROR: /$1/, s/Remote (detail|hint): // foreach @errors;
	return join("\n", grep { $_ ne '' } $rows, @errors);
}

my %refused = map { $_ => 1 } qw(lease_assert lease_assert_token lease_protect lease_unprotect lease_guard lease_version lease_watch lease_unwatch lease_wait);
my $columns = q{granted, token > 0 AS token, expires_at > now() AS expires, blocked_by, blocked_for > '0' AS blocked};
my @calls = split(/;\s*\n/, <<'SQL');
SELECT lease_acquire('a', '1 hour', 'o'), lease_acquire('b', '1 hour', 'o'), lease_acquire('c', '1 hour', 'o'), lease_acquire('d', '1 hour', 'o')
SELECT lease_acquire('a', '1 hour', 'p'), lease_acquire('a', '1 hour', 'o')
SELECT lease_acquire('a', '1 hour', 'p', '10 ms')
SELECT lease_acquire('a', '-1 s', 'p')
SELECT lease_acquire('a', NULL, 'p')
SELECT lease_acquire(NULL, '1 hour', 'p')
SELECT lease_acquire('', '1 hour', 'p')
SELECT lease_acquire(repeat('x', 1025), '1 hour', 'p')
SELECT lease_acquire('a', '1 hour', '')
SELECT lease_acquire('a', '1 hour', 'p', '-1 s')
SELECT lease_token('a', 'o') > 0, lease_token('a', 'p') IS NULL
SELECT lease_release('a', 'o', lease_token('a', 'o') + 1), lease_renew('a', '2 hours', 'o', lease_token('a', 'o'))
SELECT lease_release('a', 'o', lease_token('a', 'o')), lease_release('a', 'o')
SELECT lease_renew('b', '2 hours', 'o'), lease_renew('a', '2 hours', 'o'), lease_renew('b', '2 hours', 'p')
SELECT lease_transfer('b', 'o', 'p') > 0, lease_transfer('b', 'o', 'q') IS NULL, lease_release('b', 'p')
SELECT lease_break('c'), lease_break('c')
SELECT lease_acquire_shared('s', '1 hour', 'o'), lease_acquire_shared('s', '1 hour', 'p', '1 ms'), lease_acquire('s', '1 hour', 'q')
SELECT lease_acquire_permit('n', 2, '1 hour', 'o'), lease_acquire_permit('n', 2, '1 hour', 'p'), lease_acquire_permit('n', 2, '1 hour', 'q', '1 ms')
SELECT lease_acquire_permit('n', 0, '1 hour', 'r')
SELECT COLUMNS FROM lease_request('a', '1 hour', 'o', mode => 'shared')
SELECT COLUMNS FROM lease_request('a', '1 hour', 'p', '1 ms')
SELECT COLUMNS FROM lease_request('a', '1 hour', 'p', mode => 'none')
SELECT COLUMNS FROM lease_request('y', '1 hour', 'p', min_hold => '1 ms', payload => '{"a": [1, "é"]}')
SELECT resource, slot, mode, owner, state, holds, role, payload FROM lease_status WHERE state = 'held' ORDER BY resource COLLATE "C", slot
SELECT lease_acquire_all(ARRAY['{t}1', '{t}2'], '1 hour', 'o'), lease_acquire_all(ARRAY['{t}2', '{t}3'], '1 hour', 'p', '1 ms'), lease_acquire('{t}3', '1 hour', 'q')
SELECT lease_acquire_all(ARRAY['{t}1', NULL], '1 hour', 'o')
SELECT lease_acquire_all(ARRAY[]::text[], '1 hour', 'o')
SELECT lease_acquire_all(NULL, '1 hour', 'o')
SELECT lease_acquire_any(ARRAY['{t}1', '{t}2', '{t}4', '{t}5'], '1 hour', 'p'), lease_acquire_any(ARRAY['{t}1', '{t}2'], '1 hour', 'p', '1 ms')
SELECT lease_acquire_any(ARRAY['b', 'b1', 'd', 'd1', 'd2'], '1 hour', 'z'), lease_release('b', 'z')
SELECT lease_acquire('b', '1 hour', 'z'), lease_acquire('b1', '1 hour', 'z'), lease_acquire('d1', '1 hour', 'z'), lease_acquire('d2', '1 hour', 'z')
SELECT lease_acquire_any(ARRAY['b', 'b1', 'd', 'd1', 'd2'], '1 hour', 'y'), lease_acquire_any(ARRAY['b', 'b1', 'd', 'd1', 'd2'], '1 hour', 'y', '10 ms'), lease_acquire_any(ARRAY['b', 'b1', 'd', 'd1', 'd3', 'd2'], '1 hour', 'y', '10 ms')
SELECT lease_acquire_any(ARRAY['b', NULL, 'd'], '1 hour', 'y')
SELECT lease_acquire_any(ARRAY['b', 'b1', 'd', 'd1', 'd2'], '1 hour', 'y', '-1 s')
SELECT lease_renew_several(ARRAY['{t}1', '{t}2'], '2 hours', 'o'), lease_renew_several(ARRAY['{t}1', '{t}3'], '2 hours', 'o')
SELECT lease_downgrade('b', 'z') > 0, lease_downgrade('b', 'z') IS NULL
SELECT lease_set_payload('d1', 'z', '[1]'), lease_set_payload('d1', 'y', NULL)
SELECT resource, position, held, mode, owner, payload FROM lease_contenders ORDER BY resource COLLATE "C", position
SELECT lease_renew_all('2 hours', 'z')
SELECT resource, lease_release(resource, owner), lease_acquire(resource, '1 hour', 'again') FROM lease_status WHERE owner = 'z' ORDER BY resource COLLATE "C"
SELECT lease_release_all('o'), lease_release_all('p'), lease_release_all('nobody')
SELECT lease_release_all(NULL)
SELECT count(*) FROM lease_waiters
SELECT lease_contended('nobody waits')
SELECT count(*) FROM lease_watches
SELECT lease_purge()
SELECT sum(granted) > 0, sum(refused) > 0 FROM lease_stats
SELECT lease_stats_reset()
SELECT sum(granted) FROM lease_stats
SELECT lease_wait_graph() LIKE 'digraph%'
SQL
my %has = map { $_ => 1 } split(/\n/,
	$first->safe_psql('postgres', q{SELECT proname FROM pg_proc WHERE proname LIKE 'lease\_%' UNION SELECT relname FROM pg_class WHERE relname LIKE 'lease\_%'}));
$has{lease_renew_array} = $first->safe_psql('postgres', q{SELECT to_regprocedure('lease_renew_several(text[], interval, text)') IS NOT NULL}) eq 't';
foreach my $call (@calls)
{
	next if grep { !$has{$_} } $call =~ /(lease_\w+)/g;
	next if $call =~ /lease_renew\(ARRAY/ && !$has{lease_renew_array};
	(my $sql = $call) =~ s/COLUMNS/$columns/;
	is(answer_of($routed, $sql), answer_of($direct, $sql), $call);
}

# Every function and view was called above, or is refused with a reason.
foreach my $name (split(/\n/, $first->safe_psql('router',
		q{SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname LIKE 'lease\_%' ORDER BY 1})))
{
	ok($refused{$name} || grep({ /\b$name\b/ } @calls), "$name is covered");
}
session_fails($routed, q{SELECT lease_assert('a', 'o')}, '0A000', 'not possible through a router.*before this call returns.*fencing token', 'lease_assert');
session_fails($routed, q{SELECT lease_protect('pg_class', 'x')}, '0A000', 'of its own database only', 'lease_protect');
session_fails($routed, q{CALL lease_wait('a', '1 hour', 'o', '0')}, '0A000', 'keeps a snapshot', 'lease_wait');
session_fails($routed, q{SELECT lease_acquire_all(ARRAY['a', 'd'], '1 hour', 'o')}, '0A000', 'in 2 partitions.*Give the names a tag', 'several partitions');
SKIP:
{
	skip 'no such leases', 2 if $first->safe_psql('postgres', q{SELECT 'session' = ANY (proargnames) FROM pg_proc WHERE proname = 'lease_request'}) ne 't';
	session_fails($routed, q{SELECT lease_request('a', '1 hour', 'o', session => true)}, '0A000', 'leases that end with the session', 'session leases');
	session_fails($routed, q{SELECT lease_watch('a', 'b')}, '0A000', 'LISTEN in each partition', 'lease_watch');
}

# Any of several in different partitions, with a wait: never more than one.
$routed->query_safe(q{SELECT lease_acquire(r, '1 hour', 'blocker') FROM unnest(ARRAY['a', 'd', '1', '2', '3', '4', '5']) AS r});
my $waiter = open_session($first, 'router');
begin_query($waiter, q{SELECT lease_acquire_any(ARRAY['a', 'd', '1', '2', '3', '4', '5'], '1 hour', 'any', '3 min')});
$routed->query_safe(q{SELECT lease_release_all('blocker')});
like(finish_query($waiter), qr/^(a|d|\d)$/, 'any of several, with a wait');
is($routed->query_safe(q{SELECT count(*) FROM lease_status WHERE owner = 'any' AND state = 'held'}), 1, 'is one lease');

# A wait ends on the partition when it ends on the router, however that is.
my ($busy) = grep { $first->safe_psql('router', "SELECT lease_router.logical_partition('$_') % 4") == 1 } map { "busy $_" } 1 .. 100;
my $waits = 'SELECT count(*) FROM lease_waiters';
$routed->query_safe("SELECT lease_acquire('$busy', '1 hour', 'holder')");
is($first->safe_psql('router', 'SHOW client_connection_check_interval'), '5s', 'the router looks after its clients');
is($second->safe_psql('p1', 'SHOW client_connection_check_interval'), '5s', 'and a partition after the router');
$first->safe_psql('postgres', q{ALTER DATABASE router SET client_connection_check_interval = '100ms'});
$second->safe_psql('postgres', q{ALTER DATABASE p1 SET client_connection_check_interval = '100ms'});

sub waits_on_partition
{
	my ($number, $name) = @_;

	return is($second->poll_query_until('p1', "SELECT count(*) = $number FROM lease_waiters"), 1, $name);
}

$waiter->query_safe(q{SET statement_timeout = '1s'});
session_fails($waiter, "SELECT lease_acquire('$busy', '1 hour', 'late', NULL)", '57014', 'statement timeout', 'statement_timeout of the router');
waits_on_partition(0, 'ended the wait on the partition');
$waiter->query_safe('SET statement_timeout = 0');
my $pid = begin_query($waiter, "SELECT lease_acquire('$busy', '1 hour', 'late', NULL)");
waits_on_partition(1, 'a waiter');
$first->safe_psql('router', "SELECT pg_cancel_backend($pid)");
like(finish_query($waiter), qr/57014/, 'cancelled on the router');
waits_on_partition(0, 'ended the wait on the partition');
is($waiter->query_safe("SELECT lease_acquire('$busy', '1 hour', 'late')"), 'f', 'and the session goes on');

my $killed = IPC::Run::start([ 'psql', '-XAtq', '-d', $first->connstr('router'), '-c', "SELECT lease_acquire('$busy', '1 hour', 'late', NULL)" ],
	'>', \my $killed_out, '2>', \my $killed_err);
waits_on_partition(1, 'a waiter whose client will be killed');
$killed->kill_kill;
waits_on_partition(0, 'left with its client');
$routed->query_safe("SELECT lease_release('$busy', 'holder')");
is($first->safe_psql('router', "SELECT lease_acquire('$busy', '1 hour', 'next')"), 't', 'and did not get the lease');

# A deadlock in one partition is found there, and told with its detail.
my $crossing = open_session($first, 'router');
$waiter->query_safe(q{SELECT lease_acquire('{d}1', '1 hour', 'one')});
$crossing->query_safe(q{SELECT lease_acquire('{d}2', '1 hour', 'two')});
begin_query($waiter, q{SELECT lease_acquire('{d}2', '1 hour', 'one', '3 min')});
is($nodes[$_]->poll_query_until("p$_", 'SELECT count(*) = 1 FROM lease_waiters'), 1, 'one waits for two')
  foreach $first->safe_psql('router', q{SELECT lease_router.logical_partition('{d}') % 4});
begin_query($crossing, q{SELECT lease_acquire('{d}1', '1 hour', 'two', '3 min')});
my $told = finish_query($crossing);
$crossing->query_safe(q{SELECT lease_release('{d}2', 'two')});
like($told . finish_query($waiter), qr/40P01: .*REMOTE ERROR: .*DETAIL:  Remote detail: /s, 'a deadlock in one partition');

# A call commits in its partition at once.
is($first->safe_psql('router', q{BEGIN; SELECT lease_acquire('tx', '1 hour', 'o'); ROLLBACK; SELECT lease_acquire('tx', '1 hour', 'p')}),
	"t\nf", 'a rollback in the router does not release');

# The role that calls is the role of the lease in the partition.
is($first->safe_psql('router', q{SELECT lease_acquire('of app', '1 hour', 'secret')}, extra_params => [ '-U', 'app' ]), 't', 'a lease of a role');
is($first->safe_psql('router', q{SELECT role, owner FROM lease_status WHERE resource = 'of app'}, extra_params => [ '-U', 'app' ]),
	'app|secret', 'arrives under its name');
is($first->safe_psql('router', q{SELECT role, owner IS NULL FROM lease_status WHERE resource = 'of app'}, extra_params => [ '-U', 'other' ]),
	'app|t', 'and another role does not see the owner');
sql_fails($first, q{SELECT lease_release('of app', 'secret')}, '42501', 'app|role', 'nor may release it', dbname => 'router', role => 'other');
sql_fails($first, q{SELECT lease_break('of app')}, '42501', 'permission denied', 'nor break it', dbname => 'router', role => 'other');

# The partitions trust the router. Who one is there follows from who one is here, and nobody can choose it: not a plain role, one that may
# create objects, one that may create roles, one that may read everything, a member of another role.
$first->safe_psql('router', q{
	CREATE ROLE plain LOGIN;
	CREATE ROLE creator LOGIN;
	CREATE ROLE creates_roles LOGIN CREATEROLE;
	CREATE ROLE reader LOGIN IN ROLE pg_monitor, pg_read_all_data;
	CREATE ROLE member LOGIN IN ROLE app;
	GRANT CREATE ON DATABASE router TO creator;
	GRANT CREATE ON SCHEMA public TO creator});
$second->safe_psql('postgres', 'CREATE ROLE plain LOGIN; CREATE ROLE member LOGIN IN ROLE app');
like(make_router($first, map { "$_ user=postgres" } @connections), qr/22023: a connection string must not contain a user, password, service or options/, 'no user for all');
like(make_router($first, map { "$_ password = secret" } @connections), qr/22023: a connection string must not contain/, 'no password that all can read');
$first->safe_psql('router', 'CREATE SERVER lease_lock FOREIGN DATA WRAPPER plproxy OPTIONS (p0 $$dbname=p0$$)');
like(make_router($first, @connections), qr/55000: there is a foreign server "lease_lock"/, 'no foreign server, which could have user mappings');
$first->safe_psql('router', 'DROP SERVER lease_lock');
my $elsewhere = connection($first, 'p0') . ' user=postgres';
my %attacks = (
	'a user mapping' => [ q{CREATE USER MAPPING FOR CURRENT_USER SERVER lease_lock OPTIONS (user 'postgres')}, '42704' ],
	'a server' => [ "CREATE SERVER lease_lock FOREIGN DATA WRAPPER plproxy OPTIONS (p0 '$elsewhere')", '42501' ],
	'a function' => [ "CREATE FUNCTION pg_temp.f() RETURNS SETOF text LANGUAGE plproxy AS \$\$ CONNECT '$elsewhere'; SELECT current_user::text; \$\$", '42501' ],
	'a cluster' => [ "CREATE OR REPLACE FUNCTION plproxy.get_cluster_partitions(cluster_name text) RETURNS SETOF text LANGUAGE sql AS \$\$ SELECT '$elsewhere' \$\$", '42501' ],
	'an overload for a cluster' => [ "CREATE FUNCTION plproxy.get_cluster_partitions(cluster_name name) RETURNS SETOF text LANGUAGE sql AS \$\$ SELECT '$elsewhere' \$\$", '42501' ],
	'another connection' => [ "UPDATE lease_router.partitions SET connection = '$elsewhere', changes = changes + 1", '42501' ],
	'one more connection' => [ "INSERT INTO lease_router.partitions VALUES (4, '$elsewhere')", '42501' ],
	'the rule' => [ 'CREATE OR REPLACE FUNCTION lease_router.logical_partition(resource text) RETURNS integer LANGUAGE sql AS $$ SELECT 0 $$', '42501' ],
	'a function of the router' => [ 'SELECT * FROM lease_router.facts(0)', '42501' ],
	'another role' => [ 'SET ROLE other', '42501' ],
	'the superuser' => [ 'SET ROLE postgres', '42501' ],
	'another session user' => [ 'SET SESSION AUTHORIZATION other', '42501' ],
	'a lease of another role' => [ q{SELECT lease_release('of app', 'secret')}, 'XX000|42501' ]);
foreach my $role (qw(plain creator creates_roles reader member))
{
	foreach my $attack (sort keys %attacks)
	{
		next if $role eq 'member' && $attack eq 'a lease of another role';    # it may
		sql_fails($first, $attacks{$attack}[0], $attacks{$attack}[1], '.', "$role: $attack", dbname => 'router', role => $role);
	}
}
is($first->safe_psql('router', 'SELECT count(*) FROM pg_user_mappings'), 0, 'there is no user mapping');
is($first->safe_psql('router', q{SET ROLE member; SELECT lease_release('of app', 'secret')}), 't', 'a role has the privileges on the partition that it has there');

# One session, one role after another; a function that runs as its definer.
my $roles = open_session($first, 'router');
$roles->query_safe(q{SET ROLE app; CREATE FUNCTION pg_temp.take(name text) RETURNS bool LANGUAGE sql SECURITY DEFINER AS $$ SELECT public.lease_acquire(name, '1 hour', 'o') $$});
is($roles->query_safe(q{SELECT lease_acquire('first', '1 hour', 'o')}), 't', 'as one role');
$roles->query_safe('RESET ROLE; SET ROLE other');
session_fails($roles, q{SELECT lease_release('first', 'o')}, '42501', 'must have the privileges|permission denied', 'then as another');
is($roles->query_safe(q{SELECT lease_acquire('second', '1 hour', 'o'), pg_temp.take('third')}), 't|t', 'a lease of its own, and one by a function');
is($roles->query_safe(q{SELECT string_agg(resource || ' ' || role, ', ' ORDER BY resource) FROM lease_status WHERE resource IN ('first', 'second', 'third')}),
	'first app, second other, third app', 'each belongs to the role that acquired it');
$roles->quit;

# With a password, which is in a file of the account that the router's server runs as. A superuser of the router is kept out.
my $passfile = $PostgreSQL::Test::Utils::tmp_check . '/passfile';
append_to_file($passfile, "*:*:*:app:secret\n");
chmod 0600, $passfile;
is(make_router($first, map { "$_ passfile=$passfile" } @connections), '', 'a file of passwords');
$second->safe_psql('postgres', q{ALTER ROLE app PASSWORD 'secret'});
my $hba = slurp_file($second->data_dir . '/pg_hba.conf');
open(my $file, '>', $second->data_dir . '/pg_hba.conf') or die;
print $file "local p1,p3 +lease_router_user scram-sha-256\nlocal p1,p3 all reject\n$hba";
close $file;
$second->reload;
is($first->safe_psql('router', "SELECT lease_acquire('$busy', '1 hour', 'app') IS NOT NULL", extra_params => [ '-U', 'app' ]), 't', 'a role with a password');
sql_fails($first, "SELECT lease_acquire('$busy', '1 hour', 'o')", 'XX000', 'password', 'a role without one', dbname => 'router', role => 'other');
sql_fails($first, "SELECT lease_acquire('$busy', '1 hour', 'o')", 'XX000', 'pg_hba.conf rejects', 'no superuser', dbname => 'router');
open($file, '>', $second->data_dir . '/pg_hba.conf') or die;
print $file $hba;
close $file;
$second->reload;
is(make_router($first, @connections), '', 'as before');

# Clients that hash by themselves agree with the router. Their code is that of docs/scaling.md.
my @names = ('order:1', '{order:1}/x', 'x{}y{z}', 'a{b', '}{', '{{a}}', 'é', '日本{語}', "line\nbreak", '{a' . "\n" . '}b', map { "name $_" } 1 .. 50);
my $expected = join(' ', map { (my $name = $_) =~ s/'/''/g; $routed->query_safe("SELECT lease_router.logical_partition('$name') % 8") } @names);
my $page = slurp_file("$FindBin::RealBin/../../../docs/scaling.md");
my ($definition) = $page =~ /```sql\n(CREATE FUNCTION partition.*?)```/s;
$first->safe_psql('postgres', $definition);
is(join(' ', map { (my $name = $_) =~ s/'/''/g; $direct->query_safe("SELECT partition('$name', 8)") } @names), $expected,
	'the partitions of names in SQL');
my %languages = (
	python => [ 'python3', '-', "import sys\nprint(*(partition(name, 8) for name in sys.argv[1:]))\n" ],
	javascript => [ 'node', '-', "console.log(...process.argv.slice(2).map(name => partition(name, 8)))\n" ]);
foreach my $language (sort keys %languages)
{
  SKIP:
	{
		my ($command, $stdin, $call) = @{ $languages{$language} };
		my ($code) = $page =~ /```$language\n(.*?)```/s;
		my $out;

		skip "no $command", 1 if !can_run([$command], '--version');
		local $ENV{PYTHONIOENCODING} = 'utf-8';
		local $ENV{PYTHONUTF8} = 1;
		IPC::Run::run([ $command, $stdin, @names ], '<', \($code . $call), '>', \$out, '2>&1');
		chomp $out;
		is($out, $expected, "the partitions of names in $language");
	}
}

# A server that is down: only its own names fail.
my ($up) = grep { $first->safe_psql('router', "SELECT lease_router.logical_partition('$_') % 4") == 2 } map { "up $_" } 1 .. 100;
$second->stop('fast');
is($first->safe_psql('router', "SELECT lease_acquire('$up', '1 hour', 'o')"), 't', 'a server is down: a name of another');
sql_fails($first, "SELECT lease_acquire('$busy', '1 hour', 'o')", 'XX000', 'PL/Proxy function.*p1. PQconnect', 'and a name of its own', dbname => 'router');
$second->start;
is($first->safe_psql('router', "SELECT lease_acquire('$busy', '1 hour', 'next')"), 'f', 'it is back, and so are its leases');

$_->quit foreach $direct, $routed, $waiter, $crossing;
$second->stop;
$first->stop;
done_testing();
