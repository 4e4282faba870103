# Renewals at the last moment, beside grants to the same owner and conflicting
# grants to others: no session may treat a lease as expired that was renewed.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('renewal', "synchronous_commit = off\nlease_lock.durable = off\nlease_lock.log_events = none\nfsync = off\n");

# Nothing is released, so the lock table says when each lease was held. While a
# transaction relies on the owner's expired lease, the next one goes to another
# slot. The check for overlaps looks at all leases at one time. Some leases last
# for longer, or on a slow server none would ever be renewed.
$node->safe_psql('postgres', q{
	CREATE TABLE overlap (slot int, token bigint, granted_at timestamptz, expires_at timestamptz,
		slot_2 int, token_2 bigint, granted_2_at timestamptz, expires_2_at timestamptz);
	CREATE TABLE done (what text);
	CREATE FUNCTION look() RETURNS void LANGUAGE sql AS $$
		INSERT INTO overlap SELECT a.slot, a.token, a.granted_at, a.expires_at, b.slot, b.token, b.granted_at, b.expires_at
		FROM lease_lock AS a JOIN lease_lock AS b ON a.token < b.token AND b.granted_at < a.expires_at
		WHERE a.owner = b.owner OR a.slot = 0 OR b.slot = 0;
	$$;
	CREATE FUNCTION rely() RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM lease_assert('r', 'a');
		INSERT INTO done VALUES ('rely');
	EXCEPTION WHEN object_not_in_prerequisite_state THEN	-- it is not held
	END $$;
});
my %scripts = (
	share => q{INSERT INTO done SELECT 'share' FROM lease_request('r', interval '150 us' * (1 + LONG * (random() < 0.1)::int), 'a', mode => 'shared') WHERE granted;},
	renew => q{INSERT INTO done SELECT 'renew' WHERE lease_renew('r', '150 us', 'a'); SELECT look();},
	exclude => q{INSERT INTO done SELECT 'exclude' WHERE lease_acquire('r', '50 us', 'x');},
	rely => q{
		BEGIN;
		SELECT rely();
		SELECT look();
		COMMIT;},
	look => q{SELECT look();},
);

# Again, with longer leases, if a slow machine did not do everything.
foreach my $round (1 .. 10)
{
	my $share = $scripts{share} =~ s/LONG/10 * 2 ** $round/er;

	unlink glob $node->basedir . '/{share,renew,exclude,rely,look}*';
	$node->pgbench('--no-vacuum --client=24 --jobs=2 --time=' . 3 * ($round + 1), 0, [qr/number of failed transactions: 0 /], [qr/^$/], 'at the last moment', {
		'share@3' => $share, 'renew@5' => $scripts{renew}, 'exclude@1' => $scripts{exclude}, 'rely@1' => $scripts{rely}, 'look@1' => $scripts{look}
	});
	last if $node->safe_psql('postgres', 'SELECT count(DISTINCT what) FROM done') == 4;
}
cmp_ok($node->safe_psql('postgres', "SELECT count(*) FROM done WHERE what = '$_'"), '>', 0, "done: $_") foreach 'share', 'renew', 'exclude', 'rely';
is($node->safe_psql('postgres', 'SELECT DISTINCT * FROM overlap ORDER BY token LIMIT 5'), '', 'no lease overlaps with another');

$node->stop;
done_testing();
