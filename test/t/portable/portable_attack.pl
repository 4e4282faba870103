# A role that may create objects in other schemas, and chooses the search_path, makes none of its objects run with the
# rights of the portable edition, or of a role that calls it; and it cannot act on the leases of other roles.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseCluster;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = LeaseCluster->new('attack');
$node->init;
$node->append_conf('postgresql.conf', "fsync = off\n");
$node->start;
$node->safe_psql('postgres', 'CREATE ROLE evil LOGIN; GRANT CREATE ON DATABASE postgres TO evil');

# The schema exists before, with a path that names the visitor's schema first.
$node->safe_psql('postgres', q{CREATE SCHEMA evil; SET search_path = evil}, extra_params => [ '-U', 'evil' ]);

# For each operator and function that the file uses, one that fits better, and says as whom it ran.
$node->safe_psql('postgres', q{
	SET search_path = evil;
	CREATE TABLE ran (who name, what text);
	GRANT ALL ON ran TO PUBLIC;
	GRANT ALL ON SCHEMA evil TO PUBLIC;
	CREATE FUNCTION note(what text) RETURNS bool LANGUAGE sql AS $$
		INSERT INTO evil.ran VALUES (current_user, what); SELECT true
	$$;
	DO $$
	DECLARE
		f record;
		o record;
	BEGIN
		FOR f IN
			SELECT p.oid, p.proname, pg_get_function_identity_arguments(p.oid) AS arguments, format_type(p.prorettype, NULL) AS result, p.proretset,
				oidvectortypes(p.proargtypes) AS types
			FROM pg_proc AS p
			WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.proname IN ('format', 'clock_timestamp', 'pg_has_role', 'to_char',
				'greatest', 'octet_length', 'replace', 'cardinality', 'set_config', 'current_setting', 'pg_sleep', 'isfinite', 'date_part', 'extract',
				'pg_get_userbyid', 'unnest', 'hashtextextended', 'pg_current_xact_id', 'pg_try_advisory_xact_lock', 'pg_advisory_xact_lock', 'string_to_array',
				'array_ndims', 'make_interval', 'left', 'abs')
				AND p.provariadic = 0 AND p.prorettype NOT IN ('anyelement'::regtype, 'anyarray'::regtype, 'void'::regtype)
		LOOP
			EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s%s LANGUAGE plpgsql AS %L', f.proname, f.types, CASE WHEN f.proretset THEN 'SETOF ' ELSE '' END,
				f.result, format('BEGIN PERFORM evil.note(%L); RETURN%s; END', f.proname, CASE WHEN f.proretset THEN '' ELSE ' NULL' END));
		END LOOP;
		FOR o IN
			SELECT oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS result FROM pg_operator
			WHERE oprname IN ('=', '<', '>', '<=', '>=', '<>', '+', '-', '*', '||') AND oprleft <> 0 AND oprright <> 0
				AND oprleft::regtype::text IN ('text', 'timestamp with time zone', 'interval', 'smallint', 'integer', 'bigint', '"char"', 'oid', 'double precision')
		LOOP
			EXECUTE format('CREATE OR REPLACE FUNCTION evil.op_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L', encode(convert_to(o.oprname, 'UTF8'), 'hex'), o.l, o.r, o.result,
				format('BEGIN PERFORM evil.note(%L); RETURN NULL; END', o.oprname));
			EXECUTE format('CREATE OPERATOR evil.%s (FUNCTION = evil.op_%s, LEFTARG = %s, RIGHTARG = %s)', o.oprname, encode(convert_to(o.oprname, 'UTF8'), 'hex'), o.l, o.r);
		END LOOP;
	END $$;
	CREATE TABLE lease_lock (resource text, slot int2, owner text, expires_at timestamptz, token int8);
	CREATE FUNCTION _lease_caller() RETURNS oid LANGUAGE sql AS $$ SELECT evil.note('_lease_caller'); SELECT 10::oid $$;
	CREATE FUNCTION _lease_may_act(oid) RETURNS bool LANGUAGE sql AS $$ SELECT evil.note('_lease_may_act') $$;
	CREATE FUNCTION _lease_check_name(text, text) RETURNS void LANGUAGE sql AS $$ SELECT evil.note('_lease_check_name') $$;
	CREATE FUNCTION lease_request(text, interval, text, interval, text, int, text, interval, jsonb, bool) RETURNS bool LANGUAGE sql AS $$ SELECT evil.note('lease_request') $$;
}, extra_params => [ '-U', 'evil' ]);

cmp_ok($node->safe_psql('postgres', "SELECT count(*) FROM pg_operator WHERE oprnamespace = 'evil'::regnamespace"), '>', 100, 'there are many traps');

my $file = "$FindBin::RealBin/../../../portable/lease_lock.sql";
$node->safe_psql('postgres', "CREATE SCHEMA lease; GRANT USAGE ON SCHEMA lease TO PUBLIC; BEGIN; SET LOCAL search_path = lease, evil; SET LOCAL client_min_messages = warning;\n\\i $file\nCOMMIT;
	CREATE ROLE victim LOGIN");
is($node->safe_psql('postgres', 'SELECT count(*) FROM evil.ran'), 0, 'nothing of the visitor runs during the installation');

my @calls = (
	"SELECT lease.lease_acquire('r', '1 hour', 'o', '1 ms')", "SELECT lease.lease_acquire('r', '1 hour', 'p', '1 ms')", "SELECT lease.lease_acquire_shared('s', '1 hour', 'o')",
	"SELECT lease.lease_acquire_permit('p', 2, '1 hour', 'o', '1 ms')", "SELECT lease.lease_acquire_any('{r,t}'::text[], '1 hour', 'o')", "SELECT lease.lease_acquire_all('{u,v}'::text[], '1 hour', 'o', '1 ms')",
	"SELECT lease.lease_request('r', '1 hour', 'o', '1 ms', if_own => 'count')", "CALL lease.lease_wait('r', '1 hour', 'q', '20 ms', NULL::bool, NULL::int8, NULL::timestamptz)", "SELECT lease.lease_renew('r', '1 hour', 'o')",
	"SELECT lease.lease_renew_several('{u,v}'::text[], '1 hour', 'o')", "SELECT lease.lease_renew_all('1 hour', 'o')", "SELECT lease.lease_token('r', 'o')", "SELECT lease.lease_assert('r', 'o')",
	"SELECT lease.lease_assert('r', 'nobody')", "SELECT lease.lease_assert_token('r', 1::int8)", "SELECT lease.lease_set_payload('r', 'o', '1'::jsonb)", "SELECT lease.lease_transfer('r', 'o', 'p')",
	"TABLE lease.lease_status", "SELECT lease.lease_contended('r')", "SELECT lease.lease_release('r', 'p')", "SELECT lease.lease_release('t', 'o', 1::int8)", "SELECT lease.lease_release_all('o')",
	"SELECT lease.lease_acquire('', '1 hour', 'o')", "SELECT lease.lease_acquire('r', '0', 'o')");
my @admin = ("SELECT lease.lease_break('r', '1 ms')", 'SELECT lease.lease_purge()');
my $hostile = "CREATE TEMP TABLE lease_lock (resource text, slot int2, owner text, expires_at timestamptz, token int8);
	CREATE TYPE pg_temp._lease_request AS (resource text); SET search_path = pg_temp, evil, pg_catalog, lease;\n";
foreach my $role ('evil', 'victim', 'postgres')
{
	$node->psql('postgres', $hostile . join(";\n", @calls, $role eq 'postgres' ? @admin : ()) . ';', on_error_stop => 0, extra_params => [ '-U', $role ], stderr => \my $stderr);
	unlike($stderr, qr/ERROR: .*(does not exist|ambiguous|not unique)/, "$role: all calls are found");
}
is($node->safe_psql('postgres', "SELECT string_agg(DISTINCT who || ' ' || what, ', ') FROM evil.ran"), '', 'nothing of the visitor ran in a call');

# --- leases of other roles

$node->safe_psql('postgres', "SELECT lease.lease_acquire('mine', '1 hour', 'secret'), lease.lease_acquire('ended', '1 ms', 'secret')", extra_params => [ '-U', 'victim' ]);
$node->safe_psql('postgres', 'SELECT pg_sleep(0.002)');		# until one has ended
foreach ("lease_release('ended', 'secret')", "lease_renew('ended', '1 h', 'secret')", "lease_renew_several('{ended}', '1 h', 'secret')",
	"lease_transfer('ended', 'secret', 'x')", "lease_set_payload('ended', 'secret', '1')")
{
	sql_fails($node, "SELECT lease.$_", '42501', 'permission denied for lease on "ended"', "not when it has ended: $_", role => 'evil');
}
foreach ("lease_release('mine', 'secret')", "lease_renew('mine', '1 h', 'secret')", "lease_transfer('mine', 'secret', 'x')", "lease_set_payload('mine', 'secret', '1')", "lease_assert('mine', 'secret')")
{
	sql_fails($node, "SELECT lease.$_", '42501', 'permission denied for lease on "mine"', "not by the name of its owner: $_", role => 'evil');
}
is($node->safe_psql('postgres', "SELECT lease.lease_release_all('secret'), lease.lease_renew_all('1 h', 'secret'), (SELECT owner IS NULL FROM lease.lease_status WHERE resource = 'mine'),
	(SELECT blocked_by IS NULL FROM lease.lease_request('mine', '1 h', 'x')), (SELECT granted FROM lease.lease_request('mine', '1 h', 'secret', if_own => 'renew'))", extra_params => [ '-U', 'evil' ]),
	'0|0|t|t|f', 'nor is it shown or counted');

# Nor in the plans that the server logs to a client who wants it: those of its own statement, and no more.
$node->safe_psql('postgres', "SELECT lease.lease_set_payload('mine', 'secret', '{\"k\": \"PAYLOAD\"}')", extra_params => [ '-U', 'victim' ]);
foreach ("lease_assert_token('mine', token)", "lease_release('mine', 'secret')", "lease_renew('mine', '1 h', 'secret')", "lease_request('mine', '1 h', 'x')", "lease_assert('mine', 'x')")
{
	$node->psql('postgres', "SET client_min_messages = debug5; SET debug_print_plan = on; SET debug_print_parse = on; SET debug_pretty_print = off;
		SELECT lease.$_ FROM lease.lease_status WHERE resource = 'mine'", extra_params => [ '-U', 'evil' ], stderr => \my $stderr);
	my @plans = $stderr =~ /LOG: +plan:/g;

	is(@plans, 1, "one plan is shown: $_");
	unlike($stderr, qr/80 65 89 76 79 65 68/, 'and no payload');
}

# Nor by code that the server runs for the visitor in a session of another role, as ANALYZE runs the index expressions of a
# table for autovacuum.
my $token = $node->safe_psql('postgres', "SELECT token FROM lease.lease_status WHERE resource = 'mine'");
$node->safe_psql('postgres', q{
	CREATE FUNCTION evil.act(x int) RETURNS int LANGUAGE sql AS 'SELECT x';
	CREATE FUNCTION evil.harmless(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN evil.act(x); END';
	CREATE TABLE evil.bait AS SELECT 1 AS x;
	CREATE INDEX ON evil.bait (evil.harmless(x))}, extra_params => [ '-U', 'evil' ]);
foreach ("lease_request('mine', '1 h', 'x')", "lease_request('mine', '1 h', 'secret', if_own => 'renew')", "lease_acquire('another', '1 h', 'x')", "lease_release('mine', 'secret')", "lease_release_all('secret')", "lease_renew('mine', '1 h', 'secret')", "lease_renew_all('1 h', 'secret')",
	"lease_transfer('mine', 'secret', 'x')", "lease_set_payload('mine', 'secret', '1')", "lease_assert('mine', 'secret')", "lease_assert_token('mine', $token)")
{
	$node->safe_psql('postgres', "CREATE OR REPLACE FUNCTION evil.act(x int) RETURNS int LANGUAGE plpgsql AS \$\$ BEGIN PERFORM lease.$_; RETURN x; END \$\$", extra_params => [ '-U', 'evil' ]);
	sql_fails($node, 'ANALYZE evil.bait', '42501', 'within security-restricted operation', "nor in the session of a superuser: $_");
}

# Nothing is written through a view, with the rights of its owner.
is($node->safe_psql('postgres', "SELECT string_agg(relname, ',') FROM pg_class WHERE relnamespace = 'lease'::regnamespace AND relkind = 'v' AND pg_relation_is_updatable(oid, false) <> 0"),
	'', 'no view is updatable');

# No object of the visitor's depends on the types, which could not be changed any more.
foreach ('lease_lock', 'lease_status', '_lease_request', '_lease_outcome')
{
	sql_fails($node, "CREATE TEMP TABLE t (x lease.$_)", '42501', "permission denied for type lease.$_", "a column of the type $_", role => 'evil');
}

# The session can say what the abbreviation of a time zone means.
foreach my $zone ('UTC-23', 'UTC+23')
{
	is($node->safe_psql('postgres', "SET TimeZone = '$zone'; SELECT abs((lease.lease_request('zone $zone', '1 h', 'x')).token / 4e6 - extract(epoch FROM clock_timestamp() - '2026-01-01 00:00:00+00')) < 600",
		extra_params => [ '-U', 'evil' ]), 't', "tokens go by the clock, whatever TimeZone is: $zone");
}
sql_fails($node, "SET ROLE victim", '42501', '', 'the role that counts is one that the session may set', role => 'evil');
is($node->safe_psql('postgres', "SET ROLE victim; SELECT lease.lease_release('mine', 'secret')"), 't', 'which a superuser may');

# What a lock of the visitor's does: refusals, and no more.
my $evil = open_session($node, 'postgres', '-U', 'evil');
$evil->query_safe("SELECT pg_advisory_lock(hashtextextended('blocked' COLLATE \"C\", 5172))");
is($node->safe_psql('postgres', "SELECT granted, reason FROM lease.lease_request('blocked', '1 h', 'a')"), 'f|open', 'an advisory lock of any role blocks a resource that is new');
$evil->quit;
is($node->safe_psql('postgres', "SELECT granted FROM lease.lease_request('blocked', '1 h', 'a')"), 't', 'while it is held');
$node->stop;
done_testing();
