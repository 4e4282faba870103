# What the TAP tests of waiting share: a server with the wait queue, sessions
# that are sent into a wait and asked later how it ended, and ways to see where
# a backend is without disturbing it.
package WaitTest;

use strict;
use warnings;

use Exporter 'import';
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep time);

our @EXPORT = qw(
  start_waiting_node
  look
  becomes
  stays
  send_sql
  answer
  last_words
  send_to_wait
  in_queue
  in_lock_manager
  nothing_left
  stop_backend
  continue_backend
);

# Seconds after which something that has to happen is called lost. Far more
# than a busy machine needs, and far less than NEVER.
our $LIMIT = 20;

# Settings that leave a waiter nothing but its wake-ups: what looks again after
# some time would hide one that was lost.
our $NEVER = <<'CONF';
deadlock_timeout = 1h
lease_lock.handoff_timeout = 1h
CONF

my %observers;
my %stopped;

# Start a server with a wait queue. From 17 on it comes without preloading.
sub start_waiting_node
{
	my ($name, $conf, %params) = @_;
	my ($version) = (run_command([ 'postgres', '--version' ]))[0] =~ /(\d+)/;

	$conf .= "shared_preload_libraries = 'lease_lock'\nlease_lock.purge_interval = 0\n"
	  if $params{preload} // $version < 17;
	return start_node($name, "autovacuum = off\nmax_connections = 110\n$conf");
}

# Ask the server, over a connection that is kept: quick enough to poll.
sub look
{
	my ($node, $sql) = @_;
	my $observer = $observers{ $node->name } //= open_session($node);

	return $observer->query_safe($sql);
}

# Test that the answer becomes what is expected, in time; true if so.
sub becomes
{
	my ($node, $sql, $expected, $name) = @_;
	my $end = time + $LIMIT;
	my $got = look($node, $sql);

	while ($got ne $expected && time < $end)
	{
		usleep(10_000);
		$got = look($node, $sql);
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($got, $expected, $name);
}

# Test that the answer is what is expected, and remains so for a while.
sub stays
{
	my ($node, $sql, $expected, $name) = @_;
	my $end = time + 0.3;
	my $got = look($node, $sql);

	while ($got eq $expected && time < $end)
	{
		usleep(10_000);
		$got = look($node, $sql);
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($got, $expected, $name);
}

# Send SQL to a session without waiting for its answer.
sub send_sql
{
	my ($session, $sql) = @_;

	$session->{stdin} .= "\\warn sent\n$sql;\n";
	$session->{run}->pump until $session->{stderr} =~ s/^sent\r?\n//m;
	return;
}

# What the SQL sent before answered, rows and errors.
sub answer
{
	my ($session) = @_;
	my $stdout = $session->query('');
	my $stderr = $session->{stderr};

	$session->{stderr} = '';
	return $stdout . $stderr;
}

# The same of a session whose connection is gone.
sub last_words
{
	my ($session) = @_;

	eval { $session->{run}->finish };
	return $session->{stdout} . $session->{stderr};
}

# SQL conditions on pg_stat_activity: sleeps in the queue, or for a lock. Before
# 17 the purge launcher, when asleep, looks the same.
sub in_queue
{
	return q{backend_type = 'client backend' AND wait_event_type = 'Extension' AND wait_event IN ('Extension', 'LeaseLockWait')};
}

sub in_lock_manager
{
	return q{wait_event_type = 'Lock'};
}

# Send SQL that will have to wait, and see it do so in the place given;
# returns the pid of its backend.
#
# A session that has been idle may have a timer left that wakes it within ten
# seconds, to report its statistics. One that reports them at once has none: a
# fresh session that is sent to wait like this wakes up for nothing else.
sub send_to_wait
{
	my ($node, $session, $sql, $place) = @_;
	my $pid = $session->query_safe(q{SELECT pg_backend_pid() || COALESCE(pg_stat_force_next_flush()::text, '')});
	my $end = time + $LIMIT;

	$place //= in_queue();
	send_sql($session, $sql);
	until (look($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND $place") == 1)
	{
		die "backend $pid does not wait where expected: $sql" if time > $end;
		usleep(10_000);
	}
	return $pid;
}

# Test that no waiter and no lock was left behind.
sub nothing_left
{
	my ($node, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	becomes($node,
		'SELECT (SELECT count(*) FROM lease_waiters), '
		  . '(SELECT count(*) FROM pg_locks WHERE NOT granted)',
		'0|0', "$name: no waiter and no waiting lock is left");
	return;
}

# Stop a backend of the server under test, as a busy or swapping machine would.
sub stop_backend
{
	my ($pid) = @_;
	my $end = time + $LIMIT;

	kill('STOP', $pid) == 1 or die "could not stop backend $pid: $!";
	$stopped{$pid} = 1;
	until (!-e "/proc/$pid/stat" || slurp_file("/proc/$pid/stat") =~ /\) T /)
	{
		die "backend $pid does not stop" if time > $end;
		usleep(1_000);
	}
	return;
}

sub continue_backend
{
	my ($pid) = @_;

	kill('CONT', $pid);
	delete $stopped{$pid};
	return;
}

# A stopped backend would keep the server from being shut down.
END
{
	my $status = $?;

	kill('CONT', $_) foreach keys %stopped;
	$? = $status;
}

1;
