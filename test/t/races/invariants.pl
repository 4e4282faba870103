# 16 sessions acquire, share, renew, shorten, transfer, downgrade, release, break and roll back leases
# of all modes on a few resources, with and without waiting. The log of what was
# committed keeps all promises.
#
# INVARIANT_SECONDS=n makes each of the runs that long.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseLog;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $seconds = $ENV{INVARIANT_SECONDS} // 2;
my $node = start_waiting_node('invariants', <<'CONF');
fsync = off
synchronous_commit = off
deadlock_timeout = 50ms
lease_lock.purge_after = 0
CONF

# A step that hangs fails the test.
my $options = '-c statement_timeout=' . $LeaseTest::FILE_LIMIT / 2 . 's';

set_up_log($node);
my %runs = (
	'without waiting' => {},
	'with waiting' => { wait => '20 ms' },
	'resources that are new' => { new => 0.9, undone => 35 },
);
foreach my $name (sort keys %runs)
{
	local $ENV{PGOPTIONS} = $options;

	run_sessions($node, $name, $seconds, %{ $runs{$name} });
	check_log($node, $name);
	nothing_left($node, $name);
}

# All sessions claim the next free item of many at once. The primary key would
# refuse an item that is claimed twice.
{
	local $ENV{PGOPTIONS} = $options;

	# A session with an outdated list gets none of its items.
	$node->safe_psql('postgres', q{
		CREATE TABLE item (id int PRIMARY KEY, claimed_by text);
		CREATE TABLE claimed (id int PRIMARY KEY);
		INSERT INTO item SELECT generate_series(1, 1600);

		CREATE FUNCTION claim(me text) RETURNS void LANGUAGE plpgsql AS $$
		DECLARE
			next text[] := ARRAY(SELECT 'item:' || i.id FROM item AS i WHERE claimed_by IS NULL ORDER BY i.id LIMIT 20);
			got text;
		BEGIN
			IF next <> '{}' THEN
				got := lease_acquire_any(next, '1 h', me);
				INSERT INTO claimed SELECT substr(got, 6)::int WHERE got IS NOT NULL;
				UPDATE item SET claimed_by = me WHERE id = substr(got, 6)::int;
			END IF;
		END $$;
	});
	$node->pgbench('--no-vacuum --client=16 --jobs=2 --transactions=130', 0,
		[qr/processed: 2080\/2080\n/], [qr/^$/], '16 sessions that claim the next free item',
		{ 'claim' => q{SELECT claim('c' || :client_id)} });
	my ($claimed, $updated) = split /\|/, $node->safe_psql('postgres', q{
		SELECT (SELECT count(*) FROM claimed), (SELECT count(claimed_by) FROM item)});

	cmp_ok($claimed, '>', 1000, 'items were claimed');
	is($updated, $claimed, 'each by one session');
}

$node->stop;
done_testing();
