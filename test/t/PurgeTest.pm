# Shared by the TAP tests of the purge worker: a server with a worker, leases
# that ended, and functions that show what the worker does.
package PurgeTest;

use strict;
use warnings;

use Exporter 'import';
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(
  start_purging_node
  add_database
  add_ended
  ended
  becomes_true
  is_purged
  launcher
  worker_in
  ask_beside_stopped
  set_and_reload
  switch_off
  times_logged
);

# Short enough that tests need not wait. Leases that ended are purged at once.
our $CONF = <<'CONF';
shared_preload_libraries = 'lease_lock'
lease_lock.purge_interval = 100ms
lease_lock.purge_after = 0
max_worker_processes = 4
autovacuum = off
CONF

sub start_purging_node
{
	my ($name, $conf, %init) = @_;

	return start_node($name, $CONF . ($conf // ''), %init);
}

# Create a database with the extension.
sub add_database
{
	my ($node, $dbname) = @_;

	$node->safe_psql('postgres', qq{CREATE DATABASE "$dbname"});
	$node->safe_psql($dbname, 'CREATE EXTENSION lease_lock');
	return;
}

# Insert the given number of leases that expired long ago. This also grants a
# lease in the database, so that the launcher learns of it.
sub add_ended
{
	my ($node, $dbname, $count) = @_;

	$node->safe_psql($dbname, qq{
		INSERT INTO lease_lock (resource, owner, token, granted_at, expires_at, role, xid, mode, holds)
		SELECT 'ended ' || n, 'o', 0, t, t, 10, pg_current_xact_id(), 'x', 1
		FROM generate_series(1, $count) AS n, CAST('2000-01-01' AS timestamptz) AS t
		ON CONFLICT DO NOTHING;
		SELECT lease_acquire('held', '1 day', 'o');
	});
	return;
}

sub ended
{
	return q{FROM lease_lock WHERE resource LIKE 'ended %'};
}

# Test that the result of the query becomes true in time.
sub becomes_true
{
	my ($node, $dbname, $query, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok($node->poll_query_until($dbname, $query), $name);
}

# Test that leases that ended are removed, and that held leases stay.
sub is_purged
{
	my ($node, $dbname, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	becomes_true($node, $dbname, 'SELECT count(*) = 0 ' . ended(), "$name: what ended is purged");
	is($node->safe_psql($dbname, q{SELECT count(*) FROM lease_lock WHERE resource = 'held'}),
		1, "$name: what is held stays");
	return;
}

# SQL conditions on pg_stat_activity.
sub launcher
{
	return q{backend_type = 'lease_lock purge launcher'};
}

sub worker_in
{
	my ($dbname) = @_;

	return qq{backend_type = 'lease_lock purge worker' AND datname = '$dbname'};
}

# Run a query while a worker is stopped. The result is undefined if there is no
# answer, because the worker was stopped while it held something of the server
# that others wait for. Nothing can end such a wait: one of the lock manager's
# locks, for example, is enough to stop the deadlock check of a waiter, and with
# it the whole server. So statements meet them all first: they read
# pg_stat_activity and all parts of the lock manager, and flush the WAL, which
# waits for all that is being inserted.
sub ask_beside_stopped
{
	my ($node, $dbname, $query) = @_;
	my ($answer, $timed_out);

	$node->psql($dbname, qq{
		\\o /dev/null
		SELECT count(*) FROM pg_stat_activity;
		SELECT count(*) FROM pg_locks;
		SET synchronous_commit = local;
		SELECT pg_logical_emit_message(true, 'test', '');
		\\o
		$query},
		stdout => \$answer, timeout => 10, timed_out => \$timed_out);
	return $timed_out ? undef : $answer;
}

# Change a setting, and wait until the launcher must have read it: it sleeps on
# its latch, which the signal sets.
sub set_and_reload
{
	my ($node, $setting, $value) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET $setting = '$value'");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT current_setting('$setting') = '$value'")
	  or die "$setting is not $value";
	return;
}

# Set the interval to 0, and wait until no worker runs or is being started: the
# launcher has begun no round for ten times the interval that it had.
sub switch_off
{
	my ($node) = @_;

	set_and_reload($node, 'lease_lock.purge_interval', '0');
	$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . launcher()
		  . q{ AND state = 'idle' AND state_change < clock_timestamp() - interval '1 s'})
	  or die 'the launcher does not rest';
	return;
}

# How often does the server's log contain this?
sub times_logged
{
	my ($node, $match) = @_;
	my @found = slurp_file($node->logfile) =~ /$match/g;

	return scalar @found;
}

1;
