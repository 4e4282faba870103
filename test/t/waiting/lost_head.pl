# The first waiter is woken because the lease is free, and leaves without taking
# it. Then the next waiter gets the lease. The first waiter is stopped before the
# release, and continues when its wait is to end, so that the order is certain.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

plan skip_all => 'no signal stops a process here' if $windows_os;

my $node = start_waiting_node('lost_head', $WaitTest::NEVER);

# How it leaves: SQL that it runs before, its wait, a condition to wait for, what
# is done to the backend, and its answer. Times are chosen by send_to_short_wait().
my %ways = (
	'cancelled' => { do => 'pg_cancel_backend', says => qr/ERROR:  57014: .*user request/ },
	'killed' => { do => 'pg_terminate_backend', says => qr/FATAL:  57P01/ },
	'statement_timeout' => {
		before => q{SET statement_timeout = '%d ms';},
		when => q{SELECT clock_timestamp() > query_start + interval '%d ms' + interval '100 ms' FROM pg_stat_activity WHERE pid = },
		says => qr/ERROR:  57014: .*statement timeout/,
	},
	'out of time' => {
		wait => q{'%d ms'},
		when => q{SELECT clock_timestamp() > deadline + interval '100 ms' FROM lease_waiters WHERE pid = },
		says => qr/^[tf]$/,
	},
);

foreach my $call ('lease_acquire', 'lease_wait')
{
	foreach my $how (sort keys %ways)
	{
		my %way = %{ $ways{$how} };
		my $name = "$call, $how";
		my $head = open_session($node);
		my $next = open_session($node);
		my $last = open_session($node);
		my $sql = $call eq 'lease_wait' ? 'CALL lease_wait' : 'SELECT lease_acquire';

		look($node, qq{SELECT lease_acquire('$name', '1 hour', 'holder')});
		my ($pid, $ms) = send_to_short_wait($node, $head, sub {
				my ($before, $wait) = map { s/%d/$_[0]/r } $way{before} // '', $way{wait} // 'NULL';

				return "$before\n$sql('$name', '1 hour', 'head', $wait)";
			}, in_queue(), stop => 1);
		send_to_wait($node, $next, "SELECT lease_acquire('$name', '1 hour', 'next', NULL)");
		send_to_wait($node, $last, "SELECT lease_acquire('$name', '1 hour', 'last', NULL)");
		becomes($node, $way{when} =~ s/%d/$ms/r . $pid, 't', "$name: its time has come") if $way{when};
		is(look($node, qq{SELECT lease_release('$name', 'holder')}), 't', "$name: the lease is released");
		is(look($node, qq{SELECT string_agg(owner, ',') FROM lease_waiters}), 'head,next,last', "$name: it has its turn");
		look($node, "SELECT $way{do}($pid)") if $way{do};
		continue_backend($pid);

		my $said = $how eq 'killed' ? last_words($head) : answer($head);
		like($said, $way{says}, "$name: ends");
		look($node, qq{SELECT lease_release('$name', 'head')}) if $said eq 't';

		becomes($node, qq{SELECT lease_token('$name', 'next') > 0}, 't', "$name: the next one has it")
		  or look($node, qq{SELECT pg_cancel_backend(pid) FROM lease_waiters});
		is(answer($next), 't', "$name: it was granted");
		is(look($node, qq{SELECT lease_release('$name', 'next')}), 't', "$name: and releases it");
		is(answer($last), 't', "$name: so that the last one has it");
		nothing_left($node, $name);
		reset_settings($head) if $how eq 'statement_timeout';
		is($head->query_safe(q{SELECT lease_acquire('still there', '1 ms', 'x', '1 min')}), 't', "$name: the session goes on")
		  if $how ne 'killed';
		$_->quit foreach ($how eq 'killed' ? () : $head), $next, $last;
	}
}

# A waiter in the middle, or at the end, leaves without a trace.
{
	my @sessions = map { open_session($node) } 1 .. 4;
	my @pids;

	look($node, q{SELECT lease_acquire('r', '1 hour', 'holder')});
	push @pids, send_to_wait($node, $sessions[$_], "SELECT lease_acquire('r', '1 hour', 'w$_', NULL)") foreach 0 .. 3;
	look($node, "SELECT pg_cancel_backend($pids[1]), pg_cancel_backend($pids[3])");
	becomes($node, q{SELECT string_agg(owner || position, ',') FROM lease_waiters}, 'w01,w22', 'two of four are gone');
	is(look($node, q{SELECT lease_release('r', 'holder')}), 't', 'the lease is released');
	is(answer($sessions[0]), 't', 'the first one gets it');
	is(look($node, q{SELECT lease_release('r', 'w0')}), 't', 'and releases it');
	is(answer($sessions[2]), 't', 'then the third');
	nothing_left($node, 'r');
}

$node->stop;
done_testing();
