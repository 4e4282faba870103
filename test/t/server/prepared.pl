# PREPARE TRANSACTION: the lease stays open until the prepared transaction ends,
# also when the server was stopped, or crashed, in between.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('prepared', <<'CONF');
max_prepared_transactions = 10
synchronous_commit = off
wal_writer_delay = 10s
CONF

sub call
{
	return $node->safe_psql('postgres', 'SELECT ' . shift);
}

sub prepare
{
	my ($gid, $call) = @_;

	return $node->safe_psql('postgres',
		"BEGIN; SELECT $call; PREPARE TRANSACTION '$gid';");
}

foreach my $how ('fast', 'immediate')
{
	my $token;

	# What the prepared transactions must not change.
	call("lease_acquire('$how release $_', '1 hour', 'old')") foreach 'commit', 'rollback';
	call("lease_acquire('$how renew $_', '1 hour', 'old')") foreach 'commit', 'rollback';

	foreach my $end ('commit', 'rollback')
	{
		is(prepare("$how grant $end", "lease_acquire('$how grant $end', '1 hour', 'mine'), "
				. "lease_token('$how grant $end', 'mine') > 0"),
			't|t', "$how: grant is prepared");
		is(prepare("$how release $end", "lease_release('$how release $end', 'old')"),
			't', "$how: release is prepared");
		is(prepare("$how renew $end", "lease_renew('$how renew $end', '10 hours', 'old')"),
			't', "$how: renewal is prepared");
	}

	foreach my $when ('before', 'after')
	{
		if ($when eq 'after')
		{
			$node->stop($how);
			$node->start;
			is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'),
				6, "$how: prepared transactions are there after the restart");
		}

		foreach my $end ('commit', 'rollback')
		{
			is(call("lease_acquire('$how grant $end', '1 hour', 'other')"),
				'f', "$how, $when: a lease whose grant is prepared is busy");
			is(call("lease_acquire('$how release $end', '1 hour', 'other')"),
				'f', "$how, $when: a lease whose release is prepared is busy");
			is(call("lease_acquire('$how renew $end', '1 hour', 'other')"),
				'f', "$how, $when: a lease whose renewal is prepared is busy");
			is(call("lease_token('$how grant $end', 'mine')"),
				'', "$how, $when: a prepared grant is not held yet");
			isnt(call("lease_token('$how release $end', 'old')"),
				'', "$how, $when: a lease whose release is prepared is held still");
			sql_fails($node, "SET lock_timeout = 1; SELECT lease_release('$how release $end', 'old')",
				'55P03', 'lock timeout', "$how, $when: a second release waits");
			is(call('lease_purge()'), 0, "$how, $when: nothing to purge");
		}
	}

	foreach my $what ('grant', 'release', 'renew')
	{
		$node->safe_psql('postgres',
			"COMMIT PREPARED '$how $what commit'; ROLLBACK PREPARED '$how $what rollback'");
	}

	$token = call("lease_token('$how grant commit', 'mine')");
	cmp_ok($token, '>', 0, "$how: after COMMIT PREPARED the lease is held");
	is(call("lease_acquire('$how grant commit', '1 hour', 'other')"), 'f', "$how: and refused to others");
	is(call("lease_release('$how grant commit', 'mine')"), 't', "$how: its owner releases it");
	is(call("lease_acquire('$how grant commit', '1 hour', 'other')"), 't', "$how: then it is free");
	cmp_ok(call("lease_token('$how grant commit', 'other')"),
		'>', $token, "$how: with a higher token");

	is(call("lease_token('$how grant rollback', 'mine')"), '', "$how: after ROLLBACK PREPARED the lease is not held");
	is(call("lease_release('$how grant rollback', 'mine')"), 'f', "$how: there is nothing to release");
	is(call("lease_acquire('$how grant rollback', '1 hour', 'other')"), 't', "$how: it is free");

	is(call("lease_token('$how release commit', 'old')"), '', "$how: a committed release ends the lease");
	is(call("lease_acquire('$how release commit', '1 hour', 'other')"), 't', "$how: it is free");

	isnt(call("lease_token('$how release rollback', 'old')"), '', "$how: a release rolled back leaves the lease");
	is(call("lease_acquire('$how release rollback', '1 hour', 'other')"), 'f', "$how: it is refused to others");

	is($node->safe_psql('postgres', qq{
			SELECT resource, round(extract(epoch FROM expires_at - granted_at) / 3600)
			FROM lease_status WHERE resource LIKE '$how renew %' ORDER BY resource}),
		"$how renew commit|10\n$how renew rollback|1",
		"$how: a renewal counts when it is committed");
}

$node->stop;
done_testing();
