# Calls on a resource with thousands of holders end, whatever other sessions do.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use IPC::Run;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('crowded', "fsync = off\nautovacuum = off\n");

# So many shared leases on a resource, written by hand because each grant reads them all.
sub crowd
{
	my ($resource, $many, $expires) = @_;

	$node->safe_psql('postgres', qq{
		INSERT INTO lease_lock (resource, slot, owner, token, granted_at, expires_at, role, xid, mode, holds)
		SELECT '$resource', n, 'holder ' || n, n, '2000-01-01', '$expires', 'postgres'::regrole, pg_current_xact_id(), 's', 1
		FROM generate_series(1, $many) AS n;
		SELECT setval('lease_token_seq', 100000);
		VACUUM ANALYZE lease_lock;
	});
	return;
}

# A look at so many rows takes so long that meanwhile transactions end. A call must
# not look again whenever one did.
crowd('crowd', 12_000, 'infinity');
{
	my $script = $node->basedir . '/writer.sql';
	my ($out, $err) = ('', '');

	append_to_file($script, "SELECT pg_current_xact_id();\n");
	my $writers = IPC::Run::start([ 'pgbench', '-n', '-c', '8', '-T', $LeaseTest::FILE_LIMIT, '-f', $script, $node->connstr('postgres') ], '<', \undef, '>', \$out, '2>', \$err);

	$node->poll_query_until('postgres', q{SELECT count(*) > 8 FROM pg_stat_activity WHERE backend_type = 'client backend'}) or die "pgbench: $err";
	foreach my $call (
		[ q{lease_token('crowd', 'nobody') IS NULL}, 'lease_token of an owner that holds none' ],
		[ q{lease_token('crowd', 'holder 7') = 7}, 'lease_token of a holder' ],
		[ q{NOT lease_acquire('crowd', '1 hour', 'writer')}, 'a refused try' ],
		[ q{NOT lease_acquire_permit('crowd', 12000, '1 hour', 'writer')}, 'a refused permit' ],
		[ q{NOT lease_acquire_all(ARRAY['crowd', 'other'], '1 hour', 'writer')}, 'a refused try of several' ],
		[ q{NOT lease_release('crowd', 'nobody')}, 'a release by a stranger' ],
		[ q{lease_renew('crowd', '1 hour', 'holder 7')}, 'a renewal' ])
	{
		is($node->safe_psql('postgres', "SET statement_timeout = '10 min'; SELECT $call->[0]"), 't', "busy server: $call->[1]");
	}
	$writers->kill_kill;
}

# An exclusive grant ends the expired leases of so many readers without a tombstone for each.
crowd('expired', 32_767, '2000-01-02');
is($node->safe_psql('postgres', q{SELECT lease_acquire('expired', '1 hour', 'writer')}), 't', 'takeover from many readers');
is($node->safe_psql('postgres', q{SELECT string_agg(owner, ',') FROM lease_lock WHERE resource = 'expired'}), 'writer', 'no row of theirs is left');
is($node->safe_psql('postgres', q{SELECT lease_release('expired', 'holder 7')}), 'f', 'a late release learns of the loss');

# A few are ended by tombstones, which later leases use again.
crowd('few', 3, '2000-01-02');
is($node->safe_psql('postgres', q{SELECT lease_acquire('few', '1 hour', 'writer')}), 't', 'takeover from a few readers');
is($node->safe_psql('postgres', q{SELECT count(*) FROM lease_lock WHERE resource = 'few' AND owner IS NULL}), 3, 'their rows are tombstones');

$node->stop;
done_testing();
