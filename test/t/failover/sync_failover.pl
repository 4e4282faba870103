# A grant or renewal that was acknowledged is there after a failover to the
# synchronous standby, whatever synchronous_commit of the session says. A
# primary that is cut off from that standby acknowledges nothing.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use FailoverTest;
use IPC::Run;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'needs /proc of Linux' if !-e "/proc/$$/stat";

my @levels = ('on', 'off', 'local', 'remote_write', 'remote_apply', 'off', 'local', 'remote_write');

# A client that takes leases and renews them, and prints what it was told.
sub start_client
{
	my ($node, $name, $level, $durable) = @_;
	my $base = "$PostgreSQL::Test::Utils::tmp_check/$name";

	append_to_file("$base.sql", "SET synchronous_commit = $level;\nSET lease_lock.durable = $durable;\n" . join('', map {
		"SELECT '$name $_', lease_acquire('$name $_', '1 hour', 'o'), lease_token('$name $_', 'o');\n"
		  . "SELECT '$name $_', lease_renew('$name $_', '2 hours', 'o'), 'renewed';\n"
	} 1 .. 20000));
	return {
		out => "$base.out",
		run => IPC::Run::start([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-f', "$base.sql" ],
			'>', "$base.out", '2>', "$base.err")
	};
}

# Lose the primary a second after its standby heard the last of it. Returns the
# standby, what was acknowledged, and what of it the standby lacks.
sub fail_over
{
	my ($durable) = @_;
	my $primary = start_primary("primary_$durable", 'max_prepared_transactions = 5');
	my $standby = start_standby($primary, "standby_$durable");
	my (%told, @lost);

	$primary->safe_psql('postgres', q{ALTER SYSTEM SET synchronous_standby_names = '*'});
	$primary->reload;
	$primary->poll_query_until('postgres', q{SELECT sync_state = 'sync' FROM pg_stat_replication});

	my @clients = map { start_client($primary, "$durable $_", $levels[$_], $durable) } 0 .. $#levels;
	$primary->poll_query_until('postgres', q{SELECT count(DISTINCT split_part(resource, ' ', 2)) = 8 AND count(*) > 800 FROM lease_lock});
	stop_senders($primary);
	if ($durable eq 'on')
	{
		is($primary->poll_query_until('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'}, scalar @levels),
			1, 'durable = on: every session waits for the standby');
	}
	else
	{
		# grants that will be lost
		my $grants = $primary->safe_psql('postgres', 'SELECT count(*) FROM lease_lock');
		$primary->poll_query_until('postgres', "SELECT count(*) > $grants + 100 FROM lease_lock");
	}
	lose($primary);
	foreach my $client (@clients)
	{
		$client->{run}->finish;
		foreach (split(/\n/, slurp_file($client->{out})))
		{
			my ($resource, $granted, $token) = split(/\|/);
			die "unexpected answer: $_" if $granted ne 't';
			if ($token eq 'renewed') { $told{$resource}{hours} = 2 }
			else { $told{$resource} = { token => $token, hours => 1 } }
		}
	}

	$standby->promote;
	my %stored = map { my ($resource, @rest) = split(/\|/); $resource => \@rest } split(/\n/,
		$standby->safe_psql('postgres',
			q{SELECT resource, token, round(extract(epoch FROM expires_at - granted_at) / 3600) FROM lease_status WHERE owner = 'o'}));
	foreach my $resource (keys %told)
	{
		my $stored = $stored{$resource};
		push @lost, $resource
		  if !$stored || $stored->[0] != $told{$resource}{token} || $stored->[1] < $told{$resource}{hours};
	}
	return ($standby, \%told, \@lost);
}

my ($server, $told, $lost) = fail_over('on');
cmp_ok(scalar keys %$told, '>', 700, 'durable = on: ' . keys(%$told) . ' grants were acknowledged');
is_deeply($lost, [], 'durable = on: all of them, and their renewals, are on the standby');

# The new primary has its own standby, and is cut off from it. An operator who
# cannot know of that promotes the standby.
my $next = start_standby($server, 'next');
$server->safe_psql('postgres', q{ALTER SYSTEM SET synchronous_standby_names = '*'});
$server->reload;
$server->poll_query_until('postgres', q{SELECT sync_state = 'sync' FROM pg_stat_replication});
$server->safe_psql('postgres', q{SELECT lease_acquire('mine', '1 hour', 'o')});
my $isolated = open_session($server);
stop_senders($server);
$next->promote;
$isolated->query_safe('SET synchronous_commit = off');
begin_query($isolated, q{SELECT lease_acquire('split', '1 hour', 'old')});
is($server->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'}),
	1, 'isolated primary: a grant hangs');
my $preparer = open_session($server);
$preparer->query_safe(q{SET synchronous_commit = local; BEGIN; SELECT lease_acquire('prepared', '1 hour', 'old')});
begin_query($preparer, q{PREPARE TRANSACTION 'p'});
is($server->poll_query_until('postgres', q{SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event = 'SyncRep'}),
	1, 'isolated primary: to prepare a grant hangs, too');
is($next->safe_psql('postgres', q{SELECT lease_acquire('split', '1 hour', 'new')}), 't', 'and the new primary grants it');
is($isolated->{stdout}, '', 'isolated primary: no answer');
is($server->safe_psql('postgres', q{SELECT lease_release('mine', 'o')}), 't', 'isolated primary: a release does not wait');
lose($server);
eval { $_->quit } foreach $isolated, $preparer;
unlike($isolated->{stdout}, qr/t/, 'isolated primary: still no answer later');
$next->stop;

# With a weaker setting, the same failover loses grants.
($server, $told, $lost) = fail_over('local');
cmp_ok(scalar @$lost, '>', 0, 'durable = local: ' . @$lost . ' acknowledged grants or renewals are lost');
$server->stop;

done_testing();
