# The server is away, silent or slow, before there is a command: lease_run waits for it, as long as it is told to.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaseRunTest;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = start_node('outages', 'shared_preload_libraries = lease_lock');
my $folder = PostgreSQL::Test::Utils::tempdir_short();
my $nothing = qr/^$/;

sub until_message
{
	my ($run, $pattern) = @_;

	until_true("message $pattern", sub { $run->{harness}->pump_nb; $run->{err} =~ $pattern });
	return;
}

# No server at the beginning, whatever the limit is.
foreach my $wait ([], ['--wait=1h'], [ '-n', '--server-wait=1h' ])
{
	my $name = "@$wait" || 'no limit';

	$node->stop;
	my $run = start_run($node, @$wait, 'job', 'echo', 'ran');
	until_message($run, qr/no answer \(connection to server .*\): asking again/);
	$node->start;
	is_run(finish_run($run), 0, qr/^ran\n$/, qr/^(?:.*asking again\n)+$/, "$name: the command runs when the server is there");
}

# The limits. These wait beside what follows, up to where their ends are looked at.
my @limits = map { { seconds => shift @$_, options => $_, began => time, run => start_run('host=/nonexistent', @$_, 'job', 'echo', 'no') } }
  ([ 1, '--wait=1s' ], [ 1, '-n', '--server-wait=1s' ], [ 1, '--server-wait=1s' ], [ 10, '-n' ]);
is_run(lease_run('host=/nonexistent', '-q', '--wait=1s', 'job', 'echo', 'no'), 69, $nothing,
	qr/^lease_run: error: .*\nlease_run: hint: .*\n$/, '--quiet says it once');

# What no second try can mend ends lease_run at once, without a limit, too.
is_run(lease_run($node->connstr('nowhere'), 'job', 'echo', 'no'), 69, $nothing,
	qr/database "nowhere" does not exist\n.*Check the connection options/, 'no such database');
is_run(lease_run($node->connstr('postgres') . ' user=nobody', 'job', 'echo', 'no'), 69, $nothing,
	qr/role "nobody" does not exist/, 'no such role');
is_run(lease_run($node->connstr('postgres') . ' sslmode=frobnicate', 'job', 'echo', 'no'), 69, $nothing,
	qr/invalid sslmode value/, 'a mistake in the connection string');

# No room for another connection: again.
{
	my ($run, $session);

	$node->safe_psql('postgres', 'CREATE ROLE alone LOGIN CONNECTION LIMIT 1');
	$session = IPC::Run::start([ 'psql', '-X', $node->connstr('postgres') . ' user=alone' ], '<', \my $in, '>', \my $out, '2>', \my $err);
	until_sql('a session', $node, q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'alone'}, 1);
	$run = start_run($node->connstr('postgres') . ' user=alone', 'job', 'echo', 'ran');
	until_message($run, qr/no answer .*too many connections for role "alone".*asking again/);
	$session->kill_kill;
	is_run(finish_run($run), 0, qr/^ran\n$/, qr//, 'a server that has no connection left is asked again');
}

# A wait: one statement, without a snapshot and without an end, that keeps its place.
my $ttl = '1.5s';
$node->safe_psql('postgres', q{SELECT lease_acquire('job', '1 hour', 'ann')});
my $standby = start_run($node, "--ttl=$ttl", 'job', 'echo', 'ran');
until_sql('a waiter', $node, q{SELECT count(*) FROM lease_waiters WHERE resource = 'job'}, 1);
is($node->safe_psql('postgres', q{SELECT deadline, backend_xmin IS NULL FROM lease_waiters JOIN pg_stat_activity USING (pid)}),
	'infinity|t', 'the wait has no end, and no snapshot');

# Longer than the ttl and ten seconds, then a restart: there is a second try, and a third.
my $waits_since = time;
foreach my $limit (@limits)
{
	is_run(finish_run($limit->{run}), 69, $nothing, qr/error: lease on "job": connection to server .*\n.*The command was not run/,
		"@{ $limit->{options} }: 69 without a server");
	cmp_ok(time - $limit->{began}, '>=', $limit->{seconds}, "after $limit->{seconds} s");
}
sleep(0.1) while time < $waits_since + 12;
foreach my $time (1 .. 2)
{
	$node->restart;
	until_sql('a waiter', $node, q{SELECT count(*) FROM lease_waiters WHERE resource = 'job'}, 1);
}
$node->safe_psql('postgres', q{SELECT lease_release('job', 'ann')});
is_run(finish_run($standby), 0, qr/^ran\n$/, qr/asking again/, 'a stand-by that has waited for long outlives restarts');

# A signal ends it while there is no server.
{
	$node->stop;
	my $run = start_run($node, 'job', 'echo', 'no');
	until_message($run, qr/asking again/);
	kill('TERM', $run->{pid});
	is_run(finish_run($run), 143, $nothing, qr/asking again/, 'SIGTERM ends a wait for the server');
	$node->start;
}

# A server that is silent while lease_run waits: it finds out, and goes to another one.
{
	my $proxy = start_proxy($node);
	my ($host) = $proxy->{connstr} =~ /host=(\S+)/;
	my $run;

	$node->safe_psql('postgres', q{SELECT lease_acquire('job', '1 hour', 'ann')});
	$run = start_run(sprintf('host=%s,%s port=%d dbname=postgres user=postgres', $host, $node->host, $node->port), '-v', '--ttl=2s',
		'job', 'echo', 'ran');
	until_message($run, qr/connected to server \Q$host\E,.*waiting/s);
	until_sql('a waiter', $node, q{SELECT count(*) FROM lease_waiters WHERE resource = 'job'}, 1);
	tell_proxy($proxy, 's');
	until_message($run, qr/no answer \(the server does not answer\).*connected to server \Q${\$node->host}\E,.*waiting/s);
	$node->safe_psql('postgres', q{SELECT lease_release('job', 'ann')});
	is_run(finish_run($run), 0, qr/^ran\n$/, qr//, 'a waiter leaves a server that is silent');
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

# Of three hosts the third one is connected, then silent: the first one is next.
{
	my $proxy = start_proxy($node);
	my ($third) = $proxy->{connstr} =~ /host=(\S+)/;
	my $port = $node->port;
	my $seconds = 12 * slowness($node);
	my $run;

	mkdir "$folder/$_" foreach qw(first second);
	$run = start_run("host=$folder/first,$folder/second,$third port=$port dbname=postgres user=postgres", '-v', "--ttl=${seconds}s",
		'three', 'sh', '-c', 'until [ -e "$0" ]; do sleep 0.1; done; echo ran', "$folder/go");
	until_message($run, qr/connected to server \Q$third\E,.*started/s);
	symlink($node->host . "/.s.PGSQL.$port", "$folder/first/.s.PGSQL.$port") or die "symlink: $!";
	tell_proxy($proxy, 's');
	until_true('a renewal, or the end', sub { $run->{harness}->pump_nb; $run->{err} =~ /not renewed.*(?:renewed, ends|was ended)/s });
	append_to_file("$folder/go", '');
	is_run(finish_run($run), 0, qr/^ran\n$/, qr/not renewed.*connected to server \Q$folder\E\/first,.*renewed, ends/s,
		'the host that was silent goes last');
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

# Answers that come too late for the ttl.
{
	my $proxy = start_proxy($node);

	tell_proxy($proxy, 'l');
	is_run(lease_run($proxy->{connstr}, '-n', '--ttl=1250ms', 'late', 'echo', 'no'), 69, $nothing,
		qr/the server takes \d+\.\d s for an answer, which is too long for a ttl of 1\.25 s/, 'answers that are always late end lease_run');
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

# A grant that did not wait for the standby is none.
{
	my $waits = q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'};
	my ($run, $canceled);

	# Commits wait from when the checkpointer has read the setting, which it does before it sleeps.
	$node->append_conf('postgresql.conf', "wal_level = replica\nmax_wal_senders = 1\nsynchronous_standby_names = 'nobody'");
	$node->restart;
	until_sql('the checkpointer', $node, q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'CheckpointerMain'}, 1);
	$run = start_run($node, '-v', '--min-hold=1h', 'grant', 'echo', 'ran');
	until_sql('a wait for the standby', $node, $waits, 1);
	$canceled = $node->safe_psql('postgres', q{SELECT pid, pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'});
	until_true('it asks again, or runs', sub { $run->{harness}->pump_nb; $run->{err} =~ /asking again|started/ });
	until_sql('another wait for the standby', $node, $waits, 1);
	unlike($run->{err}, qr/started/, 'a grant that did not wait for the standby is none');
	$node->adjust_conf('postgresql.conf', 'synchronous_standby_names', undef);
	$node->reload;
	is_run(finish_run($run), 0, qr/^ran\n$/, qr/asking again.*granted.*started/s, 'it is asked for again');
	is(held($node, 'grant'), 0, 'and no lease is left');
}

# The connection breaks while the grant waits for the standby. The next request is refused by its own first one.
{
	my $proxy = start_proxy($node);
	my ($run, $gives_back);

	$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
	$node->restart;
	until_sql('the checkpointer', $node, q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'CheckpointerMain'}, 1);
	$run = start_run($proxy->{connstr}, '-v', '-n', '--ttl=1h', 'open', 'echo', 'no');
	until_sql('a wait for the standby', $node, q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'}, 1);
	tell_proxy($proxy, 'k');
	$gives_back = q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%lease_release(%' AND pid <> pg_backend_pid()};
	until_true('it gives the lease back, or has ended', sub { !process_runs($run->{pid}) || $node->safe_psql('postgres', $gives_back) });
	$node->adjust_conf('postgresql.conf', 'synchronous_standby_names', undef);
	$node->reload;
	is_run(finish_run($run), 1, $nothing, qr/asking again.*taken/s, 'a request that its own first one refuses');
	until_sql('the first request', $node, q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'}, 0);
	is(held($node, 'open'), 0, 'leaves no lease');
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

$node->stop;
done_testing();
