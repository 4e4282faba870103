# Shared by the TAP tests: a server with the extension, sessions that stay open
# between steps, and checks of errors by their SQLSTATE.
package LeaseTest;

use strict;
use warnings;

use Cwd qw(abs_path);
use Exporter 'import';
use File::Basename qw(dirname);
use LeaseCluster;
use List::Util qw(min);
use POSIX ();
use PostgreSQL::Test::Utils;
use Test2::API ();
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(
  start_node
  install_portable
  is_for_races
  is_portable
  sql_fails
  open_session
  session_fails
  begin_query
  finish_query
  wait_until_blocked
  slowness
);

our $FILE_LIMIT = $LeaseCluster::FILE_LIMIT;

my $own_pid = $$;

# End the test file, wherever it is. Not by die, which the test could catch. The
# END blocks stop the servers.
sub end_file
{
	my ($reason) = @_;
	my ($level, @steps) = (0);

	POSIX::_exit(1) if $$ != $own_pid;
	$SIG{$_} = 'IGNORE' foreach qw(ALRM TERM INT HUP);
	while (my (undef, $file, $line) = caller($level++))
	{
		push @steps, "$file line $line" if $file =~ m{/t/} && $file ne __FILE__;
	}
	diag("$reason, at " . join(', called by ', @steps));
	exit 1;
}

$SIG{ALRM} = sub { end_file("hangs: not done within $FILE_LIMIT seconds") };
$SIG{$_} = sub { end_file("ended by SIG$_[0]") } foreach qw(TERM INT HUP);
alarm($FILE_LIMIT);

# With a mutant, one failed test is enough.
if ($ENV{END_AT_FAILURE})
{
	Test2::API::test2_stack()->top->listen(sub { end_file('failed') if $_[1]->causes_fail }, inherit => 1);
}

# Some tests can also run on the portable edition (test/t/portable).
sub is_portable
{
	return ($ENV{LEASE_EDITION} // '') eq 'portable';
}

# Install the portable edition in the schema public, where nobody but the
# superuser may create anything: then the tests find it there as they find the
# extension.
sub install_portable
{
	my ($node, $dbname, $file) = @_;

	$file //= dirname(abs_path(__FILE__)) . '/../../portable/lease_lock.sql';
	return $node->safe_psql($dbname,
		"SET client_min_messages = warning;
		DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC;
		BEGIN;\n\\i $file\nCOMMIT");
}

# Start a server with these lines in its configuration, and the extension in
# its database postgres.
sub start_node
{
	my ($name, $conf, %init) = @_;
	my $node = LeaseCluster->new($name);

	$node->init(%init);
	$node->append_conf('postgresql.conf', $conf) if $conf;
	$node->start;
	is_portable() ? install_portable($node, 'postgres') : $node->safe_psql('postgres', 'CREATE EXTENSION lease_lock');
	return $node;
}

# Is the library built for races? pg_settings lists its settings where it is loaded.
sub is_for_races
{
	my ($node) = @_;

	return $node->safe_psql('postgres', q{LOAD 'lease_lock'; SELECT count(*) FROM pg_settings WHERE name = 'lease_lock.stop_at'}) == 1;
}

# Test that the SQL, run as a role if one is given, fails with this SQLSTATE,
# and that its message, detail or hint matches.
sub sql_fails
{
	my ($node, $sql, $sqlstate, $match, $name, %params) = @_;
	my @psql = ('-v', 'VERBOSITY=verbose');
	my $stderr;

	push @psql, '-U', $params{role} if $params{role};
	$node->psql($params{dbname} // 'postgres',
		$sql, stderr => \$stderr, extra_params => \@psql);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($stderr, qr/ERROR:  $sqlstate: .*$match/s, $name);
}

# Open a session that stays open, even after an error. There can be further
# options for psql.
sub open_session
{
	my ($node, $dbname, @options) = @_;
	my $session = $node->background_psql($dbname // 'postgres', on_error_stop => 0, extra_params => \@options);

	$session->query_safe('\set VERBOSITY verbose');
	return $session;
}

# Like sql_fails, in an open session.
sub session_fails
{
	my ($session, $sql, $sqlstate, $match, $name) = @_;

	$session->query($sql);
	my $stderr = $session->{stderr};
	$session->{stderr} = '';

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($stderr, qr/ERROR:  $sqlstate: .*$match/s, $name);
}

# Send a statement that will wait; returns the pid of its backend.
sub begin_query
{
	my ($session, $sql) = @_;
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	$session->query_until(qr/sent/, "\\echo sent\n$sql;\n");
	return $pid;
}

# Get the result of the statement that begin_query() sent: its rows and errors.
sub finish_query
{
	my ($session) = @_;
	my $stdout = $session->query('');
	my $stderr = $session->{stderr};

	$session->{stderr} = '';
	return $stdout . $stderr;
}

# How many times slower than a quiet machine is this one now? For steps that have
# to come before a time is over, which can then be so much longer. Twenty at most,
# so that the file does not take longer than it may.
sub slowness
{
	my ($node) = @_;
	my $since = time;

	$node->safe_psql('postgres', 'SELECT 1') foreach 1 .. 5;
	return min(20, 1 + int((time - $since) / 0.3));
}

# Wait until a backend waits for a lock of another backend.
sub wait_until_blocked
{
	my ($node, $pid) = @_;

	$node->poll_query_until('postgres',
		"SELECT cardinality(pg_blocking_pids($pid)) > 0")
	  or die "backend $pid does not wait for a lock";
}

1;
