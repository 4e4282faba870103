# Every connection that the server has waits for the same lease, which takes
# every place there is in the queue. One more is refused, clearly; then
# everybody gets its turn, in order, twice.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use WaitTest;

my $connections = 24;
my $node = start_waiting_node('connections', <<"CONF");
superuser_reserved_connections = 0
autovacuum_max_workers = 1
max_worker_processes = 0
max_wal_senders = 0
CONF
$node->append_conf('postgresql.conf', "max_connections = $connections");
$node->restart;

# A backend of an earlier session may still be there when psql has ended.
sub open_when_free
{
	my $end = time + $WaitTest::LIMIT;
	my $session;

	until ($session = eval { open_session($node) })
	{
		die "no connection is free: $@" if time > $end;
		usleep(10_000);
	}
	return $session;
}

foreach my $round (1, 2)
{
	# One connection looks, one holds the lease, and the others wait for it. The
	# observer is from before the sessions, so that in the second round each of
	# those has another place among the server's processes.
	my @waiting;
	look($node, 'SELECT 1');
	my $holder = open_when_free();
	is($holder->query_safe("SELECT lease_acquire('r', '1 hour', 'h')"), 't', "round $round: held");

	foreach my $n (1 .. $connections - 2)
	{
		push @waiting, open_when_free();
		send_to_wait($node, $waiting[-1], "SELECT lease_acquire('r', '1 hour', 'w$n', NULL)");
	}
	is(look($node, "SELECT count(*), max(position) FROM lease_waiters"),
		($connections - 2) . '|' . ($connections - 2), "round $round: all other connections wait");

	my (undef, $stderr) = run_command([ 'psql', '-X', '-d', $node->connstr('postgres'), '-c', 'SELECT 1' ]);
	like($stderr, qr/FATAL:  sorry, too many clients already/, "round $round: no connection for one more, which is told why");
	is(look($node, 'SELECT count(*) FROM lease_waiters'), $connections - 2, "round $round: the waiters wait on");

	# Each gets it in its turn, and its connection is free again when it leaves.
	my ($owner, $n, $token) = ('h', 0, 0);
	foreach my $session (@waiting)
	{
		$n++;
		die "could not release the lease of $owner"
		  if look($node, "SELECT lease_release('r', '$owner')") ne 't';
		is(answer($session), 't', "round $round: waiter $n gets it");
		my $next = look($node, "SELECT lease_token('r', 'w$n')");
		cmp_ok($next, '>', $token, "round $round: with a higher token");
		($owner, $token) = ("w$n", $next);
		$session->quit;
		if ($n == 1)
		{
			# Its backend may still be there when psql has ended.
			ok($node->poll_query_until('postgres', "SELECT lease_acquire('r', '1 hour', 'late')", 'f'),
				"round $round: there is room for one more");
		}
	}
	is(look($node, "SELECT lease_release('r', '$owner')"), 't', "round $round: released");
	nothing_left($node, "round $round");
	$holder->quit;
}

$node->stop;
done_testing();
