# A model of the leases of one session: what each call must return. The model
# knows nothing of slots and rows, only the holders and the times.
#
# The owner of an expired lease can release it until another lease takes its
# place. The server decides whether another shared lease takes that place, and
# which one if there are several. So the model keeps all possible worlds, and
# drops those in which a result would be wrong. If none is left, the server is
# wrong.
package LeaseModel;

use strict;
use warnings;

use Storable qw(dclone);

my @resources = ('r1', 'r2', 'r3');
my @owners = ('ann', 'bob', 'carl', 'dora');
my $many = 32767;

# Outcomes that a run of many sequences must include for the test to be
# meaningful.
sub outcomes
{
	return ((map { ("$_ granted", "$_ refused") } 'exclusive', 'shared', 'permit', 'all', 'any'),
		(map { ("$_ done", "$_ not done") } 'release', 'renew', 'transfer', 'break'),
		'granted again', 'released once of several', 'kept by min_hold', 'delayed by lock_delay',
		'late release', 'taken over', 'transfer to a holder', 'transaction undone', 'savepoint undone');
}

# --- calls --------------------------------------------------------------------

sub one_of
{
	return $_[ rand @_ ];
}

sub some_of
{
	my @left = @_;
	my $n = 1 + int(rand(@left));

	return map { splice(@left, rand(@left), 1) } 1 .. $n;
}

sub hours
{
	my ($n) = @_;

	return !defined $n ? 'NULL' : $n == 0 ? q{'1 microsecond'} : "'$n h'";
}

sub array
{
	return 'ARRAY[' . join(',', map { "'$_'" } @_) . ']';
}

# Kinds of random calls: how often each occurs, and how to make it.
my @kinds = (
	[ 4, 'acquire', sub { return { mode => 'exclusive' } } ],
	[ 5, 'acquire', sub { return { mode => 'shared' } } ],
	[ 6, 'acquire', sub { return { mode => 'permit', permits => one_of(1, 2, 2, 3, $many) } } ],
	[ 3, 'all', sub { return { resources => [ some_of(@resources) ] } } ],
	[ 3, 'any', sub { return { resources => [ some_of(@resources) ] } } ],
	[ 8, 'request', \&random_request ],
	[ 8, 'release', sub { return {} } ],
	[ 2, 'release_all', sub { return {} } ],
	[ 3, 'renew', sub { return {} } ],
	[ 4, 'token', sub { return {} } ],
	[ 3, 'transfer', sub { return { new_owner => one_of(@owners) } } ],
	[ 2, 'break', sub { return {} } ],
	[ 1, 'purge', sub { return {} } ],
	[ 4, 'pass', sub { return { hours => one_of(1, 1, 2, 5) } } ],
	[ 4, 'state', sub { return {} } ]);

sub random_request
{
	my ($call) = @_;
	my $mode = one_of('exclusive', 'shared', 'permit');

	return {
		mode => $mode,
		permits => $mode eq 'permit' ? one_of(1, 2, 3) : undef,
		if_own => one_of('refuse', 'renew', 'count'),
		min_hold => one_of(undef, $call->{ttl}, int($call->{ttl} / 2)) || undef,
		lock_delay => one_of(undef, undef, 1, 3),
		payload => one_of(undef, undef, '1', '2')
	};
}

sub random_call
{
	my $call = {
		resource => one_of(@resources),
		owner => one_of(@owners),
		ttl => one_of(0, 1, 1, 2, 4),
		wait => one_of((undef) x 9, q{'1 microsecond'})
	};
	my $total = 0;
	my $pick;

	$total += $_->[0] foreach @kinds;
	$pick = rand $total;
	foreach (@kinds)
	{
		my ($weight, $name, $make) = @$_;

		next if ($pick -= $weight) >= 0;
		%$call = (%$call, name => $name, %{ $make->($call) });
		last;
	}
	return $call;
}

# The SQL of a call. Without a wait, it is the other form of the function.
sub sql
{
	my ($call) = @_;
	my $name = $call->{name};
	my $resource = "'$call->{resource}'";
	my $owner = "'$call->{owner}'";
	my $rest = hours($call->{ttl}) . ", $owner" . (defined $call->{wait} ? ", $call->{wait}" : '');

	if ($name eq 'acquire')
	{
		return "SELECT lease_acquire($resource, $rest)" if $call->{mode} eq 'exclusive';
		return "SELECT lease_acquire_shared($resource, $rest)" if $call->{mode} eq 'shared';
		return "SELECT lease_acquire_permit($resource, $call->{permits}, $rest)";
	}
	return "SELECT lease_acquire_$name(" . array(@{ $call->{resources} }) . ", $rest)"
	  if $name eq 'all' || $name eq 'any';
	if ($name eq 'request')
	{
		return "SELECT ask($resource, " . join(', ', hours($call->{ttl}), $owner, $call->{wait} // q{'0'},
			"'$call->{mode}'", $call->{permits} // 'NULL', "'$call->{if_own}'", hours($call->{min_hold}),
			hours($call->{lock_delay}), defined $call->{payload} ? "'$call->{payload}'" : 'NULL') . ')';
	}
	return "SELECT lease_renew($resource, " . hours($call->{ttl}) . ", $owner)" if $name eq 'renew';
	return "SELECT lease_transfer($resource, $owner, '$call->{new_owner}')" if $name eq 'transfer';
	return "SELECT lease_release_all($owner)" if $name eq 'release_all';
	return "SELECT lease_break($resource)" if $name eq 'break';
	return "SELECT pass($call->{hours})" if $name eq 'pass';
	return "SELECT $name()" if $name eq 'state' || $name eq 'purge';
	return "SELECT lease_$name($resource, $owner)";
}

# A sequence of calls, always the same for a seed. Some calls are in
# transactions and after savepoints, which may be rolled back.
sub random_calls
{
	my ($seed) = @_;
	my @calls;
	my $depth = 0;

	srand $seed;
	foreach (1 .. 10 + rand 40)
	{
		my $call = random_call();
		my $chance = rand;
		my $control =
			$depth == 0 ? ($chance < 0.1 ? 'BEGIN' : undef)
		  : $chance < 0.08 && $depth < 4 ? 'SAVEPOINT s'
		  : $chance < 0.16 && $depth > 1 ? 'ROLLBACK TO s'
		  : $chance < 0.20 && $depth > 1 ? 'RELEASE s'
		  : $chance < 0.26 ? 'COMMIT'
		  : $chance < 0.34 ? 'ROLLBACK'
		  : undef;

		if (defined $control)
		{
			push @calls, { name => $control, sql => $control };
			$depth += { BEGIN => 1, 'SAVEPOINT s' => 1, 'RELEASE s' => -1, 'ROLLBACK TO s' => 0 }->{$control} // -$depth;
		}
		push @calls, { %$call, sql => sql($call) };
	}
	push @calls, { name => 'state', sql => 'SELECT state()' };
	return @calls;
}

# --- the model ----------------------------------------------------------------

my $s;		# what there is: now, last token seen, and worlds by resource
my @undo;	# when it was at BEGIN and at each savepoint
our $world;	# the one that we are in
our $count;	# of outcomes, by name

# A world has the possible leases of one resource, in the order of their tokens,
# and those at BEGIN and at each savepoint.
#
# A lease has an owner (or none: released, and kept for a while), a mode, the
# hour when it ends, its number of holds, a delay, the hour until which a
# release keeps it, and its token if that was seen, else the token that it is
# after.
my @of_lease = ('owner', 'mode', 'end', 'holds', 'delay', 'hold', 'payload', 'token', 'after');

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

sub free_at
{
	my ($lease) = @_;

	return $lease->{end} + $lease->{delay};
}

sub taken
{
	my ($lease) = @_;

	return free_at($lease) > $s->{now};
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
	my @ends = sort { $a <=> $b } map { free_at($_) } @blockers;

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
		delay => $call->{lock_delay} // 0,
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
	$own->{delay} = $call->{lock_delay} if defined $call->{lock_delay};
	$own->{payload} = $call->{payload} if defined $call->{payload};
	$count->{'renewed by a request'}++;
	return $own;
}

# Release a lease. It may be kept for a while.
sub finish
{
	my ($lease, $free_at) = @_;

	$count->{'late release'}++ unless held($lease);
	$lease->{owner} = $lease->{payload} = undef;
	$lease->{end} = min($lease->{end}, $free_at);
	$lease->{delay} = 0;
	$count->{'kept by min_hold'}++ if taken($lease);
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
		finish($lease, max($s->{now}, held($lease) ? $lease->{hold} : 0));
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
		  free_at($_) - $s->{now}, $_->{payload} // ()
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

# The effect of each call on a world. Gets the server's result and returns
# undef, or the expected result.
my %rules = (
	acquire => sub {
		my ($call, $answer) = @_;

		return yes_or_no($answer, scalar try($call), $call->{mode}, 'granted', 'refused');
	},

	request => sub {
		my ($call, $answer) = @_;
		my $lease = try($call);

		if ($lease)
		{
			my $end = $lease->{end} - $s->{now};

			return $answer =~ /^t,(\d+),(-?\d+)$/ && token_seen($lease, $1) && $2 == $end ? undef : "t,token,$end";
		}

		my @blockers = blockers($call);
		my $until = blocked_until($call, @blockers) - $s->{now};
		my %right = map { join(',', 'f', $_->{owner} // (), $until) => 1 } @blockers;

		# one of several holders, if any is known
		delete $right{"f,$until"} if keys %right > 1;
		$count->{'delayed by lock_delay'}++ if grep { $_->{end} <= $s->{now} } @blockers;
		return $right{$answer} ? undef : join(' or ', sort keys %right);
	},

	release => sub {
		my ($call, $answer) = @_;
		my $expected = release($call->{owner});

		$count->{ $answer eq 't' ? 'release done' : 'release not done' }++;
		return $answer eq $expected ? undef : $expected;
	},

	renew => sub {
		my ($call, $answer) = @_;
		my $lease = held_by($call->{owner});

		$lease->{end} = max($lease->{end}, $s->{now} + $call->{ttl}) if $lease;
		return yes_or_no($answer, $lease, 'renew');
	},

	token => sub {
		my ($call, $answer) = @_;
		my $lease = held_by($call->{owner});

		return $answer eq '' ? undef : 'no token' unless $lease;
		return token_seen($lease, $answer) ? undef : 'token ' . ($lease->{token} // "above $lease->{after}");
	},

	transfer => sub {
		my ($call, $answer) = @_;
		my $lease = held_by($call->{owner});
		my $other = held_by($call->{new_owner});

		$count->{ $lease ? 'transfer done' : 'transfer not done' }++;
		return $answer eq '' ? undef : 'nothing' unless $lease;
		if ($other && $other != $lease)
		{
			$count->{'transfer to a holder'}++;
			return 'error 55006' unless $answer eq '55006';
			$s->{aborted} = @undo > 0;
			return;
		}
		$lease->{owner} = $call->{new_owner};
		$lease->{holds} = 1;
		$lease->{after} = $s->{token};
		delete $lease->{token};
		@{ leases() } = ((grep { $_ != $lease } @{ leases() }), $lease);
		return token_seen($lease, $answer) ? undef : "token above $lease->{after}";
	},

	break => sub {
		my ($call, $answer) = @_;
		my @taken = grep { taken($_) } @{ leases() };

		foreach (@taken)
		{
			$_->{owner} = $_->{payload} = undef;
			$_->{end} = min($_->{end}, $s->{now});
			$_->{delay} = 0;
		}
		return yes_or_no($answer, scalar @taken, 'break');
	});

# The same for calls on more than one resource.
my %wide_rules = (
	all => sub {
		my ($call, $answer) = @_;
		my @calls = exclusive_calls($call);
		my @refused = grep { may_be_refused($_) } @calls;

		$count->{ $answer eq 't' ? 'all granted' : 'all refused' }++;
		if ($answer eq 't')
		{
			return (grep { defined go_on_granted($_) } @calls) ? 'f' : undef;
		}
		go_on_refused($refused[0]) if @refused == 1;
		return $answer eq 'f' && @refused ? undef : 't';
	},

	any => sub {
		my ($call, $answer) = @_;

		$count->{ $answer ne '' ? 'any granted' : 'any refused' }++;
		foreach (exclusive_calls($call))
		{
			return defined go_on_granted($_) ? "not $answer" : undef if $_->{resource} eq $answer;
			return $_->{resource} if defined go_on_refused($_);
		}
		return $answer eq '' ? undef : 'one of these, or none';
	},

	release_all => sub {
		my ($call, $answer) = @_;
		my %sums = (0 => [ [] ]);	# how many it may be, and of which resource

		foreach my $resource (@resources)
		{
			my %counts = map { local $world = $_; (scalar all_of($call->{owner}) => 1) } worlds($resource);
			my %longer;

			foreach my $sum (keys %sums)
			{
				foreach my $n (keys %counts)
				{
					push @{ $longer{ $sum + $n } }, map { [ @$_, $n ] } @{ $sums{$sum} };
				}
			}
			%sums = %longer;
		}
		return join ' or ', sort keys %sums unless $sums{$answer};

		foreach my $i (0 .. $#resources)
		{
			my %right = map { $_->[$i] => 1 } @{ $sums{$answer} };

			go_on($resources[$i], sub {
				my @own = all_of($call->{owner});

				finish($_, max($s->{now}, $_->{hold})) foreach @own;
				return $right{ scalar @own } ? undef : 'another number';
			});
		}
		return;
	},

	purge => sub {
		my ($call, $answer) = @_;

		foreach (@resources)
		{
			go_on($_, sub { @{ leases() } = grep { taken($_) } @{ leases() }; return });
		}
		return $answer eq '0' ? undef : '0 rows left';
	},

	pass => sub {
		my ($call, $answer) = @_;

		$s->{now} += $call->{hours};
		return $answer eq 'passed' ? undef : 'passed';
	},

	state => sub {
		my ($call, $answer) = @_;
		my @expected = map {
			my $resource = $_;
			my $shown = join ' ', sort grep { /^$resource,/ } split / /, $answer;

			go_on($resource, sub { my $expected = state($resource); return $shown eq $expected ? undef : $expected });
		} @resources;

		return (grep { defined } @expected) ? 'state ' . join ' ', grep { defined } @expected : undef;
	},

	BEGIN => \&set_savepoint,
	'SAVEPOINT s' => \&set_savepoint,
	COMMIT => sub { $s->{aborted} ? go_back(0) : forget_savepoints(0); return },
	ROLLBACK => sub { go_back(0); $count->{'transaction undone'}++; return },

	'ROLLBACK TO s' => sub {
		my ($call, $answer) = @_;

		return no_savepoint($answer) if @undo < 2;
		go_back($#undo);
		set_savepoint();
		$count->{'savepoint undone'}++;
		return;
	},

	'RELEASE s' => sub {
		my ($call, $answer) = @_;

		return no_savepoint($answer) if @undo < 2;
		forget_savepoints($#undo);
		return;
	},);

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

# Check the answers of a sequence. Returns what is wrong, if anything.
sub check
{
	my ($calls, $answers, $outcomes) = @_;
	my @shown;

	$s = { now => 0, token => 0, worlds => { map { $_ => [ { leases => [], before => [] } ] } @resources } };
	@undo = ();
	$count = $outcomes;
	foreach my $i (0 .. $#$calls)
	{
		my $call = $calls->[$i];
		my $answer = $answers->[$i];
		my $expected;

		if (!defined $answer)
		{
			$expected = 'an answer';
		}
		elsif ($s->{aborted} && $call->{name} !~ /^(COMMIT|ROLLBACK.*)$/)
		{
			$expected = $answer eq '25P02' ? undef : '25P02';
		}
		else
		{
			$expected = $wide_rules{ $call->{name} } ? $wide_rules{ $call->{name} }->($call, $answer) :
			  go_on($call->{resource}, sub { return $rules{ $call->{name} }->($call, $answer) });
		}

		push @shown, "$call->{sql};  -- " . ($answer // '(nothing)');
		return join("\n", "expected $expected", @shown) if defined $expected;
	}
	return;
}

1;
