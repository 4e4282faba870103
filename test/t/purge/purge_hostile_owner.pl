# The lock table belongs to a role without privileges, which attached its own
# functions to everything that can call functions. The purge worker removes what
# ended, and calls none of them.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use PurgeTest;
use Test::More;

my $node = start_purging_node('hostile_owner', "log_line_prefix = '<%b> '\nwal_level = logical\n");
my ($version) = $node->safe_psql('postgres', 'SHOW server_version_num');

$node->safe_psql('postgres', 'CREATE ROLE mallory LOGIN');
set_and_reload($node, 'lease_lock.purge_interval', '0');
add_database($node, 'mine');

# Functions that log their caller and its process.
$node->safe_psql('mine', q{
	CREATE SCHEMA evil AUTHORIZATION mallory;
	ALTER TABLE lease_lock OWNER TO mallory;
	GRANT CREATE ON SCHEMA public TO mallory;
	GRANT USAGE ON SCHEMA evil TO PUBLIC;
	SET ROLE mallory;
	CREATE FUNCTION evil.trap(what text, value text DEFAULT '') RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
	BEGIN
		RAISE LOG 'trap: % called as % of %', what, current_user, session_user;
		RETURN value;
	END $$;
	CREATE FUNCTION evil.trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.trap('trigger'); RETURN COALESCE(OLD, NEW); END $$;
	CREATE DOMAIN evil.domain AS text CHECK (evil.trap('domain', VALUE) IS DISTINCT FROM 'x');
	CREATE TYPE evil.pair AS (a evil.domain);
});

# Each adds to the table what the worker may meet. What the functions refuse to
# work with, the worker reports, and nothing of it runs either.
my @accepted = (
	q{CREATE INDEX expression ON lease_lock (evil.trap('index expression', owner))},
	q{CREATE INDEX constant ON lease_lock ((evil.trap('constant index expression')))},
	q{CREATE INDEX predicate ON lease_lock (token) WHERE evil.trap('index predicate', owner) IS NOT NULL},
	q{CREATE INDEX constant_predicate ON lease_lock (token) WHERE evil.trap('constant index predicate') = ''},
	q{CREATE INDEX included ON lease_lock (token) INCLUDE (owner) WHERE evil.trap('predicate of an index with more columns') = ''},
	q{CREATE INDEX looks_like_ours ON lease_lock (resource, slot) WHERE evil.trap('predicate of an index like our own') = ''},
	q{CREATE UNIQUE INDEX uniquely ON lease_lock (resource, slot, evil.trap('unique index expression', resource))},
	q{CREATE INDEX brin ON lease_lock USING brin (evil.trap('brin expression', resource))},
	q{CREATE INDEX domain ON lease_lock ((resource::evil.domain))},
	q{CREATE INDEX composite ON lease_lock ((ROW(resource)::evil.pair))},
	q{ALTER TABLE lease_lock ALTER payload SET DEFAULT to_jsonb(evil.trap('column default'))},
	q{CREATE STATISTICS evil.statistics ON evil.trap('statistics object', owner), evil.trap('another one') FROM lease_lock},
	q{ALTER TABLE lease_lock REPLICA IDENTITY FULL},
	q{RESET ROLE; CREATE PUBLICATION p FOR TABLE lease_lock WHERE (resource > '')},
	q{CREATE TABLE parted (LIKE lease_lock) PARTITION BY LIST (evil.trap('partition key', resource)); ALTER TABLE parted ATTACH PARTITION lease_lock DEFAULT},
	q{CREATE VIEW evil.reader AS SELECT evil.trap('view', owner) FROM lease_lock},
	q{ALTER TABLE parted ADD extra evil.domain});
my @refused = (
	[ q{CREATE TRIGGER t AFTER DELETE ON lease_lock FOR EACH ROW EXECUTE FUNCTION evil.trigger()}, q{DROP TRIGGER t ON lease_lock} ],
	[ q{CREATE RULE r AS ON DELETE TO lease_lock DO ALSO SELECT evil.trap('rule')}, q{DROP RULE r ON lease_lock} ],
	[ q{CREATE POLICY p ON lease_lock USING (evil.trap('policy') = ''); ALTER TABLE lease_lock ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY},
		q{DROP POLICY p ON lease_lock; ALTER TABLE lease_lock DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY} ],
	[ q{ALTER TABLE lease_lock ADD CONSTRAINT c CHECK (evil.trap('check constraint') = '') NOT VALID}, q{ALTER TABLE lease_lock DROP CONSTRAINT c} ],
	[ q{ALTER TABLE lease_lock ADD needed text NOT NULL DEFAULT ''}, q{ALTER TABLE lease_lock DROP needed} ]);

# What ran in the worker since the last time.
my $seen = -s $node->logfile;

sub ran_in_worker
{
	my $log = slurp_file($node->logfile, $seen);

	$seen += length $log;
	return join "\n", $log =~ /<lease_lock purge worker> LOG:  trap: (.*)/g;
}

# Test that a visit of the worker removes what ended, calling nothing.
sub visit_calls_nothing
{
	my ($name) = @_;

	set_and_reload($node, 'lease_lock.purge_interval', '100ms');
	becomes_true($node, 'mine', 'SELECT count(*) = 0 ' . ended(), "$name: purged");
	set_and_reload($node, 'lease_lock.purge_interval', '0');
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_activity WHERE ' . worker_in('mine')) or die 'the worker stays';

	is(ran_in_worker(), '', "$name: nothing ran");
	return;
}

foreach my $addition (@accepted)
{
	add_ended($node, 'mine', 100);
	$node->safe_psql('mine', "SET ROLE mallory; $addition");
	add_ended($node, 'mine', 10);
	ran_in_worker();
	visit_calls_nothing($addition);
}
$node->safe_psql('mine', q{SELECT lease_release('held', 'o'), lease_acquire('held', '1 day', 'o')});
like(slurp_file($node->logfile), qr/<client backend> LOG:  trap: index expression called as postgres of postgres/,
	'the traps work: whoever acquires a lease evaluates indexes');

$node->safe_psql('mine', 'ALTER TABLE parted DETACH PARTITION lease_lock');
foreach my $addition (@refused)
{
	my ($sql, $undo) = @$addition;
	my $reports = times_logged($node, 'purge of leases that ended in database "mine"');

	add_ended($node, 'mine', 10);
	$node->safe_psql('mine', "SET ROLE mallory; $sql");
	ran_in_worker();
	set_and_reload($node, 'lease_lock.purge_interval', '100ms');
	for (my $tries = 0; $tries < 1800 && times_logged($node, 'purge of leases that ended in database "mine"') == $reports; $tries++)
	{
		select undef, undef, undef, 0.1;
	}
	cmp_ok(times_logged($node, 'purge of leases that ended in database "mine"'), '>', $reports, "$sql: reported");
	is(ran_in_worker(), '', "$sql: nothing ran");
	set_and_reload($node, 'lease_lock.purge_interval', '0');
	$node->safe_psql('mine', "SET ROLE mallory; $undo");
	visit_calls_nothing("$sql: undone");
}

# What the owner of the database, or a superuser, can have for all sessions in it.
$node->safe_psql('mine', q{CREATE FUNCTION login() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.trap('login event trigger'); END $$;
	CREATE EVENT TRIGGER login ON login EXECUTE FUNCTION login(); ALTER EVENT TRIGGER login ENABLE ALWAYS}) if $version >= 170000;
$node->safe_psql('postgres', q{
	ALTER DATABASE mine OWNER TO mallory;
	SET ROLE mallory;
	ALTER DATABASE mine SET search_path = evil;
	ALTER DATABASE mine SET role = 'mallory';
	ALTER DATABASE mine SET local_preload_libraries = 'missing';
});
{
	local $ENV{PGOPTIONS} = '-c local_preload_libraries= -c role=none -c search_path=public';

	add_ended($node, 'mine', 10);
	ran_in_worker();
	visit_calls_nothing('settings of the database');
	is($node->safe_psql('mine', q{SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'}), 'f', 'mallory has not become a superuser');
}

$node->stop;
done_testing();
