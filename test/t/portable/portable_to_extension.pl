# The extension takes the place of the portable edition in one transaction, while sessions work: leases, owners, tokens and
# privileges are there afterwards, tokens go on above the old ones, and no two owners hold a lease.
use strict;
use warnings;

use Cwd qw(abs_path);
use FindBin;
use lib "$FindBin::RealBin/..";

use IPC::Run;
use LeaseCluster;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $folder = abs_path("$FindBin::RealBin/../../../portable");
my $node = LeaseCluster->new('to_extension');

$node->init;
$node->append_conf('postgresql.conf', "fsync = off\nshared_preload_libraries = 'lease_lock'\nlease_lock.purge_interval = 0\n");
$node->start;
$node->safe_psql('postgres', "CREATE ROLE app LOGIN; CREATE ROLE admin LOGIN; CREATE ROLE worker LOGIN; CREATE DATABASE moved OWNER app");

sub run_command
{
	my ($role, $file, @before) = @_;

	return [ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=verbose', '--single-transaction', '-U', $role, '-d', $node->connstr('moved'),
		(map { ('-c', $_) } 'SET client_min_messages = warning', "SET lock_timeout = '${PostgreSQL::Test::Utils::timeout_default}s'", @before, 'SET search_path = lease'), '-f', "$folder/$file" ];
}

sub run_file
{
	my $stderr = '';

	IPC::Run::run(run_command(@_), '<', \undef, '>', '/dev/null', '2>', \$stderr);
	return $stderr;
}

sub value
{
	return $node->safe_psql('moved', "SET search_path = lease; $_[0]", extra_params => [ '-U', $_[1] // 'app' ]);
}

is(run_file('app', 'lease_lock.sql', 'CREATE SCHEMA lease'), '', 'the portable edition is there');
value("GRANT USAGE ON SCHEMA lease TO PUBLIC; GRANT EXECUTE ON FUNCTION lease_break(text, interval) TO admin; GRANT EXECUTE ON FUNCTION lease_purge() TO admin WITH GRANT OPTION;
	REVOKE EXECUTE ON FUNCTION lease_acquire_shared(text, interval, text), lease_transfer(text, text, text) FROM PUBLIC;
	REVOKE SELECT ON lease_status FROM PUBLIC; GRANT SELECT ON lease_status TO worker");
value("SELECT lease_acquire('high', '1 day', 'ann'), lease_release('high', 'ann'); UPDATE lease_lock SET token = token + 1e15::int8 WHERE resource = 'high'");
value("SELECT lease_acquire('x', '1 day', 'ann'), lease_acquire_permit('p', 2, '1 day', 'a'), lease_acquire_permit('p', 2, '1 day', 'b');
	SELECT lease_request('counted', '1 day', 'ann', if_own => 'count', payload => '{\"n\": 1}') FROM generate_series(1, 2);
	SELECT lease_request('kept', '1 day', 'ann', min_hold => '1 day'); SELECT lease_release('kept', 'ann')", 'worker');
my $leases = "SELECT resource, slot, mode, owner, token, state, holds, role, payload FROM lease_status WHERE resource NOT LIKE 'w%' ORDER BY resource, slot";
my $before = value($leases, 'worker');
like($before, qr/x\|0\|exclusive\|ann.*/, 'there are leases');
value("CREATE TABLE public.ends AS SELECT resource, slot, expires_at FROM lease_status", 'postgres');

# An object of a user's that depends on it: nothing changes.
$node->safe_psql('moved', 'CREATE VIEW mine AS TABLE lease.lease_status');
like(run_file('postgres', 'to_extension.sql'), qr/2BP01/, 'a view that depends on it stops it');
is(value($leases, 'worker'), $before, 'and it is as it was');
$node->safe_psql('moved', 'DROP VIEW mine');

# The owner makes functions that the extension has for administrators alone, and gives them to anybody.
value("CREATE FUNCTION lease_stats_reset() RETURNS void LANGUAGE sql AS ''; GRANT EXECUTE ON FUNCTION lease_stats_reset() TO worker");
like(run_file('postgres', 'to_extension.sql'), qr/42723/, 'a function of a name of the extension stops it');
value('DROP FUNCTION lease_stats_reset()');
value("CREATE FUNCTION lease_mine() RETURNS int LANGUAGE sql AS 'SELECT 1'");

# Renewals wait behind it, so it waits for nobody for long.
{
	my $open = $node->background_psql('moved', extra_params => [ '-U', 'worker' ]);

	$open->query_safe("BEGIN; SELECT lease.lease_token('x', 'ann')");
	like(run_file('postgres', 'to_extension.sql', 'RESET lock_timeout'), qr/55P03/, 'a transaction that stays open stops it');
	$open->query_safe('COMMIT');
	$open->quit;
	is(value($leases, 'worker'), $before, 'and it is as it was');
}

# The owner of the schema adds something to the table that the planner evaluates.
value("CREATE SCHEMA planned; CREATE SEQUENCE planned.calls;
	CREATE FUNCTION planned.run(t text) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_catalog.nextval(''planned.calls'') WHERE current_user = ''postgres''; RETURN true; END'");
foreach (
	[ 'predicate', q{CREATE INDEX odd ON lease_lock (token) WHERE planned.run('x')}, 'DROP INDEX odd' ],
	[ 'index expression', q{CREATE INDEX odd ON lease_lock (planned.run('x'))}, 'DROP INDEX odd' ],
	[ 'statistics', q{CREATE STATISTICS odd ON (planned.run(resource)), token FROM lease_lock}, 'DROP STATISTICS odd' ],
	[ 'check', q{ALTER TABLE lease_lock ADD CONSTRAINT odd CHECK (planned.run('x'))}, 'ALTER TABLE lease_lock DROP CONSTRAINT odd' ],
	[ 'generated column', q{ALTER TABLE lease_lock ADD odd bool GENERATED ALWAYS AS (planned.run('x')) STORED}, 'ALTER TABLE lease_lock DROP odd' ])
{
	my ($name, $add, $drop) = @$_;

	value($add);
	like(run_file('postgres', 'to_extension.sql', 'SET constraint_exclusion = on'), qr/42809.*has an expression of a user/, "a $name stops it");
	value($drop);
	is(value('SELECT is_called FROM planned.calls'), 'f', 'and is not evaluated');
}
is(value($leases, 'worker'), $before, 'and it is as it was');

# The owner of the schema replaces the table by something that runs a function of his with the rights of the superuser, a view
# or the cast of a type, while the script waits for him.
value("CREATE SCHEMA own; CREATE TYPE own.text AS (t text); CREATE SEQUENCE own.calls");
value("CREATE FUNCTION own.run(own.text) RETURNS text LANGUAGE plpgsql AS 'BEGIN PERFORM nextval(''own.calls''); RETURN \$1.t; END';
	CREATE CAST (own.text AS text) WITH FUNCTION own.run AS IMPLICIT");
my %replacement = (
	VIEW => 'AS SELECT * FROM lease.moved_away WHERE own.run(ROW(resource)::own.text) IS NOT NULL',
	TABLE => 'AS TABLE lease.moved_away; ALTER TABLE lease.lease_lock ALTER resource TYPE own.text USING ROW(resource)::own.text');
foreach my $kind (sort keys %replacement)
{
	my $owner = $node->background_psql('moved', on_error_stop => 0, extra_params => [ '-U', 'app' ]);
	my $stderr = '';

	$owner->query_safe('BEGIN; LOCK TABLE lease.lease_lock');
	my $script = IPC::Run::start([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=verbose', '--single-transaction',
			'-d', $node->connstr('moved') . ' user=postgres application_name=script', '-c', "SET lock_timeout = '${PostgreSQL::Test::Utils::timeout_default}s'", '-c', 'SET search_path = lease', '-f', "$folder/to_extension.sql" ],
		'<', \undef, '>', '/dev/null', '2>', \$stderr);
	$node->poll_query_until('moved', "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'script' AND wait_event_type = 'Lock'")
	  or die 'the script does not wait';
	$node->psql('moved', "\\set VERBOSITY verbose\nSET lock_timeout = '200 ms'; ALTER SCHEMA lease RENAME TO away", stderr => \my $renamed, extra_params => [ '-U', 'app' ]);
	like($renamed, qr/55P03/, 'meanwhile the name of the schema stays where it is');
	$owner->query_safe("ALTER TABLE lease.lease_lock RENAME TO moved_away; CREATE $kind lease.lease_lock $replacement{$kind}; COMMIT");
	$script->finish;
	like($stderr, qr/42809.*is not the table of the portable edition/, "a $kind is not taken for the table");
	is(value('SELECT is_called FROM own.calls'), 'f', 'and runs nothing');
	$owner->query_safe("DROP $kind lease.lease_lock; ALTER TABLE lease.moved_away RENAME TO lease_lock");
	$owner->quit;
}
is(value($leases, 'worker'), $before, 'and it is as it was');

# Workers note each grant with its token while they hold the lease. They repeat what failed.
$node->safe_psql('moved', "CREATE TABLE worked (n serial, resource text, token int8); GRANT ALL ON worked, worked_n_seq TO PUBLIC");
my $stop = "$PostgreSQL::Test::Utils::tmp_check/moved_stop";
my @runs = map {
	my $report = "$PostgreSQL::Test::Utils::tmp_check/mover$_";
	my $script = "DO \$\$ DECLARE t int8; BEGIN FOR i IN 1..10 LOOP
		t := (lease_request('w' || i % 2, '1 minute', 'o$_')).token; COMMIT;
		IF t IS NOT NULL THEN PERFORM lease_assert('w' || i % 2, 'o$_'); INSERT INTO public.worked (resource, token) VALUES ('w' || i % 2, t); COMMIT;
			PERFORM lease_release('w' || i % 2, 'o$_'); COMMIT; END IF; END LOOP; END \$\$";

	{ report => $report, handle => IPC::Run::start([ 'sh', '-c',
		'while [ ! -e "$1" ] && kill -0 "$PPID"; do psql -Xqv VERBOSITY=verbose -U worker -d "$2" -c "SET search_path = lease" -c "$3" || psql -Xq -U worker -d "$2" -c "SELECT lease.lease_release_all(\'$4\')"; done',
		'sh', $stop, $node->connstr('moved'), $script, "o$_" ], '<', \undef, '>', '/dev/null', '2>', $report) };
} 1 .. 4;
my $works = 'SELECT count(*) > %d FROM worked';
$node->poll_query_until('moved', sprintf $works, 20) or die 'no work';
# It waits for a grant that is open, and takes it along, whatever the isolation level of the superuser is.
my $late = $node->background_psql('moved', extra_params => [ '-U', 'worker' ]);
$late->query_safe("SET search_path = lease; BEGIN; SELECT lease_acquire('w-late', '1 day', 'late')");
{
	my $stderr = '';
	local $ENV{PGOPTIONS} = '-c default_transaction_isolation=repeatable\\ read';
	my $script = IPC::Run::start(run_command('postgres', 'to_extension.sql'), '<', \undef, '>', '/dev/null', '2>', \$stderr);
	local $ENV{PGOPTIONS};
	$node->poll_query_until('moved', "SELECT count(*) = 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND relation = 'lease.lease_lock'::regclass AND NOT granted")
	  or die 'the script does not wait';
	$late->query_safe('COMMIT');
	$late->quit;
	$script->finish;
	is($stderr, '', 'the extension takes its place while sessions work');
}
is(value("SELECT lease_token('w-late', 'late') > 0", 'worker'), 't', 'it has what was granted while it waited');
my $then = $node->safe_psql('moved', 'SELECT count(*) FROM worked');
$node->poll_query_until('moved', sprintf $works, $then + 20) or die 'no more work';
append_to_file($stop, '');
$_->{handle}->finish foreach @runs;

is($node->safe_psql('moved', "SELECT extname, extnamespace::regnamespace FROM pg_extension WHERE extname = 'lease_lock'"), 'lease_lock|lease', 'it is in the same schema');
is(value($leases, 'worker'), $before, 'leases, owners, tokens and payloads are as before');
is(value('SELECT count(*), count(*) FILTER (WHERE abs(extract(epoch FROM l.expires_at - e.expires_at)) < 1) FROM public.ends AS e JOIN lease_status AS l USING (resource, slot)', 'postgres'),
	'5|5', 'and so are their ends');
is(value('SELECT count(*) FROM (SELECT token, lag(token) OVER (PARTITION BY resource ORDER BY n) AS before FROM public.worked) AS w WHERE token <= before', 'postgres'), 0,
	'tokens grow');
is(value("SELECT (SELECT granted FROM lease_request('x', '1 day', 'bob')), lease_release('counted', 'ann'), lease_token('counted', 'ann') > 0, lease_release('p', 'a')", 'worker'), 'f|t|t|t', 'and the leases go on');
is(value("SELECT string_agg(proname, ' ') FROM pg_proc AS p WHERE pronamespace = 'lease'::regnamespace
		AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_proc'::regclass AND objid = p.oid AND deptype = 'e')"),
	'lease_mine', 'nothing of the portable edition is left, and a function of its owner is');
is(value("SELECT has_function_privilege('admin', 'lease_break(text,interval)', 'EXECUTE'), has_function_privilege('admin', 'lease_purge()', 'EXECUTE WITH GRANT OPTION'),
	has_function_privilege('worker', 'lease_acquire_shared(text,interval,text)', 'EXECUTE'), has_function_privilege('worker', 'lease_break(text,interval)', 'EXECUTE'),
	has_function_privilege('worker', 'lease_acquire(text,interval,text)', 'EXECUTE')"), 't|t|f|f|t', 'privileges are as before');
is(value("SELECT has_function_privilege('worker', 'lease_transfer(text,text,text)', 'EXECUTE'), has_table_privilege('worker', 'lease_status', 'SELECT'), has_table_privilege('admin', 'lease_status', 'SELECT')"),
	'f|t|f', 'what PUBLIC may not do any more, it may not do afterwards');
is(value("SELECT has_function_privilege('app', 'lease_break(text,interval)', 'EXECUTE'), has_function_privilege('app', 'lease_transfer(text,text,text)', 'EXECUTE'), has_table_privilege('app', 'lease_status', 'SELECT')"),
	't|t|t', 'the former owner keeps its privileges');
is(value('SELECT lease_mine()', 'worker'), 1, 'and a function of its own');
is(value("SELECT token > 1e15 FROM lease_request('high', '1 h', 'ann')"), 't', 'tokens go on above those that were raised');
my @errors = map { /ERROR:  (\w{5}: .*)/ ? $1 : () } map { split /\n/, slurp_file($_->{report}) } @runs;
is(join("\n", grep { !/^(42501|42704|42883|42P01|XX000|55000): / } @errors), '', 'calls at that moment failed with errors that say so');
cmp_ok(scalar @errors, '<=', 8, 'each once');
note(join "\n", @errors);
like(run_file('app', 'lease_lock.sql'), qr/55000: .*the extension lease_lock is installed/, 'the portable edition does not come beside it');
$node->stop;
done_testing();
