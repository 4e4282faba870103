# The disk of the lock table is full: errors are clear, no lease is lost, calls
# that need no space work, and all calls work when there is space again.
#
# The disk is a small tmpfs in a mount namespace of this test's own, for which
# the kernel has to let users have namespaces.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $disk = "$PostgreSQL::Test::Utils::tmp_check/small_disk";
my @namespace = ('unshare', '--user', '--map-current-user', '--keep-caps', '--mount');
my @mount = (@namespace, 'sh', '-c',
	'mount -t tmpfs -o size=1536k,mode=700 lease_lock "$0" && exec setpriv --ambient-caps=-all --inh-caps=-all "$@"',
	$disk);

if (!$ENV{LEASE_LOCK_SMALL_DISK})
{
	mkdir $disk;
	plan skip_all => 'this system does not let its users mount a small disk (user namespaces)'
	  if system("@{[ map { quotemeta } @mount, 'true' ]} 2>/dev/null") != 0;
	$ENV{LEASE_LOCK_SMALL_DISK} = 1;
	open STDOUT, '>&', Test::More->builder->output;
	open STDERR, '>&', Test::More->builder->failure_output;
	exec @mount, $^X, $0 or die "could not run $mount[0]: $!";
}

my $node = start_waiting_node('disk_full', $WaitTest::NEVER);
my $psql = sub { return $node->safe_psql('postgres', shift) };
my $full = 'could not extend file .*(No space left on device|wrote only).*HINT:  Check free disk space';
my $long = 'x' x 1000;

# Something else on the disk that can go later.
append_to_file("$disk/ballast", 'x' x (512 * 1024));
mkdir "$disk/space" or die "could not make $disk/space: $!";
$psql->("CREATE TABLESPACE small LOCATION '$disk/space'");
$psql->('ALTER TABLE lease_lock SET TABLESPACE small; ALTER INDEX lease_lock_pkey SET TABLESPACE small');

sub stored
{
	my ($what) = @_;
	return $psql->("SELECT string_agg(resource || ' ' || token, ',' ORDER BY resource) FROM lease_lock WHERE $what");
}

# Tries until the disk is full; returns the numbers of those that went well.
sub fill
{
	my ($session, $call) = @_;
	my @done;

	for my $i (1 .. 2000)
	{
		my $answer = $session->query(sprintf "SELECT $call", $i);
		if ($session->{stderr} ne '')
		{
			like($session->{stderr}, qr/ERROR:  53100: $full/s, "disk full: $call");
			$session->{stderr} = '';
			return @done;
		}
		die "refused: $call of $i" if $answer ne 't';
		push @done, $i;
	}
	die "the disk does not become full: $call";
}

my $user = open_session($node);
$user->query_safe("SELECT lease_acquire('short ' || n, '1 hour', 'a') FROM generate_series(1, 40) AS n");
$user->query_safe("SELECT lease_acquire('tombstone ' || n, '1 hour', 'a') FROM generate_series(1, 5) AS n");
$user->query_safe("SELECT lease_release('tombstone ' || n, 'a') FROM generate_series(1, 5) AS n");
my $short = stored("resource LIKE 'short %'");

# New leases, each committed, until there is no room.
my @granted = fill($user, "lease_acquire('long %d $long', '1 hour', 'a')");
cmp_ok(scalar @granted, '>', 100, 'leases were granted before that');
is($psql->(q{SELECT string_agg(split_part(resource, ' ', 2), ',' ORDER BY token) FROM lease_status
			WHERE state = 'held' AND owner = 'a' AND resource LIKE 'long %'}),
	join(',', @granted), 'all that were granted are held, and no more');
is(stored("resource LIKE 'short %'"), $short, 'leases from before are held, with their tokens');

# The failed call left nothing that blocks others.
my $next = @granted + 1;
my $other = open_session($node);
session_fails($other, "SELECT lease_acquire('long $next $long', '1 hour', 'b')", '53100', $full,
	'another session gets the same error, not a refusal');
is($other->query_safe("SELECT lease_token('long $next $long', 'b') IS NULL"), 't', 'nobody holds that lease');
session_fails($other, "SELECT lease_acquire('long $next $long', '1 hour', 'b', '1 min')", '53100', $full,
	'a wait for it fails at once');
nothing_left($node, 'disk full');

# Calls that write nothing work, and so do those that find space in the page.
is($user->query_safe(q{SELECT lease_acquire('short 1', '1 hour', 'b')}), 'f', 'disk full: refused try');
is($user->query_safe(q{SELECT lease_acquire('short 1', '1 hour', 'b', '50 ms')}), 'f', 'disk full: wait without success');
is($user->query_safe(q{SELECT lease_token('short 1', 'a') > 0}), 't', 'disk full: token');
is($user->query_safe(q{SELECT lease_renew('short 1', '2 hours', 'a')}), 't', 'disk full: renewal');
is($user->query_safe(q{SELECT lease_release('short 1', 'a')}), 't', 'disk full: release');
is($user->query_safe(q{SELECT lease_acquire('tombstone 1', '1 hour', 'b')}), 't', 'disk full: grant on a row that is there');
is($user->query_safe("SELECT lease_release('long 1 $long', 'a')"), 't', 'disk full: release of a long one');

# When the page has no room left either, a lease is what it was before. Each
# owner is longer than the one before, whose room it cannot use.
$user->query_safe(q{SELECT lease_release('short ' || n, 'a') FROM generate_series(2, 30) AS n});
my @taken = fill($user, "lease_acquire('short ' || %d, '1 hour', repeat('y', 1024))");
my $failed = @taken + 1;
is($psql->("SELECT owner IS NULL FROM lease_lock WHERE resource = 'short $failed'"), 't',
	'a grant that failed left the lease free');
is($user->query_safe("SELECT lease_acquire('short $failed', '1 hour', 'b')"), 't', 'so that a shorter owner gets it');

# A waiter that has no room fails, and the next in the queue gets the lease.
my @waiters = map { open_session($node) } 1, 2;
send_to_wait($node, $waiters[0], "SELECT lease_acquire('short $failed', '1 hour', repeat('z', 1024), NULL)");
send_to_wait($node, $waiters[1], "SELECT lease_acquire('short $failed', '1 hour', 'w', NULL)");
is($user->query_safe("SELECT lease_release('short $failed', 'b')"), 't', 'released to waiters');
like(answer($waiters[0]), qr/ERROR:  53100: $full/s, 'the first waiter has no room');
is(answer($waiters[1]), 't', 'the second one gets the lease');
nothing_left($node, 'waiters');
$_->quit foreach @waiters;

# A crash on the full disk.
my $before = stored('true');
$node->stop('immediate');
$node->start;
is(stored('true'), $before, 'after a crash all leases are as they were');
$user = open_session($node);
session_fails($user, "SELECT lease_acquire('long $next $long', '1 hour', 'b')", '53100', $full,
	'after a crash the disk is still full');
$psql->('CHECKPOINT');

# Room on the disk.
unlink "$disk/ballast" or die "could not remove the ballast: $!";
$psql->('VACUUM lease_lock');		# makes the maps that a later one has to fill in
my $highest = $psql->('SELECT max(token) FROM lease_lock');
is($user->query_safe("SELECT lease_acquire('long $next $long', '1 hour', 'b')"), 't', 'room: granted what had failed');
cmp_ok($user->query_safe("SELECT lease_token('long $next $long', 'b')"), '>', $highest, 'room: tokens go on above');
is($user->query_safe("SELECT count(*) FROM generate_series(3, 100) AS n WHERE lease_renew('long ' || n || ' $long', '2 hours', 'a')"),
	98, 'room: renewals');

# Full again. What would need room for many versions at once is undone as a
# whole. Purge needs none, and makes some.
my @more = fill($user, "lease_acquire('more %d $long', '1 ms', 'a')");
$before = stored('owner IS NOT NULL');
session_fails($user, "SELECT lease_release_all('a')", '53100', $full, 'full again: release of all');
is(stored('owner IS NOT NULL'), $before, 'full again: nothing of it was released');
$user->query_safe('SET lease_lock.purge_after = 0');
cmp_ok($user->query_safe('SELECT lease_purge()'), '>=', scalar @more, 'full again: purge');
$psql->('VACUUM lease_lock');
is($user->query_safe("SELECT count(*) FROM generate_series(1, 50) AS n WHERE lease_acquire('again ' || n || ' $long', '1 hour', 'b')"),
	50, 'then there is room in the table');

$_->quit foreach $user, $other;
$node->stop;
done_testing();
