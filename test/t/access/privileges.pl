# Privileges: every role may acquire leases. Only roles with the privileges of
# the role that acquired a lease may end it, and only they see its owner.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('privileges', "wal_level = logical\n");

$node->safe_psql('postgres', q{
	CREATE ROLE alice LOGIN;
	CREATE ROLE bob LOGIN;
	CREATE ROLE member LOGIN IN ROLE alice;
	CREATE ROLE lazy LOGIN NOINHERIT IN ROLE alice;
	CREATE ROLE leaver LOGIN;
});

sub as
{
	my ($role, $sql) = @_;

	return $node->safe_psql('postgres', $sql, extra_params => [ '-U', $role ]);
}

sub refused
{
	my ($role, $sql, $match, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	sql_fails($node, $sql, '42501', $match, $name, role => $role);
}

# leases are for everybody
is(as('alice', "SELECT lease_acquire('r', '1 hour', 'o')"), 't', 'anybody may acquire');
is(as('alice', "SELECT lease_renew('r', '2 hours', 'o')"), 't', 'anybody may renew');
cmp_ok(as('alice', "SELECT lease_token('r', 'o')"), '>', 0, 'anybody may ask for a token');
is(as('alice', "SELECT lease_release('r', 'o')"), 't', 'anybody may release');
is(as('alice', "SELECT lease_release_all('o')"), 0, 'anybody may release all');

# purge is not
refused('alice', 'SELECT lease_purge()', 'permission denied for function lease_purge', 'not everybody may purge');
$node->safe_psql('postgres', 'GRANT EXECUTE ON FUNCTION lease_purge() TO alice');
is(as('alice', 'SELECT lease_purge()'), 0, 'a role with EXECUTE may purge');
is(as('alice', 'SET lease_lock.purge_after = 0; SELECT lease_purge()'), 1, 'and it removes');

# PUBLIC has no privileges on the table and the sequence
refused('alice', $_, 'permission denied for (table|sequence) lease_', "not allowed: $_")
  foreach 'SELECT FROM lease_lock',
  "INSERT INTO lease_lock VALUES ('r', 0, 'o', now(), 1, now(), '1', 0)",
  "UPDATE lease_lock SET owner = 'o'",
  'DELETE FROM lease_lock',
  'TRUNCATE lease_lock',
  'SELECT FROM lease_lock FOR UPDATE',
  'BEGIN; LOCK TABLE lease_lock IN SHARE MODE',
  "SELECT nextval('lease_token_seq')",
  "SELECT setval('lease_token_seq', 1)",
  'SELECT last_value FROM lease_token_seq';

# the owner's name alone is not enough
my $denied = 'permission denied for lease on "a".*DETAIL:  It was acquired by role "alice"\..*HINT:  Act as a role';
as('alice', "SELECT lease_acquire(r, '1 hour', 'o') FROM unnest('{a,b,c}'::text[]) AS r");
as('bob', "SELECT lease_acquire('d', '1 hour', 'o')");
refused('bob', "SELECT lease_release('a', 'o')", $denied, 'release of another role');
refused('bob', "SELECT lease_renew('a', '1 day', 'o')", $denied, 'renewal of another role');
refused('lazy', "SELECT lease_release('a', 'o')", $denied, 'a member that does not inherit has to act as the role');
is(as('bob', "SELECT lease_release('a', 'guess')"), 'f', 'a wrong owner learns nothing');
is(as('bob', "SELECT lease_renew('a', '1 day', 'guess')"), 'f', 'renewing as a wrong owner shows nothing');
is(as('bob', "SELECT lease_acquire('a', '1 day', 'o')"), 'f', 'acquiring under that owner name shows nothing');
is(as('bob', "SELECT lease_release_all('o')"), 1, 'lease_release_all() skips leases of other roles');
is($node->safe_psql('postgres', "SELECT string_agg(resource, ',' ORDER BY resource) FROM lease_status"),
	'a,b,c', 'which are still held');

# lease_status
my $status = q{SELECT resource, owner, state, role FROM lease_status WHERE resource = 'a'};
is(as('bob', $status), 'a||held|alice', 'lease_status hides the owner from others');
is(as('lazy', $status), 'a||held|alice', 'and from a member that does not inherit');
is(as('lazy', "SET ROLE alice; $status"), 'a|o|held|alice', 'until it acts as the role');
is(as('alice', $status), 'a|o|held|alice', 'lease_status shows the owner to the holder');
is(as('member', $status), 'a|o|held|alice', 'to members of the holder');
is($node->safe_psql('postgres', $status), 'a|o|held|alice', 'and to superusers');
# A function in the WHERE clause must not see what the view hides.
is(as('bob', q{
		CREATE TEMP TABLE seen (owner text);
		CREATE FUNCTION pg_temp.leak(owner text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS
			$$ BEGIN INSERT INTO seen VALUES (owner); RETURN true; END $$;
		DO $$ BEGIN PERFORM FROM lease_status WHERE pg_temp.leak(owner); END $$;
		SELECT count(owner) FROM seen;
	}), 0, 'a function in the WHERE clause does not see it');

# members
is(as('member', "SELECT lease_renew('a', '2 hours', 'o')"), 't', 'a member of the holder may renew');
is(as('member', "SELECT lease_release('a', 'o')"), 't', 'and release');
is(as('lazy', "SET ROLE alice; SELECT lease_release('b', 'o')"), 't', 'SET ROLE counts');
is(as('member', "SELECT lease_release_all('o')"), 1, 'a member may release all');
as('member', "SELECT lease_acquire('m', '1 hour', 'o')");
refused('alice', "SELECT lease_release('m', 'o')", 'acquired by role "member"',
	'but the role may not act for its members');

# a lease that was taken over: the last holder counts
as('alice', "SELECT lease_acquire('e', '1 microsecond', 'o')");
is(as('bob', "SELECT lease_acquire('e', '1 hour', 'o')"), 't', 'takeover by another role');
refused('alice', "SELECT lease_release('e', 'o')", 'acquired by role "bob"', 'the former holder may not release it');
is(as('bob', "SELECT lease_release('e', 'o')"), 't', 'the new one may');

# SECURITY DEFINER
$node->safe_psql('postgres', q{
	CREATE FUNCTION acquire_as_alice(resource text) RETURNS boolean LANGUAGE sql SECURITY DEFINER
		AS $$ SELECT public.lease_acquire(resource, '1 hour', 'app') $$;
	ALTER FUNCTION acquire_as_alice(text) OWNER TO alice;
	CREATE FUNCTION release_as_alice(resource text) RETURNS boolean LANGUAGE sql SECURITY DEFINER
		AS $$ SELECT public.lease_release(resource, 'app') $$;
	ALTER FUNCTION release_as_alice(text) OWNER TO alice;
});
is(as('bob', "SELECT acquire_as_alice('f')"), 't', 'SECURITY DEFINER: acquire');
is($node->safe_psql('postgres', "SELECT role FROM lease_status WHERE resource = 'f'"),
	'alice', "SECURITY DEFINER: the function's owner holds it");
refused('bob', "SELECT lease_release('f', 'app')", 'acquired by role "alice"',
	'SECURITY DEFINER: the caller may not release it by itself');
is(as('bob', "SELECT release_as_alice('f')"), 't', 'SECURITY DEFINER: but through such a function');

# a holder that was dropped
as('leaver', "SELECT lease_acquire('g', '1 hour', 'o')");
$node->safe_psql('postgres', 'DROP ROLE leaver');
refused('bob', "SELECT lease_release('g', 'o')", 'permission denied for lease on "g"',
	'dropped role: others may not release');
refused('alice', "SELECT lease_renew('g', '1 hour', 'o')", 'permission denied for lease on "g"',
	'dropped role: nor renew');
like(as('bob', "SELECT owner IS NULL, state, role FROM lease_status WHERE resource = 'g'"),
	qr/^t\|held\|unknown \(OID=\d+\)$/, 'dropped role: lease_status works');
is(as('bob', "SELECT lease_acquire('g', '1 hour', 'p')"), 'f', 'dropped role: the lease is still held');
is($node->safe_psql('postgres', "SELECT lease_release('g', 'o')"), 't', 'dropped role: a superuser releases it');
is(as('bob', "SELECT lease_acquire('g', '1 hour', 'p')"), 't', 'dropped role: then it is free');
is(as('bob', "SELECT lease_release('g', 'p')"), 't', 'dropped role: the new holder can release it');

# a hostile search path
$node->safe_psql('postgres', q{
	CREATE SCHEMA evil AUTHORIZATION bob;
	CREATE TABLE evil.lease_lock (LIKE public.lease_lock);
	SET ROLE bob;
	CREATE TABLE evil.seen (what text);
	CREATE SEQUENCE evil.lease_token_seq;
	CREATE VIEW evil.lease_status AS SELECT 'evil'::text AS resource;
	CREATE FUNCTION evil.caught(what text) RETURNS boolean LANGUAGE plpgsql AS
		$$ BEGIN INSERT INTO evil.seen VALUES (what); RETURN true; END $$;
	CREATE FUNCTION evil.eq(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.caught('text =') $$;
	CREATE FUNCTION evil.gt(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.caught('timestamptz >') $$;
	CREATE FUNCTION evil.pg_has_role(oid, text) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.caught('pg_has_role') $$;
	CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql
		AS $$ SELECT 'infinity'::timestamptz FROM evil.caught('clock_timestamp') $$;
	CREATE FUNCTION evil.nextval(regclass) RETURNS bigint LANGUAGE sql
		AS $$ SELECT 1::bigint FROM evil.caught('nextval') $$;
	CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.eq);
	CREATE OPERATOR evil.> (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = evil.gt);
	RESET ROLE;
	GRANT USAGE ON SCHEMA evil TO PUBLIC;
	GRANT ALL ON ALL TABLES IN SCHEMA evil TO PUBLIC;
	GRANT ALL ON ALL SEQUENCES IN SCHEMA evil TO PUBLIC;
});
is(as('alice', q{
		SET search_path = evil, pg_catalog, public;
		SET lease_lock.purge_after = 0;
		SELECT evil.eq('a', 'b'), 'a' = 'b'::text;
		SELECT lease_acquire('h', '1 hour', 'o');
		SELECT lease_acquire('h', '1 hour', 'p');
		SELECT lease_renew('h', '2 hours', 'o');
		SELECT lease_token('h', 'p') IS NULL, lease_token('h', 'o') > 0;
		SELECT resource, owner, state FROM public.lease_status WHERE resource OPERATOR(pg_catalog.=) 'h';
		SELECT lease_release('h', 'p');
		SELECT lease_release('h', 'o');
		SELECT lease_acquire('h', '1 hour', 'o');
		SELECT lease_release_all('o');
		SELECT lease_purge() > 0;
	}),
	join("\n", 't|t', 't', 'f', 't', 't|t', 'h|o|held', 'f', 't', 't', '1', 't'),
	'hostile search path: the answers are the same');
is($node->safe_psql('postgres', q{
		SELECT string_agg(DISTINCT what, ',') FROM evil.seen;
		SELECT count(*) FROM evil.lease_lock;
		SELECT is_called FROM evil.lease_token_seq;
	}),
	"text =\n0\nf",
	'hostile search path: nothing but the trap itself ran');
# The extension can be created beside all that, too.
$node->safe_psql('postgres', q{
	DROP EXTENSION lease_lock;
	SET search_path = evil, pg_catalog, public;
	CREATE EXTENSION lease_lock SCHEMA public;
});
is(as('alice', q{
		SELECT lease_acquire('h', '1 hour', 'o');
		SELECT resource, owner, state FROM lease_status;
		SELECT lease_release('h', 'o')}),
	"t\nh|o|held\nt",
	'hostile search path: at CREATE EXTENSION');

# In a cascade, the role that set lease_lock.owner counts, and not the role that
# runs when the library is loaded.
$node->safe_psql('postgres', q{
	GRANT CREATE ON SCHEMA public TO alice;
	SET ROLE alice;
	CREATE TABLE parent (id int PRIMARY KEY);
	CREATE TABLE child (parent int REFERENCES parent ON DELETE CASCADE);
	INSERT INTO parent VALUES (1);
	INSERT INTO child VALUES (1);
	SELECT lease_protect('child', 'parent:{parent}');
	SELECT lease_acquire('parent:1', '1 hour', 'secret');
	GRANT SELECT, DELETE ON parent, child TO bob;
	CREATE FUNCTION load_as_alice() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$ SELECT public.lease_token('parent:1', 'secret') $$;
});
refused('bob', q{SET lease_lock.owner = 'secret'; SELECT load_as_alice(); DELETE FROM parent}, 'permission denied for lease on "parent:1"',
	'cascade: the owner was set before the library was loaded');
$node->safe_psql('postgres', q{ALTER ROLE bob SET lease_lock.owner = 'secret'});
refused('bob', q{SELECT load_as_alice(); DELETE FROM parent}, 'permission denied for lease on "parent:1"', 'cascade: it came with the session');
$node->safe_psql('postgres', q{ALTER ROLE bob RESET lease_lock.owner; ALTER ROLE alice SET lease_lock.owner = 'secret'});
is(as('alice', 'DELETE FROM parent RETURNING id'), 1, 'cascade: it came with the session of the role that holds the lease');

# Default privileges of the role that creates the extension grant nothing to
# PUBLIC. A role that they name gets what they grant.
$node->safe_psql('postgres', q{CREATE DATABASE generous});
$node->safe_psql('generous', q{
	ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC;
	ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO PUBLIC;
	ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO PUBLIC;
	ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO alice;
	ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO alice;
	CREATE EXTENSION lease_lock;
});
is($node->safe_psql('generous', q{
		SELECT c.relname, string_agg(a.privilege_type, ' ' ORDER BY a.privilege_type)
		FROM pg_depend AS d JOIN pg_class AS c ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
			CROSS JOIN LATERAL aclexplode(c.relacl) AS a
		WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'lease_lock') AND a.grantee = 0
		GROUP BY c.relname ORDER BY c.relname}),
	"lease_contenders|SELECT\nlease_stats|SELECT\nlease_status|SELECT\nlease_waiters|SELECT", 'default privileges: everybody reads the views, and no more');
is($node->safe_psql('generous', q{
		SELECT string_agg(p.proname, ' ' ORDER BY p.proname) FROM pg_depend AS d JOIN pg_proc AS p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
		WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'lease_lock')
			AND NOT has_function_privilege('public', p.oid, 'EXECUTE')}),
	'lease_break lease_new_era lease_purge lease_stats_reset lease_unwatch lease_watch', 'default privileges: nor do they open a function');
is($node->safe_psql('generous', q{SELECT has_table_privilege('lease_lock', 'SELECT'), has_function_privilege('lease_break(text, interval)', 'EXECUTE')}, extra_params => [ '-U', 'alice' ]),
	't|t', 'default privileges: a role that is named has them');

# What docs/security.md says about roles of the server.
$node->safe_psql('postgres', q{
	CREATE ROLE reader LOGIN IN ROLE pg_read_all_data;
	CREATE ROLE writer LOGIN IN ROLE pg_write_all_data;
	CREATE ROLE replicator LOGIN REPLICATION;
	CREATE TABLE guarded (id int);
	SELECT lease_protect('guarded', 'guarded:{id}');
	GRANT INSERT ON guarded TO bob;
	GRANT INSERT, TRIGGER ON guarded TO alice;
	GRANT CREATE ON SCHEMA public TO alice;
});
refused('bob', q{SET session_replication_role = replica; INSERT INTO guarded VALUES (1)}, 'permission denied to set parameter', 'session_replication_role: for superusers');
$node->safe_psql('postgres', 'GRANT SET ON PARAMETER session_replication_role TO bob');
is(as('bob', q{SET session_replication_role = replica; INSERT INTO guarded VALUES (1)}), '', 'session_replication_role: bypasses the guard');
$node->safe_psql('postgres', 'ALTER TABLE guarded ENABLE ALWAYS TRIGGER "~lease_guard"');
sql_fails($node, q{SET session_replication_role = replica; INSERT INTO guarded VALUES (1)}, '22023', 'lease_lock.owner is not set for the lease on a row of table "guarded"',
	'session_replication_role: not past one that always fires', role => 'bob');
as('alice', q{
	CREATE FUNCTION change_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.id := 7; RETURN NEW; END $$;
	CREATE TRIGGER "~~" BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION change_row();
	SELECT lease_acquire('guarded:2', '1 hour', 'o');
	SET lease_lock.owner = 'o';
	INSERT INTO guarded VALUES (2);
});
is($node->safe_psql('postgres', 'SELECT string_agg(id::text, \' \' ORDER BY id) FROM guarded'), '1 7', 'TRIGGER: bypasses the guard');
as('replicator', q{SELECT pg_create_logical_replication_slot('slot', 'test_decoding')});
as('alice', q{SELECT lease_acquire('i', '1 hour', 'o')});
like(as('replicator', q{SELECT data FROM pg_logical_slot_get_changes('slot', NULL, NULL)}), qr/resource\[.*?\]:'i' .*owner\[.*?\]:'o'/, 'REPLICATION: reads owners by logical decoding');
is(as('reader', q{SELECT owner FROM lease_lock WHERE resource = 'i'}), 'o', 'pg_read_all_data: reads owners in the table');
refused('reader', q{SELECT lease_release('i', 'o')}, 'permission denied for lease on "i"', 'pg_read_all_data: cannot end leases');
is(as('writer', q{UPDATE lease_lock SET owner = NULL; SELECT setval('lease_token_seq', last_value) > 0 FROM (SELECT 1000000) AS t (last_value)}), 't', 'pg_write_all_data: writes table and sequence');
is($node->safe_psql('postgres', q{SELECT owner IS NULL FROM lease_lock WHERE resource = 'i'}), 't', 'pg_write_all_data: can end leases');

# With row security they have nothing. Functions and views do not change.
$node->safe_psql('postgres', q{
	ALTER TABLE lease_lock ENABLE ROW LEVEL SECURITY;
	ALTER TABLE lease_watch ENABLE ROW LEVEL SECURITY;
	GRANT INSERT ON lease_lock, lease_watch TO bob;
	GRANT SELECT (resource), UPDATE (role) ON lease_lock TO bob;
	GRANT EXECUTE ON FUNCTION lease_purge() TO alice});
is(as('alice', q{SELECT lease_acquire('j', '1 hour', 'o'), lease_renew('j', '1 hour', 'o'), lease_assert('j', 'o') > 0}), 't|t|t', 'row security: leases are for everybody');
is(as('alice', q{SELECT owner FROM lease_status WHERE resource = 'j'}), 'o', 'row security: the role of a lease sees its owner');
is(as('bob', q{SELECT owner IS NULL FROM lease_status WHERE resource = 'j'}), 't', 'row security: others see the lease');
is(as('reader', q{SELECT count(*) FROM lease_lock}), 0, 'row security: pg_read_all_data reads nothing');
is(as($_, q{WITH u AS (UPDATE lease_lock SET role = CAST(CAST(current_user AS regrole) AS oid) RETURNING 1) SELECT count(*) FROM u}), 0, "row security: $_ takes no leases over")
  foreach 'writer', 'bob';
is(as('writer', q{WITH d AS (DELETE FROM lease_lock RETURNING 1) SELECT count(*) FROM d}), 0, 'row security: pg_write_all_data ends no leases');
refused($_, q{INSERT INTO lease_lock VALUES ('k', 0, 'o', now(), 1, now(), '1', 0, 'x', 1)}, 'violates row-level security', "row security: $_ makes no leases") foreach 'writer', 'bob';
refused($_, q{INSERT INTO lease_watch VALUES ('', 'c', '{granted}', 10)}, 'violates row-level security', "row security: $_ sets up no watches") foreach 'writer', 'bob';
is($node->safe_psql('postgres', q{SELECT count(*) > 0 FROM lease_lock}), 't', 'row security: superusers read the table');
is(as('alice', q{SELECT lease_release('j', 'o'); SET lease_lock.purge_after = 0; SELECT lease_purge() > 0}), "t\nt", 'row security: a purge removes rows');
$node->safe_psql('postgres', q{
	REVOKE ALL ON lease_lock, lease_watch FROM bob;
	ALTER TABLE lease_lock DISABLE ROW LEVEL SECURITY;
	ALTER TABLE lease_watch DISABLE ROW LEVEL SECURITY});

# And the statements of that document, unchanged.
{
	my @statements = slurp_file('docs/security.md') =~ /^```sql\n(.*?)^```$/msg;
	my $hardened = sub { my ($role, $sql) = @_; return $node->safe_psql('hardened', $sql, extra_params => [ '-U', $role ]) };
	my $not = sub { my ($role, $sql, $match, $name) = @_; sql_fails($node, $sql, '42501', $match, $name, role => $role, dbname => 'hardened') };

	$node->safe_psql('postgres', 'CREATE DATABASE hardened');
	is($node->safe_psql('hardened', join '', @statements), "leases.lease_break(text,interval)|lease_admin|EXECUTE\nleases.lease_purge()|lease_admin|EXECUTE", 'hardening: as documented');
	is($hardened->('billing', q{SELECT leases.lease_acquire('r', '1 hour', 'o')}), 't', 'hardening: a service takes leases');
	$not->('mailing', q{SELECT leases.lease_release('r', 'o')}, 'permission denied for lease', 'hardening: another service cannot end them');
	$not->('bob', q{SELECT leases.lease_acquire('s', '1 min', 'o')}, 'permission denied for schema leases', 'hardening: other roles cannot acquire leases');
	$not->('billing', "SELECT * FROM leases.$_", 'permission denied', "hardening: others do not read $_") foreach 'lease_status', 'lease_waiters', 'lease_contenders', 'lease_waiters()';
	sql_fails($node, q{SELECT leases.lease_acquire('s', '11 min', 'o')}, '22023', 'longer than allowed', 'hardening: limits', role => 'mailing', dbname => 'hardened');

	$node->safe_psql('hardened', q{
		CREATE TABLE protected (id int);
		SELECT leases.lease_protect('protected', '{id}');
		GRANT TRIGGER ON protected TO bob;
		ALTER TABLE leases.lease_lock OWNER TO bob;
		GRANT SELECT ON leases.lease_lock TO PUBLIC;
		GRANT UPDATE (creator) ON leases.lease_watch TO bob;
	});
	is($node->safe_psql('hardened', join '', grep { /^SELECT/ } @statements),
		"leases.lease_break(text,interval)|lease_admin|EXECUTE\nleases.lease_lock|PUBLIC|SELECT\nleases.lease_purge()|lease_admin|EXECUTE\nleases.lease_watch(creator)|bob|UPDATE\nprotected|bob", 'hardening: the query shows what is open');
}

$node->stop;
done_testing();
