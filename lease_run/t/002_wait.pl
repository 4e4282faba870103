# Waiting for a lease: in turn, woken at once, ended by time or signal; and many
# lease_run on one resource, of which only one command runs at a time.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use Fcntl;
use LeaseRunTest;
use LeaseTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $crowd = $ENV{LEASE_RUN_CROWD} // 30;
my $node = start_node('wait', "shared_preload_libraries = lease_lock\nmax_connections = " . ($crowd + 30));
my $folder = PostgreSQL::Test::Utils::tempdir();

sub waits
{
	my ($resource, $number) = @_;

	until_sql("$number waiters", $node, "SELECT count(*) FROM lease_waiters WHERE resource = '$resource'", $number);
	return;
}

# A release wakes the next one. The times are those of one machine's clock.
my $holder = start_run($node, 'job', $^X, '-MTime::HiRes=time', '-e',
	'open(F, ">", shift); close(F); sleep 1 until -e $ARGV[0]; print time', "$folder/began", "$folder/go");
until_true('the command begins', sub { -e "$folder/began" });
my $waiter = start_run($node, 'job', $^X, '-MTime::HiRes=time', '-e', 'print time');
waits('job', 1);
append_to_file("$folder/go", '');
finish_run($holder);
finish_run($waiter);
is_run($waiter, 0, qr/^\d/, qr/^$/, 'waited, and ran');
cmp_ok($waiter->{out}, '>=', $holder->{out}, 'after the other had ended');
my $late = $waiter->{out} - $holder->{out};
cmp_ok($late, '<', $PostgreSQL::Test::Utils::timeout_default, "woken $late s after it ended, not by a timeout");

# A wait that ends.
$node->safe_psql('postgres', q{SELECT lease_acquire('taken', '1 hour', 'ann')});
my $before = time;
is_run(lease_run($node, '--wait=5s', 'taken', 'echo', 'no'), 1, qr/^$/, qr/lease on "taken": taken by "ann"/, 'a wait that times out');
cmp_ok(time - $before, '>=', 5, 'for as long as it was told');

# A signal ends the wait, and neither a waiter nor a lease is left.
{
	my %number = (TERM => 15, INT => 2, HUP => 1, QUIT => 3);
	my %run = map { $_ => start_run($node, 'taken', 'echo', 'no') } keys %number;

	waits('taken', 4);
	kill($_, $run{$_}{pid}) foreach keys %run;
	is_run(finish_run($run{$_}), 128 + $number{$_}, qr/^$/, qr/^$/, "SIG$_ ends a wait") foreach sort keys %run;
	waits('taken', 0);
}

# The same in the moment of the grant: lease_run is held up, since nobody reads its messages, when the signal comes.
{
	my $connstr = $node->connstr('postgres');
	my $fifo = "$folder/messages";
	my $mine = q{SELECT count(*) FROM lease_status WHERE resource = 'moment' AND owner <> 'ann' AND state = 'held'};

	POSIX::mkfifo($fifo, oct('600')) or die "mkfifo: $!";
	$node->safe_psql('postgres', q{SELECT lease_acquire('moment', '1 hour', 'ann')});
	sysopen(my $reader, $fifo, O_RDONLY | O_NONBLOCK) or die "$fifo: $!";
	sysopen(my $filler, $fifo, O_WRONLY | O_NONBLOCK) or die "$fifo: $!";
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		$SIG{$_} = 'DEFAULT' foreach qw(TERM INT HUP QUIT);
		open(STDERR, '>', $fifo);
		open(STDOUT, '>', "$folder/moment");
		exec('lease_run', '-v', '--ttl=1h', '-d', $connstr, 'moment', 'echo', 'no') or POSIX::_exit(1);
	}
	waits('moment', 1);
	1 while syswrite($filler, 'x' x 4096);
	1 while syswrite($filler, 'x');
	$node->safe_psql('postgres', q{SELECT lease_release('moment', 'ann')});
	until_sql('the grant', $node, $mine, 1);
	sleep 0.5;
	kill('TERM', $pid);
	close $filler;
	$reader->blocking(1);
	1 while sysread($reader, my $messages, 65536);
	waitpid($pid, 0);
	is($?, 15, 'SIGTERM in the moment of the grant ends lease_run');
	is(slurp("$folder/moment"), '', 'and the command does not run');
	is($node->safe_psql('postgres', $mine), 0, 'and the lease is released');
}

# A role whose statements are limited waits all the same, by asking again.
{
	my $run;

	$node->safe_psql('postgres', 'CREATE ROLE hasty LOGIN; ALTER ROLE hasty SET statement_timeout = 4000');
	$run = start_run($node->connstr('postgres') . ' user=hasty', '-v', 'taken', 'echo', 'yes');
	until_true('it asks again', sub { $run->{harness}->pump_nb; $run->{err} =~ /waiting.*\n.*asking, for.*\n.*waiting/ });
	unlike($run->{err}, qr/canceling statement/, 'asked again before statement_timeout');
	kill('TERM', $run->{pid});
	finish_run($run);
}

# Nothing was asked for yet.
{
	my $proxy = start_proxy($node);
	my $run;

	tell_proxy($proxy, 's');
	$run = start_run($proxy->{connstr}, 'unanswered', 'echo', 'no');
	until_true('a connection', sub { slurp_file("/proc/$run->{pid}/cmdline") =~ /lease_run/ });
	kill('TERM', $run->{pid});
	is_run(finish_run($run), 143, qr/^$/, qr/^$/, 'a signal ends a connection attempt that is not answered');
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

# The server ends the wait: it is asked again.
$waiter = start_run($node, 'taken', 'echo', 'yes');
waits('taken', 1);
$node->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
until_true('an error', sub { $waiter->{harness}->pump_nb; $waiter->{err} =~ /asking again/ });
waits('taken', 1);
$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM lease_waiters});
until_true('another error', sub { $waiter->{harness}->pump_nb; $waiter->{err} =~ /asking again.*asking again/s });
waits('taken', 1);
$node->safe_psql('postgres', q{SELECT lease_release('taken', 'ann')});
is_run(finish_run($waiter), 0, qr/^yes\n$/, qr/lease on "taken": no answer .*canceling statement/, 'canceled, terminated, and served');

# Shared leases are held together, an exclusive one alone; permits up to their number.
my $barrier = q{touch "$0.$$"; while [ $(ls "$0".* | wc -l) -lt 2 ]; do sleep 0.05; done};
foreach my $mode ('--shared', '--permits=2')
{
	my @both = map { start_run($node, $mode, 'together', 'sh', '-c', $barrier, "$folder/both$mode") } 1 .. 2;

	is_run(finish_run($_), 0, qr/^$/, qr/^$/, "$mode: two at once") foreach @both;
}

# All at once on one resource.
my @runs = map { start_run($node, '--ttl=2min', 'crowd', alone("$folder/crowd", $_, 'brief')) } 1 .. $crowd;
my @failed = grep { finish_run($_)->{status} != 0 || $_->{err} ne '' } @runs;
is(scalar @failed, 0, "$crowd at once: all were served");
diag("$_->{status} $_->{err}") foreach @failed;
my $log = slurp("$folder/crowd.log");
is(join(' ', sort { $a <=> $b } $log =~ /^(\d+) ended/mg), join(' ', 1 .. $crowd), 'each ran once');
like($log, qr/^(?:(\d+) began \d+\n\1 ended \d+\n){$crowd}$/, 'one after the other, without overlap');
is(held($node, 'crowd'), 0, 'and released it');

$node->stop;
done_testing();
