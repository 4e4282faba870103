# A lease that cannot be renewed: the command, which ignores SIGTERM, and its
# child have ended before the next one begins.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaseRunTest;
use LeaseTest;
use List::Util 'max';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $rounds = $ENV{LEASE_RUN_ROUNDS} // 5;
my $at_once = 10;
my $node = start_node('lost', "shared_preload_libraries = lease_lock\nmax_connections = 200");
# Longer by default, so that a slow machine does not matter.
my $ttl = $ENV{LEASE_RUN_ROUNDS} ? 3 : max(20, 8 * slowness($node));
my $folder = PostgreSQL::Test::Utils::tempdir();

sub server_processes
{
	my $postmaster = slurp_file($node->data_dir . '/postmaster.pid') =~ s/\n.*//sr;

	return ($postmaster, split(/\n/, `ps -o pid= --ppid $postmaster` =~ s/ //gr));
}

# While the code cuts the first ones off, the second ones wait for their leases.
sub compete
{
	my ($name, $first_server, $numbers, $cut_off) = @_;
	my (@first, @second);

	foreach my $n (@$numbers)
	{
		push @first, start_run($first_server, "--ttl=${ttl}s", "$name $n", alone("$folder/$name.$n", 'first', 'stubborn'));
	}
	until_log("$folder/$name.$_.log", qr/(first works.*){2}/s) foreach @$numbers;
	foreach my $n (@$numbers)
	{
		push @second, start_run($node, '--ttl=5min', "$name $n", alone("$folder/$name.$n", 'second', 'brief'));
	}
	until_sql('waiters', $node, 'SELECT count(*) FROM lease_waiters', scalar @second);

	$cut_off->();
	is_run(finish_run($_), 75, qr/^$/, qr/the command was ended, since the lease could not be renewed in time/,
		"$name: the first was ended") foreach @first;
	is_run(finish_run($_), 0, qr/^$/, qr//, "$name: the second ran") foreach @second;
	like(slurp("$folder/$name.$_.log"), qr/^first began \d+\n(?:first works \d+\n){2}second began \d+\nsecond ended \d+\n$/,
		"$name: after all processes of the first had ended")
	  foreach @$numbers;
	return;
}

sub in_rounds
{
	my ($code) = @_;

	for (my $n = 1; $n <= $rounds; $n += $at_once)
	{
		my $last = $n + $at_once - 1 < $rounds ? $n + $at_once - 1 : $rounds;

		$code->($n .. $last);
	}
	return;
}

# A network that swallows what passes, in both directions, or answers only.
foreach my $what ([ 'both', 's' ], [ 'answers', 'a' ])
{
	in_rounds(sub {
			my @numbers = @_;
			my $proxy = start_proxy($node);

			compete($what->[0], $proxy->{connstr}, \@numbers, sub { tell_proxy($proxy, $what->[1]) });
			kill('KILL', $proxy->{pid});
			waitpid($proxy->{pid}, 0);
		});
}

# A server that is stopped, for just about a ttl.
in_rounds(sub {
		my @numbers = @_;

		compete('stopped', $node, \@numbers, sub {
				my @server = server_processes();

				kill('STOP', @server);
				sleep $ttl - 0.3 + rand(0.6);
				kill('CONT', @server);
			});
	});

# Broken: ended at once, by --signal first.
my $slow = slowness($node);
my @patient = ('--ttl=' . 18 * $slow . 's', '--kill-after=' . 7 * $slow . 's');
my $run = start_run($node, @patient, '--signal=USR1', 'broken', 'sh', '-c',
	q{trap 'echo signal; exit 5' USR1; touch "$0"; while :; do sleep 0.1; done}, "$folder/broken");
until_true('the command begins', sub { -e "$folder/broken" });
$node->safe_psql('postgres', q{SELECT lease_break('broken'), lease_acquire('broken', '1 hour', 'somebody')});
is_run(finish_run($run), 75, qr/^signal\n$/, qr/lease on "broken": lost: it was broken or taken over; ending the command/,
	'a lease that was broken ends the command at once, with the signal that was chosen');
is(held($node, 'broken'), 1, 'and is not released');

# A stopped process gets the signal, too.
{
	my $proxy = start_proxy($node);

	$run = start_run($proxy->{connstr}, @patient, 'sleeping', 'sh', '-c',
		q{trap 'echo signal; exit 5' TERM; touch "$0"; kill -STOP $$; sleep 1000}, "$folder/sleeping");
	until_true('the command begins', sub { -e "$folder/sleeping" });
	tell_proxy($proxy, 's');
	is_run(finish_run($run), 75, qr/^signal\n$/, qr//, 'a command that is stopped is continued, to handle the signal');
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

# The first answer is lost: asked again with the same owner, nothing is left behind.
{
	my $proxy = start_proxy($node);
	my $blocker = open_session($node);

	$blocker->query_safe(q{BEGIN; SELECT lease_acquire('unheard', '1 hour', 'blocker')});
	$run = start_run($proxy->{connstr}, '-v', 'unheard', 'sh', '-c', 'echo $LEASE_OWNER $LEASE_TOKEN');
	until_sql('it waits', $node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted', 't');
	tell_proxy($proxy, 'a');
	$blocker->query_safe('ROLLBACK');
	until_sql('it is granted', $node, is_held('unheard'), 1);
	my $holder = $node->safe_psql('postgres', q{SELECT owner || ' ' || token FROM lease_status WHERE resource = 'unheard'});
	tell_proxy($proxy, 'k');
	tell_proxy($proxy, 'p');
	is_run(finish_run($run), 0, qr/^\Q$holder\E\n$/, qr/no answer.*asking again.*granted/s, 'an answer that is lost is asked for again');
	is(held($node, 'unheard'), 0, 'and no lease is left behind');

	# The same, but a signal comes before lease_run has asked again.
	$blocker->query_safe(q{BEGIN; SELECT lease_acquire('unheard', '1 hour', 'blocker')});
	$run = start_run($proxy->{connstr}, '--ttl=1h', 'unheard', 'echo', 'no');
	until_sql('it waits', $node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted', 't');
	tell_proxy($proxy, 's');
	$blocker->query_safe('ROLLBACK');
	until_sql('it is granted', $node, is_held('unheard'), 1);
	tell_proxy($proxy, 'k');
	until_true('it asks again', sub { $run->{harness}->pump_nb; $run->{err} =~ /asking again/ });
	kill('STOP', $run->{pid});
	tell_proxy($proxy, 'p');
	kill('TERM', $run->{pid});
	kill('CONT', $run->{pid});
	is_run(finish_run($run), 143, qr/^$/, qr/asking again\n$/, 'a signal after an answer was lost');
	is(held($node, 'unheard'), 0, 'leaves no lease behind');
	$blocker->quit;
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

# The count starts before a request is sent, however late the answer comes; after a wait, with a new request.
{
	my $proxy = start_proxy($node);
	my $blocker = open_session($node);
	my $rounding = 0.01;    # lease_run prints thousandths

	tell_proxy($proxy, 'l');
	$run = lease_run($proxy->{connstr}, '-v', '--ttl=60s', 'late', 'true');
	my ($left) = $run->{err} =~ /granted, token .*, ends in (\S+) s unless/;
	cmp_ok($left, '<=', 60 - 0.6 + $rounding, 'an answer that is 0.6 s late leaves 0.6 s less');
	tell_proxy($proxy, 'p');

	$blocker->query_safe(q{SELECT lease_acquire('counted', '1 hour', 'blocker')});
	$run = start_run($proxy->{connstr}, '-v', '--ttl=60s', 'counted', 'sh', '-c', 'until [ -e "$0" ]; do sleep 0.1; done', "$folder/counted");
	until_sql('it waits', $node, 'SELECT count(*) FROM lease_waiters', 1);
	sleep 3;
	my $released = time;
	$blocker->query_safe(q{SELECT lease_release('counted', 'blocker')});
	until_true('it is granted', sub { $run->{harness}->pump_nb; $run->{err} =~ /started/ });
	($left) = $run->{err} =~ /granted, token .*, ends in (\S+) s unless/;
	cmp_ok($left, '>=', 60 - (time - $released) - $rounding, 'a wait of 3 s does not count');

	tell_proxy($proxy, 'h');
	until_sql('it is renewed', $node, q{SELECT expires_at - granted_at > '62 s' FROM lease_status WHERE resource = 'counted'}, 't');
	my $granted = time;
	sleep 2;
	my $answered = time;
	tell_proxy($proxy, 'p');
	until_true('the answer', sub { $run->{harness}->pump_nb; $run->{err} =~ /renewed, ends in/ });
	($left) = $run->{err} =~ /renewed, ends in (\S+) s/;
	cmp_ok($left, '<=', 60 - ($answered - $granted) + $rounding, 'the same for a renewal');
	append_to_file("$folder/counted", '');
	is_run(finish_run($run), 0, qr/^$/, qr/released/, 'which counts all the same');
	$blocker->quit;
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

# A release whose answer is lost.
{
	my $proxy = start_proxy($node);

	$run = start_run($proxy->{connstr}, 'twice', 'sh', '-c', q{touch "$0"; until [ -e "$0.go" ]; do sleep 0.1; done}, "$folder/twice");
	until_true('the command begins', sub { -e "$folder/twice" });
	tell_proxy($proxy, 'a');
	append_to_file("$folder/twice.go", '');
	until_sql('it is released', $node, is_held('twice'), 0);
	tell_proxy($proxy, 'k');
	tell_proxy($proxy, 'p');
	is_run(finish_run($run), 0, qr/^$/, qr/^$/, 'if the answer to the release is lost, nothing is said of a loss');
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

# A request that the network does not take all at once.
{
	my $proxy = start_proxy($node);

	tell_proxy($proxy, 'l');
	$run = start_run($proxy->{connstr}, '--owner=' . 'o' x 130_000, '--payload="' . 'p' x 130_000 . '"', 'large', 'true');
	is_run(finish_run($run), 64, qr/^$/, qr/ERROR: .*owner/, 'a request that is sent in parts is answered');
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

# The server is away when the command ends.
{
	my $proxy = start_proxy($node);

	$run = start_run($proxy->{connstr}, '--ttl=20s', 'unreleased', 'sh', '-c', q{touch "$0"; until [ -e "$0.go" ]; do sleep 0.1; done; exit 4},
		"$folder/unreleased");
	until_true('the command begins', sub { -e "$folder/unreleased" });
	tell_proxy($proxy, 's');
	append_to_file("$folder/unreleased.go", '');
	is_run(finish_run($run), 4, qr/^$/, qr/lease on "unreleased": not released: .*\n.*hint: It ends by itself, in \d+\.\d s at most/,
		'if it cannot be released, lease_run says so');
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

$node->stop;
done_testing();
