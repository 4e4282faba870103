# A lease that cannot be renewed: the command, which ignores SIGTERM, and its
# child have ended before the next one begins.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../../test/t";
use lib $FindBin::RealBin;

use FailoverTest;
use LeaseRunTest;
use LeaseTest;
use List::Util qw(max min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $rounds = $ENV{LEASE_RUN_ROUNDS} // 3;
my $at_once = 10;
my $settings = "shared_preload_libraries = lease_lock\nmax_connections = 200";
my $node = start_node('lost', $settings);
# Longer by default, so that a slow machine does not matter.
my $ttl = $ENV{LEASE_RUN_ROUNDS} ? 3 : max(20, 8 * slowness($node));
my $folder = PostgreSQL::Test::Utils::tempdir();

sub server_processes
{
	my ($server) = @_;
	my $postmaster = slurp_file($server->data_dir . '/postmaster.pid') =~ s/\n.*//sr;

	return ($postmaster, children($postmaster));
}

# A test that fails leaves no server stopped.
my %stopped;
END
{
	kill('CONT', map { @$_ } values %stopped);
}

# How a lease_run is cut off: its server, how the first one connects, what happens, and what happens after a ttl.
my @ways;
foreach my $order ([ 'network', 's' ], [ 'answers', 'a' ])
{
	my $proxy = start_proxy($node);

	push @ways, {
		name => $order->[0],
		server => $node,
		first => $proxy->{connstr},
		cut_off => sub { tell_proxy($proxy, $order->[1]) },
		later => sub { tell_proxy($proxy, 'k'); tell_proxy($proxy, 'p') }
	};
}
foreach my $way ([ 'stopped', 'STOP' ], [ 'killed', 'KILL' ])
{
	my ($name, $signal) = @$way;
	my $server = start_node($name, $settings);

	push @ways, {
		name => $name,
		server => $server,
		first => $server,
		cut_off => $signal eq 'KILL' ? sub { lose($server) } : sub {
			kill('STOP', @{ $stopped{$name} = [ server_processes($server) ] });
		},
		later => $signal eq 'STOP' ? sub { kill('CONT', @{ $stopped{$name} }) } : sub {
			$server->start;
		}
	};
}

# The first ones hold a lease, and the second ones wait for it.
sub start_round
{
	my ($way, @numbers) = @_;

	foreach my $n (@numbers)
	{
		my $file = "$folder/$way->{name}.$n";

		$way->{first_run}{$n} = start_run($way->{first}, "--ttl=${ttl}s", "job $n $way->{name}", alone($file, 'first', 'stubborn'));
		until_log("$file.log", qr/(first works.*){2}/s);
		$way->{second_run}{$n} = start_run($way->{server}, '--ttl=5min', "job $n $way->{name}", alone($file, 'second', 'brief'));
	}
	until_sql('waiters', $way->{server}, "SELECT count(*) FROM lease_waiters WHERE resource LIKE '%$way->{name}'", scalar @numbers);
	return;
}

sub end_round
{
	my ($way, @numbers) = @_;
	my $name = $way->{name};

	foreach my $n (@numbers)
	{
		is_run(finish_run($way->{first_run}{$n}), 75, qr/^$/, qr/the command was ended, since the lease could not be renewed in time/,
			"$name: the first was ended");
		is_run(finish_run($way->{second_run}{$n}), 0, qr/^$/, qr//, "$name: the second ran");
		like(slurp("$folder/$name.$n.log"), qr/^first began \d+\n(?:first works \d+\n){2}second began \d+\nsecond ended \d+\n$/,
			"$name: after all processes of the first had ended");
	}
	return;
}

# All ways at the same time.
for (my $n = 1; $n <= $rounds; $n += $at_once)
{
	my @numbers = $n .. min($n + $at_once - 1, $rounds);

	start_round($_, @numbers) foreach @ways;
	$_->{cut_off}->() foreach @ways;
	sleep $ttl - 0.3 + rand(0.6);
	$_->{later}->() foreach reverse @ways;
	end_round($_, @numbers) foreach @ways;
}
$_->{server}->stop foreach @ways[2, 3];
%stopped = ();

# Broken: ended at once, by --signal first. A process that is stopped gets the signal, too.
my %job = (
	working => q{trap 'echo signal; exit 5' USR1; echo $$ >"$0"; while :; do sleep 0.1; done},
	stopped => q{trap 'echo signal; exit 5' USR1; echo $$ >"$0"; kill -STOP $$; sleep 1000}
);
foreach my $name (sort keys %job)
{
	my $file = "$folder/broken.$name";
	my $run = start_run($node, '--ttl=1h', '--kill-after=10min', '--signal=USR1', "broken $name", 'sh', '-c', $job{$name}, $file);

	until_log($file, qr/\d\n/);
	my $pid = slurp($file) + 0;
	until_true('it is stopped', sub { slurp_file("/proc/$pid/stat") =~ /\) T / }) if $name eq 'stopped';
	$node->safe_psql('postgres', "SELECT lease_break('broken $name'), lease_acquire('broken $name', '1 hour', 'somebody')");
	renew_now($node);
	is_run(finish_run($run), 75, qr/^signal\n$/, qr/lease on "broken $name": lost: it was broken or taken over; ending the command/,
		"$name: a lease that was broken ends the command at once, with the signal that was chosen");
	is(held($node, "broken $name"), 1, 'and is not released');
}

$node->stop;
done_testing();
