# The server's wall clock is stepped while sessions wait: a wait of two seconds
# takes two seconds. Behind an open transaction the server's lock_timeout ends
# the wait; that goes by the wall clock, and libfaketime cannot show it, since
# it does not reach signal handlers.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime time CLOCK_MONOTONIC);
use WaitTest;

my ($library) = grep { -e $_ }
  map { ("$_/faketime/libfaketime.so.1", "$_/libfaketime.so.1") }
  glob('/usr/lib/*-linux-gnu /usr/lib64 /usr/lib /usr/local/lib');

plan skip_all => 'needs libfaketime (package libfaketime or faketime)' if !$library;

# Difference between the server's clock and the true time, in seconds.
my $offset_file = PostgreSQL::Test::Utils::tempdir() . '/offset';

sub step_clock
{
	my ($offset) = @_;

	# Replaced in one step, since the server may read it at any time.
	append_to_file("$offset_file.new", "$offset\n");
	rename("$offset_file.new", $offset_file) or die "could not set the clock: $!";
	return;
}

sub seconds
{
	return clock_gettime(CLOCK_MONOTONIC);
}

step_clock('+0');
my $node;
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{FAKETIME_TIMESTAMP_FILE} = $offset_file;
	local $ENV{FAKETIME_NO_CACHE} = 1;
	local $ENV{FAKETIME_DONT_FAKE_MONOTONIC} = 1;
	$node = start_waiting_node('clock_step', '');
}

# Test that the server's clock has this difference, give or take a second.
sub clock_is_off_by
{
	my ($offset, $name) = @_;
	my $earliest = time + $offset - 1;
	my $clock = look($node, 'SELECT extract(epoch FROM clock_timestamp())');
	my $latest = time + $offset + 1;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($clock >= $earliest && $clock <= $latest, $name) or diag("$clock is not from $earliest to $latest");
	return;
}

clock_is_off_by(0, 'the clock is right');

foreach my $hours (-1, +1)
{
	my $offset = sprintf('%+d', $hours * 3600);
	my %waits = (
		'lease_acquire' => q{SELECT lease_acquire('held', '1 hour', 'w1', '%d ms')},
		'lease_wait' => q{CALL lease_wait('held', '1 hour', 'w2', '%d ms')},
	);
	my %session;

	look($node, q{SELECT lease_acquire('held', '1 day', 'holder')});

	foreach my $what (sort keys %waits)
	{
		my ($wait, $since) = step_in_wait($session{$what} = open_session($node), $waits{$what}, $offset);

		clock_is_off_by($offset, "$offset s, $what: the clock was stepped");
		like(answer_in_time($session{$what}, $wait + $WaitTest::LIMIT), qr/^f(\|\|)?$/, "$offset s, $what: runs out of time");
		my $waited = seconds() - $since;
		cmp_ok($waited, '>=', $wait - 0.01, "$offset s, $what: not before its time");
		cmp_ok($waited, '<', $wait + $WaitTest::LIMIT, "$offset s, $what: and not an hour later");
		step_clock('+0');
	}
	step_clock($offset);

	# Releases still work, and so do the deadlines of the other waiters.
	send_to_wait($node, $session{'lease_acquire'}, q{SELECT lease_acquire('held', '1 day', 'w1', '1 min')});
	step_clock('+0');
	is(look($node, q{SELECT lease_release('held', 'holder')}), 't', "$offset s: stepped back, and released");
	is(answer($session{'lease_acquire'}), 't', "$offset s: the waiter gets it");
	is(look($node, q{SELECT lease_release('held', 'w1')}), 't', "$offset s: and releases it");
	nothing_left($node, "$offset s");
	$_->quit foreach values %session;
}

# Send a session into a wait, and step the clock before that is over; returns the
# seconds that it may wait, and when it began at the earliest.
sub step_in_wait
{
	my ($session, $sql, $offset) = @_;

	for (my $first = 2000;; $first *= 2)
	{
		my $since;
		my (undef, $ms) = send_to_short_wait($node, $session, sub { $since = seconds(); sprintf($sql, $_[0]) }, in_queue(), first => $first);

		step_clock($offset);
		return ($ms / 1000, $since) if seconds() - $since < $ms / 1000;
		answer($session);
		step_clock('+0');
	}
}

# The answer of a session, or a note that there was none within the time limit.
sub answer_in_time
{
	my ($session, $limit) = @_;
	my $end = seconds() + $limit;

	$session->{stdin} .= "\\echo done\n";
	while ($session->{stdout} !~ /done\n/ && seconds() < $end)
	{
		$session->{run}->pump_nb;
		select(undef, undef, undef, 0.01);
	}
	if ($session->{stdout} !~ s/\s*done\n//)
	{
		look($node, q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query ~ 'lease_(acquire|wait)'});
		$session->{run}->pump until $session->{stdout} =~ s/\s*done\n//;
		$session->{stdout} .= 'too late';
	}
	my $said = $session->{stdout} . $session->{stderr};
	$session->{stdout} = $session->{stderr} = '';
	return $said;
}

$node->stop;
done_testing();
