# The server restarts, or another one becomes the primary, while a command
# runs: it is not disturbed, and the lease goes on.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../../test/t";
use lib $FindBin::RealBin;

use FailoverTest;
use LeaseRunTest;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $folder = PostgreSQL::Test::Utils::tempdir();
my $ttl = $LeaseTest::FILE_LIMIT;
my $primary = start_primary('primary', "shared_preload_libraries = lease_lock\n");
my $standby = start_standby($primary, 'standby');

# A command that ends when it is told to.
sub until_told
{
	my ($name) = @_;

	return ('sh', '-c', 'echo began >"$0"; until [ -e "$0.go" ]; do sleep 0.05; done; echo done', "$folder/$name");
}

sub until_message
{
	my ($run, $pattern) = @_;

	until_true("message $pattern", sub { $run->{harness}->pump_nb; $run->{err} =~ $pattern });
	return;
}

# A restart. The lost connection is noticed at once, not only when a renewal is due.
my $run = start_run($primary, '-v', "--ttl=${ttl}s", 'job', until_told('restart'));
until_log("$folder/restart", qr/began/);
$primary->restart;
until_message($run, qr/not renewed|connected.*connected/s);
until_message($run, qr/connected.*started.*connected.*renewed/s);
append_to_file("$folder/restart.go", '');
is_run(finish_run($run), 0, qr/^done\n$/, qr/released\n$/, 'the command outlives a restart of the server');
is(held($primary, 'job'), 0, 'and the lease is released');

# A crash, and a server that is away for some time.
$run = start_run($primary, '-v', "--ttl=${ttl}s", 'job', until_told('crash'));
until_log("$folder/crash", qr/began/);
$primary->stop('immediate');
until_message($run, qr/not renewed.*not renewed/s);
$primary->start;
until_message($run, qr/not renewed.*connected.*renewed/s);
append_to_file("$folder/crash.go", '');
is_run(finish_run($run), 0, qr/^done\n$/, qr/released\n$/, 'and a crash');

# A failover: the connection string names both servers, the standby first.
my $both = sprintf('host=%s,%s port=%d,%d dbname=postgres user=postgres', $standby->host, $primary->host, $standby->port,
	$primary->port);
$primary->wait_for_catchup($standby);
$run = start_run($both, '-v', "--ttl=${ttl}s", 'job', until_told('failover'));
until_log("$folder/failover", qr/began/);
my $port = $primary->port;
until_message($run, qr/started/);
like($run->{err}, qr/connected to server \S+, port $port,/, 'of several servers, the one that can write');
$primary->wait_for_catchup($standby);
lose($primary);
$standby->promote;
until_message($run, qr/not renewed.*connected.*renewed/s);
append_to_file("$folder/failover.go", '');
is_run(finish_run($run), 0, qr/^done\n$/, qr/released\n$/, 'the command outlives a failover');
is(held($standby, 'job'), 0, 'and the lease is released on the new primary');

# A host that is silent: the next one is tried.
{
	my $proxy = start_proxy($standby);
	my ($silent) = $proxy->{connstr} =~ /host=(\S+)/;
	my $hosts = sprintf('host=%s,%s port=%d dbname=postgres user=postgres', $silent, $standby->host, $standby->port);

	$run = start_run($hosts, '-v', '--ttl=' . 12 * slowness($standby) . 's', 'job', until_told('silent'));
	until_log("$folder/silent", qr/began/);
	until_message($run, qr/started/);
	like($run->{err}, qr/connected to server \Q$silent\E,/, 'connected to the first host');
	tell_proxy($proxy, 's');
	until_message($run, qr/not renewed \(the server does not answer\)/);
	until_message($run, qr/connected to server \Q${\$standby->host}\E,.*renewed/s);
	is(-s $proxy->{accepted}, 1, 'the host that was silent is not tried before the other');
	append_to_file("$folder/silent.go", '');
	is_run(finish_run($run), 0, qr/^done\n$/, qr/released\n$/, 'a host that is silent is given up for the next one');
	is_run(lease_run($hosts, 'job', 'echo', 'yes'), 0, qr/^yes\n$/, qr//, 'also in the beginning');
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

# A lease that a failover lost: lease_run is told, and ends the command.
$run = start_run($standby, '--ttl=1min', 'forgotten', 'sh', '-c', 'echo began >"$0"; sleep 1000', "$folder/forgotten");
until_log("$folder/forgotten", qr/began/);
$standby->safe_psql('postgres', q{SELECT lease_break('forgotten')});
$standby->stop('immediate');
$standby->start;
is_run(finish_run($run), 75, qr/^$/, qr/lease on "forgotten": lost: it was broken or taken over/,
	'a lease that the server does not have any more is asked for at once');

$standby->stop;
done_testing();
