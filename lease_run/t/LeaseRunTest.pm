# Shared by the tests of lease_run: starting it, commands that watch over each
# other, and a proxy that can swallow what passes through it.
package LeaseRunTest;

use strict;
use warnings;

use Exporter 'import';
use FindBin;
use lib "$FindBin::RealBin/../../test/t";
use IO::Select;
use IO::Socket::UNIX;
use IPC::Run;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(
  lease_run
  start_run
  finish_run
  is_run
  until_true
  until_sql
  until_log
  slurp
  alone
  start_proxy
  tell_proxy
  held
  is_held
  renew_now
  process_runs
  children
);

# What a test that fails leaves behind would wait for its server for ever.
my %runs;
my $test = $$;
END
{
	kill('KILL', keys %runs) if $$ == $test;
}

# Start lease_run for a server or a connection string. Returns a handle for
# finish_run().
sub start_run
{
	my ($server, @arguments) = @_;
	my $connstr = ref $server ? $server->connstr('postgres') : $server;
	my %run = (out => '', err => '');

	# A shell starts processes in the background with some of them ignored.
	local @SIG{qw(TERM INT HUP QUIT)} = ('DEFAULT') x 4;
	$run{harness} = IPC::Run::start([ 'lease_run', '-d', $connstr, @arguments ], \undef, \$run{out}, \$run{err});
	$run{pid} = $run{harness}{KIDS}[0]{PID};
	$runs{ $run{pid} } = 1;
	return \%run;
}

# Wait for its end; sets status, as a shell shows it.
sub finish_run
{
	my ($run) = @_;

	$run->{harness}->finish;
	delete $runs{ $run->{pid} };
	my $status = $run->{harness}->full_result(0);
	$run->{status} = $status & 127 ? 128 + ($status & 127) : $status >> 8;
	return $run;
}

sub lease_run
{
	return finish_run(start_run(@_));
}

# Test its status, output and messages.
sub is_run
{
	my ($run, $status, $out, $err, $name) = @_;
	my $ok = $run->{status} == $status && $run->{out} =~ $out && $run->{err} =~ $err;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($ok, $name) or diag("status $run->{status}, expected $status\nstdout: $run->{out}\nstderr: $run->{err}");
	return $ok;
}

# Wait until the code returns true, and return that; fails after some minutes.
sub until_true
{
	my ($what, $code) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	while (time < $end)
	{
		my $result = $code->();

		return $result if $result;
		sleep 0.02;
	}
	die "not within the time of a test: $what";
}

# Wait until the server gives this answer.
sub until_sql
{
	my ($what, $node, $query, $expected) = @_;

	$node->poll_query_until('postgres', $query, $expected) or die "not within the time of a test: $what";
	return;
}

sub slurp
{
	my ($file) = @_;

	return -e $file ? slurp_file($file) : '';
}

# Wait until a file has such a line.
sub until_log
{
	my ($file, $pattern) = @_;

	return until_true("$pattern in $file", sub { slurp($file) =~ $pattern });
}

# Has a process not ended? A zombie has.
sub process_runs
{
	my ($pid) = @_;
	my $state = eval { slurp_file("/proc/$pid/stat") =~ s/^.*\) //sr } // '';

	return $state =~ /^[^ZX]/ ? 1 : 0;
}

# The children of a process.
sub children
{
	my ($pid) = @_;
	my @pids = map { m{(\d+)$} } glob '/proc/[0-9]*';

	return grep { (eval { slurp_file("/proc/$_/stat") } // '') =~ /^\d+ \(.*\) \S (\d+) /s && $1 == $pid } @pids;
}

# Is the resource held, as the server sees it?
sub is_held
{
	my ($resource) = @_;

	return "SELECT count(*) FROM lease_status WHERE resource = '$resource' AND state = 'held'";
}

sub held
{
	my ($node, $resource) = @_;

	return $node->safe_psql('postgres', is_held($resource));
}

# Let each lease_run that holds a lease renew it at once: it does so when its connection is lost.
sub renew_now
{
	my ($node) = @_;

	$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ 'lease_re(quest|new)|pg_extension'
		AND pid <> pg_backend_pid()});
	return;
}

# A command that locks a file, and writes a line to a log when it begins. With
# it, no other may have the file locked: it, or a process that it left behind, would run
# at the same time. "stubborn" has a child, both ignore all signals that can
# be ignored, and never end; "brief" ends soon.
sub alone
{
	my ($file, $name, $kind) = @_;

	return ($^X, '-MFcntl=:flock', '-MTime::HiRes=sleep', '-e', <<'PERL', $file, $name, $kind);
		my ($file, $name, $kind) = @ARGV;
		open(my $log, '>>', "$file.log") or die;
		$log->autoflush(1);
		open(my $lock, '>', "$file.lock") or die;
		print $log flock($lock, LOCK_EX | LOCK_NB) ? "$name began $$\n" : "$name OVERLAPS\n";
		if ($kind eq 'stubborn')
		{
			$SIG{$_} = 'IGNORE' foreach qw(TERM INT HUP QUIT);
			fork;
			print $log "$name works $$\n";
			sleep 0.01 while 1;
		}
		sleep 0.05;
		print $log "$name ended $$\n";
PERL
}

# A proxy in front of a server. It passes on what it gets, until it is told
# otherwise. Returns a handle with a connection string.
sub start_proxy
{
	my ($node) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir_short();
	my $port = $node->port;
	my $listener = IO::Socket::UNIX->new(Local => "$folder/.s.PGSQL.$port", Listen => 128) or die "proxy: $!";

	pipe(my $orders, my $to_proxy) or die "proxy: $!";
	pipe(my $from_proxy, my $answers) or die "proxy: $!";
	my $pid = fork // die "proxy: $!";
	if ($pid == 0)
	{
		close $to_proxy;
		close $from_proxy;
		eval { be_proxy($listener, $orders, $answers, $node->host . "/.s.PGSQL.$port"); 1 } or print STDERR "# proxy: $@";
		require POSIX;
		POSIX::_exit(0);
	}
	close $orders;
	close $answers;
	$to_proxy->autoflush(1);
	return {
		pid => $pid,
		orders => $to_proxy,
		answers => $from_proxy,
		connstr => "host=$folder port=$port user=postgres dbname=postgres",
		accepted => "$folder/.s.PGSQL.$port.accepted"		# a character for each connection
	};
}

# Tell a proxy what to do from now on, with all connections, old and new:
# "p"ass; swallow what comes from both sides, or "a"nswers only; both are "s"wallowed;
# "h"old answers back until the next order; read "l"ate; "k"ill connections.
sub tell_proxy
{
	my ($proxy, $order) = @_;
	my ($size, $done);

	syswrite($proxy->{orders}, $order);
	do
	{
		$size = sysread($proxy->{answers}, $done, 1);
	} while (!defined $size && $!{EINTR});		# a child has ended
	die 'the proxy has ended' if !$size;
	return;
}

sub be_proxy
{
	my ($listener, $orders, $answers, $server) = @_;
	my $select = IO::Select->new($listener, $orders);
	my (%peer, @held);
	my $mode = 'p';

	$SIG{PIPE} = 'IGNORE';
	for (;;)
	{
		foreach my $ready ($select->can_read)
		{
			if ($ready == $orders)
			{
				sysread($orders, my $order, 1) or return;
				if ($order eq 'k')
				{
					$select->remove($_) foreach map { $_->{handle} } values %peer;
					%peer = ();
				}
				else
				{
					$mode = $order;
					syswrite($_->[0], $_->[1]) foreach splice(@held);
				}
				syswrite($answers, '.');
			}
			elsif ($ready == $listener)
			{
				my $client = $listener->accept or next;
				my $upstream = IO::Socket::UNIX->new(Peer => $server) or next;
				append_to_file($listener->hostpath . '.accepted', '.');

				$peer{$client} = { handle => $client, other => $upstream };
				$peer{$upstream} = { handle => $upstream, other => $client, is_server => 1 };
				$select->add($client, $upstream);
			}
			elsif (my $this = $peer{$ready})
			{
				sleep 0.3 if $mode eq 'l';
				my $size = sysread($ready, my $data, 65536);

				if (!$size)
				{
					# What is swallowed includes the end of a connection.
					$select->remove($ready);
					next if $mode =~ /[as]/;
					$select->remove($this->{other});
					delete $peer{ $this->{other} };
					delete $peer{$ready};
				}
				elsif ($mode eq 'h' && $this->{is_server})
				{
					push @held, [ $this->{other}, $data ];
				}
				elsif ($mode =~ /[pl]/ || ($mode =~ /[ah]/ && !$this->{is_server}))
				{
					syswrite($this->{other}, $data);
				}
			}
		}
	}
}

1;
