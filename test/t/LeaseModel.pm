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

use LeaseModel::Calls;
use LeaseModel::Worlds;

our (@resources, $s, @undo, $world, $count);

# Outcomes that a run of many sequences must include for the test to be
# meaningful.
sub outcomes
{
	return ((map { ("$_ granted", "$_ refused") } 'exclusive', 'shared', 'permit', 'all', 'any'),
		(map { ("$_ done", "$_ not done") } 'release', 'renew', 'transfer', 'break'),
		'granted again', 'released once of several', 'kept by min_hold', 'kept for longer than the ttl', 'kept by a break',
		'late release', 'taken over', 'transfer to a holder', 'transaction undone', 'savepoint undone');
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
			$_->{end} = min($_->{end}, $s->{now} + ($call->{grace} // 0));
		}
		$count->{'kept by a break'}++ if grep { taken($_) } @taken;
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

				finish($_) foreach @own;
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
