# All that the command started ends, wherever it is, before the lease does; and what is left at a normal end is waited for.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaseRunTest;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

plan skip_all => 'only Linux tells who the descendants are' if $^O ne 'linux';

my $node = start_node('descendants', 'shared_preload_libraries = lease_lock');
my $folder = PostgreSQL::Test::Utils::tempdir();
my $nothing = qr/^$/;
my @patient = ('--ttl=' . 12 * slowness($node) . 's');

# A shell that starts something which leaves the process group: timeout(1), and a daemon that ignores SIGTERM.
my %leaves = (
	timeout => q{timeout 1000 sh -c 'echo $$ >"$0.pid"; exec sleep 1000' "$0" & touch "$0"; wait},
	daemon => q{setsid -f sh -c 'trap "" TERM; echo $$ >"$0.pid"; while :; do sleep 0.1; done' "$0" >/dev/null 2>&1; touch "$0"; sleep 1000},
);

sub start_one
{
	my ($kind, $name, $server) = @_;
	my $file = "$folder/$name.$kind";
	my $run = start_run($server // $node, @patient, "$name $kind", 'sh', '-c', $leaves{$kind}, $file);

	until_log("$file.pid", qr/\d+\n/);
	until_true('the command begins', sub { -e $file });
	return ($run, slurp("$file.pid") + 0);
}

foreach my $kind (sort keys %leaves)
{
	# SIGTERM.
	my ($run, $pid) = start_one($kind, 'term');
	kill('TERM', $run->{pid});
	is_run(finish_run($run), 143, $nothing, qr//, "$kind: SIGTERM ends lease_run");
	is(process_runs($pid), 0, "$kind: and what has left the group");
	is(held($node, "term $kind"), 0, 'and releases the lease');

	# The lease was broken.
	($run, $pid) = start_one($kind, 'broken');
	$node->safe_psql('postgres', qq{SELECT lease_break('broken $kind'), lease_acquire('broken $kind', '1 hour', 'somebody')});
	renew_now($node);
	is_run(finish_run($run), 75, $nothing, qr/lost/, "$kind: the lease was broken");
	is(process_runs($pid), 0, "$kind: what has left the group has ended");

	# lease_run, or its watchdog, is killed.
	($run, $pid) = start_one($kind, 'killed');
	kill('KILL', $run->{pid});
	finish_run($run);
	ok(until_true('the end', sub { !process_runs($pid) }), "$kind: after kill -9 of lease_run, it has ended");
	($run, $pid) = start_one($kind, 'unwatched');
	kill('KILL', children($run->{pid}));
	is_run(finish_run($run), 75, $nothing, qr/the process that watches the time has ended/, "$kind: and after that of its watchdog");
	is(process_runs($pid), 0, 'before lease_run has');
	is(held($node, "unwatched $kind"), 0, 'and released the lease');
}

# The lease cannot be renewed.
{
	my $proxy = start_proxy($node);
	my %first = map { $_ => [ start_one($_, 'cut', $proxy->{connstr}) ] } keys %leaves;
	my %next;

	tell_proxy($proxy, 's');
	foreach my $kind (sort keys %leaves)
	{
		my $pid = $first{$kind}[1];

		$next{$kind} = start_run($node, "cut $kind", 'sh', '-c', "grep -qs ') [ZX]' /proc/$pid/stat || test ! -e /proc/$pid");
	}
	foreach my $kind (sort keys %leaves)
	{
		is_run(finish_run($next{$kind}), 0, $nothing, qr//, "$kind: it has ended before the next one begins");
		is_run(finish_run($first{$kind}[0]), 75, $nothing, qr//, 'and lease_run says so');
	}
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

# A process that leaves the group, as timeout(1) does, passes the signal on: its child does not get it twice. (timeout
# itself sends it twice, to its child and to its group.)
{
	my $passes_on = q{setpgrp; $child = fork // die;
		exec("sh", "-c", q(trap "echo TERM" TERM; touch "$0"; sleep 2 & wait; wait; exit 0), @ARGV) if !$child;
		$SIG{TERM} = sub { kill(TERM => $child) if !$sent++ };
		1 until waitpid($child, 0) == $child};
	my $run = start_run($node, 'once', 'sh', '-c', q{"$0" -e "$1" "$2"; true}, $^X, $passes_on, "$folder/once");
	until_true('the command begins', sub { -e "$folder/once" });
	kill('TERM', $run->{pid});
	is_run(finish_run($run), 143, qr/^TERM\n$/, qr//, 'the child of a process that has left the group gets SIGTERM once');
}

# At a normal end, the lease is kept for what is left.
{
	my $run = start_run($node, 'left', 'sh', '-c',
		q{setsid -f sh -c 'exec >/dev/null 2>&1; until [ -e "$0.go" ]; do sleep 0.05; done; touch "$0.end"' "$0"; echo first; exit 7}, "$folder/left");
	until_true('the command ends', sub { $run->{harness}->pump_nb; $run->{out} eq "first\n" });
	until_true('lease_run says what it waits for', sub { $run->{harness}->pump_nb; $run->{err} =~ /not all that it started/ });
	is(held($node, 'left'), 1, 'a process that has left the group: the lease is kept');
	append_to_file("$folder/left.go", '');
	is_run(finish_run($run), 7, qr/^first\n$/, qr/--allow-daemons/, 'until that has ended, too');
	ok(-e "$folder/left.end", 'by itself');
	is(held($node, 'left'), 0, 'then it is released');
}

# A signal while only they are left.
{
	my $run = start_run($node, 'left', 'sh', '-c', q{setsid -f sh -c 'echo $$ >"$0.pid"; exec sleep 1000' "$0" >/dev/null 2>&1; echo first}, "$folder/sleeper");
	until_true('the command ends', sub { $run->{harness}->pump_nb; $run->{out} eq "first\n" });
	until_log("$folder/sleeper.pid", qr/\d+\n/);
	kill('TERM', $run->{pid});
	is_run(finish_run($run), 0, qr/^first\n$/, qr//, 'SIGTERM ends what the command has left');
	is(process_runs(slurp("$folder/sleeper.pid") + 0), 0, 'all of it');
}

# With --allow-daemons, only another session is left alone; timeout(1) is not one.
{
	my $run = start_run($node, '--allow-daemons', 'daemon', 'sh', '-c',
		q{setsid -f sh -c 'echo $$ >"$0.pid"; exec sleep 1000' "$0" >/dev/null 2>&1; timeout 1000 sh -c 'until [ -e "$0.go" ]; do sleep 0.05; done' "$0" & echo first},
		"$folder/allowed");
	until_true('the command ends', sub { $run->{harness}->pump_nb; $run->{out} eq "first\n" });
	until_log("$folder/allowed.pid", qr/\d+\n/);
	is(held($node, 'daemon'), 1, '--allow-daemons: the lease is kept for what is not one');
	append_to_file("$folder/allowed.go", '');
	is_run(finish_run($run), 0, qr/^first\n$/, qr//, 'until that has ended');
	my $pid = slurp("$folder/allowed.pid") + 0;
	is(process_runs($pid), 1, 'and the daemon lives on');
	kill('KILL', $pid);
}

$node->stop;
done_testing();
