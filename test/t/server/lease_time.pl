# The server's wall clock is stepped by an hour, forward and back: no lease ends
# early or more than a second late, and none is held again after its end, even if
# the server restarts. Times are shown as wall time.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime sleep CLOCK_MONOTONIC);
use WaitTest;

my ($library) = grep { -e $_ }
  map { ("$_/faketime/libfaketime.so.1", "$_/libfaketime.so.1") }
  glob('/usr/lib/*-linux-gnu /usr/lib64 /usr/lib /usr/local/lib');

plan skip_all => 'needs libfaketime (package libfaketime or faketime)' if !$library;
plan skip_all => 'needs /proc of Linux' if !-e '/proc/sys/kernel/random/boot_id';

# How far the server's wall clock is off, in seconds. No other clock is faked.
my $offset_file = PostgreSQL::Test::Utils::tempdir() . '/offset';

sub step_clock
{
	my ($offset) = @_;

	append_to_file("$offset_file.new", sprintf("%+d\n", $offset));
	rename("$offset_file.new", $offset_file) or die "could not set the clock: $!";
	return;
}

sub seconds
{
	return clock_gettime(CLOCK_MONOTONIC);
}

sub sleep_until
{
	my ($time) = @_;

	sleep($time - seconds()) if $time > seconds();
	return;
}

step_clock(0);
$ENV{FAKETIME_TIMESTAMP_FILE} = $offset_file;
$ENV{FAKETIME_NO_CACHE} = 1;
$ENV{FAKETIME_DONT_FAKE_MONOTONIC} = 1;

sub with_faked_clock
{
	my ($work) = @_;
	local $ENV{LD_PRELOAD} = $library;

	return $work->();
}

my $node = with_faked_clock(sub {
	return start_waiting_node('lease_time', <<'CONF', preload => 1);
lease_lock.purge_interval = 100ms
lease_lock.purge_after = 20min
restart_after_crash = on
CONF
});
# The last line about the interval counts, not that of start_waiting_node().
$node->append_conf('postgresql.conf', 'lease_lock.purge_interval = 100ms');
$node->reload;

is(look($node, 'SHOW lease_lock.clock'), 'steady', 'the clock is steady');

# Up to 15 the first launcher is forked where libfaketime does not reach, inside
# a signal handler. The one that comes after 10 seconds is not.
my $launcher = q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'lease_lock purge launcher'};
becomes($node, $launcher, 1, 'the launcher has started');
look($node, $launcher =~ s/count\(\*\)/pg_terminate_backend(pid)/r);

# What is left of a lease, in seconds, and that the time shown agrees.
sub left
{
	my ($resource, $name) = @_;
	my ($left, $shown) = split(/\|/,
		$node->safe_psql('postgres', "SELECT extract(epoch FROM expires_in), extract(epoch FROM expires_at - clock_timestamp()) "
			  . "FROM lease_status WHERE resource = '$resource'"));

	cmp_ok(abs($left - $shown), '<', 10, "$name: expires_at is shown in wall time");
	return $left;
}

foreach my $step (3600, -3600)
{
	my $name = $step > 0 ? 'one hour ahead' : 'one hour back';
	my $waiter = open_session($node);
	my $renewer = open_session($node);

	look($node, q{SELECT lease_break(resource) FROM lease_status});
	look($node, q{SELECT lease_acquire('over', '1 microsecond', 'gone'), lease_acquire('free', '1 hour', 'gone'), lease_release('free', 'gone')});
	look($node, q{SELECT lease_acquire('long', '10 min', 'o'), lease_acquire('renewed', '1 min', 'o')});
	my $ttl = 7 + 3 * slowness($node);
	my $begun = seconds();
	look($node, qq{SELECT lease_acquire('short', '$ttl s', 'o'), lease_acquire('waited', '$ttl s', 'o')});
	look($node, qq{SELECT granted FROM lease_request('min_hold', '1 hour', 'o', min_hold => '$ttl s')});
	look($node, q{SELECT lease_release('min_hold', 'o')});
	my $all_at = seconds();
	send_to_wait($node, $waiter, q{SELECT lease_acquire('waited', '1 hour', 'w', '10 min')});
	$renewer->query_safe(q{BEGIN; SELECT lease_renew('renewed', '10 min', 'o')});
	step_clock($step);

	my $held = q{SELECT lease_acquire('short', '1 min', 't'), lease_acquire('min_hold', '1 min', 't'), lease_acquire('long', '1 min', 't')};
	is(look($node, $held), 'f|f|f', "$name: nothing ends early");
	is(look($node, q{SELECT lease_renew('short', '1 microsecond', 'o'), lease_token('long', 'o') > 0}), 't|t', "$name: the holders have their leases");
	is(look($node, q{SELECT lease_renew('over', '1 hour', 'gone'), lease_token('over', 'gone') IS NULL}), 'f|t', "$name: what was over stays over");
	look($node, q{SELECT lease_purge()});
	is(look($node, q{SELECT count(*) FROM lease_lock WHERE resource IN ('over', 'free')}), 2, "$name: no row is purged early");
	is(look($node, q{SELECT lease_acquire('free', '1 min', 't'), lease_acquire('over', '1 min', 't')}), 't|t', "$name: what was free is free");
	$renewer->query_safe('COMMIT');
	cmp_ok(abs(left('renewed', $name) - 600), '<', 300, "$name: a renewal in the middle counts from now");
	cmp_ok(abs(left('long', $name) - 600), '<', 300, "$name: what is left of a lease");

	look($node, q{SET lease_lock.log_events = 'all'});
	look($node, "SELECT lease_acquire('logged $step', '1 hour', 'o')");
	look($node, 'RESET lease_lock.log_events');
	my ($until) = slurp_file($node->logfile) =~ /lease on "logged $step" .* until ([^,]+),/;
	cmp_ok(abs(look($node, "SELECT extract(epoch FROM timestamptz '$until' - clock_timestamp())") - 3600), '<', 300, "$name: the log has wall time");
	is(look($node, q{SELECT abs(extract(epoch FROM waiting_since - clock_timestamp())) < 300 FROM lease_waiters}), 't', "$name: lease_waiters shows wall time");
	is(look($node, q{SELECT abs(extract(epoch FROM expires_at - clock_timestamp()) - 60) < 30 FROM lease_request('asked', '1 min', 'o')}), 't',
		"$name: lease_request answers in wall time");
	is(look($node, 'SELECT round(extract(epoch FROM lease_clock_difference()))'), $step, "$name: the difference is to be seen");

	is(answer($waiter), 't', "$name: the waiter gets the lease");
	cmp_ok(seconds() - $begun, '>=', $ttl, "$name: not before it ended");
	cmp_ok(seconds() - $all_at, '<', $ttl + $WaitTest::LIMIT, "$name: and not an hour later");
	sleep_until($all_at + $ttl);
	is(look($node, q{SELECT lease_acquire('short', '1 min', 't'), lease_acquire('min_hold', '1 min', 't')}),
		't|t', "$name: all ends on time");

	# A row that ended is purged by lease time, too.
	look($node, 'ALTER SYSTEM SET lease_lock.purge_after = 0');
	$node->reload;
	becomes($node, q{SELECT count(*) FROM lease_lock WHERE resource = 'waited'}, 1, "$name: the purge worker leaves what is held");
	look($node, q{SELECT lease_release('free', 't')});
	becomes($node, q{SELECT count(*) FROM lease_lock WHERE resource = 'free'}, 0, "$name: and removes what is not");
	look($node, 'ALTER SYSTEM RESET lease_lock.purge_after');
	$node->reload;

	$waiter->quit;
	$renewer->quit;
	step_clock(0);
	is(look($node, q{SELECT lease_clock_difference()}), '00:00:00', "$name: and back");
}
becomes($node, $launcher, 1, 'the launcher is back');
sleep(0.5);
truncate($node->logfile, 0);

# Test that a line comes into the log, and comes once.
sub logged_once
{
	my ($line, $name) = @_;
	my $end = seconds() + $PostgreSQL::Test::Utils::timeout_default;

	sleep(0.1) until slurp_file($node->logfile) =~ $line || seconds() > $end;
	sleep(0.5);
	is(scalar(() = slurp_file($node->logfile) =~ /$line/g), 1, $name);
	truncate($node->logfile, 0);
	return;
}

foreach my $step ([ 3600, 'ahead of' ], [ -3600, 'behind' ])
{
	step_clock($step->[0]);
	logged_once(qr/LOG:  wall clock is 3(?:599|600)\.\d+ seconds $step->[1] lease time/, 'a step is logged once');
	step_clock(0);
	logged_once(qr/LOG:  wall clock agrees with lease time again/, 'and so is the step back');
}

# Restarts with a stepped clock.
my $restarted = look($node, q{SELECT lease_acquire('restart', '10 min', 'o')});
my $acquired = seconds();
my %restarts = (
	'a restart' => sub { $node->stop; $node->start },
	'an immediate stop' => sub { $node->stop('immediate'); $node->start },
	'a crash of a backend' => sub {
		my $victim = open_session($node);
		my $pid = $victim->query_safe('SELECT pg_backend_pid()');
		kill('KILL', $pid);
		eval { $victim->quit };
		$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	});
foreach my $what (sort keys %restarts)
{
	foreach my $step (3600, -3600)
	{
		step_clock($step);
		with_faked_clock($restarts{$what});
		my $left = left('restart', "$what at $step s");
		cmp_ok(abs($left + seconds() - $acquired - 600), '<', 60, "$what at $step s: leases end when they did");
	}
}

# The file that keeps the clock. Without a good one lease time is the wall clock again.
my $file = $node->data_dir . '/lease_lock.clock';
my $good = slurp_file($file);
my %damaged = (
	'damaged' => sub { $good =~ s/ (-?)(\d)/' ' . $1 . ($2 % 9 + 1)/er },
	'cut off' => sub { substr($good, 0, 40) },
	'empty' => sub { '' },
	'of another machine' => sub { '01234567-89ab-cdef-0123-456789abcdef' . substr($good, 36) });
foreach my $what (sort keys %damaged)
{
	step_clock(0);
	$node->stop;
	unlink($file);
	append_to_file($file, $damaged{$what}->());
	with_faked_clock(sub { $node->start });
	is(slurp_file($node->logfile) =~ /LOG:  file "lease_lock.clock" (is damaged|was written on another machine)/, 1, "$what: the log says so");
	truncate($node->logfile, 0);
	is($node->safe_psql('postgres', 'SELECT lease_clock_difference()'), '00:00:00', "$what: lease time is the wall clock");
	$good = slurp_file($file);
	like($good, qr/^[0-9a-f-]{36} -?\d+ [0-9A-F]{8}\n$/, "$what: the file is written anew");
	$node->stop;
	with_faked_clock(sub { $node->start });
	unlike(slurp_file($node->logfile), qr/lease_lock.clock/, "$what: and good the next time");
	is(slurp_file($file), $good, "$what: and is kept");
}

# Without preloading, leases go by the wall clock.
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->stop;
with_faked_clock(sub { $node->start });
is($node->safe_psql('postgres', q{LOAD 'lease_lock'; SHOW lease_lock.clock}), 'wall', 'not preloaded: the wall clock');
is($node->safe_psql('postgres', q{SELECT lease_acquire('wall', '10 min', 'o')}), 't', 'not preloaded: a grant');
step_clock(3600);
is($node->safe_psql('postgres', q{SELECT lease_acquire('wall', '10 min', 'other')}), 't', 'not preloaded: a step ends it early');
is($node->safe_psql('postgres', q{SELECT lease_clock_difference()}), '00:00:00', 'not preloaded: there is no difference');
$node->stop;

done_testing();
