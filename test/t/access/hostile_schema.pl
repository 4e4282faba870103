# The extension is created in a schema of another role, which has created an
# operator, a function and a cast there for everything that the install script
# and the views could mean. None of these runs, whichever role calls a function
# or reads a view.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

# What the install script uses: each function, operator and type has a trap.
my ($install) = glob("$FindBin::RealBin/../../../sql/lease_lock--*.sql");
my $script = slurp_file($install);
$script =~ s{/\*.*?\*/|--[^\n]*|'(?:[^']|'')*'}{' '}gse;
my %functions = map { $_ => 1 } $script =~ /\bpg_catalog\.(\w+)\s*\(/g;
my %operators = map { $_ => 1 } $script =~ /\bOPERATOR\(pg_catalog\.([^)\s]+)\)/g;
my $functions = join(', ', map { "'\"$_\"'" } sort keys %functions);
my $operators = join(', ', map { "'$_'" } sort keys %operators);
cmp_ok(scalar(keys %functions), '>', 10, 'functions of the script: ' . join(' ', sort keys %functions));
cmp_ok(scalar(keys %operators), '>', 5, 'operators of the script: ' . join(' ', sort keys %operators));

# Nothing in it is unqualified but the extension's own names, and syntax.
my %syntax = map { $_ => 1 } qw(and any array as by cast coalesce columns default exists in key lateral materialized not on or over select storage using values when where with filter from else then case set returns);
my $unqualified = $script =~ s/OPERATOR\(pg_catalog\.[^)\s]+\)|WITH \(fillfactor = \d+\)|(?:MINVALUE|DEFAULT) -\d+|\b(?:MESSAGE|DETAIL|HINT|jit|text) =|\w+\.\*|\(\*\)/ /gr;
is(join(' ', grep { !/^lease_/ && !$syntax{ lc $_ } } $unqualified =~ /(?<![\w.\$"])([A-Za-z_]\w*)\s*\(/g), 'd', 'every function is qualified');
is(join(' ', $unqualified =~ m{(?<![:=<>])([-+*/<>=~!\@#%^&|?]+)(?!\w*\.)}g), '', 'every operator is qualified');
is(join(' ', $unqualified =~ /::(?!pg_catalog\.)\S+/g), '', 'every cast is qualified');

my $node = start_waiting_node('schema', "client_min_messages = error\n");

$node->safe_psql('postgres', q{
	CREATE ROLE mallory LOGIN;
	CREATE ROLE monitor LOGIN IN ROLE pg_monitor;
	CREATE DATABASE trap;
});

# A function of the schema records that it ran, and for whom. Operators of all
# names are there for each pair of the types, functions with each of the types
# and each pair; casts where the server has none, implicit ones.
$node->safe_psql('trap', qq{
	CREATE SCHEMA evil AUTHORIZATION mallory;
	CREATE TABLE evil.traps (names text[], operators text[]);
	INSERT INTO evil.traps VALUES (ARRAY[$functions], ARRAY[$operators]);
	ALTER TABLE evil.traps OWNER TO mallory;
});
$node->safe_psql('trap', q{
	GRANT USAGE ON SCHEMA evil TO PUBLIC;
	SET ROLE mallory;
	CREATE TABLE evil.seen (what text, role name DEFAULT current_user);
	GRANT INSERT ON evil.seen TO PUBLIC;
	CREATE FUNCTION evil.create_trap(what text, result text) RETURNS void LANGUAGE plpgsql AS $trap$
	BEGIN
		EXECUTE format('CREATE FUNCTION evil.%s RETURNS %s LANGUAGE plpgsql AS %L', what, result,
			format('BEGIN INSERT INTO evil.seen VALUES (%L); RETURN%s; END', what, CASE result WHEN 'void' THEN '' ELSE ' NULL' END));
	END $trap$;
	DO $do$
	DECLARE
		types text[] := ARRAY['bool', '"char"', 'name', 'int8', 'int2', 'int4', 'text', 'oid', 'xid', 'xid8', 'float8', 'numeric',
			'timestamptz', 'timestamp', 'interval', 'jsonb', 'regclass', 'bytea', 'int4range', 'text[]', 'int8[]', 'interval[]'];
		operators text[] := ARRAY(SELECT unnest(t.operators) FROM evil.traps AS t UNION SELECT unnest(ARRAY['=', '<>', '<', '>', '<=', '>=', '+', '-', '*', '/', '%', '||', '@>']));
		names text[] := ARRAY(SELECT unnest(t.names) FROM evil.traps AS t UNION SELECT unnest(ARRAY['"now"', '"make_interval"', '"nextval"',
			'"float8"', '"int8"', '"interval"', '"timestamptz"', '"text"', '"bool"', '"name"',
			'"lease_guard"', '"lease_stats"', '"lease_waiters"', '"lease_clock_difference"', '"lease_new_era"']));
		a text;
		b text;
		n text;
	BEGIN
		FOREACH a IN ARRAY types LOOP
			FOREACH b IN ARRAY types LOOP
				PERFORM evil.create_trap(format('operator_function(%s, %s)', a, b), 'bool');
				FOREACH n IN ARRAY operators LOOP
					EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.operator_function)', n, a, b);
				END LOOP;
			END LOOP;
			FOREACH n IN ARRAY names LOOP
				PERFORM evil.create_trap(format('%s(%s)', n, a), 'bool');
				PERFORM evil.create_trap(format('%s(%s, text)', n, a), 'bool');
				PERFORM evil.create_trap(format('%s(%s, name)', n, a), 'bool');
			END LOOP;
		END LOOP;
		FOREACH n IN ARRAY names LOOP
			PERFORM evil.create_trap(format('%s(VARIADIC int[])', n), 'bool');
			IF n !~ '^"lease_' THEN
				PERFORM evil.create_trap(format('%s()', n), 'bool');
			END IF;
		END LOOP;
		PERFORM evil.create_trap('check_domain()', 'bool');
		FOREACH n IN ARRAY ARRAY['text', 'name', 'interval', 'timestamptz', 'int8', 'int4', 'int2', 'float8', 'oid', 'xid', 'xid8', 'bool', 'char', 'void', 'record',
			'regclass', 'jsonb', 'trigger'] LOOP
			EXECUTE format('CREATE DOMAIN evil.%I AS pg_catalog.float4 CHECK (evil.check_domain())', n);
		END LOOP;
	END $do$;
	CREATE COLLATION evil."C" (LOCALE = 'POSIX');
	RESET ROLE;

	-- casts between types of the server take a superuser
	DO $do$
	DECLARE
		types text[] := ARRAY['bool', '"char"', 'name', 'int8', 'int2', 'int4', 'text', 'oid', 'xid', 'xid8', 'float8', 'numeric',
			'timestamptz', 'timestamp', 'interval', 'jsonb', 'regclass'];
		a text;
		b text;
		name text;
	BEGIN
		FOREACH a IN ARRAY types LOOP
			FOREACH b IN ARRAY types LOOP
				IF a <> b AND NOT EXISTS (SELECT FROM pg_cast WHERE castsource = a::regtype AND casttarget = b::regtype) THEN
					name := format('%I(pg_catalog.%s)', 'cast to ' || b, a);
					PERFORM evil.create_trap(name, 'pg_catalog.' || b);
					EXECUTE format('CREATE CAST (pg_catalog.%s AS pg_catalog.%s) WITH FUNCTION evil.%s AS IMPLICIT', a, b, name);
				END IF;
			END LOOP;
		END LOOP;
	END $do$;
});

# Run SQL with everything of the schema on the path, before what is the server's.
sub within
{
	my ($sql, @params) = @_;

	return $node->safe_psql('trap', "SET search_path = evil, pg_catalog;\n$sql", @params);
}

# What has run since the last call, and as which role.
sub seen
{
	my $seen = $node->safe_psql('trap', q{SELECT pg_catalog.string_agg(DISTINCT pg_catalog.concat(what, ' as ', role), ', ') FROM evil.seen});

	$node->safe_psql('trap', 'TRUNCATE evil.seen');
	return $seen;
}

within(q{SELECT '1'::pg_catalog.int8 * '1 s'::pg_catalog.interval});
is(seen(), 'operator_function(int8, interval) as postgres', 'the trap works for operators');
within(q{SELECT now()});
is(seen(), '"now"() as postgres', 'for functions');
within(q{SELECT CAST('t'::pg_catalog.bool AS pg_catalog.interval)});
is(seen(), '"cast to interval"(pg_catalog.bool) as postgres', 'and for casts');

# A function with a default value makes a call of the extension's own ambiguous. CREATE EXTENSION says so, where it matters and where not.
my @overloads = ('evil.lease_new_era(date)', 'evil.lease_session_ended(pg_catalog.int8, date)');
$node->safe_psql('trap', 'CREATE FUNCTION ' . s/date\)/pg_catalog.date DEFAULT NULL)/r . " RETURNS pg_catalog.void LANGUAGE sql AS ''") foreach @overloads;
sql_fails($node, 'CREATE EXTENSION lease_lock SCHEMA evil', '42723', 'would be mistaken for its own.*lease_new_era.*Drop them', 'a function with a default', dbname => 'trap');
$node->safe_psql('trap', 'DROP FUNCTION ' . join(', ', @overloads));

# How the extension gets there: by its own path, or by that of the session.
$node->safe_psql('trap', 'SET search_path = evil, pg_catalog; CREATE EXTENSION lease_lock SCHEMA evil; DROP EXTENSION lease_lock');
is(seen(), '', 'CREATE EXTENSION with the schema on the path: nothing of it ran');
$node->safe_psql('trap', 'CREATE EXTENSION lease_lock SCHEMA evil');
is(seen(), '', 'CREATE EXTENSION: nothing of it ran');

# What there is to call, by the names of the functions.
my %call = (
	lease_acquire => q{SELECT evil.lease_acquire('r', '1 hour', 'o'), evil.lease_acquire('r', '1 hour', 'p', '1 ms')},
	lease_acquire_shared => q{SELECT evil.lease_acquire_shared('s', '1 hour', 'o'), evil.lease_acquire_shared('s', '1 hour', 'p', '1 ms')},
	lease_acquire_permit => q{SELECT evil.lease_acquire_permit('p', '1', '1 hour', 'o'), evil.lease_acquire_permit('p', '1', '1 hour', 'p', '1 ms')},
	lease_acquire_all => q{SELECT evil.lease_acquire_all('{a,b}', '1 hour', 'o'), evil.lease_acquire_all('{a,b}', '1 hour', 'p', '1 ms')},
	lease_acquire_any => q{SELECT evil.lease_acquire_any('{a,c}', '1 hour', 'o'), evil.lease_acquire_any('{a,c}', '1 hour', 'p', '1 ms')},
	lease_request => q{SELECT * FROM evil.lease_request('r', '1 hour', 'p'); SELECT * FROM evil.lease_request('q', '1 hour', 'o', payload => '{}', min_hold => '1 s')},
	lease_wait => q{CALL evil.lease_wait('w', '1 hour', 'o', '1 ms', NULL); CALL evil.lease_wait('w', '1 hour', 'o', '1 ms', NULL, NULL, NULL)},
	lease_renew => q{SELECT evil.lease_renew('r', '1 hour', 'o'), evil.lease_renew('r', '1 hour', 'o', '1')},
	lease_renew_several => q{SELECT evil.lease_renew_several('{a,b}'::pg_catalog.text[], '1 hour', 'o')},
	lease_assert_token => q{SELECT evil.lease_assert_token('r', evil.lease_token('r', 'o'))},
	lease_renew_all => q{SELECT evil.lease_renew_all('1 hour', 'o'), evil.lease_renew_several('{a,b}'::pg_catalog.text[], '1 hour', 'o')},
	lease_set_payload => q{SELECT evil.lease_set_payload('r', 'o', '{}')},
	lease_downgrade => q{SELECT evil.lease_acquire('d', '1 hour', 'o'), evil.lease_downgrade('d', 'o')},
	lease_session_ended => q{SELECT evil.lease_session_ended('1'); SELECT * FROM evil.lease_request('e', NULL, 'o', session => 't')},
	lease_token => q{SELECT evil.lease_token('r', 'o')},
	lease_assert => q{SELECT evil.lease_assert('r', 'o'), evil.lease_assert('r', 'o')},
	lease_transfer => q{SELECT evil.lease_transfer('b', 'o', 'p')},
	lease_protect => q{CREATE TEMP TABLE t (id pg_catalog.int4, v pg_catalog.int4); SELECT evil.lease_protect('pg_temp.t', 'r')},
	lease_guard => q{SET lease_lock.owner = 'o'; INSERT INTO pg_temp.t VALUES ('1', '0'); DELETE FROM pg_temp.t},
	lease_unprotect => q{SELECT evil.lease_unprotect('pg_temp.t')},
	lease_version => q{CREATE TRIGGER v BEFORE UPDATE ON pg_temp.t FOR EACH ROW EXECUTE FUNCTION evil.lease_version('v'); INSERT INTO pg_temp.t VALUES ('1', '0'); UPDATE pg_temp.t SET id = '2'},
	lease_status => q{SELECT * FROM evil.lease_status; SELECT * FROM evil.lease_contenders},
	lease_waiters => q{SELECT * FROM evil.lease_waiters; SELECT * FROM evil.lease_waiters()},
	lease_stats => q{SELECT * FROM evil.lease_stats; SELECT * FROM evil.lease_stats()},
	lease_clock_difference => q{SELECT evil.lease_clock_difference()},
	lease_contended => q{SELECT evil.lease_contended('r')},
	lease_wait_graph => q{SELECT evil.lease_wait_graph()},
	lease_printable => q{SELECT evil.lease_printable('r')},
	lease_release => q{SELECT evil.lease_release('r', 'o'), evil.lease_release('s', 'o', '1')},
	lease_release_all => q{SELECT evil.lease_release_all('o')});
my @order = qw(lease_acquire lease_acquire_shared lease_acquire_permit lease_acquire_all lease_acquire_any lease_request lease_wait
  lease_renew lease_renew_all lease_set_payload lease_downgrade lease_session_ended lease_renew_several lease_token lease_assert lease_assert_token lease_transfer lease_protect lease_guard lease_unprotect lease_version
  lease_status lease_waiters lease_stats lease_clock_difference lease_contended lease_wait_graph lease_printable lease_release lease_release_all);
my %not_for_all = (
	lease_new_era => q{SELECT evil.lease_new_era()},
	lease_watch => q{SELECT evil.lease_watch('w', 'c'); SELECT * FROM evil.lease_watches; SELECT evil.lease_acquire('watched', '1 hour', 'o'), evil.lease_release('watched', 'o')},
	lease_unwatch => q{SELECT evil.lease_unwatch('w', 'c')},
	lease_break => q{SELECT evil.lease_break('c')},
	lease_purge => q{SET lease_lock.purge_after = 0; SELECT evil.lease_purge()},
	lease_stats_reset => q{SELECT evil.lease_stats_reset()});
my $members = q{
	SELECT d.objid FROM pg_catalog.pg_depend AS d JOIN pg_catalog.pg_extension AS e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
	WHERE d.deptype OPERATOR(pg_catalog.=) 'e' AND e.extname OPERATOR(pg_catalog.=) 'lease_lock'};

is(join(' ', grep { $_ ne 'lease_status' } sort keys %call, keys %not_for_all),
	$node->safe_psql('trap', qq{
		SELECT pg_catalog.string_agg(DISTINCT p.proname::pg_catalog.text, ' ' ORDER BY p.proname::pg_catalog.text)
		FROM pg_catalog.pg_proc AS p JOIN ($members AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass) AS m ON m.objid OPERATOR(pg_catalog.=) p.oid}),
	'every function is called');

foreach my $role ('postgres', 'monitor')
{
	my %all = $role eq 'postgres' ? (%call, %not_for_all) : %call;

	within("SET lease_lock.max_leases_per_owner = 50;\n" x ($role eq 'postgres') . join(";\n", map { $all{$_} } grep { exists $all{$_} } @order, sort keys %not_for_all), extra_params => [ '-U', $role ]);
	is(seen(), '', "all functions and views, as $role: nothing of it ran");
	$node->safe_psql('trap', 'TRUNCATE evil.lease_lock');
}

# Views and functions name nothing of the schema but the extension's own, also where no row is found.
my $definitions = $node->safe_psql('trap', q{
	SET search_path = '';
	SELECT pg_get_viewdef(v::regclass) FROM unnest('{evil.lease_status,evil.lease_waiters,evil.lease_stats,evil.lease_contenders,evil.lease_watches}'::text[]) AS v;
	SELECT pg_get_function_sqlbody('evil.lease_wait_graph'::regproc)});
my %names = map { $_ => 1 } $definitions =~ /\bevil\.[^\s(),;]+/g;
is(join(' ', sort keys %names), 'evil.lease_clock_difference evil.lease_lock evil.lease_printable evil.lease_session_ended evil.lease_stats evil.lease_status evil.lease_waiters evil.lease_watch',
	'definitions name nothing else of the schema');
is($node->safe_psql('trap', qq{SELECT count(*) FROM pg_catalog.pg_proc AS p JOIN ($members) AS m ON m.objid OPERATOR(pg_catalog.=) p.oid WHERE p.prosqlbody IS NOT NULL}),
	1, 'there is no other function in SQL');

$node->stop;
done_testing();
