# The query file for prometheus-postgres-exporter, scraped through the exporter
# itself: every metric is there, with the values that the views show.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use HTTP::Tiny;
use JSON::PP;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep time);
use WaitTest;

my $queries = "$FindBin::RealBin/../../../contrib/prometheus/queries.yaml";
my ($exporter) = grep { -x } map { "$_/prometheus-postgres-exporter" } split /:/, $ENV{PATH};

plan skip_all => 'no exporter (Debian package prometheus-postgres-exporter)' if !defined $exporter;

my %running;
my $node = start_waiting_node('prometheus', "deadlock_timeout = 1h\n", preload => 1);

$node->safe_psql('postgres', q{CREATE ROLE exporter LOGIN});

# The exporter gets nothing of this test's environment, least of all a server of
# somebody else, and ends with it.
sub start_exporter
{
	my ($server) = @_;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $log = '';
	local %ENV = (
		PATH => $ENV{PATH},
		DATA_SOURCE_NAME => 'host=' . $server->host . ' port=' . $server->port . ' user=exporter dbname=postgres sslmode=disable');
	my $process = IPC::Run::start([ $exporter, "--web.listen-address=127.0.0.1:$port", "--extend.query-path=$queries",
			'--disable-default-metrics', '--disable-settings-metrics' ], '<', \undef, '>&', \$log);

	my $running = { process => $process, url => "http://127.0.0.1:$port/metrics", log => \$log };
	$running{$running} = $running;
	return $running;
}

# Get the metrics: name, with labels, to value.
sub scrape
{
	my ($running) = @_;
	my $end = time + $WaitTest::LIMIT;
	my $answer;

	for (;;)
	{
		$answer = HTTP::Tiny->new(timeout => 60, proxy => undef, http_proxy => undef)->get($running->{url});
		last if $answer->{success} || time > $end;
		usleep(20_000);
	}
	die "no metrics: $answer->{status} $answer->{content}${ $running->{log} }" if !$answer->{success};
	return $answer->{content};
}

sub stop_exporter
{
	my ($running) = @_;

	$running->{process}->kill_kill(grace => 5);
	delete $running{$running};
	return;
}

# Also when the test dies.
END
{
	my $status = $?;

	stop_exporter($_) foreach values %running;
	$? = $status;
}

sub value_of
{
	my ($metrics, $name, $labels) = @_;

	$labels = 'database="postgres",server="[^"]*"' . ($labels // '');
	return $metrics =~ /^\Q$name\E\{$labels\} (\S+)$/m ? $1 + 0 : undef;
}

my $running = start_exporter($node);
my $metrics = eval { scrape($running) };
my $failure = $@;

is($failure, '', 'the exporter answers');
like($metrics, qr/^pg_exporter_last_scrape_error 0$/m, 'without an error');
like($metrics, qr/^pg_exporter_user_queries_load_error\{.*\} 0$/m, 'the file was read');

# Every metric of the file, with the type that it should have.
my $yaml = slurp_file($queries);
my ($namespace, %metric);
foreach (split /\n/, $yaml)
{
	$namespace = $1 if /^(\w+):$/;
	$metric{"${namespace}_$1"} = '' if /^    - (\w+):$/;
	my ($usage) = /^        usage: (\w+)$/ or next;
	$metric{$_} = lc $usage foreach grep { $metric{$_} eq '' } keys %metric;
}
delete $metric{$_} foreach grep { $metric{$_} eq 'label' } keys %metric;
is(scalar keys %metric, 18, 'the file has eighteen metrics');
like($metrics, qr/^# HELP \Q$_\E \S.*\n# TYPE \Q$_\E $metric{$_}$/m, "metric: $_") foreach sort keys %metric;

# The dashboard asks for metrics that exist, and for all of them that can change.
{
	my $dashboard = decode_json(slurp_file("$FindBin::RealBin/../../../contrib/grafana/lease_lock.json"));
	my %asked = map { $_ => 1 } map { $_->{expr} =~ /\b(lease_lock_\w+)/g } map { @{ $_->{targets} } } @{ $dashboard->{panels} };

	like($metrics, qr/^\Q$_\E\{/m, "dashboard: $_") foreach sort keys %asked;
	is(join(' ', grep { !$asked{$_} && !$asked{"${_}_bucket"} } sort keys %metric),
		'lease_lock_longest_wait_seconds lease_lock_stats_reset_seconds', 'dashboard: what it does not show');
}

# The collector of sql_exporter has the same metrics, except for the histogram; its queries return the columns.
{
	my $collector = slurp_file("$FindBin::RealBin/../../../contrib/prometheus/sql_exporter.collector.yaml");
	my %query = $collector =~ /^  - query_name: (\w+)\n    query: \|\n((?:      .*\n)+)/mg;
	my (%columns, %collected);

	foreach my $name (keys %query)
	{
		my ($rows) = run_command([ 'psql', '-XAq', '-d', $node->connstr('postgres'), '-c', $query{$name} ]);
		$columns{$name} = { map { $_ => 1 } split /\|/, (split /\n/, $rows)[0] };
	}

	while ($collector =~ /metric_name: (\w+)\n    type: (\w+)\n.*\n    key_labels: \[(\w+)\]\n    values: \[(\w+)\]\n    query_ref: (\w+)$/mg)
	{
		ok($columns{$5}{$3} && $columns{$5}{$4}, "collector: $1");
		$collected{$1} = $2;
	}
	is_deeply(\%collected, { map { $_ => $metric{$_} } grep { $metric{$_} ne 'histogram' } keys %metric }, 'collector: metrics and types');
}

# values
my @sessions = map { open_session($node) } 0, 1;
look($node, q{SELECT lease_stats_reset();
	SELECT lease_acquire('r', '1 hour', 'ann'), lease_acquire('r', '1 hour', 'bob'), lease_renew('r', '2 hours', 'ann');
	SELECT lease_acquire('e', '1 ms', 'ann'); SELECT pg_sleep(0.005)});
send_to_wait($node, $sessions[0], q{SELECT lease_acquire('r', '1 hour', 'w0', '1 min')});
look($node, q{SELECT lease_release('r', 'ann')});
is(answer($sessions[0]), 't', 'a hand-off');
send_to_wait($node, $sessions[0], q{SELECT lease_acquire('r', '1 hour', 'w1', '1 min')});
look($node, q{SELECT pg_sleep(0.2)});
$metrics = scrape($running);

my $stats = look($node, q{SELECT concat_ws(' ', granted, refused, takeovers, renewals, releases, waits, wait_timeouts, deadlocks, purged) FROM lease_stats});
is($stats, '3 1 0 1 1 2 0 0 0', 'what was counted');
is(join(' ', map { value_of($metrics, "lease_lock_${_}_total") } qw(granted refused takeovers renewals releases waits wait_timeouts deadlocks purged)),
	$stats, 'is what the exporter says');
is(value_of($metrics, 'lease_lock_leases_held'), 1, 'leases held');
is(value_of($metrics, 'lease_lock_leases_expired'), 1, 'leases expired');
is(value_of($metrics, 'lease_lock_waiters_waiting'), 1, 'sessions waiting');
cmp_ok(value_of($metrics, 'lease_lock_waiters_longest_seconds'), '>=', 0.2, 'for so long');
cmp_ok(abs(value_of($metrics, 'lease_lock_wait_seconds_total') - look($node, 'SELECT extract(epoch FROM wait_time) FROM lease_stats')), '<', 1e-6, 'time of waits, in seconds');
cmp_ok(abs(value_of($metrics, 'lease_lock_stats_reset_seconds') - look($node, 'SELECT extract(epoch FROM stats_reset) FROM lease_stats')), '<', 1e-3, 'since when');

# the histogram
my @buckets = map { [ /le="([^"]*)"\} (\d+)/ ] } $metrics =~ /^(lease_lock_handoff_seconds_bucket\{.*)$/mg;
is(scalar @buckets, 21, 'the histogram has all buckets');
is($buckets[0][0] . ' ' . $buckets[-1][0], '1.6e-05 +Inf', 'from 16 microseconds to everything');
is((grep { $buckets[$_][1] < $buckets[ $_ - 1 ][1] } 1 .. $#buckets), 0, 'which never go down');
is($buckets[-1][1], 1, 'and end with the hand-off');
is(value_of($metrics, 'lease_lock_handoff_seconds_count'), 1, 'the number of them');
cmp_ok(value_of($metrics, 'lease_lock_handoff_seconds_sum'), '>', 0, 'and their time');
{
	my $time = look($node, 'SELECT extract(epoch FROM handoff_time) FROM lease_stats');
	my ($first) = grep { $_->[1] == 1 } @buckets;

	ok($first->[0] eq '+Inf' || $first->[0] >= $time, 'the bucket that it is in reaches as far');
}
stop_exporter($running);

# without counters: the rest is there all the same
look($node, q{SELECT count(pg_cancel_backend(pid)) FROM lease_waiters});
like(answer($sessions[0]), qr/57014/, 'the waiter is cancelled');
$_->quit foreach @sessions;
$node->stop;

my $bare = start_waiting_node('bare', '', preload => 0);
if ($bare->safe_psql('postgres', 'SELECT scope FROM lease_stats') eq 'none')
{
	$bare->safe_psql('postgres', q{CREATE ROLE exporter LOGIN; SELECT lease_acquire('r', '1 hour', 'ann')});
	$running = start_exporter($bare);
	$metrics = scrape($running);
	stop_exporter($running);
	like($metrics, qr/^pg_exporter_last_scrape_error 0$/m, 'not preloaded: no error');
	is(value_of($metrics, 'lease_lock_granted_total'), undef, 'not preloaded: no counters');
	is(value_of($metrics, 'lease_lock_leases_held'), 1, 'not preloaded: but leases');
}
$bare->stop;
done_testing();
