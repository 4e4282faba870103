# A server as the tests want it: PostgreSQL::Test::Cluster with a fixed name of
# the superuser, sessions that live as long as the test file, and polling that
# costs little.
package LeaseCluster;

use strict;
use warnings;

use parent 'PostgreSQL::Test::Cluster';

# Without their functions, which would be methods here.
use PostgreSQL::Test::Utils ();
use Test::More ();
use Time::HiRes ();

# Seconds that a test file may take. Far more than it needs on a machine that is
# twenty times slower, so only a file that hangs is ended by it. Whoever lets
# tests run for longer sets FILE_LIMIT.
our $FILE_LIMIT = $ENV{FILE_LIMIT} // 10 * $PostgreSQL::Test::Utils::timeout_default;

# The superuser is postgres, whoever runs the tests.
$ENV{PGUSER} = 'postgres';

# Segments of shared memory are files in the data directory. A server that is
# killed, as many tests do, would leave others behind in /dev/shm.
#
# With LEASE_OWNER_INDEX=1, the lock table of the databases postgres and template1, and of copies of the
# latter, has an index on the owner.
#
# With LEASE_HASHES=n, in a build for races, the queue knows only n different
# hashes of resources.
sub init
{
	my ($self, %params) = @_;

	$self->SUPER::init(%params, extra => [ '-U', 'postgres', @{ $params{extra} // [] } ]);
	$self->append_conf('postgresql.conf', 'dynamic_shared_memory_type = mmap');
	$self->append_conf('postgresql.conf', "lease_lock.hashes = $ENV{LEASE_HASHES}") if $ENV{LEASE_HASHES};
	return;
}

sub start
{
	my ($self, @params) = @_;
	my $started = $self->SUPER::start(@params);

	$self->add_owner_index if $started && $ENV{LEASE_OWNER_INDEX} && !$self->{has_owner_index}++;
	return $started;
}

# From now on, whoever creates the extension gets the index. Not on a standby.
sub add_owner_index
{
	my ($self) = @_;

	return if $self->safe_psql('postgres', 'SELECT pg_is_in_recovery()') eq 't';
	$self->safe_psql($_, <<'SQL') foreach qw(template1 postgres);
CREATE FUNCTION pg_catalog.add_owner_index() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
	IF to_regclass('lease_lock') IS NOT NULL AND to_regclass('lease_lock_by_owner') IS NULL THEN
		CREATE INDEX lease_lock_by_owner ON lease_lock (owner, kept_for);
	END IF;
END $$;
CREATE EVENT TRIGGER add_owner_index ON ddl_command_end WHEN TAG IN ('CREATE EXTENSION')
	EXECUTE FUNCTION pg_catalog.add_owner_index();
SQL
	return;
}

# A session has one timer for its whole life. It comes after the limit of the
# file, which names the step that hangs.
sub background_psql
{
	my ($self, $dbname, %params) = @_;

	return $self->SUPER::background_psql($dbname, %params, timeout => 2 * $FILE_LIMIT);
}

# Asks again and again in one session, as long as the server lets it. The
# original starts a psql for each try, which costs more than most queries.
sub poll_query_until
{
	my ($self, $dbname, $query, $expected) = @_;
	my $end = Time::HiRes::time + $PostgreSQL::Test::Utils::timeout_default;
	my ($session, $stdout, $stderr);

	$expected //= 't';
	$query //= '';
	do
	{
		eval {
			$session //= $self->background_psql($dbname, on_error_stop => 0);
			$stdout = $session->query($query);
			$stderr = $session->{stderr};
			$session->{stderr} = '';
			1;
		} or do {
			($stdout, $stderr) = ('', "no session: $@");
			undef $session;
		};
		if ($stdout eq $expected && $stderr eq '')
		{
			$session->quit;
			return 1;
		}
		Time::HiRes::sleep(0.05);
	} while (Time::HiRes::time < $end);

	eval { $session->quit } if $session;
	Test::More::diag("not within the time of a test:\n$query\nexpected:\n$expected\nlast output:\n$stdout\nwith stderr:\n$stderr");
	return 0;
}

1;
