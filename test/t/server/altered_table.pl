# The functions write to the lock table directly. They refuse a table that was
# altered in a way that they would ignore, maintain indexes that were added, and
# work while a table or index is rebuilt.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use IPC::Run;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('altered', <<'CONF');
max_connections = 100
synchronous_commit = off
CONF
my $psql = sub { return $node->safe_psql('postgres', shift) };

$psql->('CREATE EXTENSION amcheck');
$psql->(q{
	CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
});

# An index scan finds the same rows as a look at all of them, and amcheck finds
# every row in every btree index.
sub indexes_are_right
{
	my ($name, @conditions) = @_;

	foreach my $condition (@conditions)
	{
		my $rows = "SELECT string_agg(resource || ' ' || token, ',' ORDER BY resource, slot) FROM lease_lock WHERE $condition";
		my $by_index = "SET enable_seqscan = off; SET plan_cache_mode = force_custom_plan; ";
		my $by_table = "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off; ";

		like($psql->("$by_index EXPLAIN $rows"), qr/Index/, "$name: $condition by index");
		my $expected = $psql->($by_table . $rows);
		isnt($expected, '', "$name: $condition finds something");
		is($psql->($by_index . $rows), $expected, "$name: $condition finds the same");
	}
	is($psql->(q{
			SELECT string_agg(index::text, ',' ORDER BY index::text)
			FROM (SELECT c.oid::regclass AS index, bt_index_check(c.oid, true)
				FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS a ON a.oid = c.relam
				WHERE i.indrelid = 'lease_lock'::regclass AND a.amname = 'btree') AS checked}) =~ /lease_lock_pkey/,
		1, "$name: amcheck of all indexes");
}

# Alterations that are refused, and how to undo them. The session has used the
# table before, and works again as soon as the alteration is undone.
my $user = open_session($node);
my @calls = (
	"lease_acquire('r', '1 hour', 'o')", "lease_release('r', 'o')",
	"lease_release_all('o')", "lease_renew('r', '1 hour', 'o')",
	"lease_token('r', 'o')", 'lease_purge()');

my $passed_over = 'lock table "lease_lock" has a trigger, a rule, a policy or a check constraint.*HINT:  Drop it';
my $altered = 'columns, primary key or persistence of lock table "lease_lock" were altered.*HINT:  ';
foreach (
	[ 'trigger for each row', 'CREATE TRIGGER t BEFORE UPDATE ON lease_lock FOR EACH ROW EXECUTE FUNCTION nothing()',
		'DROP TRIGGER t ON lease_lock', $passed_over ],
	[ 'trigger for each statement', 'CREATE TRIGGER t AFTER INSERT ON lease_lock EXECUTE FUNCTION nothing()',
		'DROP TRIGGER t ON lease_lock', $passed_over ],
	[ 'rule', 'CREATE RULE r AS ON UPDATE TO lease_lock DO INSTEAD NOTHING',
		'DROP RULE r ON lease_lock', $passed_over ],
	[ 'check constraint', 'ALTER TABLE lease_lock ADD CONSTRAINT c CHECK (length(resource) < 10)',
		'ALTER TABLE lease_lock DROP CONSTRAINT c', $passed_over ],
	[ 'foreign key', 'CREATE TABLE f (resource text, slot smallint, FOREIGN KEY (resource, slot) REFERENCES lease_lock)',
		'DROP TABLE f', $passed_over ],
	[ 'policy', 'ALTER TABLE lease_lock ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON lease_lock USING (true)',
		'DROP POLICY p ON lease_lock', $passed_over ],
	[ 'storage', 'ALTER TABLE lease_lock ALTER owner SET STORAGE EXTENDED',
		'ALTER TABLE lease_lock ALTER owner SET STORAGE PLAIN', $altered ],
	[ 'owner not null', 'DELETE FROM lease_lock WHERE owner IS NULL; ALTER TABLE lease_lock ALTER owner SET NOT NULL',
		'ALTER TABLE lease_lock ALTER owner DROP NOT NULL', $altered ],
	[ 'renamed column', 'ALTER TABLE lease_lock RENAME COLUMN holds TO held', 'ALTER TABLE lease_lock RENAME COLUMN held TO holds', $altered ],
	[ 'no primary key', 'ALTER TABLE lease_lock DROP CONSTRAINT lease_lock_pkey',
		'ALTER TABLE lease_lock ADD CONSTRAINT lease_lock_pkey PRIMARY KEY (resource, slot)',
		$altered ],
	[ 'unlogged', 'ALTER TABLE lease_lock SET UNLOGGED', 'ALTER TABLE lease_lock SET LOGGED', $altered ],
	[ 'primary key in another order',
		'ALTER TABLE lease_lock DROP CONSTRAINT lease_lock_pkey, ADD CONSTRAINT lease_lock_pkey PRIMARY KEY (slot, resource)',
		'ALTER TABLE lease_lock DROP CONSTRAINT lease_lock_pkey, ADD CONSTRAINT lease_lock_pkey PRIMARY KEY (resource, slot)',
		$altered ],
	[ 'primary key of fewer columns',
		'ALTER TABLE lease_lock DROP CONSTRAINT lease_lock_pkey, ADD CONSTRAINT lease_lock_pkey PRIMARY KEY (resource)',
		'ALTER TABLE lease_lock DROP CONSTRAINT lease_lock_pkey, ADD CONSTRAINT lease_lock_pkey PRIMARY KEY (resource, slot)',
		$altered ],
	[ 'deferrable primary key',
		'ALTER TABLE lease_lock DROP CONSTRAINT lease_lock_pkey, ADD CONSTRAINT lease_lock_pkey PRIMARY KEY (resource, slot) DEFERRABLE',
		'ALTER TABLE lease_lock DROP CONSTRAINT lease_lock_pkey, ADD CONSTRAINT lease_lock_pkey PRIMARY KEY (resource, slot)',
		$passed_over ],
	[ 'deferrable constraint', 'ALTER TABLE lease_lock ADD CONSTRAINT c UNIQUE (token) DEFERRABLE',
		'ALTER TABLE lease_lock DROP CONSTRAINT c', $passed_over ],
	[ 'unique index on what a renewal changes', 'CREATE UNIQUE INDEX u ON lease_lock (expires_at)', 'DROP INDEX u',
		'lock table "lease_lock" has a unique index on column "expires_at".*HINT:  Drop the index' ],
	[ 'exclusion constraint', 'ALTER TABLE lease_lock ADD CONSTRAINT c EXCLUDE (token WITH =)',
		'ALTER TABLE lease_lock DROP CONSTRAINT c', 'lock table "lease_lock" has an exclusion constraint.*HINT:  Drop it' ],
	[ 'SP-GiST index', 'CREATE INDEX s ON lease_lock USING spgist (resource)', 'DROP INDEX s', 'lock table "lease_lock" has an SP-GiST index.*HINT:  Drop it' ])
{
	my ($what, $alter, $undo, $match) = @$_;

	$psql->('TRUNCATE lease_lock');
	is($user->query_safe("SELECT $calls[0]"), 't', "$what: before");
	$psql->($alter);
	session_fails($user, "SELECT $_", '42P17', $match, "$what: $_") foreach @calls;
	$psql->($undo);
	is($user->query_safe("SELECT lease_acquire('r', '1 hour', 'p')"), 'f', "$what: undone, refused");
	is($user->query_safe("SELECT lease_release('r', 'o')"), 't', "$what: undone, release");
	is($user->query_safe("SELECT lease_acquire('r', '1 hour', 'o')"), 't', "$what: undone, acquire");
}

# An added column is kept as it is, until it goes again. One that must not be NULL, or that
# the server would compute, is refused.
$psql->('TRUNCATE lease_lock');
is($user->query_safe("SELECT $calls[0]"), 't', 'added column: before');
$psql->(q{ALTER TABLE lease_lock ADD COLUMN note text DEFAULT 'unknown'});
is($user->query_safe(q{SELECT lease_renew('r', '1 hour', 'o'), lease_acquire('r2', '1 hour', 'o'), lease_release_all('o')}), 't|t|2', 'added column: works');
is($psql->(q{SELECT string_agg(coalesce(note, 'none'), ',' ORDER BY resource) FROM lease_lock}), 'unknown,none', 'added column: kept as it is, NULL in a new row');
is($user->query_safe("SELECT $calls[0]"), 't', 'added column: granted again');
my $later = 'lock table "lease_lock" is that of a later version.*HINT:  .*Otherwise drop the column';
foreach ([ q{note2 text NOT NULL DEFAULT ''}, $later ], [ 'note2 int GENERATED ALWAYS AS (slot + 1) STORED', $altered ], [ 'note2 int GENERATED ALWAYS AS IDENTITY', $later ])
{
	my ($column, $match) = @$_;

	$psql->("ALTER TABLE lease_lock ADD COLUMN $column");
	session_fails($user, "SELECT $_", '42P17', $match, "added column $column: $_") foreach @calls;
	$psql->('ALTER TABLE lease_lock DROP COLUMN note2');
}
$psql->('ALTER TABLE lease_lock RENAME COLUMN note TO other');
is($user->query_safe("SELECT lease_renew('r', '1 hour', 'o')"), 't', 'added column: renamed');
$psql->('ALTER TABLE lease_lock RENAME COLUMN other TO note');
$psql->('ALTER TABLE lease_lock DROP COLUMN note');
is($user->query_safe("SELECT lease_acquire('r', '1 hour', 'p')"), 'f', 'column dropped: refused');
is($user->query_safe("SELECT lease_release('r', 'o')"), 't', 'column dropped: release');
is($user->query_safe("SELECT lease_acquire('r', '1 hour', 'o')"), 't', 'column dropped: acquire');

# Indexes of the user's own, of any shape.
$psql->($_)
  foreach 'CREATE INDEX by_owner ON lease_lock (owner)',
  "CREATE INDEX by_owner_partial ON lease_lock (owner) WHERE owner LIKE 'a%'",
  'CREATE INDEX by_length ON lease_lock (length(owner), upper(resource))',
  'CREATE INDEX by_expiry ON lease_lock USING brin (expires_at)',
  'CREATE INDEX by_hash ON lease_lock USING hash (owner)',
  'CREATE UNIQUE INDEX by_token ON lease_lock (token) INCLUDE (owner)',
  'CREATE UNIQUE INDEX like_the_key ON lease_lock (resource, slot)',
  'CREATE UNIQUE INDEX key_and_all ON lease_lock (resource, slot) INCLUDE (owner, expires_at, token, payload)',
  'CREATE UNIQUE INDEX key_turned ON lease_lock (slot, resource)',
  'CREATE UNIQUE INDEX key_of_some ON lease_lock (resource) INCLUDE (owner) WHERE slot = 0',
  q{CREATE UNIQUE INDEX key_expression ON lease_lock ((resource || '/' || slot), lower(resource))},
  'CREATE INDEX by_payload ON lease_lock USING gin (payload)';
$psql->(q{
	DO $$
	BEGIN
		SET lease_lock.purge_after = 0;
		FOR round IN 1 .. 20 LOOP
			IF round % 5 = 0 THEN
				PERFORM lease_purge();
			END IF;
			PERFORM lease_acquire('i' || n, '1 hour', CASE n % 3 WHEN 0 THEN 'b' ELSE 'a' || (n + round) % 10 END)
				FROM generate_series(1, 300) AS n;
			PERFORM lease_renew('i' || n, '2 hours', 'b') FROM generate_series(1, 300) AS n WHERE n % 7 = round % 7;
			PERFORM lease_release('i' || n, 'b') FROM generate_series(1, 300) AS n WHERE n % 4 = round % 4;
			PERFORM lease_request('s' || n % 50, '1 hour', 'u' || n, mode => 'permit', permits => 5, payload => jsonb_build_object('n', n))
				FROM generate_series(1, 300) AS n WHERE n % 3 = round % 3;
			PERFORM lease_release('s' || n % 50, 'u' || n) FROM generate_series(1, 300) AS n WHERE n % 4 = round % 4;
			PERFORM lease_release_all('a' || round % 10);
			IF round % 3 = 0 THEN
				COMMIT;
			END IF;
		END LOOP;
	END $$});
$psql->("SELECT lease_acquire('j' || n, '1 hour', 'a' || n % 10) FROM generate_series(1, 100) AS n");
my @conditions = ("owner = 'a8'", "owner = 'a9' AND owner LIKE 'a%'", "owner = 'b'", 'owner IS NULL',
	'length(owner) = 2', "resource = 'i17'", 'token > 0', "expires_at > now()",
	"resource = 's7' AND slot > 0", q{payload @> '{"n": 12}' OR payload @> '{"n": 157}'}, "resource ^@ 's1'", "resource || '/' || slot = 's7/1'");
indexes_are_right('own indexes', @conditions);

# A conflict in a unique index that a user added is an error that names the index.
$psql->("CREATE UNIQUE INDEX one_lease_each ON lease_lock (owner) WHERE owner LIKE 'u%'");
is($psql->("SELECT lease_acquire('u1', '1 hour', 'u')"), 't', 'unique index: first');
sql_fails($node, "SELECT lease_acquire('u2', '1 hour', 'u')", '23505', 'one_lease_each', 'unique index: second');
is($psql->("SELECT lease_release('u1', 'u')"), 't', 'unique index: release');
is($psql->("SELECT lease_acquire('u2', '1 hour', 'u')"), 't', 'unique index: works after the first is released');
$psql->('DROP INDEX one_lease_each');

# An index that refuses the row fails only this call. A conflict with an uncommitted row is
# an error without a wait, and the resource stays usable while the transaction is open.
$psql->('TRUNCATE lease_lock');
foreach (
	[ 'unique owner', 'CREATE UNIQUE INDEX wrong ON lease_lock (owner)', '23505', 'unique index "wrong".*HINT:  If the index was added' ],
	[ 'unique with nulls', 'CREATE UNIQUE INDEX wrong ON lease_lock (payload) NULLS NOT DISTINCT WHERE slot >= 0', '23505', 'unique index "wrong"' ],
	[ 'unique resource', 'CREATE UNIQUE INDEX wrong ON lease_lock (left(resource, 1)) INCLUDE (owner)', '23505', 'unique index "wrong"' ],
	[ 'expression that fails', q{CREATE INDEX wrong ON lease_lock ((1 / (length(resource) - 6)))}, '22012', 'division by zero' ])
{
	my ($what, $create, $sqlstate, $match) = @$_;
	my $open = open_session($node);

	$psql->($create);
	$open->query_safe(q{BEGIN; SELECT lease_acquire('wrong 1', '1 hour', 'w')});
	$user->query_safe(q{BEGIN; SET LOCAL lock_timeout = '1 min'; SAVEPOINT s});
	session_fails($user, q{SELECT lease_acquire('wrong2', '1 hour', 'w')}, $sqlstate, $match, "$what: fails at once");
	$user->query_safe('ROLLBACK TO s');
	session_fails($user, q{SELECT lease_acquire_permit('wrong2', 3, '1 hour', 'w')}, $sqlstate, $match, "$what: the same for permits");
	$user->query_safe('ROLLBACK TO s');
	$open->query_safe('ROLLBACK');
	$psql->('DROP INDEX wrong');
	is($psql->(q{SELECT lease_acquire('wrong2', '1 hour', 'w')}), 't', "$what: nothing stays locked");
	$user->query_safe('ROLLBACK');
	$open->quit;
	$psql->('TRUNCATE lease_lock');
}

# Rebuilt between two calls of one session.
foreach my $rebuild ('REINDEX INDEX CONCURRENTLY lease_lock_pkey', 'REINDEX TABLE lease_lock',
	'VACUUM FULL lease_lock', 'CLUSTER lease_lock USING lease_lock_pkey', 'VACUUM lease_lock')
{
	$psql->('TRUNCATE lease_lock');
	is($user->query_safe("SELECT $calls[0]"), 't', "$rebuild: before");
	$psql->($rebuild);
	is($user->query_safe("SELECT lease_acquire('r', '1 hour', 'p')"), 'f', "$rebuild: refused");
	is($user->query_safe("SELECT lease_release('r', 'o')"), 't', "$rebuild: release");
	is($user->query_safe("SELECT lease_acquire('r', '1 hour', 'o')"), 't', "$rebuild: acquire");
}
$psql->('TRUNCATE lease_lock');
is($user->query_safe("SELECT lease_token('r', 'o')"), '', 'TRUNCATE: all leases are gone');
is($user->query_safe("SELECT lease_acquire('r', '1 hour', 'p')"), 't', 'TRUNCATE: and free');
$user->quit;

# Rebuilt while 16 sessions compete for leases on existing and new resources.
my $fight = "$PostgreSQL::Test::Utils::tmp_check/fight.sql";
append_to_file($fight, q{
	\set r random(1, 20)
	SELECT lease_acquire('r' || :r, '1 hour', 'a' || :client_id);
	SELECT lease_renew('r' || :r, '2 hours', 'a' || :client_id);
	SELECT lease_acquire('new' || floor(extract(epoch FROM clock_timestamp()) * 500), '10 ms', 'b');
	SELECT lease_release('r' || :r, 'a' || :client_id);
	SELECT lease_purge();
});

foreach (
	[ 'indexes',
		'REINDEX INDEX CONCURRENTLY lease_lock_pkey',
		'CREATE INDEX CONCURRENTLY one_more ON lease_lock (role)',
		'REINDEX TABLE CONCURRENTLY lease_lock',
		'DROP INDEX CONCURRENTLY one_more' ],
	[ 'table', 'VACUUM FULL lease_lock', 'VACUUM lease_lock', 'CLUSTER lease_lock USING lease_lock_pkey' ],
	[ 'contents', 'TRUNCATE lease_lock' ])
{
	my ($what, @rebuilds) = @$_;
	my $rounds = 0;
	my ($stdout, $stderr) = map { "$fight.$what.$_" } 'out', 'err';

	local $ENV{PGOPTIONS} = '-c lease_lock.purge_after=0 -c statement_timeout=' . $LeaseTest::FILE_LIMIT / 2 . 's';
	my $pgbench = IPC::Run::start(
		[ 'pgbench', '-n', '-c', '16', '-T', $LeaseTest::FILE_LIMIT, '-f', $fight,
			$node->connstr('postgres') . ' application_name=fight' ],
		'>', $stdout, '2>', $stderr);

	$node->poll_query_until('postgres', q{SELECT count(*) = 16 FROM pg_stat_activity WHERE application_name = 'fight' AND query ~ 'lease'})
	  or die 'pgbench did not start';
	my $end = time + 1;
	do
	{
		$psql->($_) foreach @rebuilds;
		$rounds++;
	} while ($rounds < 1000 && time < $end);
	is($psql->(q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fight'}), 16,
		"$what rebuilt $rounds times beside 16 sessions");
	# that is how pgbench notices that its time is over
	$pgbench->signal('ALRM');
	$pgbench->finish;
	is(slurp_file($stderr), '', "$what: no error");
	like(slurp_file($stdout), qr/number of transactions actually processed: [1-9]/, "$what: the sessions went on");
}

$psql->("SELECT lease_acquire('i17', '1 hour', 'a8'), lease_acquire('i18', '1 hour', 'a9')");
indexes_are_right('after all that', @conditions[0, 1, 4, 5, 6, 7]);

$node->stop;
done_testing();
