# Shared by the tests of client libraries: a server that the programs in
# test/drivers connect to, and functions that find a library and run a program.
package ClientTest;

use strict;
use warnings;

use Cwd 'abs_path';
use Exporter 'import';
use FindBin;
use IPC::Run;
use LeaseTest;
use Test::More;

our @EXPORT = qw(
  can_run
  start_client_node
  run_client
);

our $CLIENTS = abs_path("$FindBin::RealBin/../../drivers");

# Returns the first of these commands that runs the arguments without an error:
# the interpreter that has the library. Returns undef if there is none.
sub can_run
{
	my ($commands, @arguments) = @_;

	foreach my $command (@$commands)
	{
		my $done = eval {
			IPC::Run::run([ $command, @arguments ], \'', '>', '/dev/null', '2>', '/dev/null');
		};
		return $command if $done;
	}
	return;
}

# Starts a server with a protected table of this name, whose items have
# versions, and with two roles: app runs the programs, boss has leased the vault.
sub start_client_node
{
	my ($name, $table) = @_;
	my $node = start_node($name, "deadlock_timeout = 100ms\n");

	$node->safe_psql('postgres', qq{
		CREATE TABLE $table (id int PRIMARY KEY, name text NOT NULL, lock_version int NOT NULL DEFAULT 0);
		INSERT INTO $table SELECT i, 'wood' FROM generate_series(1, 5) AS i;
		SELECT lease_protect('$table', 'item:{id}');
		CREATE TRIGGER ${table}_version BEFORE UPDATE ON $table
			FOR EACH ROW EXECUTE FUNCTION lease_version('lock_version');
		CREATE ROLE app LOGIN;
		GRANT SELECT, UPDATE ON $table TO app;
		CREATE ROLE boss;
		SET ROLE boss;
		SELECT lease_acquire('vault', '1 hour', 'boss');
	});
	return $node;
}

# Run a program of test/drivers as role app, and return its output and its
# errors. Host and port are those of the node unless given.
sub run_client
{
	my ($node, $command, %at) = @_;
	my ($interpreter, $program, @arguments) = @$command;
	my $printed = '';

	local %ENV = (
		%ENV,
		PGHOST => $at{host} // $node->host,
		PGPORT => $at{port} // $node->port,
		PGUSER => 'app',
		PGDATABASE => 'postgres');

	my $done = eval {
		IPC::Run::run([ $interpreter, "$CLIENTS/$program", @arguments ],
			\'', '>&', \$printed);
	};
	return $printed . ($@ ? "died: $@" : $done ? '' : "exit status $?\n");
}

1;
