# Sessions hold leases at random, and wait at random for those of the others, in
# all modes, for one of them or any of two. Each deadlock among them is ended by
# one victim, and each victim was part of a deadlock: that is computed here, from
# who holds and waits for what.
#
# DEADLOCK_ROUNDS=n makes n rounds, DEADLOCK_SEED=n begins with that one.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use List::Util qw(max shuffle);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);
use WaitTest;

my $rounds = $ENV{DEADLOCK_ROUNDS} // 5;
my $first = $ENV{DEADLOCK_SEED} // int(rand(1_000_000));
my $timeout = 0.1;	# deadlock_timeout, in seconds

# A waiter is called by those before it, never because they are late.
my $node = start_waiting_node('deadlocks', <<'CONF');
deadlock_timeout = 100ms
lease_lock.handoff_timeout = 1h
fsync = off
lease_lock.durable = off
CONF

my @owners = map { "o$_" } 1 .. 8;
my @resources = map { "r$_" } 1 .. 5;
my $permits = 2;
my %sessions = map { $_ => open_session($node) } @owners;
my %pid_of = map { $_ => $sessions{$_}->query_safe('SELECT pg_backend_pid()') } @owners;

# The options of a request in a mode.
sub in_mode
{
	my ($mode) = @_;

	return "mode => '$mode'" . ($mode eq 'permit' ? ", permits => $permits" : '');
}

# The waits that have not been answered, in the order in which they began: owner,
# resources, and mode.
my @waits;

# The leases that are held, by resource.
sub held_leases
{
	my %held;

	push @{ $held{$_->[0]} }, { owner => $_->[1], mode => $_->[2] }
	  foreach map { [ split /\|/ ] } split(/\n/, look($node, q{SELECT resource, owner, mode FROM lease_status WHERE state = 'held'}));
	return \%held;
}

# Can this waiter get the lease on the resource, if only the owners in %$goes give
# back what they hold, and leave the line?
sub can_get
{
	my ($waiter, $resource, $held, $goes) = @_;
	my @stay = grep { !$goes->{$_->{owner}} && $_->{owner} ne $waiter->{owner} } @{ $held->{$resource} // [] };

	foreach my $before (@waits)
	{
		last if $before == $waiter;
		return 0 if !$goes->{$before->{owner}} && grep { $_ eq $resource } @{ $before->{resources} };
	}
	return 1 if !@stay;
	return 0 if $waiter->{mode} eq 'exclusive' || grep { $_->{mode} eq 'exclusive' } @stay;
	return $waiter->{mode} eq 'shared' || @stay < $permits;
}

# The owners that can never go on, since they wait for each other: all that are
# left when those that do not wait have gone, then those that can get what they
# wait for after them, and so on.
sub stuck
{
	my ($held) = @_;
	my %waits = map { $_->{owner} => 1 } @waits;
	my %goes = map { $_ => 1 } grep { !$waits{$_} } @owners;
	my $before;

	do
	{
		$before = keys %goes;
		foreach my $waiter (@waits)
		{
			$goes{ $waiter->{owner} } = 1 if grep { can_get($waiter, $_, $held, \%goes) } @{ $waiter->{resources} };
		}
	} while (keys %goes > $before);
	return map { $_ => 1 } grep { !$goes{$_} } @owners;
}

sub described
{
	my ($held) = @_;

	return join("\n",
		(map { my $r = $_; "$r: " . join(', ', map { "$_->{owner} $_->{mode}" } @{ $held->{$r} // [] }) } @resources),
		(map { "$_->{owner} waits for $_->{mode} @{ $_->{resources} }" } @waits));
}

# Take back the leases of an owner that does not wait.
sub give_back
{
	my ($owner) = @_;

	$sessions{$owner}->query_safe("SELECT lease_release_all('$owner')");
	return;
}

# The waits that have ended.
sub answered
{
	my %ended = map { $_ => 1 } split(/\n/, look($node, q{SELECT pid FROM pg_stat_activity WHERE state = 'idle' AND query LIKE '%NULL%'}));

	return grep { $ended{ $pid_of{ $_->{owner} } } } @_;
}

# Take the answers of the waits that have ended. A victim was stuck, also without
# the victims before it, and gives back what it holds. Returns what was wrong.
sub take_answers
{
	my ($victims) = @_;
	my @ended = answered(@waits);
	my $held = held_leases();
	my (@refused, @wrong);

	foreach my $wait (@ended)
	{
		my $answer = answer($sessions{ $wait->{owner} });

		if ($answer =~ /40P01: deadlock detected/)
		{
			push @refused, $wait;
			next;
		}
		push @wrong, "$wait->{owner}: $answer" if $answer !~ /^(t|r\d)$/m;
		@waits = grep { $_ != $wait } @waits;
	}
	while (@refused)
	{
		my %stuck = stuck($held);
		my ($victim) = ((grep { $stuck{$_->{owner}} } @refused), $refused[0]);

		push @wrong, "$victim->{owner} is a victim, but not in a deadlock:\n" . described($held) if !$stuck{$victim->{owner}};
		@refused = grep { $_ != $victim } @refused;
		@waits = grep { $_ != $victim } @waits;
		push @$victims, $victim->{owner};
	}
	give_back($_) foreach grep { my $o = $_; !grep { $_->{owner} eq $o } @waits } @$victims;
	return @wrong;
}

# Send a session into a wait for a resource that it does not hold, or any of two.
sub begin_wait
{
	my ($owner) = @_;
	my $held = held_leases();
	my ($resource, $other) = shuffle(grep { my $r = $_; !grep { $_->{owner} eq $owner } @{ $held->{$r} // [] } } @resources);
	my $mode = (qw(exclusive shared permit any))[ rand 4 ];

	return if !$resource || $mode eq 'any' && !$other;
	$sessions{$owner}->query_safe('SELECT');
	send_sql($sessions{$owner}, $mode eq 'any'
		? "SELECT lease_acquire_any('{$resource, $other}', '1 hour', '$owner', NULL)"
		: "SELECT granted FROM lease_request('$resource', '1 hour', '$owner', NULL, @{[ in_mode($mode) ]})");
	push @waits, $mode eq 'any'
	  ? { owner => $owner, resources => [ $resource, $other ], mode => 'exclusive' }
	  : { owner => $owner, resources => [$resource], mode => $mode };
	usleep(5_000) until answered($waits[-1]) || look($node, "SELECT count(*) FROM lease_waiters WHERE owner = '$owner'") > 0;
	return;
}

# How long the deadlock that lasted longest did, in seconds.
my $longest = 0;

sub run_round
{
	my ($round) = @_;
	my (@victims, @wrong, $stuck_since);

	srand $round;
	foreach my $owner (shuffle @owners, @owners)
	{
		my ($resource, $mode) = ($resources[ rand @resources ], (qw(exclusive exclusive shared permit))[ rand 4 ]);

		$sessions{$owner}->query_safe("SELECT granted FROM lease_request('$resource', '1 hour', '$owner', @{[ in_mode($mode) ]})")
		  if !grep { $_->{owner} eq $owner } @{ held_leases()->{$resource} // [] };
	}
	foreach my $owner (grep { rand(1) < 0.9 } shuffle @owners)
	{
		begin_wait($owner);
		push @wrong, take_answers(\@victims) if rand(1) < 0.5;
	}

	# Each deadlock ends by a victim. Then all others go on when leases are given back.
	my $begun = time;
	while (@waits)
	{
		my $before = @victims;

		push @wrong, take_answers(\@victims);
		if (stuck(held_leases()))
		{
			$stuck_since = time if !$stuck_since || @victims > $before;
			$longest = max($longest, time - $stuck_since);
		}
		else
		{
			undef $stuck_since;
			foreach my $owner (@owners)
			{
				give_back($owner) if !grep { $_->{owner} eq $owner } @waits;
			}
		}
		die "round $round does not end:\n" . described(held_leases()) if time > $begun + $WaitTest::LIMIT;
		usleep(5_000);
	}
	give_back($_) foreach @owners;
	is(join("\n", @wrong), '', "round $round: one victim for each deadlock (@victims)");
	return scalar @victims;
}

my $all = 0;
$all += run_round($_) foreach $first .. $first + $rounds - 1;
note(sprintf 'all rounds: %d deadlocks; the longest lasted %.1f times deadlock_timeout', $all, $longest / $timeout);
is(look($node, 'SELECT deadlocks FROM lease_stats'), $all, 'as many as the statistics count');
nothing_left($node, 'at the end');
$_->quit foreach values %sessions;
$node->stop;
done_testing();
