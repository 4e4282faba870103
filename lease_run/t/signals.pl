# Signals and what the caller has set for them; and exit statuses in trouble.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaseRunTest;
use LeaseTest;
use POSIX qw(:signal_h);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = start_node('signals', 'shared_preload_libraries = lease_lock');
my $folder = PostgreSQL::Test::Utils::tempdir();
my $connstr = $node->connstr('postgres');
my $nothing = qr/^$/;

# Start lease_run after a program has changed something in the process that becomes it.
sub run_after
{
	my ($change, @arguments) = @_;
	my %run = (out => '', err => '');

	$run{harness} = IPC::Run::start([ $^X, '-MPOSIX=:signal_h', '-e', "$change; exec \@ARGV", 'lease_run', '-d', $connstr, @arguments ],
		\undef, \$run{out}, \$run{err});
	$run{pid} = $run{harness}{KIDS}[0]{PID};
	return finish_run(\%run);
}

# A caller that reads its signals from a descriptor has them blocked.
my $run = run_after('sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGCHLD, SIGTERM))', '--ttl=1h', 'blocked', 'grep', 'SigBlk', '/proc/self/status');
is_run($run, 0, qr/^SigBlk:\s+0*14000$/, $nothing, 'SIGCHLD blocked by the caller: the end of the command is noticed, and it finds the same mask');
$run = run_after('$SIG{CHLD} = "IGNORE"', '--ttl=1h', 'ignored', 'sh', '-c', 'exit 5');
is_run($run, 5, $nothing, $nothing, 'SIGCHLD ignored by the caller: the exit status is known');
$run = run_after('$SIG{PIPE} = "IGNORE"', 'pipe', $^X, '-e', 'print $SIG{PIPE} // "default"');
is_run($run, 0, qr/^IGNORE$/, $nothing, 'SIGPIPE ignored by the caller stays ignored');
$run = run_after('$SIG{PIPE} = "DEFAULT"', 'pipe', $^X, '-e', 'print $SIG{PIPE} // "default"');
is_run($run, 0, qr/^(?:DEFAULT|default|)$/, $nothing, 'else not');

# Signals that are for the command, and deadly for a program that does not handle them.
foreach my $signal (qw(USR1 USR2 ALRM WINCH PROF VTALRM URG XCPU IO PWR RTMIN))
{
	my $file = "$folder/$signal";

	$run = start_run($node, 'forwarded', $^X, '-e',
		q{my ($file, $signal) = @ARGV; $SIG{$signal} = sub { syswrite(STDOUT, "$signal\n"); exit 3 };
		  open(my $f, '>', $file); sleep 1 while 1}, $file, $signal);
	until_true('the command begins', sub { -e $file });
	kill($signal, $run->{pid});
	is_run(finish_run($run), 3, qr/^$signal\n$/, $nothing, "SIG$signal goes to the command");
}
is(held($node, 'forwarded'), 0, 'and no lease is left');

# While lease_run waits, they have no effect.
$node->safe_psql('postgres', q{SELECT lease_acquire('taken', '1 hour', 'ann')});
$run = start_run($node, 'taken', 'echo', 'ran');
until_sql('a waiter', $node, 'SELECT count(*) FROM lease_waiters', 1);
kill($_, $run->{pid}) foreach qw(USR1 USR2 WINCH ALRM);
sleep 0.2;
is($node->safe_psql('postgres', q{SELECT count(*) FROM lease_waiters}), 1, 'USR1 and others do not end a wait');
$node->safe_psql('postgres', q{SELECT lease_release('taken', 'ann')});
is_run(finish_run($run), 0, qr/^ran\n$/, $nothing, 'which goes on');

# Exit statuses that look like signals.
$run = start_run($node, 'stopped', $^X, '-e',
	'$SIG{TSTP} = sub { exit 148 }; open(my $f, ">", shift); sleep 1 while 1', "$folder/stopped");
until_true('the command begins', sub { -e "$folder/stopped" });
kill('TSTP', $run->{pid});
is_run(finish_run($run), 148, $nothing, $nothing, 'a command that exits with 148 after SIGTSTP does not stop lease_run');
is_run(lease_run($node, 'job', 'sh', '-c', 'exit 143'), 143, $nothing, $nothing, 'a status of 143 is only a status');

# What systemd says of the process that it started is said of the command.
{
	my $print = q{printf '%s %s %s %s' "$((LISTEN_PID == $$))" "$((WATCHDOG_PID == $$))" "$LISTEN_FDS" "$NOTIFY_SOCKET"};

	$run = run_after(q{$ENV{LISTEN_PID} = $ENV{WATCHDOG_PID} = $$; $ENV{LISTEN_FDS} = 1; $ENV{NOTIFY_SOCKET} = '@s'}, 'systemd', 'sh', '-c', $print);
	is_run($run, 0, qr/^1 1 1 \@s$/, $nothing, 'LISTEN_PID and WATCHDOG_PID name the command');
	$run = run_after(q{$ENV{LISTEN_PID} = 1}, 'systemd', 'sh', '-c', 'echo $LISTEN_PID');
	is_run($run, 0, qr/^1\n$/, $nothing, 'if they named lease_run');
	system('sh', '-c', q{exec 3>"$0"; exec lease_run -d "$1" systemd sh -c 'echo passed >&3'}, "$folder/three", $connstr);
	is(slurp("$folder/three"), "passed\n", 'and descriptors are passed on');
}

# Descriptors that the caller has closed are not used for anything else, and the command finds them closed, too.
foreach my $case ([ '2>&-', ' 0 1' ], [ '>&- 2>&-', ' 0' ], [ '<&- >&- 2>&-', '' ])
{
	my ($closed, $left) = @$case;
	my $file = "$folder/closed.$left";
	my $list = q{for fd in 0 1 2; do [ ! -e "/proc/$$/fd/$fd" ] || open="$open $fd"; done; echo "open:$open" >"$0"};
	my $status = system('sh', '-c', qq{exec lease_run -v -d "\$0" closed sh -c "\$2" "\$1" $closed}, $connstr, $file, $list);

	is("$status " . slurp($file), "0 open:$left\n", "with $closed, the command finds them closed, too");
}
# Nobody reads what lease_run says: that is no reason to end.
is(system('sh', '-c', q{{ lease_run -v -d "$0" unread sh -c 'sleep 0.2; echo ran >"$0"' "$1"; } 2>&1 | true; sleep 0.1}, $connstr, "$folder/unread"), 0,
	'a reader of messages who leaves');
until_log("$folder/unread", qr/ran/);
is(held($node, 'unread'), 0, 'does not end lease_run');

# No descriptor and no process left.
$run = { out => '', err => '' };
# (Three are too few to load libpq.)
foreach my $limit (4 .. 12)
{
	$run->{harness} = IPC::Run::start([ 'sh', '-c', qq{ulimit -n $limit; exec "\$@"}, 'sh', 'lease_run', '-d', $connstr, '--wait=1s', 'descriptors',
			'echo', 'ran' ], \undef, \$run->{out}, \$run->{err});
	$run->{harness}->finish;
	my $status = $run->{harness}->full_result(0) >> 8;
	ok($status == 0 || $status == 69 || $status == 71, "with $limit descriptors: status $status is not that of a lease that is taken") or diag($run->{err});
	is(held($node, 'descriptors'), 0, 'and no lease is left');
}
SKIP:
{
	# Once there is a lease, no process can be started.
	my $cc = (grep { -x "$_/cc" } split(/:/, $ENV{PATH}))[0] or skip 'no C compiler', 2;

	append_to_file("$folder/nofork.c", "#include <errno.h>\n#include <sys/types.h>\npid_t fork(void) { errno = EAGAIN; return -1; }\n");
	system_or_bail('cc', '-shared', '-fPIC', '-o', "$folder/nofork.so", "$folder/nofork.c");
	local $ENV{LD_PRELOAD} = "$folder/nofork.so";
	$run = lease_run($node, '--ttl=1h', 'processes', 'echo', 'no');
	delete $ENV{LD_PRELOAD};
	is_run($run, 71, $nothing, qr/lease on "processes": could not start a process/, 'no process: 71');
	is(held($node, 'processes'), 0, 'and the lease is released');
}

# Lost unnoticed.
$run = start_run($node, '-q', '--ttl=1h', 'unnoticed', 'sh', '-c', 'touch "$0"; until [ -e "$0.go" ]; do sleep 0.1; done', "$folder/unnoticed");
until_true('the command begins', sub { -e "$folder/unnoticed" });
$node->safe_psql('postgres', q{SELECT lease_break('unnoticed')});
append_to_file("$folder/unnoticed.go", '');
is_run(finish_run($run), 75, $nothing, qr/error: lease on "unnoticed": was lost before the command ended/, 'lost unnoticed: 75, and it says so, even with -q');

# The status of "taken" has no other meaning.
foreach my $status (64, 69, 71, 75, 126, 127)
{
	is_run(lease_run($node, '-E', $status, 'job', 'true'), 64, $nothing, qr/exit status $status for .* has another meaning/, "-E $status is refused");
}

$node->stop;
done_testing();
