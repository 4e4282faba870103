# A grant, renewal or transfer of the portable edition that the client was told about survives a crash of the
# server, at the default setting of synchronous_commit, and tokens go on above those that were told.
#
# PORTABLE_CRASHES=n sets how often it crashes.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use IPC::Run;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $crashes = $ENV{PORTABLE_CRASHES} // 2;
my $clients = 4;

$ENV{LEASE_EDITION} = 'portable';

# No background process writes WAL: what a commit does not write is lost.
my $node = start_node('portable_crash', <<'CONF');
wal_writer_delay = 10s
wal_writer_flush_after = 512MB
checkpoint_timeout = 1h
autovacuum = off
CONF

my %told;		# of each resource: what a client was told last
my $token = 0;	# the highest that was told
my ($lost, $lower) = (0, 0);
foreach my $crash (1 .. $crashes)
{
	my @runs;
	my $before = $token;

	foreach my $client (1 .. $clients)
	{
		my $base = $node->basedir . "/client$client";
		my $script = '';

		# Each statement is a transaction. Of three leases, one is renewed, and one is transferred.
		foreach my $n (1 .. 3000)
		{
			my $r = "$client " . $n % 500;

			$script .= "SELECT '$r', 'granted', token FROM lease_request('$r', '1 hour', 'a $crash $n') WHERE granted;\n";
			$script .= "SELECT '$r', 'renewed', lease_renew('$r', '9 hours', 'a $crash $n');\n" if $n % 3 == 1;
			$script .= "SELECT '$r', 'granted', lease_transfer('$r', 'a $crash $n', 'b');\n" if $n % 3 == 2;
			$script .= "SELECT '$r', 'released', lease_release('$r', 'a $crash $n');\n" if $n % 3 == 0;
		}
		unlink "$base.sql";
		append_to_file("$base.sql", $script);
		push @runs, IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-v', 'ON_ERROR_STOP=1', '-f', "$base.sql" ],
			'>', "$base.out", '2>', "$base.err");
	}
	$node->poll_query_until('postgres', 'SELECT count(*) > ' . 200 . ' FROM lease_lock WHERE token > ' . $before)
	  or die 'clients did not get far enough';
	$node->stop('immediate');
	$_->finish foreach @runs;
	foreach (map { split /\n/, slurp_file($node->basedir . "/client$_.out") } 1 .. $clients)
	{
		my ($r, $what, $value) = split /\|/;

		next if ($value // '') eq '';
		if ($what eq 'granted')
		{
			$lower++ if $value <= $before;
			$token = $value if $value > $token;
			$told{$r} = { token => $value };
		}
		elsif ($value eq 't')
		{
			$told{$r}{$what} = 1;
		}
	}
	$node->start;

	# What came later, and was not told, may be there as well.
	my %stored;
	foreach (split /\n/, $node->safe_psql('postgres', q{
		SELECT resource, token, owner IS NULL, expires_at > granted_at + interval '8 hours' FROM lease_lock}))
	{
		my ($r, @values) = split /\|/;
		@{ $stored{$r} }{ 'token', 'released', 'renewed' } = @values;
	}
	foreach my $r (keys %told)
	{
		my ($t, $s) = ($told{$r}, $stored{$r});

		next if $s && $s->{token} > $t->{token};
		$lost++ if !$s || $s->{token} < $t->{token} || $t->{renewed} && $s->{renewed} ne 't' || $t->{released} && $s->{released} ne 't';
	}
}
cmp_ok(scalar keys %told, '>', 100, 'grants were told before the crashes');
is($lost, 0, "nothing that was told is lost in $crashes crashes");
is($lower, 0, 'tokens are above those of before the crash');
$node->stop;
done_testing();
