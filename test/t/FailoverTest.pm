# Shared by the tests of failovers: a primary with standbys, stopping a WAL
# sender so that standbys fall behind, and the loss of a whole server.
package FailoverTest;

use strict;
use warnings;

use Exporter 'import';
use LeaseCluster;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(
  start_primary
  start_standby
  stop_senders
  lose
  grant_tokens
  token_of
);

sub start_primary
{
	my ($name, $conf) = @_;

	return start_node($name, "autovacuum = off\nwal_sender_timeout = 0\nwal_receiver_timeout = 0\n" . ($conf // ''),
		allows_streaming => 1);
}

# Start a standby of a server, and wait until it has replayed all WAL.
sub start_standby
{
	my ($primary, $name) = @_;
	my $standby = LeaseCluster->new($name);

	$primary->backup("for_$name");
	$standby->init_from_backup($primary, "for_$name", has_streaming => 1);
	$standby->start;
	$primary->wait_for_catchup($standby);
	return $standby;
}

my @stopped;

# Cut the standbys off from the server.
sub stop_senders
{
	my ($primary) = @_;
	my @pids = split(/\n/, $primary->safe_psql('postgres', 'SELECT pid FROM pg_stat_replication'));

	die 'no WAL sender to stop' if !@pids;
	kill('STOP', @pids) == @pids or die "could not stop a WAL sender: $!";
	push @stopped, @pids;
	return;
}

# State of a process and pid of its parent; empty if it has ended.
sub process_state
{
	my ($pid) = @_;

	return (eval { slurp_file("/proc/$pid/stat") } // '') =~ s/^.*\) //sr;
}

# Kill all processes of a server, as a power failure does.
sub lose
{
	my ($node) = @_;
	my $postmaster = $node->{_pid};
	my @children = grep { process_state($_) =~ /^\S $postmaster / } map { m{(\d+)$} } glob('/proc/[0-9]*');

	$node->kill9;
	kill('KILL', @children);
	# A server does not start while a process with that pid exists, even as a
	# zombie.
	foreach my $pid ($postmaster, @children)
	{
		usleep(10_000) while -e "/proc/$pid/stat";
	}
	return;
}

# Grant the given number of leases, each in its own transaction; returns their
# tokens.
sub grant_tokens
{
	my ($node, $prefix, $count) = @_;

	return grep { $_ ne 't' } split(/\n/,
		$node->safe_psql('postgres',
			join('', map { "SELECT lease_acquire('$prefix $_', '1 hour', 'o');\nSELECT lease_token('$prefix $_', 'o');\n" }
				  1 .. $count)));
}

# Acquire a lease in an open session; returns its token.
sub token_of
{
	my ($session, $resource) = @_;

	$session->query_safe("SELECT lease_acquire('$resource', '1 hour', 'o')");
	return $session->query_safe("SELECT lease_token('$resource', 'o')");
}

# A stopped sender would prevent the shutdown of its server.
END
{
	my $status = $?;

	kill('CONT', @stopped);
	$? = $status;
}

1;
