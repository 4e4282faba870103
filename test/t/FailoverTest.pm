# What the tests of failovers share: a primary with standbys, a WAL sender that
# is stopped so that standbys fall behind, and the loss of a whole server.
package FailoverTest;

use strict;
use warnings;

use Exporter 'import';
use LeaseTest;
use PostgreSQL::Test::Cluster;
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

# Start a standby of a server; it has replayed all when this returns.
sub start_standby
{
	my ($primary, $name) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$primary->backup("for_$name");
	$standby->init_from_backup($primary, "for_$name", has_streaming => 1);
	$standby->start;
	$primary->wait_for_catchup($standby);
	return $standby;
}

my @stopped;

# From now on the standbys hear nothing of the server any more.
sub stop_senders
{
	my ($primary) = @_;
	my @pids = split(/\n/, $primary->safe_psql('postgres', 'SELECT pid FROM pg_stat_replication'));

	die 'no WAL sender to stop' if !@pids;
	kill('STOP', @pids) == @pids or die "could not stop a WAL sender: $!";
	push @stopped, @pids;
	return;
}

# State of a process and pid of its parent; empty when it is gone.
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
	# A server does not start as long as there is a process with that pid, be it a zombie.
	foreach my $pid ($postmaster, @children)
	{
		usleep(10_000) while -e "/proc/$pid/stat";
	}
	return;
}

# Grant so many leases, each in a transaction of its own; returns their tokens.
sub grant_tokens
{
	my ($node, $prefix, $count) = @_;

	return grep { $_ ne 't' } split(/\n/,
		$node->safe_psql('postgres',
			join('', map { "SELECT lease_acquire('$prefix $_', '1 hour', 'o');\nSELECT lease_token('$prefix $_', 'o');\n" }
				  1 .. $count)));
}

# Have an open session take a lease; returns its token.
sub token_of
{
	my ($session, $resource) = @_;

	$session->query_safe("SELECT lease_acquire('$resource', '1 hour', 'o')");
	return $session->query_safe("SELECT lease_token('$resource', 'o')");
}

# A stopped sender would keep its server from being shut down.
END
{
	my $status = $?;

	kill('CONT', @stopped);
	$? = $status;
}

1;
