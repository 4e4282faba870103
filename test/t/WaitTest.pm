# Shared by the TAP tests of waiting: a server with the wait queue, sessions
# that are sent into a wait and asked later how it ended, and functions that
# show where a backend is without disturbing it.
package WaitTest;

use strict;
use warnings;

use Exporter 'import';
use LeaseTest;
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
  send_to_short_wait
  reset_settings
  set_handoff
  in_queue
  in_lock_manager
  nothing_left
  stop_backend
  continue_backend
);

# Seconds after which an expected event counts as lost. Far more than a busy
# machine needs, and far less than NEVER.
our $LIMIT = $PostgreSQL::Test::Utils::timeout_default;

# Settings under which a waiter depends on its wake-ups alone. Otherwise a
# repeated look would hide a lost wake-up.
our $NEVER = <<'CONF';
deadlock_timeout = 1h
lease_lock.handoff_timeout = 1h
CONF

my %observers;
my %stopped;

# Start a server with a wait queue. From 17 on, the queue needs no preloading.
sub start_waiting_node
{
	my ($name, $conf, %params) = @_;
	my ($version) = (run_command([ 'postgres', '--version' ]))[0] =~ /(\d+)/;

	$conf .= "shared_preload_libraries = 'lease_lock'\nlease_lock.purge_interval = 0\n"
	  if $params{preload} // $version < 17;
	return start_node($name, "autovacuum = off\nmax_connections = 110\n$conf");
}

# Run a query over a connection that stays open, which is fast enough for
# polling.
sub look
{
	my ($node, $sql) = @_;
	my $observer = $observers{ $node->name } //= open_session($node);

	return $observer->query_safe($sql);
}

# Test that the result becomes the expected one in time; true if it does.
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

# Test that the result is the expected one, and stays so for a while.
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

# The result of the SQL that was sent before: rows and errors. Of the results of
# CALL lease_wait() only the first, so that it is that of lease_acquire().
sub answer
{
	my ($session) = @_;
	my $stdout = $session->query('') =~ s/^(?:f\|\||(t)\|\d+\|\d{4}-.*)$/$1 \/\/ 'f'/mer;
	my $stderr = $session->{stderr};

	$session->{stderr} = '';
	return $stdout . $stderr;
}

# The result of a session that has lost its connection.
sub last_words
{
	my ($session) = @_;

	eval { $session->{run}->finish };
	return $session->{stdout} . $session->{stderr};
}

# SQL conditions on pg_stat_activity: the backend sleeps in the queue, or waits
# for a lock. Before 17, a sleeping purge launcher looks like a sleeping waiter.
sub in_queue
{
	return q{backend_type = 'client backend' AND wait_event_type = 'Extension' AND wait_event IN ('Extension', 'LeaseLockWait')};
}

sub in_lock_manager
{
	return q{wait_event_type = 'Lock'};
}

# Send SQL that will wait, and check that it waits in the given place; returns
# the pid of its backend.
#
# A session that has been idle may still have a timer that wakes it within ten
# seconds to report its statistics. A fresh session reports them at once and has
# no such timer, so only the queue can wake it.
sub send_to_wait
{
	my ($node, $session, $sql, $place, %params) = @_;
	my $pid = $session->query_safe(q{SELECT pg_backend_pid() || COALESCE(pg_stat_force_next_flush()::text, '')});
	my $end = time + $LIMIT;

	$place //= in_queue();
	send_sql($session, $sql);
	until (look($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND $place") == 1)
	{
		return if $params{may_end}
		  && look($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND state = 'idle' AND query !~ '^(SET|SELECT pg_backend_pid)'");
		die "backend $pid does not wait where expected: $sql" if time > $end;
		usleep(10_000);
	}
	return $pid;
}

# The same with SQL whose wait ends by itself. A function makes it from a number
# of milliseconds. If the wait was over before it was seen, or before the backend
# was stopped, if it is to be stopped, it is tried with twice the time. Returns
# the pid and the time.
sub send_to_short_wait
{
	my ($node, $session, $make_sql, $place, %params) = @_;

	$place //= in_queue();
	for (my $ms = $params{first} // 300; $ms < 1000 * $LIMIT; $ms *= 2)
	{
		my $pid = send_to_wait($node, $session, $make_sql->($ms), $place, may_end => 1);

		if ($pid)
		{
			return ($pid, $ms) if !$params{stop};
			stop_backend($pid);
			return ($pid, $ms) if look($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND $place") == 1;
			continue_backend($pid);
		}
		note("$ms ms were not enough: ", answer($session));
		reset_settings($session);
	}
	die 'never seen to wait: ' . $make_sql->('n');
}

# Take back the settings of a session that has a short statement_timeout. That may
# end even this: then it is tried again.
sub reset_settings
{
	my ($session) = @_;

	do
	{
		$session->{stderr} = '';
		$session->query('RESET ALL');
	} while ($session->{stderr} =~ /57014: .*statement timeout/);
	die $session->{stderr} if $session->{stderr} ne '';
	return;
}

# Set lease_lock.handoff_timeout to so many milliseconds, also for these sessions,
# and for all new ones. A session that waits keeps the time that it had when its
# statement began. pg_settings lists the setting only where the library is loaded,
# which without preloading is done by the first call of a lease function.
sub set_handoff
{
	my ($node, $ms, @sessions) = @_;
	my $is_set = "SELECT count(*) FROM pg_settings WHERE name = 'lease_lock.handoff_timeout' AND setting = '$ms'";

	$node->append_conf('postgresql.conf', "lease_lock.handoff_timeout = $ms");
	$node->reload;
	look($node, q{LOAD 'lease_lock'});
	usleep(5_000) until look($node, $is_set) == 1;
	foreach my $session (@sessions)
	{
		$session->query_safe(q{LOAD 'lease_lock'});
		usleep(5_000) until $session->query_safe($is_set) == 1;
	}
	return;
}

# Test that no waiter and no lock is left behind.
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

# Stop a backend of the server under test, like a busy or swapping machine. A
# process that was just ending may take the signal and still end.
sub stop_backend
{
	my ($pid) = @_;
	my $end = time + $LIMIT;

	kill('STOP', $pid) == 1 or die "could not stop backend $pid: $!";
	$stopped{$pid} = 1;
	until ((eval { slurp_file("/proc/$pid/stat") } // '') =~ /\) T /)
	{
		die "backend $pid has ended" if !-e "/proc/$pid";
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

# A stopped backend would prevent the shutdown of the server.
END
{
	my $status = $?;

	kill('CONT', $_) foreach keys %stopped;
	$? = $status;
}

1;
