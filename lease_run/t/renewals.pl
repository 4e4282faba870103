# A command that runs for weeks: its renewals take no memory. Time passes quickly: a library lets the clock of
# lease_run jump to the next renewal whenever lease_run would sleep until then.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaseRunTest;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'needs /proc and timer descriptors' if $^O ne 'linux';

my $folder = PostgreSQL::Test::Utils::tempdir();
append_to_file("$folder/clock.c", <<'C');
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static long jumped = 0;
static pid_t process = 0;		/* the watchdog, a child, has the real clock */

static int
real_clock(clockid_t clock, struct timespec *now)
{
	static int	(*original) (clockid_t, struct timespec *) = 0;

	if (!original)
		original = dlsym(RTLD_NEXT, "clock_gettime");
	return original(clock, now);
}

int
clock_gettime(clockid_t clock, struct timespec *now)
{
	int			result = real_clock(clock, now);

	if (clock == CLOCK_BOOTTIME && process == getpid())
		now->tv_sec += jumped;
	return result;
}

int
timerfd_settime(int fd, int flags, const struct itimerspec *new, struct itimerspec *old)
{
	static int	(*original) (int, int, const struct itimerspec *, struct itimerspec *) = 0;
	struct itimerspec at = *new;
	struct timespec now;

	if (!original)
		original = dlsym(RTLD_NEXT, "timerfd_settime");
	if (!process)
		process = getpid();
	if (process != getpid())
		return original(fd, flags, new, old);
	real_clock(CLOCK_BOOTTIME, &now);
	/* A renewal is due after 960 s. A wait for an answer takes less, and one for the watchdog more. */
	if (at.it_value.tv_sec - jumped - now.tv_sec > 60 && at.it_value.tv_sec - jumped - now.tv_sec < 1000)
		jumped = at.it_value.tv_sec - now.tv_sec;
	if (at.it_value.tv_sec > jumped)
		at.it_value.tv_sec -= jumped;
	return original(fd, flags, &at, old);
}
C
plan skip_all => 'the address sanitizer keeps what is freed' if $ENV{ASAN_OPTIONS};
plan skip_all => 'no C compiler'
  if system('cc', '-shared', '-fPIC', '-o', "$folder/clock.so", "$folder/clock.c", '-ldl') != 0;

my $node = start_node('renewals', "shared_preload_libraries = lease_lock\nlease_lock.durable = off\nfsync = off\nlog_statement = none");
my $renewals = $ENV{LEASE_RUN_RENEWALS} // 2000;
my $run = do
{
	local $ENV{LD_PRELOAD} = "$folder/clock.so";

	start_run($node, '--ttl=1h', 'job', 'env', '-u', 'LD_PRELOAD', 'sh', '-c', 'until [ -e "$0" ]; do sleep 0.1; done', "$folder/go");
};

sub memory_after
{
	my ($renewals) = @_;

	until_sql("$renewals renewals", $node, "SELECT renewals >= $renewals FROM lease_stats()", 't');
	my ($kilobytes) = slurp_file("/proc/$run->{pid}/status") =~ /^VmData:\s+(\d+) kB/m;
	return $kilobytes;
}

my $before = memory_after(500);
is(memory_after(500 + $renewals), $before, "after $renewals more renewals, lease_run has as much memory as before");
append_to_file("$folder/go", '');
is_run(finish_run($run), 0, qr/^$/, qr/^$/, 'and ends as usual');

$node->stop;
done_testing();
