# At a terminal: Ctrl-C, Ctrl-Z and fg, a command that reads, a pipeline with a
# pager, and no terminal to give.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaseRunTest;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $pty = eval { require IO::Pty; IO::Pty->new } or plan skip_all => 'no pseudo-terminal (Debian: libio-pty-perl)';

my $node = start_node('terminal', 'shared_preload_libraries = lease_lock');
my $folder = PostgreSQL::Test::Utils::tempdir();
my $lease_run = "lease_run -d '" . $node->connstr('postgres') . "'";

$SIG{$_} = 'DEFAULT' foreach qw(INT QUIT HUP);

# An interactive shell with job control at a terminal of its own.
my $screen = '';
my $shell = fork // die;
if ($shell == 0)
{
	my $tty = $pty->slave;

	$pty->make_slave_controlling_terminal;
	close $pty;
	open(STDIN, '<&', $tty);
	open(STDOUT, '>&', $tty);
	open(STDERR, '>&', $tty);
	$ENV{PS1} = '@@ ';
	$ENV{HISTFILE} = '/dev/null';
	$ENV{TERM} = 'dumb';
	exec('bash', '--norc', '--noprofile', '--noediting', '-i');
}
$pty->close_slave;
$pty->blocking(0);

# Wait until the screen shows something new, and forget what is before its end.
sub expect
{
	my ($pattern) = @_;

	eval {
		until_true("\"$pattern\" on the screen", sub {
				sysread($pty, $screen, 4096, length $screen);
				return $screen =~ s/^.*?$pattern//s;
			});
	} or do { diag("the screen shows: $screen"); die $@ };
	return 1;
}

sub type
{
	my ($text) = @_;

	syswrite($pty, $text);
	return;
}

type("stty -echo; echo re''ady\n");
expect(qr/ready/);

# Ctrl-C.
type("$lease_run job sh -c 'trap \"echo got INT; exit 9\" INT; echo began; while :; do sleep 0.1; done'; echo status \$?\n");
expect(qr/began/);
type("\cC");
ok(expect(qr/got INT.*status 9/s), 'Ctrl-C reaches the command');
type("$lease_run job sh -c 'echo began; exec sleep 1000'\n");
expect(qr/began/);
type("\cC");
expect(qr/@@ /);
type("echo status \$?\n");
ok(expect(qr/status 130/), 'and ends it');
is(held($node, 'job'), 0, 'and the lease is released');

# A shell script gets it as well, as it does without lease_run.
append_to_file("$folder/script", "$lease_run job sh -c 'echo began; exec sleep 1000'\necho went on\n");
type("bash $folder/script\n");
expect(qr/began/);
type("\cC");
ok(expect(qr/^(?!.*went on).*@@ /s), 'Ctrl-C also ends a script that calls lease_run');

# A job that works until a file exists. Not a shell: one that Ctrl-Z meets while
# it starts a program does not stop before that program begins (vfork), which
# stops as well.
append_to_file("$folder/work", <<'JOB');
$SIG{TERM} = 'IGNORE';
$| = 1;
open(my $pid, '>', "$ARGV[0]/pid");
print $pid $$;
close $pid;
print "began\n";
select(undef, undef, undef, 0.05) until -e "$ARGV[0]/go";
print "ended\n";
JOB

# Ctrl-Z and fg.
type("$lease_run --ttl=5min job perl $folder/work $folder; echo status \$?\n");
expect(qr/began/);
type("\cZ");
ok(expect(qr/Stopped/), 'Ctrl-Z stops lease_run');
my ($pid) = slurp("$folder/pid") =~ /(\d+)/;
ok(until_true('the command stops', sub { slurp_file("/proc/$pid/stat") =~ /\) T / }), 'and the command');
is(held($node, 'job'), 1, 'the lease is still held');
append_to_file("$folder/go", '');
type("fg; echo status \$?\n");
ok(expect(qr/ended.*status 0/s), 'fg continues both');

# In the background.
unlink("$folder/go");
type("$lease_run --ttl=5min job perl $folder/work $folder; echo status \$?\n");
expect(qr/began/);
type("\cZ");
expect(qr/Stopped/);
type("bg\n");
append_to_file("$folder/go", '');
ok(expect(qr/ended/), 'bg continues both');
type("wait; echo wai''ted\n");
expect(qr/waited/);

# A stopped job loses its lease in time, and does not run on. SIGKILL comes a tenth of the ttl before its end, which a
# slow machine must not outlast.
my $ttl = 22 + 8 * slowness($node);
unlink("$folder/go");
type("$lease_run --ttl=${ttl}s job perl $folder/work $folder; echo status \$?\n");
expect(qr/began/);
type("\cZ");
expect(qr/Stopped/);
($pid) = slurp("$folder/pid") =~ /(\d+)/;
is_run(lease_run($node, '--ttl=5min', 'job', 'sh', '-c', "grep -qs ') [ZX]' /proc/$pid/stat || test ! -e /proc/$pid"), 0, qr/^$/, qr/^$/,
	'a command that was stopped for longer than the ttl has ended before the next one begins');
type("fg; echo status \$?\n");
ok(expect(qr/status 75/), 'fg tells that');

# A command that reads from the terminal.
type("$lease_run --ttl=5min job sh -c 'echo began; read line; echo got \$line; read line; echo got \$line'; echo status \$?\n");
expect(qr/began/);
type("hello\n");
ok(expect(qr/got hello/), 'a command can read from the terminal');
type("\cZ");
expect(qr/Stopped/);
type("fg; echo status \$?\n");
type("again\n");
ok(expect(qr/got again.*status 0/s), 'also after Ctrl-Z and fg');
type("$lease_run job sh -c 'echo began; read line; echo got \$line; exec sleep 1000'\n");
expect(qr/began/);
type("x\n");
expect(qr/got x/);
type("\cC");
expect(qr/@@ /);
type("echo status \$?\n");
ok(expect(qr/status 130/), 'and Ctrl-C ends it then');

# One that reads in the background is stopped, like any job. Several times, since fg continues the command twice, once
# with lease_run's whole job and once by lease_run. Whether it asks for the terminal between the two is left to chance.
# TERMINAL_ROUNDS=n makes n rounds. The ttl is long, since a command that is stopped for longer is ended.
foreach my $round (1 .. $ENV{TERMINAL_ROUNDS} // 5)
{
	type("$lease_run --ttl=5min job sh -c 'read line; echo got \$line' &\n");
	until_true('it stops', sub { type("jobs\n"); sleep 0.2; sysread($pty, $screen, 4096, length $screen); $screen =~ /Stopped/ });
	type("fg\nfrom the background $round\n");
	ok(expect(qr/got from the background $round/), "a command in the background reads after fg, round $round");
}

# The same if lease_run learns at once that the command has started and that it is stopped. The process that watches the
# time is stopped before it starts the command, if it is met early enough; if not, once more.
sub children
{
	my ($parent) = @_;

	return split(' ', -e "/proc/$parent" ? slurp("/proc/$parent/task/$parent/children") : '');
}

sub until_stopped
{
	my ($what, $process) = @_;

	return until_true($what, sub { slurp_file("/proc/$process/stat") =~ /\) T / });
}

my ($runs, $watchdog, $early);
for (my $try = 1; $try <= 100 && !$early; $try++)
{
	type("$lease_run --ttl=5min job-$try sh -c 'read line; echo got \$line' & echo runs: \$!\n");
	expect(qr/runs: (?=\d+\s)/);
	($runs) = $screen =~ /(\d+)/;
	until_true('the watchdog', sub { my $until = time + 1; 1 until ($watchdog) = children($runs) or time > $until; $watchdog });
	kill('STOP', $watchdog);
	until_stopped('the watchdog stops', $watchdog);
	$early = !children($watchdog);
	kill('KILL', $watchdog, $runs) if !$early;
}
ok($early, 'the watchdog is stopped before it starts the command');
kill('STOP', $runs);
until_stopped('lease_run stops', $runs);
kill('CONT', $watchdog);
until_true('the command', sub { ($pid) = children($watchdog) });
until_stopped('the command asks for the terminal', $pid);
kill('CONT', $runs);
until_stopped('lease_run stops, too', $runs);
type("fg\nfrom the background, early\n");
ok(expect(qr/got from the background, early/), 'a command that asks for the terminal when it starts gets it by fg');

# A script that runs it stops with it: else nobody could continue them.
append_to_file("$folder/reads", "$lease_run --ttl=5min script sh -c 'read line; echo got \$line; read line; echo got \$line'\necho went on\n");
type("bash $folder/reads; echo status \$?\n");
type("one\n");
expect(qr/got one/);
type("\cZ");
expect(qr/Stopped/);
type("fg; echo status \$?\n");
type("two\n");
ok(expect(qr/got two.*went on.*status 0/s), 'a script that calls lease_run goes on after Ctrl-Z and fg');

# The terminal comes back from a job of the command, too. The command is a shell with job control, which is killed.
append_to_file("$folder/jobs", "$lease_run --ttl=5min jobs bash -mc 'echo shell: \$\$; sleep 1000; echo never'\nread line\necho got \$line\n");
type("bash $folder/jobs; echo status \$?\n");
expect(qr/shell: (?=\d+\s)/);
my ($inner) = $screen =~ /(\d+)/;
my $job;
until_true('its job has the terminal', sub { ($job) = children($inner); $job && slurp_file("/proc/$job/stat") =~ /\) S \d+ $job \d+ \d+ $job / });
kill('KILL', $inner, $job);
type("x\n");
ok(expect(qr/got x.*status 0/s), 'a script that calls lease_run reads after the command and the job that it gave the terminal were killed');

# A pager behind it keeps the terminal.
type("$lease_run job sh -c 'echo began; sleep 0.2; echo end' | sh -c 'cat; read answer </dev/tty; echo answer \$answer'; echo status \$?\n");
expect(qr/began.*end/s);
type("yes\n");
ok(expect(qr/answer yes.*status 0/s), 'a program behind it in a pipeline reads from the terminal');

# Without job control: nobody could continue a job that stops.
my $alone = IO::Pty->new;
my $child = fork // die;
if ($child == 0)
{
	my $tty = $alone->slave;

	$alone->make_slave_controlling_terminal;
	open(STDIN, '<&', $tty);
	open(STDOUT, '>&', $tty);
	open(STDERR, '>&', $tty);
	exec('lease_run', '-d', $node->connstr('postgres'), 'job', 'sh', '-c', 'echo began; read line; echo got $line; read line; echo got $line');
}
$alone->close_slave;
close $pty;
($pty, $screen) = ($alone, '');
$pty->blocking(0);
expect(qr/began/);
type("\cZhello\n");
ok(expect(qr/got hello/), 'as the first process of a terminal, it ignores Ctrl-Z');
type("world\n");
ok(expect(qr/got world/), 'and goes on');
waitpid($child, 0);
is($?, 0, 'until the end');
kill('KILL', $shell);
waitpid($shell, 0);

$node->stop;
done_testing();
