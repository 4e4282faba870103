# Several sessions try to take over an expired lease at the same moment: one of them
# gets it. Each try is a transaction of its own.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $leases = 400;
my $node = start_node('together', <<'CONF');
fsync = off
synchronous_commit = off
autovacuum = off
CONF

$node->safe_psql('postgres', q{
	CREATE TABLE tried (resource text, granted boolean);

	-- All sessions come to the next resource at the same time, and try it once.
	CREATE PROCEDURE try_all(what text, me text, begin_at timestamptz, leases int) LANGUAGE plpgsql AS $$
	DECLARE
		granted boolean;
	BEGIN
		FOR i IN 1 .. leases LOOP
			WHILE clock_timestamp() < begin_at + i * interval '2 ms' LOOP
			END LOOP;
			granted := CASE what
				WHEN 'reader' THEN lease_acquire_shared(what || i, '1 h', me)
				WHEN 'permit' THEN lease_acquire_permit(what || i, 1, '1 h', me)
				ELSE lease_acquire(what || i, '1 h', me) END;
			COMMIT;
			INSERT INTO tried VALUES (what || i, granted);
			COMMIT;
		END LOOP;
	END $$;
});

foreach (
	[ 'reader', 'an exclusive lease', "lease_acquire('reader' || i, '1 h', 'former')" ],
	[ 'permit', 'an exclusive lease', "lease_acquire('permit' || i, '1 h', 'former')" ],
	[ 'writer', 'two shared leases', "lease_acquire_shared('writer' || i, '1 h', 'former') AND lease_acquire_shared('writer' || i, '1 h', 'guest')" ])
{
	my ($what, $lease, $acquire) = @$_;

	is($node->safe_psql('postgres', "SELECT count(*) FROM generate_series(1, $leases) AS i WHERE $acquire"), $leases, "$lease on each resource");
	$node->safe_psql('postgres', "UPDATE lease_lock SET expires_at = '2000-01-01'");
	my $begin = $node->safe_psql('postgres', "SELECT clock_timestamp() + interval '500 ms'");
	$node->pgbench('--no-vacuum --client=2 --jobs=1 --transactions=1', 0, [qr/processed: 2\/2\n/], [qr/^$/],
		"two sessions that come together, as $what", { $what => "CALL try_all('$what', 'o' || :client_id, '$begin', $leases)" });

	my ($tries, $resources, $nobody) = split /\|/, $node->safe_psql('postgres', q{
		SELECT sum(tries), count(*), count(*) FILTER (WHERE granted = 0)
		FROM (SELECT count(*) AS tries, count(*) FILTER (WHERE granted) AS granted FROM tried GROUP BY resource) AS t});
	is("$tries $resources", 2 * $leases . " $leases", 'all were tried by all');
	is($nobody, 0, "$lease that ran out: somebody got each, as $what");
	$node->safe_psql('postgres', 'TRUNCATE tried, lease_lock');
}

$node->stop;
done_testing();
