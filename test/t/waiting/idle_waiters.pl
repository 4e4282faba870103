# 300 waiting sessions use no processor time, and do not wake up, except for the
# few wake-ups with which they check the first one.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use IPC::Run;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);
use WaitTest;

plan skip_all => 'needs /proc of Linux' if !-e "/proc/$$/stat";

my $node = start_waiting_node('idle', <<'CONF');
max_connections = 330
deadlock_timeout = 1h
lease_lock.handoff_timeout = 1min
CONF

# One client program is enough for all of them.
my $script = $node->basedir . '/wait.sql';
append_to_file($script, <<'SQL');
\set alone :client_id >= 200
\if :alone
	SELECT lease_acquire('r' || :client_id, '1 hour', 'c' || :client_id, NULL);
\else
	SELECT lease_acquire('one', '1 hour', 'c' || :client_id, NULL);
\endif
SQL

look($node, q{SELECT lease_acquire('one', '1 hour', 'holder')});
look($node, q{SELECT count(lease_acquire('r' || i, '1 hour', 'holder')) FROM generate_series(0, 299) AS i});

my ($out, $err) = ('', '');
my $pgbench = IPC::Run::start(
	[ 'pgbench', '-n', '-c', 300, '-j', 1, '-t', 1, '-f', $script, '-h', $node->host, '-p', $node->port, 'postgres' ],
	'>', \$out, '2>', \$err);

becomes($node, q{SELECT count(*) FILTER (WHERE resource = 'one'), count(*) FILTER (WHERE resource <> 'one'), count(DISTINCT resource) FROM lease_waiters},
	'200|100|101', '200 sessions wait for one lease, 100 for one each');
my @pids = split(/\n/, look($node, q{SELECT pid FROM lease_waiters}));
becomes($node, 'SELECT count(*) FROM pg_stat_activity WHERE ' . in_queue(), 300, 'all of them sleep');

# Clock ticks that they used, and how often each went to sleep.
sub used
{
	my $ticks = 0;
	my %sleeps;

	foreach my $pid (@pids)
	{
		my $stat = eval { slurp_file("/proc/$pid/stat") } // next;
		my ($switches) = (eval { slurp_file("/proc/$pid/status") } // next) =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
		my @fields = split(/ /, $stat =~ s/^.*\) //sr);

		$ticks += $fields[11] + $fields[12];
		$sleeps{$pid} = $switches;
	}
	return ($ticks, \%sleeps);
}

# How many of them woke up in between.
sub awake
{
	my ($before, $after) = @_;

	return scalar grep { defined $after->{$_} && $before->{$_} != $after->{$_} } keys %$before;
}

# A waiter wakes to check the first one after lease_lock.handoff_timeout, which is
# a minute, for each waiter before it, at most eight times that: about one in
# two seconds of 200.
my ($ticks, $sleeps) = used();
foreach (1 .. 10)
{
	my $before = $sleeps;

	sleep(1);
	($ticks, $sleeps) = used();
	last if awake($before, $sleeps) <= 12;
}
sleep(3);
my ($ticks_after, $sleeps_after) = used();
note('in 3 s: ', $ticks_after - $ticks, ' ticks, ', awake($sleeps, $sleeps_after), ' awake');
cmp_ok($ticks_after - $ticks, '<=', 10, 'they use no time');
cmp_ok(awake($sleeps, $sleeps_after), '<=', 30, 'and keep sleeping');
is(look($node, q{SELECT count(*) FROM lease_waiters}), 300, 'all of them');

# A hand-off wakes one of them, not all. Some of those that check may be awake.
$sleeps = (used())[1];
is(look($node, q{SELECT lease_release('one', 'holder')}), 't', 'the lease is released');
becomes($node, q{SELECT count(*) FROM lease_waiters}, 299, 'one of them gets it');
is(look($node, q{SELECT count(lease_release('one', owner)) FROM lease_status WHERE resource = 'one'}), 1, 'and releases it');
becomes($node, q{SELECT count(*) FROM lease_waiters}, 298, 'another one gets it');
cmp_ok(awake($sleeps, (used())[1]), '<=', 15, 'all others sleep on');

# A waiter that was called, and finds that its own owner got the lease, sleeps.
my @sessions = map { open_session($node) } 0 .. 2;
@pids = map { $_->query_safe('SELECT pg_backend_pid()') } @sessions;
$sessions[0]->query_safe(q{SELECT lease_acquire('own', '1 hour', 'writer')});
foreach my $n (1, 2)
{
	begin_query($sessions[$n], q{SELECT lease_acquire_shared('own', '1 hour', 'reader', NULL)});
	becomes($node, q{SELECT count(*) FROM lease_waiters WHERE resource = 'own'}, $n, "$n of the same owner wait");
}
$sessions[0]->query_safe(q{SELECT lease_release('own', 'writer')});
becomes($node, q{SELECT count(*) FROM lease_waiters WHERE resource = 'own'}, 1, 'one of them gets it');
($ticks) = used();
sleep(2);
($ticks_after) = used();
cmp_ok($ticks_after - $ticks, '<=', 20, 'the other one uses no time');

look($node, q{SELECT count(pg_terminate_backend(pid)) FROM lease_waiters});
nothing_left($node, 'all killed');
eval { $pgbench->finish };

$node->stop;
done_testing();
