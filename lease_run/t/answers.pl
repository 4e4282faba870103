# Answers that are lost or late: lease_run finds out whether it has the lease, leaves none behind, and counts its time from
# before it asked.
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

my $node = start_node('answers', 'shared_preload_libraries = lease_lock');
my $folder = PostgreSQL::Test::Utils::tempdir();
my $nothing = qr/^$/;
my $run;

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

# An owner that the user chose may have the lease elsewhere. So after an answer was lost, it is not granted to "the owner who
# has it": two commands would run.
{
	my $proxy = start_proxy($node);

	$node->safe_psql('postgres', q{SELECT lease_acquire('chosen', '1 hour', 'me')});
	foreach my $end ('TERM', 'release')
	{
		$run = start_run($proxy->{connstr}, '--owner=me', 'chosen', 'echo', 'ran');
		until_sql('a waiter', $node, q{SELECT count(*) FROM lease_waiters WHERE resource = 'chosen'}, 1);
		tell_proxy($proxy, 'k');
		until_true('it asks again', sub { $run->{harness}->pump_nb; $run->{err} =~ /asking again/ });
		until_true('it waits, or runs', sub { $run->{harness}->pump_nb;
				$run->{out} || $node->safe_psql('postgres', q{SELECT count(*) FROM lease_waiters WHERE resource = 'chosen'}) });
		is($run->{out}, '', '--owner has it elsewhere: an answer that was lost is no grant');
		kill('TERM', $run->{pid}) if $end eq 'TERM';
		$node->safe_psql('postgres', q{SELECT lease_release('chosen', 'me')}) if $end eq 'release';
		is_run(finish_run($run), $end eq 'TERM' ? 143 : 0, $end eq 'TERM' ? $nothing : qr/^ran\n$/, qr/asking again/, "then $end");
		is(held($node, 'chosen'), 1, 'SIGTERM does not release the lease of somebody else') if $end eq 'TERM';
	}
	kill('KILL', $proxy->{pid});
	waitpid($proxy->{pid}, 0);
}

# An answer that comes late was a grant, which is over, and the owner has the lease elsewhere since: that is neither taken nor
# released.
foreach my $end ('TERM', 'CONT')
{
	my $observed = q{FROM lease_status WHERE resource = 'late' AND state = 'held' AND owner = 'me'};

	$node->safe_psql('postgres', q{SELECT lease_acquire('late', '1 hour', 'other')});
	$run = start_run($node, '--owner=me', '--ttl=2s', 'late', 'echo', 'ran');
	until_sql('a waiter', $node, q{SELECT count(*) FROM lease_waiters WHERE resource = 'late'}, 1);
	kill('STOP', $run->{pid});
	$node->safe_psql('postgres', q{SELECT lease_release('late', 'other')});
	until_sql('it is granted', $node, "SELECT count(*) $observed", 1);
	until_sql('that is over', $node, "SELECT count(*) $observed", 0);
	my $token = $node->safe_psql('postgres', q{SELECT token FROM lease_request('late', '1 hour', 'me')});
	kill($end, $run->{pid});
	kill('CONT', $run->{pid});
	until_true('it waits again, or runs', sub { $run->{harness}->pump_nb;
			$run->{out} || $node->safe_psql('postgres', q{SELECT count(*) FROM lease_waiters WHERE resource = 'late'}) })
	  if $end eq 'CONT';
	kill('TERM', $run->{pid});
	is_run(finish_run($run), 143, $nothing, qr//, "--owner: an answer that came too late, $end");
	is($node->safe_psql('postgres', "SELECT token $observed"), $token, 'what the owner has since is kept');
	$node->safe_psql('postgres', q{SELECT lease_break('late')});
}

# If the lost answer was a grant, that has to end first. If there is no time for that, the outcome is not known.
my $patience = 6 * slowness($node);
foreach my $limit ([ '--ttl=3s', 0, qr/^ran\n$/, qr/asking again/ ],
	[ '--ttl=1h', 69, $nothing, qr/error: lease on "lost": taken by the same owner; that may be a grant whose answer was lost/ ])
{
	my ($ttl, $status, $out, $message) = @$limit;
	my $proxy = start_proxy($node);
	my $blocker = open_session($node);

	$blocker->query_safe(q{BEGIN; SELECT lease_acquire('lost', '1 hour', 'blocker')});
	$run = start_run($proxy->{connstr}, '--owner=me', $ttl, $status ? "--wait=${patience}s" : '--wait=1h', 'lost', 'echo', 'ran');
	until_sql('it waits', $node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted', 't');
	tell_proxy($proxy, 'a');
	$blocker->query_safe('ROLLBACK');
	until_sql('it is granted', $node, q{SELECT count(*) FROM lease_status WHERE resource = 'lost' AND owner = 'me'}, 1);
	tell_proxy($proxy, 'k');
	tell_proxy($proxy, 'p');
	is_run(finish_run($run), $status, $out, $message, "--owner: an answer that was lost was a grant, $ttl");
	$node->safe_psql('postgres', q{SELECT lease_break('lost')});
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
