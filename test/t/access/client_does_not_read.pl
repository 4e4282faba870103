# A client that does not read what the server sends keeps its own session from
# going on, and no other call for the same resource: no message is sent to it
# under the resource lock, whatever ends the call there.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";
use IO::Socket::UNIX;
use LeaseCluster;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('client_does_not_read');

# An index expression that waits lets a test interrupt a call that has locked the resource.
$node->safe_psql('postgres', q{
	CREATE ROLE plain LOGIN;
	CREATE FUNCTION gate(owner text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_advisory_xact_lock(7) WHERE owner = 'slow';
		RETURN true;
	END $$;
	CREATE INDEX ON lease_lock (gate(owner));
	SELECT lease_acquire('door', '1 hour', 'ann')});
$node->safe_psql('postgres', q{SELECT lease_acquire_shared('hall', '1 hour', 'ann'), lease_acquire_shared('full', '1 hour', 'plain')},
	extra_params => [ '-U', 'plain' ]);
$node->safe_psql('postgres', q{UPDATE lease_lock SET holds = 2147483647 WHERE resource = 'full'});
my $gate = open_session($node);

# Connect as a role that may do nothing but connect. Never read again.
sub connect_deaf
{
	my $socket = IO::Socket::UNIX->new(Peer => $node->host . '/.s.PGSQL.' . $node->port) or die "socket: $!";
	my $startup = pack('N', 196608) . "user\0plain\0database\0postgres\0application_name\0deaf\0\0";
	my $answer = '';

	print {$socket} pack('N', 4 + length $startup) . $startup;
	$socket->flush;
	until ($answer =~ /Z\x00{3}\x05I/)
	{
		sysread($socket, $answer, 65536, length $answer) or die 'no answer';
	}
	return $socket;
}

# Send a call whose error message, with its context, is longer than what a socket takes.
sub send_call
{
	my ($socket, $call) = @_;
	my $query = "DO \$\$ BEGIN EXECUTE '$call /*' || repeat('x', 20000000) || '*/'; END \$\$\0";

	print {$socket} 'Q' . pack('N', 4 + length $query) . $query;
	$socket->flush;
	return;
}

# SQL that interrupts the call while it waits in the index expression; what ends it, else.
my @calls = (
	[ 'assertion of a lease that is not held', q{SELECT lease_assert(''door'', ''nobody'')} ],
	[ 'release of a lease of another role', q{SELECT lease_release(''door'', ''ann'')} ],
	[ 'grant that fails', q{SELECT lease_request(''full'', ''1 hour'', ''plain'', mode => ''shared'', if_own => ''count'')} ],
	[ 'grant that is cancelled', q{SELECT lease_acquire_shared(''hall'', ''1 hour'', ''slow'')}, 'pg_cancel_backend' ],
	[ 'grant that is terminated', q{SELECT lease_acquire_shared(''hall'', ''1 hour'', ''slow'')}, 'pg_terminate_backend' ]);

foreach my $call (@calls)
{
	my ($name, $statement, $interrupt) = @$call;
	my $socket = connect_deaf();
	my ($resource) = $statement =~ /''(\w+)''/;

	if ($interrupt)
	{
		$gate->query_safe('SELECT pg_advisory_lock(7)');
		send_call($socket, $statement);
		$node->poll_query_until('postgres',
			q{SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'deaf' AND wait_event = 'advisory'})
		  or die 'does not wait';
		$node->safe_psql('postgres', "SELECT $interrupt(pid) FROM pg_stat_activity WHERE application_name = 'deaf'");
		$gate->query_safe('SELECT pg_advisory_unlock(7)');
	}
	else
	{
		send_call($socket, $statement);
	}
	$node->poll_query_until('postgres',
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'deaf' AND wait_event = 'ClientWrite'})
	  or die 'sends no message';

	is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'}), 0, "$name: has unlocked the resource");
	is($node->safe_psql('postgres', "SET lock_timeout = '5s'; SELECT lease_renew('$resource', '1 hour', 'nobody')"),
		'f', "$name: another session goes on") if $resource ne 'full';

	$socket->close;
	$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'deaf'})
	  or die 'does not end';
}

$gate->quit;
done_testing();
