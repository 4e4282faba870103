# 32 sessions on few resources: no error, no two holders at a time, and tokens
# in the order of the grants. Each grant and release is logged by its own
# transaction, so that the log says what really happened.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('contention', <<'CONF');
max_connections = 100
synchronous_commit = off
autovacuum_naptime = 1s
CONF

# A step that hangs fails the test.
local $ENV{PGOPTIONS} = '-c lease_lock.purge_after=0 -c statement_timeout=' . $LeaseTest::FILE_LIMIT / 2 . 's';

$node->safe_psql('postgres', q{
	CREATE TABLE log (id bigserial, resource text, token bigint, what text, at timestamptz);
	CREATE TABLE counter (resource text PRIMARY KEY, n bigint) WITH (fillfactor = 10);

	-- Nobody else can get the lease before the grant commits or is undone, so
	-- the log's numbers are in the order of the grants.
	CREATE FUNCTION acquire(r text, ttl interval, o text) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		IF NOT lease_acquire(r, ttl, o) THEN
			RETURN false;
		END IF;
		INSERT INTO log (resource, token, what, at)
			SELECT r, token, 'granted', clock_timestamp() FROM lease_lock WHERE resource = r;
		RETURN true;
	END $$;

	CREATE FUNCTION release(r text, o text) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO log (resource, token, what, at)
			SELECT r, lease_token(r, o), 'released', clock_timestamp();
		RETURN lease_release(r, o);
	END $$;
});

sub run_pgbench
{
	my ($name, $transactions, %scripts) = @_;

	$node->pgbench("--no-vacuum --client=32 --jobs=2 --transactions=$transactions",
		0, [qr/processed: (\d+)\/\1\n/], [qr/^$/], $name, \%scripts);
}

sub count_is
{
	my ($expected, $sql, $name) = @_;

	is($node->safe_psql('postgres', "SELECT count(*) FROM $sql"), $expected, $name);
}

# One row for each grant, with the one before on the same resource.
my $grants = q{
	(SELECT *, lag(token) OVER w AS token_before, lag(at) OVER w AS at_before
		FROM log WHERE what = 'granted'
		WINDOW w AS (PARTITION BY resource ORDER BY id)) AS g};

# Holders that release: they are alone in between.
foreach my $resource (1 .. 3)
{
	$node->safe_psql('postgres', "INSERT INTO counter VALUES ('r$resource', 0)");
}
run_pgbench('32 sessions that acquire and release', 150, 'hold' => q{
	\set r random(1, 3)
	SELECT acquire('r' || :r, '1 hour', 'c' || :client_id) AS granted \gset
	\if :granted
		SELECT n FROM counter WHERE resource = 'r' || :r \gset
		UPDATE counter SET n = :n + 1 WHERE resource = 'r' || :r;
		SELECT 1 / release('r' || :r, 'c' || :client_id)::int;
	\endif
});

my $granted = $node->safe_psql('postgres', "SELECT count(*) FROM log WHERE what = 'granted'");
cmp_ok($granted, '>', 100, 'leases were granted');
note("$granted grants");
count_is(0, q{
	(SELECT what, token, at, lag(what) OVER w AS what_before, lag(token) OVER w AS token_before, lag(at) OVER w AS at_before
		FROM log WINDOW w AS (PARTITION BY resource ORDER BY id)) AS l
	WHERE at <= at_before
		OR what = 'granted' AND what_before <> 'released'
		OR what = 'released' AND (what_before, token_before) IS DISTINCT FROM ('granted', token)},
	'grants and releases alternate: no two holders at a time');
count_is(0, "$grants WHERE token <= token_before", 'tokens grow');
is($node->safe_psql('postgres', 'SELECT sum(n) FROM counter'),
	$granted, 'a counter changed under the lease lost nothing');
count_is(0, 'lease_status', 'all were released');

# Leases that expire at once and are purged all the time: rows appear and
# disappear while other sessions look for them. First, each session removes what
# it was granted, so that a row may come and go unseen by a slow session.
run_pgbench('32 sessions that acquire and purge', 150, 'vanish' => q{
	SELECT acquire('u', '1 microsecond', 'c' || :client_id);
	SELECT lease_purge();
});
cmp_ok($node->safe_psql('postgres', "SELECT count(*) FROM log WHERE resource = 'u'"),
	'>', 100, 'leases were granted');
count_is(0, "$grants WHERE token <= token_before", 'tokens grow in the order of the grants');

# Then a mix of all calls.
$node->safe_psql('postgres', 'TRUNCATE log');
run_pgbench('32 sessions with leases that run out, and purge', 200,
	'expire@6' => q{
		\set r random(1, 2)
		\set ttl random(1, 3000)
		SELECT acquire('s' || :r, :ttl * interval '1 microsecond', 'c' || :client_id);
	},
	'undo@2' => q{
		\set r random(1, 2)
		BEGIN;
		SELECT acquire('s' || :r, '1 hour', 'c' || :client_id);
		ROLLBACK;
	},
	'release@2' => q{
		\set r random(1, 2)
		BEGIN;
		SELECT acquire('s' || :r, '1 ms', 'c' || :client_id);
		SELECT lease_release('s' || :r, 'c' || :client_id);
		COMMIT;
	},
	'renew@1' => q{
		\set r random(1, 2)
		SELECT lease_renew('s' || :r, '2 ms', 'c' || :client_id);
	},
	'purge@3' => q{
		SELECT lease_purge();
	});
note($node->safe_psql('postgres', 'SELECT count(*) FROM log'), ' grants');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM log'), '>', 100, 'leases were granted');
count_is(0, "$grants WHERE token <= token_before", 'tokens grow in the order of the grants');
count_is(0, "$grants WHERE at <= at_before", 'and so does the time of the grants');
count_is(0, '(SELECT FROM log GROUP BY token HAVING count(*) > 1) AS twice', 'no token twice');

# New resources that many sessions request at the same moment: one session gets each.
$node->safe_psql('postgres', 'TRUNCATE log');
run_pgbench('32 sessions that race for unknown resources', 200, 'race' => q{
	SELECT acquire('t' || (:client_id % 2) || floor(extract(epoch FROM clock_timestamp()) * 500),
		'1 hour', 'c' || :client_id);
});
note($node->safe_psql('postgres', 'SELECT count(*) FROM log'), ' grants');
count_is(0, '(SELECT FROM log GROUP BY resource HAVING count(*) > 1) AS twice', 'each was granted once');
count_is(0, q{lease_lock AS l FULL JOIN log USING (resource, token)
	WHERE resource LIKE 't%' AND (l IS NULL OR log IS NULL)}, 'and the table has what the log has');

$node->stop;
done_testing();
