# The random calls of the model: which there are, and their SQL.
package LeaseModel;

use strict;
use warnings;

our @resources = ('r1', 'r2', 'r3');
our @owners = ('ann', 'bob', 'carl', 'dora');
our $many = 32767;

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
	[ 2, 'break', sub { return { grace => one_of(undef, undef, 1, 3) } } ],
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
		min_hold => one_of(undef, undef, 1, 3, $call->{ttl} || undef),
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
			defined $call->{payload} ? "'$call->{payload}'" : 'NULL') . ')';
	}
	return "SELECT lease_renew($resource, " . hours($call->{ttl}) . ", $owner)" if $name eq 'renew';
	return "SELECT lease_transfer($resource, $owner, '$call->{new_owner}')" if $name eq 'transfer';
	return "SELECT lease_release_all($owner)" if $name eq 'release_all';
	return "SELECT lease_break($resource" . (defined $call->{grace} ? ', ' . hours($call->{grace}) : '') . ')' if $name eq 'break';
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

1;
