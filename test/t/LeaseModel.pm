# A model of the leases of one session: what each call has to answer. It knows
# nothing of slots and rows, only who has what until when.
#
# A lease whose time is over is still its owner's to release until somebody
# takes its place. Whether another holder of a shared resource takes just that
# place is up to the server: both answers are right, and the model goes on
# with the one that it got.
package LeaseModel;

use strict;
use warnings;

use Storable qw(dclone);

my @resources = ('r1', 'r2', 'r3');
my @owners = ('ann', 'bob', 'carl', 'dora');
my $many = 32767;

# What a run of many sequences must have met, for the test to mean something.
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

# What random calls are made of: how often, and how to make one.
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
		reentrant => one_of('true', 'false'),
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

# The SQL of a call. No wait is the other form of the function.
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
			"'$call->{mode}'", $call->{permits} // 'NULL', $call->{reentrant}, hours($call->{min_hold}),
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

# A sequence of calls, always the same for a seed. Some are in transactions
# and behind savepoints, which may be undone.
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

my $s;		# what there is: now, last token seen, and leases by resource
my @undo;	# what there was at BEGIN and at each savepoint
my $count;	# of outcomes, by name

# A lease has an owner (or none: released, and kept for a while), a mode, the
# hour when it ends, how often it is held, a delay, the hour until which a release
# keeps it, and a token when one was seen. Uncertain: expired, and its place may
# have been taken.
sub leases
{
	my ($resource) = @_;

	return $s->{leases}{$resource} //= [];
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
	my ($resource, $owner) = @_;
	my ($lease) = grep { held($_) && $_->{owner} eq $owner } @{ leases($resource) };

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

# Who is in the way of a request? Nothing: it can be granted.
sub blockers
{
	my ($call) = @_;
	my @taken = grep { taken($_) } @{ leases($call->{resource}) };
	my @exclusive = grep { $_->{mode} eq 'exclusive' } @taken;
	my $own = held_by($call->{resource}, $call->{owner});

	return @exclusive if @exclusive;
	return @taken if $call->{mode} eq 'exclusive';
	return ($own) if $own;
	return @taken >= ($call->{permits} // $many) ? @taken : ();
}

# When may a blocked request look again?
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

# Give the lease. Those that expired are gone for certain when it is the
# place of the same exclusive lease, or of the same owner's.
sub grant
{
	my ($call) = @_;
	my $lease = {
		owner => $call->{owner},
		mode => $call->{mode},
		end => $s->{now} + $call->{ttl},
		holds => 1,
		delay => $call->{lock_delay} // 0,
		hold => defined $call->{min_hold} ? $s->{now} + $call->{min_hold} : 0,
		payload => $call->{payload},
		after => $s->{token}
	};
	my @expired = grep { !taken($_) } @{ leases($call->{resource}) };

	$count->{'taken over'}++ if grep { defined $_->{owner} && $_->{owner} ne $call->{owner} } @expired;
	$_->{uncertain} = 1 foreach @expired;
	$s->{leases}{ $call->{resource} } = [ (grep {
			taken($_) || defined $_->{owner} && !($_->{mode} eq 'exclusive' && $call->{mode} eq 'exclusive') }
			@{ leases($call->{resource}) }), $lease ];
	return $lease;
}

sub try
{
	my ($call) = @_;
	my @blockers = blockers($call);
	my $own = held_by($call->{resource}, $call->{owner});

	return grant($call) unless @blockers;
	return unless $own && ($call->{reentrant} // '') eq 'true' && $own->{mode} eq $call->{mode};

	$own->{holds}++;
	$own->{end} = max($own->{end}, $s->{now} + $call->{ttl});
	$own->{hold} = max($own->{hold}, $s->{now} + $call->{min_hold}) if defined $call->{min_hold};
	$own->{payload} = $call->{payload} if defined $call->{payload};
	$count->{'granted again'}++;
	return $own;
}

# Give a lease back: nobody has it, but it may be kept for a while.
sub finish
{
	my ($lease, $free_at) = @_;

	$count->{'late release'}++ unless held($lease);
	$lease->{owner} = $lease->{payload} = undef;
	$lease->{end} = min($lease->{end}, $free_at);
	$lease->{delay} = 0;
	$count->{'kept by min_hold'}++ if taken($lease);
}

sub release
{
	my ($resource, $owner, $answer) = @_;
	my $lease = held_by($resource, $owner);

	if (!$lease)
	{
		my @late = grep { defined $_->{owner} && $_->{owner} eq $owner } @{ leases($resource) };
		my @certain = grep { !$_->{uncertain} } @late;

		return $answer eq 'f' ? undef : 'f' unless @late;
		return 't' if @certain && $answer ne 't';
		if ($answer eq 't')
		{
			# The latest one.
			finish($late[-1], $s->{now});
			return;
		}
		$s->{leases}{$resource} = [ grep { !defined $_->{owner} || $_->{owner} ne $owner } @{ leases($resource) } ];
		return $answer eq 'f' ? undef : 't or f';
	}

	if ($lease->{holds} > 1)
	{
		$lease->{holds}--;
		$count->{'released once of several'}++;
	}
	else
	{
		finish($lease, max($s->{now}, $lease->{hold}));
	}
	return $answer eq 't' ? undef : 't';
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
	return join ' ', sort map {
		my $resource = $_;
		map {
			join ',', $resource, (defined $_->{owner} ? ($_->{mode}, $_->{owner}, $_->{holds}) : ()),
			  free_at($_) - $s->{now}, $_->{payload} // ()
		} grep { taken($_) } @{ leases($resource) }
	} @resources;
}

# What each call does. Gets the server's answer and returns undef, or what it
# should have been.
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

		# One of several holders, if any is known.
		delete $right{"f,$until"} if keys %right > 1;
		$count->{'delayed by lock_delay'}++ if grep { $_->{end} <= $s->{now} } @blockers;
		return $right{$answer} ? undef : join(' or ', keys %right);
	},

	all => sub {
		my ($call, $answer) = @_;
		my @calls = map { { %$call, mode => 'exclusive', resource => $_ } } @{ $call->{resources} };
		my $free = !grep { blockers($_) } @calls;

		map { grant($_) } @calls if $free;
		return yes_or_no($answer, $free, 'all', 'granted', 'refused');
	},

	any => sub {
		my ($call, $answer) = @_;
		my @calls = map { { %$call, mode => 'exclusive', resource => $_ } } @{ $call->{resources} };
		my ($first) = grep { !blockers($_) } @calls;
		my $expected = $first ? $first->{resource} : '';

		grant($first) if $first;
		$count->{ $first ? 'any granted' : 'any refused' }++;
		return $answer eq $expected ? undef : $expected;
	},

	release => sub {
		my ($call, $answer) = @_;
		my $expected = release($call->{resource}, $call->{owner}, $answer);

		$count->{ $answer eq 't' ? 'release done' : 'release not done' }++;
		return $expected;
	},

	release_all => sub {
		my ($call, $answer) = @_;
		my @own = grep { defined $_->{owner} && $_->{owner} eq $call->{owner} } map { @{ leases($_) } } @resources;
		my $certain = grep { !$_->{uncertain} } @own;

		finish($_, max($s->{now}, $_->{hold})) foreach @own;
		return $answer =~ /^\d+$/ && $answer >= $certain && $answer <= @own ? undef : $certain . ' to ' . @own;
	},

	renew => sub {
		my ($call, $answer) = @_;
		my $lease = held_by($call->{resource}, $call->{owner});

		$lease->{end} = max($lease->{end}, $s->{now} + $call->{ttl}) if $lease;
		return yes_or_no($answer, $lease, 'renew');
	},

	token => sub {
		my ($call, $answer) = @_;
		my $lease = held_by($call->{resource}, $call->{owner});

		return $answer eq '' ? undef : 'no token' unless $lease;
		return token_seen($lease, $answer) ? undef : 'token ' . ($lease->{token} // "above $lease->{after}");
	},

	transfer => sub {
		my ($call, $answer) = @_;
		my $lease = held_by($call->{resource}, $call->{owner});
		my $other = held_by($call->{resource}, $call->{new_owner});

		$count->{ $lease ? 'transfer done' : 'transfer not done' }++;
		return $answer eq '' ? undef : 'nothing' unless $lease;
		if ($other && $other != $lease)
		{
			$count->{'transfer to a holder'}++;
			$s->{aborted} = @undo > 0;
			return $answer eq '55006' ? undef : 'error 55006';
		}
		$lease->{owner} = $call->{new_owner};
		$lease->{holds} = 1;
		$lease->{after} = $s->{token};
		delete $lease->{token};
		return token_seen($lease, $answer) ? undef : "token above $lease->{after}";
	},

	break => sub {
		my ($call, $answer) = @_;
		my @taken = grep { taken($_) } @{ leases($call->{resource}) };

		foreach (@taken)
		{
			$_->{owner} = $_->{payload} = undef;
			$_->{end} = min($_->{end}, $s->{now});
			$_->{delay} = 0;
		}
		return yes_or_no($answer, scalar @taken, 'break');
	},

	purge => sub {
		my ($call, $answer) = @_;

		$s->{leases}{$_} = [ grep { taken($_) } @{ leases($_) } ] foreach @resources;
		return $answer eq '0' ? undef : '0 rows left';
	},

	pass => sub {
		my ($call, $answer) = @_;

		$s->{now} += $call->{hours};
		return $answer eq 'passed' ? undef : 'passed';
	},

	state => sub {
		my ($call, $answer) = @_;

		return $answer eq state() ? undef : 'state ' . state();
	},

	BEGIN => sub { push @undo, dclone($s); return },
	COMMIT => sub { go_back(0) if $s->{aborted}; @undo = (); return },
	ROLLBACK => sub { go_back(0); $count->{'transaction undone'}++; return },
	'SAVEPOINT s' => sub { push @undo, dclone($s); return },

	'ROLLBACK TO s' => sub {
		my ($call, $answer) = @_;

		return no_savepoint($answer) if @undo < 2;
		go_back($#undo);
		push @undo, dclone($s);
		$count->{'savepoint undone'}++;
		return;
	},

	'RELEASE s' => sub {
		my ($call, $answer) = @_;

		return no_savepoint($answer) if @undo < 2;
		pop @undo;
		return;
	},);

# There is none: it was to be set after an error.
sub no_savepoint
{
	my ($answer) = @_;

	$s->{aborted} = 1;
	return $answer eq '3B001' ? undef : '3B001';
}

# Tokens are not given twice, whatever is undone.
sub go_back
{
	my ($to) = @_;
	my $token = $s->{token};

	$s = $undo[$to];
	$s->{token} = $token;
	$#undo = $to - 1;
	return;
}

# Check the answers of a sequence. Returns what is wrong, if anything.
sub check
{
	my ($calls, $answers, $outcomes) = @_;
	my @shown;

	$s = { now => 0, token => 0, leases => {} };
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
			$expected = $rules{ $call->{name} }->($call, $answer);
		}

		push @shown, "$call->{sql};  -- " . ($answer // '(nothing)');
		return join("\n", "expected $expected", @shown) if defined $expected;
	}
	return;
}

1;
