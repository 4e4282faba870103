# Shared by the tests of partitions on several servers: partitions, a PL/Proxy
# router to them, and clients that log what they hold.
package RouterTest;

use strict;
use warnings;

use Cwd 'abs_path';
use Exporter 'import';
use FindBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(
  plproxy_missing
  contrib
  make_partition
  mark_partition
  make_router
  connection
);

# The reason why there cannot be a router, or nothing.
sub plproxy_missing
{
	my ($sharedir) = run_command([ $ENV{PG_CONFIG} // 'pg_config', '--sharedir' ]);

	return -e "$sharedir/extension/plproxy.control" ? undef : 'PL/Proxy is not installed (Debian: postgresql-15-plproxy)';
}

# Path of a file of contrib/plproxy.
sub contrib
{
	return abs_path("$FindBin::RealBin/../../../contrib/plproxy") . "/$_[0]";
}

# Connection string of a database, for the router.
sub connection
{
	my ($node, $dbname) = @_;

	return 'host=' . $node->host . ' port=' . $node->port . " dbname=$dbname";
}

# Create a database that is partition $number of so many.
sub make_partition
{
	my ($node, $number, $partitions, $roles) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE p$number");
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(mark_partition($node, "p$number", $number, $partitions, $roles), '', "partition $number of $partitions");
	return;
}

# Run partition.sql in a database; returns what it says.
sub mark_partition
{
	my ($node, $dbname, $number, $partitions, $roles) = @_;
	my ($stdout, $stderr) = run_command([ 'psql', '-Xq', '-d', $node->connstr($dbname), '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=verbose',
			'-v', "partition=$number", '-v', "partitions=$partitions", '-v', 'roles=' . ($roles // ''), '-f', contrib('partition.sql') ]);

	return $stdout . $stderr;
}

# Run router.sql with these connection strings; returns what it says.
sub make_router
{
	my ($node, @connections) = @_;
	my ($stdout, $stderr) = run_command([ 'psql', '-Xq', '-d', $node->connstr('router'), '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=verbose',
			'-v', 'partitions=' . join(';', @connections), '-f', contrib('router.sql') ]);

	return $stdout . $stderr;
}

1;
