# The process group of the command, and the two processes of lease_run: what
# happens when one of them is killed or stopped.
use strict;
use warnings;

use FindBin;
use IO::Handle;
use lib $FindBin::RealBin;

use LeaseRunTest;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $node = start_node('processes', 'shared_preload_libraries = lease_lock');
my $folder = PostgreSQL::Test::Utils::tempdir();

# A command with a child in the background; both ignore SIGTERM and write their pids.
sub family
{
	my ($name) = @_;

	return ('sh', '-c',
		q{trap '' TERM; echo "first $$" >>"$0"; (echo "second $(sh -c 'echo $PPID')" >>"$0"; while :; do sleep 0.1; done) & wait},
		"$folder/$name");
}

sub pids
{
	my ($name) = @_;

	until_log("$folder/$name", qr/second \d+\n/);
	return slurp("$folder/$name") =~ /\w+ (\d+)\n/g;
}

sub all_end
{
	my (@pids) = @_;

	return until_true("end of @pids", sub { !grep { process_runs($_) } @pids });
}

# kill -9 of lease_run.
my $run = start_run($node, 'job', family('killed'));
my @pids = pids('killed');
is(scalar(grep { process_runs($_) } @pids), 2, 'two processes');
kill('KILL', $run->{pid});
finish_run($run);
ok(all_end(@pids), 'after kill -9 of lease_run, the whole process group has ended');
is(held($node, 'job'), 1, 'the lease ends with its time');
$node->safe_psql('postgres', q{SELECT lease_break('job')});

# kill -9 of the process that watches the time.
$run = start_run($node, 'job', family('unwatched'));
@pids = pids('unwatched');
my ($watchdog) = children($run->{pid});
kill('KILL', $watchdog);
is_run(finish_run($run), 75, qr/^$/, qr/lease on "job": the process that watches the time has ended: ending the command/,
	'without a watch, the command is ended');
ok(all_end(@pids), 'with its process group');
is(held($node, 'job'), 0, 'and the lease is released');

# The same when nobody reads the messages of lease_run, which has to wait for that.
{
	pipe(my $unread, my $messages) or die "pipe: $!";
	$messages->blocking(0);
	1 while syswrite($messages, 'x' x 4096);
	$messages->blocking(1);
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		open(STDERR, '>&', $messages) or die "dup: $!";
		exec('lease_run', '-d', $node->connstr('postgres'), 'job', family('unread')) or die "exec: $!";
	}
	close $messages;
	@pids = pids('unread');
	kill('KILL', children($pid));
	ok(all_end(@pids), 'it is ended before that is told');
	close $unread;
	waitpid($pid, 0);
	$node->safe_psql('postgres', q{SELECT lease_break('job')});
}

# Both at once: the first process of the command.
SKIP:
{
	skip 'PR_SET_PDEATHSIG is of Linux', 1 if $^O ne 'linux';

	$run = start_run($node, 'job', family('both'));
	@pids = pids('both');
	($watchdog) = children($run->{pid});
	kill('STOP', $watchdog);
	kill('KILL', $run->{pid}, $watchdog);
	ok(all_end($pids[0]), 'after kill -9 of both, the first process of the command has ended');
	kill('KILL', $pids[1]);
	finish_run($run);
	$node->safe_psql('postgres', q{SELECT lease_break('job')});
}

# lease_run is stopped, or the process that watches the time, while the server is silent: the command is ended in time
# all the same. SIGKILL comes a tenth of the ttl before its end, which a slow machine must not outlast.
{
	my $proxy = start_proxy($node);
	my $ttl = '--ttl=' . (22 + 8 * slowness($node)) . 's';
	my %first = map { $_ => start_run($proxy->{connstr}, $ttl, $_, alone("$folder/$_", 'first', 'stubborn')) } qw(stopped unwatched);
	my %says = (stopped => qr/the command was ended/, unwatched => qr/the process that watches the time has ended/);

	until_log("$folder/$_.log", qr/(first works.*){2}/s) foreach keys %first;
	kill('STOP', $first{stopped}{pid}, children($first{unwatched}{pid}));
	tell_proxy($proxy, 's');
	my %next = map { $_ => start_run($node, '--ttl=5min', $_, alone("$folder/$_", 'second', 'brief')) } keys %first;
	foreach my $name (sort keys %first)
	{
		is_run(finish_run($next{$name}), 0, qr/^$/, qr/^$/, "$name: the next one runs");
		like(slurp("$folder/$name.log"), qr/^first began \d+\n(?:first works \d+\n){2}second began \d+\nsecond ended \d+\n$/,
			'after the command of the first had ended');
		kill('CONT', $first{$name}{pid});
		is_run(finish_run($first{$name}), 75, qr/^$/, $says{$name}, 'and the first one says so');
	}
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

# What the command leaves behind in its group: the lease is kept for it.
$run = start_run($node, '-v', '--ttl=5min', 'job', 'sh', '-c',
	q{(until [ -e "$0.go" ]; do sleep 0.05; done; echo last) & echo first; exit 7}, "$folder/left");
until_true('the command ends', sub { $run->{harness}->pump_nb; $run->{out} eq "first\n" });
is(held($node, 'job'), 1, 'the command has ended, a process of its group has not: the lease is kept');
append_to_file("$folder/left.go", '');
is_run(finish_run($run), 7, qr/^first\nlast\n$/, qr/released/, 'until that has ended, too');
is(held($node, 'job'), 0, 'then it is released');

# The command ends, and the process that watches the time with it, before that has read all that lease_run told it.
# Whether lease_run reads the last messages before or after that is left to chance: ten times.
foreach my $round (1 .. 10)
{
	my $file = "$folder/unread$round";

	$run = start_run($node, '-v', 'job', $^X, '-e', '$SIG{USR1} = "IGNORE"; open(my $f, ">", $ARGV[0]); sleep 0.1 until -e "$ARGV[0].go"; exit 6', $file);
	until_true('the command begins', sub { -e $file });
	until_true('lease_run knows it', sub { $run->{harness}->pump_nb; $run->{err} =~ /started/ });
	my ($watches) = children($run->{pid});
	my ($command) = children($watches);

	kill('STOP', $watches);
	foreach (1 .. 5)
	{
		kill('USR1', $run->{pid});
		until_true('the signal is handled', sub { slurp_file("/proc/$run->{pid}/status") =~ /^SigPnd:\s+0+\nShdPnd:\s+0+\n/m });
	}
	append_to_file("$file.go", '');
	until_true('the command ends', sub { !process_runs($command) });
	kill('CONT', $watches);
	is_run(finish_run($run), 6, qr/^$/, qr/released/, "messages that nobody reads any more are no loss, $round");
}

# A daemon may stay, if the user says so.
$run = start_run($node, '--allow-daemons', 'job', 'setsid', '-f', 'sh', '-c', 'exec >&- 2>&-; echo $$ >"$0"; sleep 1000', "$folder/daemon");
is_run(finish_run($run), 0, qr/^$/, qr/^$/, 'with --allow-daemons, a process in another session is not waited for');
until_log("$folder/daemon", qr/\d/);
my $daemon = slurp("$folder/daemon") + 0;
is(process_runs($daemon), 1, 'and lives on');
kill('KILL', $daemon);

# Signals go to the whole group.
foreach my $signal (qw(TERM INT HUP QUIT))
{
	$run = start_run($node, 'job', $^X, '-e', <<'PERL', "$folder/group.$signal", $signal);
		my ($file, $signal) = @ARGV;
		my $parent = $$;
		my $child = fork;
		$SIG{$signal} = sub { syswrite(STDOUT, $$ == $parent ? "parent\n" : "child\n"); exit 3 };
		open(my $log, '>>', $file) or die;
		syswrite($log, "ready\n");
		sleep 1 while !$child;
		sleep 1 while wait < 0;
		sleep 1 while 1;
PERL
	until_log("$folder/group.$signal", qr/ready\nready\n/);
	kill($signal, $run->{pid});
	finish_run($run);
	is(join(' ', sort split(' ', $run->{out})) . " $run->{status}", 'child parent 3', "SIG$signal goes to each process of the group");
}

# What is ignored stays ignored, as after nohup.
$run = start_run($node, 'job', 'true');
finish_run($run);
my $nohup = IPC::Run::start([ 'sh', '-c', q{trap '' HUP; exec "$@"}, 'sh', 'lease_run', '-d', $node->connstr('postgres'), 'job',
		'sh', '-c', 'echo ready; kill -HUP $$; kill -HUP $PPID; echo still' ], \undef, \my $out, \my $err);
$nohup->finish;
is("$out$err", "ready\nstill\n", 'a signal that is ignored is ignored by both');

$node->stop;
done_testing();
