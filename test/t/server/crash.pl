# A grant or renewal that the client was told about survives a crash, whatever
# synchronous_commit says, and no token that was told is handed out again.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use IPC::Run;
use LeaseTest;
use List::Util qw(max);
use PostgreSQL::Test::Utils;
use Test::More;

my $clients = 4;
my $leases = 5000;

# No background process writes WAL: what a commit does not write is lost.
my $node = start_node('crash', <<'CONF');
synchronous_commit = off
wal_writer_delay = 10s
wal_writer_flush_after = 512MB
wal_buffers = 16MB
checkpoint_timeout = 1h
autovacuum = off
CONF

my %told;			# every token that a client was told, for ever

# Run one script in each client and crash the server once the condition holds;
# returns the lines that each client printed, that is, was told as committed.
sub run_and_crash
{
	my ($condition, @scripts) = @_;
	my (@runs, @outputs);

	foreach my $script (@scripts)
	{
		my $base = $node->basedir . '/client' . @runs;

		append_to_file("$base.sql", $script);
		push @outputs, "$base.out";
		push @runs,
		  IPC::Run::start(
			[
				'psql', '-XAtq',
				'-v', 'ON_ERROR_STOP=1',
				'-d', $node->connstr('postgres'),
				'-f', "$base.sql"
			],
			'>', "$base.out",
			'2>', "$base.err");
	}

	$node->poll_query_until('postgres', "SELECT $condition")
	  or die 'clients did not get far enough';
	$node->stop('immediate');
	$_->finish foreach @runs;

	my @told = map { [ split /\n/, slurp_file($_) ] } @outputs;
	unlink glob $node->basedir . '/client*';
	$node->start;
	return @told;
}

# Read the lock table: owner ('' for none), token and hours by resource.
sub stored_leases
{
	my %stored;

	foreach (
		split /\n/,
		$node->safe_psql('postgres', q{
			SELECT resource, owner, token,
				extract(epoch FROM expires_at - granted_at) / 3600
			FROM lease_lock}))
	{
		my ($resource, $owner, $token, $hours) = split /\|/;
		$stored{$resource} = { owner => $owner, token => $token, hours => $hours };
	}
	return %stored;
}

sub acquire_line
{
	my ($resource) = @_;

	return "SELECT '$resource', lease_acquire('$resource', '1 hour', 'o'), "
	  . "lease_token('$resource', 'o');\n";
}

# Note the tokens told; returns those that had been told before.
sub note_tokens
{
	return grep { $told{$_}++ } @_;
}

# From now on, tokens are above every token that was told.
sub tokens_go_on
{
	my ($round) = @_;
	my $highest = max(keys %told);
	my @tokens = split /\n/,
	  $node->safe_psql('postgres',
		join('', map { "SELECT lease_acquire('after $round $_', '1 hour', 'o') OR NULL;\n"
				. "SELECT lease_token('after $round $_', 'o');\n" } 1 .. 40));
	@tokens = grep { $_ ne 't' } @tokens;

	is(scalar @tokens, 40, "$round: leases can be acquired after the crash");
	cmp_ok($tokens[0], '>', $highest, "$round: tokens go on above those from before");
	is_deeply([ note_tokens(@tokens) ], [], "$round: no token is repeated after the crash");
}

# Leases on new resources.
foreach my $round ('first', 'second')
{
	my @told = run_and_crash(
		"count(*) > 1000 FROM lease_lock WHERE resource LIKE '$round %'",
		map {
			my $client = $_;
			join '', map { acquire_line("$round $client.$_") } 1 .. $leases
		} 1 .. $clients);
	my %stored = stored_leases();
	my (@lost, @tokens);

	foreach (map { @$_ } @told)
	{
		my ($resource, $granted, $token) = split /\|/;
		my $lease = $stored{$resource};

		die "\"$_\" is no grant" unless $granted eq 't' && $token > 0;
		push @tokens, $token;
		push @lost, $resource
		  unless $lease && $lease->{owner} eq 'o' && $lease->{token} == $token;
	}
	cmp_ok(scalar @tokens, '>', 500, "$round: grants were acknowledged before the crash");
	is_deeply(\@lost, [], "$round: every acknowledged grant is there with its token");
	is_deeply([ note_tokens(@tokens) ], [], "$round: no token was handed out twice");
	tokens_go_on($round);
}

# Leases that were released and acquired again, in existing rows.
{
	my @told = run_and_crash(
		"count(*) > 600 FROM lease_lock WHERE resource LIKE 'again %'",
		map {
			my $client = $_;
			join '', map {
				my $resource = "again $client.$_";
				acquire_line($resource)
				  . "SELECT '$resource', lease_release('$resource', 'o');\n"
				  . acquire_line($resource)
			} 1 .. $leases
		} 1 .. $clients);
	my %stored = stored_leases();
	my (@lost, @tokens);

	foreach my $client (@told)
	{
		while (my ($first, undef, $second) = splice @$client, 0, 3)
		{
			push @tokens, (split /\|/, $first)[2];
			last unless $second;	# cut off by the crash

			my ($resource, $granted, $token) = split /\|/, $second;
			my $lease = $stored{$resource};

			push @tokens, $token;
			push @lost, $resource
			  unless $lease && $lease->{owner} eq 'o' && $lease->{token} == $token;
		}
	}
	is_deeply(\@lost, [], 'again: every acknowledged grant is there with its token');
	is_deeply([ note_tokens(@tokens) ], [], 'again: no token was handed out twice');
	tokens_go_on('again');
}

# Renewals.
{
	$node->safe_psql('postgres',
		"SELECT lease_acquire('renewed ' || n, '1 hour', 'o') FROM generate_series(1, $clients * $leases) AS n");

	my @told = run_and_crash(
		"count(*) > 1000 FROM lease_lock WHERE expires_at > granted_at + interval '9 hours'",
		map {
			my $client = $_;
			join '', map {
				my $resource = 'renewed ' . ($_ * $clients - $client);
				"SELECT '$resource', lease_renew('$resource', '10 hours', 'o');\n"
			} 1 .. $leases
		} 0 .. $clients - 1);
	my %stored = stored_leases();
	my @renewed = map { s/\|t$//r } map { @$_ } @told;
	my @lost = grep { ($stored{$_}->{hours} // 0) < 9.9 } @renewed;

	cmp_ok(scalar @renewed, '>', 500, 'renewals were acknowledged before the crash');
	is_deeply(\@lost, [], 'every acknowledged renewal is there');
	tokens_go_on('renewed');
}

# With lease_lock.durable off there is no such promise. The result is only shown.
{
	my @told = run_and_crash(
		"count(*) > 1000 FROM lease_lock WHERE resource LIKE 'lost %'",
		map {
			my $client = $_;
			"SET lease_lock.durable = off;\n" . join '', map { acquire_line("lost $client.$_") } 1 .. $leases
		} 1 .. $clients);
	my %stored = stored_leases();
	my @resources = map { (split /\|/)[0] } map { @$_ } @told;
	my @tokens = map { (split /\|/)[2] } map { @$_ } @told;

	note(sprintf 'durable = off: %d of %d grants lost',
		scalar(grep { !$stored{$_} } @resources), scalar @resources);
	note_tokens(@tokens);
	note('durable = off: highest token told ', max(@tokens), ', next token ',
		$node->safe_psql('postgres', "SELECT nextval('lease_token_seq')"));
}

$node->stop;
done_testing();
