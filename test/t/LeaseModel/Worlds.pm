# The state of the model: the possible worlds, and what happens to the leases in
# one of them.
package LeaseModel;

use strict;
use warnings;

use Storable qw(dclone);

our (@resources, $many);
our $s;		# what there is: now, last token seen, and worlds by resource
our @undo;	# when it was at BEGIN and at each savepoint
our $world;	# the one that we are in
our $count;	# of outcomes, by name

# A world has the possible leases of one resource, in the order of their tokens,
# and those at BEGIN and at each savepoint.
#
# A lease has an owner (or none: released, and kept for a while), a mode, the
# hour when it ends, its number of holds, the hour until which a release keeps
# it, and its token if that was seen, else the token that it is after.
my @of_lease = ('owner', 'mode', 'end', 'holds', 'hold', 'payload', 'token', 'after');

sub leases
{
	return $world->{leases};
}

sub worlds
{
	my ($resource) = @_;

	return @{ $s->{worlds}{$resource} };
}

# Identifies a world.
sub description
{
	my ($of) = @_;

	return join ';', map {
		join '|', map { my $lease = $_; join ',', map { $lease->{$_} // '' } @of_lease } @$_
	} $of->{leases}, @{ $of->{before} };
}

# Continue with the worlds in which the rule agrees with the result. The rule
# returns the expected result, or undef if it agrees. If no world is left, this
# returns the expected results.
sub go_on
{
	my ($resource, $rule) = @_;
	my $outcomes = $count;
	my $token = $s->{token};
	my $last_token = $token;
	my (%next, %expected, $met);

	foreach my $before (worlds($resource))
	{
		local $world = dclone($before);
		local $count = {};
		my $expected = $rule->();

		if (defined $expected)
		{
			$expected{$expected} = 1;
		}
		else
		{
			$met //= $count;
			$last_token = max($last_token, $s->{token});
			$next{ description($_) } //= $_ foreach $world, replacements();
		}
		$s->{token} = $token;
	}

	return join ' or ', sort keys %expected unless %next;
	$outcomes->{$_} += $met->{$_} foreach keys %$met;
	$s->{token} = $last_token;
	$s->{worlds}{$resource} = [ map { $next{$_} } sort keys %next ];
	return;
}

# The worlds in which the lease that was just granted took the place of an
# expired lease, if it was granted in a slot.
sub replacements
{
	my $n = delete $world->{may_replace} // 0;

	return map {
		my $other = dclone($world);

		splice @{ $other->{leases} }, $_, 1;
		$other;
	} grep { !taken(leases()->[$_]) } 0 .. $n - 1;
}

sub taken
{
	my ($lease) = @_;

	return $lease->{end} > $s->{now};
}

sub held
{
	my ($lease) = @_;

	return defined $lease->{owner} && $lease->{end} > $s->{now};
}

sub held_by
{
	my ($owner) = @_;
	my ($lease) = grep { held($_) && $_->{owner} eq $owner } @{ leases() };

	return $lease;
}

sub max
{
	my ($x, $y) = @_;

	return $x > $y ? $x : $y;
}

sub min
{
	my ($x, $y) = @_;

	return $x < $y ? $x : $y;
}

# The leases that block a request. If there are none, it can be granted.
sub blockers
{
	my ($call) = @_;
	my @taken = grep { taken($_) } @{ leases() };
	my @exclusive = grep { $_->{mode} eq 'exclusive' } @taken;
	my $own = held_by($call->{owner});

	return @exclusive if @exclusive;
	return @taken if $call->{mode} eq 'exclusive';
	return ($own) if $own;
	return @taken >= ($call->{permits} // $many) ? @taken : ();
}

# The time from which a blocked request may be granted.
sub blocked_until
{
	my ($call, @blockers) = @_;
	my @ends = sort { $a <=> $b } map { $_->{end} } @blockers;

	return $call->{mode} eq 'exclusive' ? $ends[-1] : $ends[0];
}

sub token_seen
{
	my ($lease, $token) = @_;

	return 0 unless $token =~ /^\d+$/;
	return $token == $lease->{token} if defined $lease->{token};
	$lease->{token} = $token;
	return 0 if $token <= $lease->{after};
	$s->{token} = max($s->{token}, $token);
	return 1;
}

# Grant a lease. Expired leases are lost if they or this lease are exclusive.
# Otherwise one of several expired leases in slots may be lost, because this
# lease takes its place.
sub grant
{
	my ($call) = @_;
	my $exclusive = $call->{mode} eq 'exclusive';
	my @expired = grep { defined $_->{owner} && !taken($_) } @{ leases() };

	$count->{'taken over'}++ if grep { $_->{owner} ne $call->{owner} } @expired;
	@{ leases() } = grep {
		taken($_) || defined $_->{owner} && !$exclusive && $_->{mode} ne 'exclusive'
	} @{ leases() };
	$world->{may_replace} = @{ leases() };
	push @{ leases() }, {
		owner => $call->{owner},
		mode => $call->{mode},
		end => $s->{now} + $call->{ttl},
		holds => 1,
		hold => defined $call->{min_hold} ? $s->{now} + $call->{min_hold} : 0,
		payload => $call->{payload},
		after => $s->{token}
	};
	return leases()->[-1];
}

sub try
{
	my ($call) = @_;
	my @blockers = blockers($call);
	my $own = held_by($call->{owner});

	return grant($call) unless @blockers;
	return unless $own && ($call->{if_own} // 'refuse') ne 'refuse' && $own->{mode} eq $call->{mode};

	return renew_as_requested($own, $call) if $call->{if_own} eq 'renew';
	$own->{holds}++;
	$own->{end} = max($own->{end}, $s->{now} + $call->{ttl});
	$own->{hold} = max($own->{hold}, $s->{now} + $call->{min_hold}) if defined $call->{min_hold};
	$own->{payload} = $call->{payload} if defined $call->{payload};
	$count->{'granted again'}++;
	return $own;
}

# Renew the lease with the arguments of the call. Arguments that are not given
# keep their values.
sub renew_as_requested
{
	my ($own, $call) = @_;

	$own->{end} = $s->{now} + $call->{ttl};
	$own->{hold} = $s->{now} + $call->{min_hold} if defined $call->{min_hold};
	$own->{payload} = $call->{payload} if defined $call->{payload};
	$count->{'renewed by a request'}++;
	return $own;
}

# Release a lease. In time, it may be kept for a while, perhaps for longer than it
# would have lasted.
sub finish
{
	my ($lease) = @_;
	my $until = min($lease->{end}, $s->{now});

	$count->{'late release'}++ unless held($lease);
	$until = max($s->{now}, $lease->{hold}) if held($lease);
	$count->{'kept by min_hold'}++ if $until > $s->{now};
	$count->{'kept for longer than the ttl'}++ if $until > $lease->{end};
	$lease->{owner} = $lease->{payload} = undef;
	$lease->{end} = $until;
}

# Release the lease of an owner: the held one, else the latest one.
sub release
{
	my ($owner) = @_;
	my $lease = held_by($owner) // (grep { defined $_->{owner} && $_->{owner} eq $owner } @{ leases() })[-1];

	return 'f' unless $lease;
	if (held($lease) && $lease->{holds} > 1)
	{
		$lease->{holds}--;
		$count->{'released once of several'}++;
	}
	else
	{
		finish($lease);
	}
	return 't';
}

sub yes_or_no
{
	my ($answer, $yes, $name, @words) = @_;
	my $expected = $yes ? 't' : 'f';

	@words = ('done', 'not done') unless @words;
	$count->{ $name . ' ' . $words[ $yes ? 0 : 1 ] }++;
	return $answer eq $expected ? undef : $expected;
}

sub state
{
	my ($resource) = @_;

	return join ' ', sort map {
		join ',', $resource, (defined $_->{owner} ? ($_->{mode}, $_->{owner}, $_->{holds}) : ()),
		  $_->{end} - $s->{now}, $_->{payload} // ()
	} grep { taken($_) } @{ leases() };
}

# Exclusive requests for each of several resources.
sub exclusive_calls
{
	my ($call) = @_;

	return map { { %$call, mode => 'exclusive', resource => $_ } } @{ $call->{resources} };
}

# Continue with the worlds in which the request is granted, or in which it is
# refused.
sub go_on_granted
{
	my ($call) = @_;

	return go_on($call->{resource}, sub { return blockers($call) ? 'refused' : grant($call) && undef });
}

sub go_on_refused
{
	my ($call) = @_;

	return go_on($call->{resource}, sub { return blockers($call) ? undef : 'granted' });
}

# Is there a world in which the request is refused?
sub may_be_refused
{
	my ($call) = @_;

	return grep { local $world = $_; blockers($call) } worlds($call->{resource});
}

# All leases of an owner, held or expired.
sub all_of
{
	my ($owner) = @_;

	return grep { defined $_->{owner} && $_->{owner} eq $owner } @{ leases() };
}

# --- savepoints

# There is no such savepoint, because it was to be set after an error.
sub no_savepoint
{
	my ($answer) = @_;

	$s->{aborted} = 1;
	return $answer eq '3B001' ? undef : '3B001';
}

sub set_savepoint
{
	push @undo, $s->{now};
	go_on($_, sub { push @{ $world->{before} }, dclone(leases()); return }) foreach @resources;
	return;
}

# Forget the savepoints from this one on.
sub forget_savepoints
{
	my ($from) = @_;

	$#undo = $from - 1;
	go_on($_, sub { $#{ $world->{before} } = $from - 1; return }) foreach @resources;
	return;
}

# Tokens are never granted twice, even after a rollback, so they stay seen.
sub go_back
{
	my ($to) = @_;

	$s->{now} = $undo[$to];
	$s->{aborted} = 0;
	go_on($_, sub { $world->{leases} = dclone($world->{before}[$to]); return }) foreach @resources;
	forget_savepoints($to);
	return;
}

1;
