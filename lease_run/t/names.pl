# Host names: all addresses of a name are tried, and a name server that is silent is not waited for longer than a limit.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use IO::Socket::INET;
use LeaseRunTest;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Socket;
use Test::More;
use Time::HiRes qw(sleep);

my $folder = PostgreSQL::Test::Utils::tempdir();
my $nothing = qr/^$/;

# A library that takes the place of the name server: "two.example" has two addresses, and while a file exists, no name has
# an answer.
append_to_file("$folder/names.c", <<'C');
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*Function) (const char *, const char *, const struct addrinfo *, struct addrinfo **);

int
getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **result)
{
	Function	original = (Function) dlsym(RTLD_NEXT, "getaddrinfo");
	int			error;

	if (name == NULL || strcmp(name, "two.example") != 0)
		return original(name, service, hints, result);
	while (access(getenv("NAMES_ARE_SILENT"), F_OK) == 0)
		sleep(1);
	error = original("127.0.0.1", service, hints, result);
	return error ? error : original("127.0.0.2", service, hints, &(*result)->ai_next);
}
C
plan skip_all => 'no C compiler'
  if system('cc', '-shared', '-fPIC', '-o', "$folder/names.so", "$folder/names.c", '-ldl') != 0;

# The server listens on the second address only. On the first one, somebody accepts connections, and is silent.
my $node = start_node('names', "shared_preload_libraries = lease_lock\nlisten_addresses = '127.0.0.2'");
my $silent = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $node->port, Listen => 100, ReuseAddr => 1)
  or die "port: $!";
append_to_file($node->data_dir . '/pg_hba.conf', "host all all 127.0.0.0/8 trust\n");
$node->reload;

sub start_by_name
{
	local $ENV{LD_PRELOAD} = "$folder/names.so";
	local $ENV{NAMES_ARE_SILENT} = "$folder/silent";

	return start_run('host=two.example port=' . $node->port . ' dbname=postgres user=postgres', '-v', @_);
}

sub until_message
{
	my ($run, $pattern) = @_;

	until_true("message $pattern", sub { $run->{harness}->pump_nb; $run->{err} =~ $pattern });
	return;
}

sub name_server
{
	my ($is_silent) = @_;

	append_to_file("$folder/silent", '') if $is_silent;
	unlink("$folder/silent") unless $is_silent;
	return;
}

# The backends of lease_run.
my $theirs = q{FROM pg_stat_activity WHERE query ~ 'lease_re(quest|new)' AND pid <> pg_backend_pid()};

# The first address is silent: the second one is next, and stays first.
{
	my $run = start_by_name('--ttl=1h', 'job', 'sh', '-c', 'touch "$0"; until [ -e "$0.go" ]; do sleep 0.1; done', "$folder/first");

	until_true('the command begins', sub { -e "$folder/first" });
	until_message($run, qr/started/);
	unlike($run->{err}, qr/no answer|asking again/, 'two addresses for a name, the first one silent: the second one answers at once');
	$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) $theirs");
	until_message($run, qr/started.*connected.*renewed/s);
	append_to_file("$folder/first.go", '');
	is_run(finish_run($run), 0, $nothing, qr/released/, 'and the lease is renewed and released');
}

# A name server that is silent from the beginning.
name_server(1);
is_run(finish_run(start_by_name('-n', '--server-wait=1s', 'job', 'echo', 'no')), 69, $nothing, qr/the name server does not answer/,
	'a silent name server: 69 after --server-wait');
{
	my $run = start_by_name('job', 'echo', 'ran');

	until_message($run, qr/asking again/);
	name_server(0);
	is_run(finish_run($run), 0, qr/^ran$/, qr/no answer \(the name server does not answer\)/, 'without a limit, it is waited for');
}
{
	name_server(1);
	my $run = start_by_name('job', 'echo', 'no');

	sleep 0.3;
	kill('TERM', $run->{pid});
	is_run(finish_run($run), 143, $nothing, qr//, 'SIGTERM ends a wait for it');
	name_server(0);
}

# Silent while lease_run waits, and its connection is lost.
{
	$node->safe_psql('postgres', q{SELECT lease_acquire('job', '1 hour', 'ann')});
	my $run = start_by_name('job', 'echo', 'ran');

	until_sql('a waiter', $node, 'SELECT count(*) FROM lease_waiters', 1);
	name_server(1);
	$node->safe_psql('postgres', 'SELECT pg_terminate_backend(pid) FROM lease_waiters');
	until_message($run, qr/asking again.*connected.*waiting/s);
	$node->safe_psql('postgres', q{SELECT lease_release('job', 'ann')});
	is_run(finish_run($run), 0, qr/^ran$/, qr/released/, 'while it waits: the addresses of the last time are good enough');
	name_server(0);
}

# Silent while the command runs, and at its end.
{
	my $run = start_by_name('--ttl=1h', 'job', 'sh', '-c', 'touch "$0"; until [ -e "$0.go" ]; do sleep 0.1; done', "$folder/end");

	until_true('the command begins', sub { -e "$folder/end" });
	name_server(1);
	$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) $theirs");
	until_message($run, qr/started.*connected.*renewed/s);
	kill('STOP', $run->{pid});
	$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) $theirs");
	append_to_file("$folder/end.go", '');
	until_sql('no connection', $node, "SELECT count(*) $theirs", 0);
	kill('CONT', $run->{pid});
	is_run(finish_run($run), 0, $nothing, qr/released/, 'at the end: the lease is released');
	is(held($node, 'job'), 0, 'as the server sees it');
	name_server(0);
}

$node->stop;
done_testing();
