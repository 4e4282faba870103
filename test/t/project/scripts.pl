# The scripts leave nothing behind, however they end, and touch nothing of
# another run's. A test whose programs are missing is skipped, with a line that says so.
use strict;
use warnings;

use File::Path qw(make_path);
use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = PostgreSQL::Test::Utils::tempdir_short();
my $policy = "$root/sbin/policy-rc.d";

make_path("$root/sbin");

# Run commands as a script would, with the machine's policy in a folder of ours.
# $ROOT_WORKS is empty where neither root nor sudo is to be had.
sub script
{
	my ($commands, %env) = @_;
	my $script = <<"SCRIPT";
		set -euo pipefail
		source scripts/lib/throwaway.bash
		policy_file=$policy
		no_cluster_file=$root/etc/createcluster.d/no.conf
		as_root() { [[ -n \$ROOT_WORKS ]] && "\$@"; }
		$commands
SCRIPT
	my ($stdout, $stderr);

	local %ENV = (%ENV, ROOT_WORKS => 1, %env);
	IPC::Run::run([ 'bash', '-c', $script ], '<', \undef, '>', \$stdout, '2>', \$stderr);
	diag $stderr if $stderr =~ /\S/ && !$env{FAILS};
	return $stdout;
}

sub write_policy
{
	my ($text) = @_;

	unlink $policy;
	append_to_file($policy, "#!/bin/sh\n$text\n") if defined $text;
	return;
}

# Something that runs in the folder, like a server.
my $serve = <<'SERVE';
	folder=$(mktemp -d /tmp/lease_lock.XXXXXX)
	work=$folder/work
	mkdir -p "$work/tree"
	(cd "$work/tree" && exec sleep 300 >/dev/null 2>&1) &
	until [[ $(readlink "/proc/$!/cwd") == "$work/tree" ]]; do sleep 0.01; done
	echo "$folder $!"
SERVE

# A run that was killed cannot do so; the next one cleans up, and touches no run that is under way.
SKIP:
{
	skip 'not as root', 4 if $> == 0;
	my $run = 'make_work_folder; run_inside sleep 300 >/dev/null 2>&1 & until pid=$(processes_inside | head -n 1 || true) && [[ -n $pid ]]; do sleep 0.01; done; echo "$folder $pid"';
	my ($killed, $left) = split ' ', script("trap - EXIT; $run; kill -KILL \$\$", FAILS => 1);

	ok(-d $killed && kill(0, $left), 'a script is killed, and leaves what it had');
	my ($other, $running, $stays) = split ' ', script("$run; remove_left_folders; kill -0 \$pid && ls -d \$folder");
	ok(!-e $killed, 'the next one removes the folder');
	ok(!kill(0, $left), 'and what runs there');
	is($stays, $other, 'but nothing of a run that is under way');
}

# Root gives a folder away, and from then on creates nothing in it: the account
# could have left a symbolic link. Programs that create files tell who calls them.
SKIP:
{
	skip 'not as root', 3 if $> == 0;
	make_path("$root/bin");
	foreach my $program (qw(tar mkdir chown cp))
	{
		append_to_file("$root/bin/$program", "#!/bin/sh\necho \"\${ACCOUNT-root} in \$PWD: $program \$*\" >>$root/calls\n" .
			"PATH=\${PATH#*:} exec $program \"\$@\"\n");
		chmod 0755, "$root/bin/$program";
	}
	my ($folder, $work) = split ' ', script(<<'MAKE', PATH => "$root/bin:$ENV{PATH}");
		as_account=(env ACCOUNT=account)
		make_work_folder
		start_over
		echo "$folder $work"
		[[ -f $work/tree/scripts/check ]]
MAKE
	my @calls = split /\n/, slurp_file("$root/calls");

	is(scalar(grep { /^account in \Q$work\E: tar .*-xf/ } @calls), 2, 'the account unpacks the sources, and again when they start over');
	is(join("\n", grep { /^root/ && (/-xf/ || m{\Q$work\E/}) } @calls), '', 'root creates nothing in the folder of the account');
	ok(!-e $folder, 'the folder is gone');
}

# As root, for real.
SKIP:
{
	skip 'only as root', 2 if $> != 0;
	mkdir "$root/secret", 0700;
	script(qq{
		make_work_folder
		"\${as_account[@]}" sh -c 'cd "\$1" && rm -rf tree tmp && ln -s $root/secret tree && ln -s $root/secret tmp' sh "\$work"
		fill_work_folder || true
		start_over
		[[ -f \$work/tree/scripts/check && ! -L \$work/tree ]]
	}, FAILS => 1);
	is(join(' ', glob "$root/secret/*"), '', 'root does not write where a symbolic link of the account points');
	is((stat "$root/secret")[4], 0, 'nor give it away');
}

# An installation of another run is under way, and we are neither root nor have sudo.
write_policy('# Of lease_lock, while it installs packages.');
foreach my $end ('exit 0', 'exit 3', 'false', 'kill -TERM $$; sleep 60', 'kill -INT $$; sleep 60')
{
	my ($folder, $pid) = split ' ', script("$serve\n$end", ROOT_WORKS => '', FAILS => 1);

	like($pid, qr/^\d+$/, "$end: something ran");
	ok(!kill(0, $pid), "$end: it runs no more");
	ok(!-e $folder, "$end: the folder is gone");
	ok(-e $policy, "$end: the policy of the other run stays");
}

# While packages are installed, a policy forbids to start services.
my $install = 'apt_install() { cat "$policy_file" "$no_cluster_file"; echo "installs $*"; }; install_without_services a b -- c';

write_policy(undef);
like(script($install), qr/Of lease_lock.*create_main_cluster = false\ninstalls a b\n.*installs c\n/s, 'a policy while it installs');
ok(!-e $policy && !-e "$root/etc", 'and nothing of it afterwards');
foreach my $end ('false', 'kill -TERM $BASHPID; sleep 60', 'kill -INT $BASHPID; sleep 60')
{
	is(script("apt_install() { $end; }; install_without_services a -- || exit", FAILS => 1), '', "$end: not installed");
	ok(!-e $policy && !-e "$root/etc", "$end: nothing of the policy");
}
like(script('apt_install() { [[ $* != *bad* ]] && echo "installs $*"; }; install_without_services -- good bad', FAILS => 1),
	qr/^installs good$/m, 'what is optional may fail');

like(script('apt_install() { :; }; disable_services() { echo "disables $*"; }; install_without_services etcd-server -- pgbouncer'),
	qr/^disables etcd-server pgbouncer$/m, 'no service of either kind starts at the next boot');

# A machine that has a policy keeps it. One that a killed run left is not the machine's.
write_policy('exit 0 # of the machine');
like(script($install), qr/of the machine/, 'the policy of the machine decides');
like(slurp_file($policy), qr/of the machine/, 'and stays');
write_policy('# Of lease_lock, while it installs packages.');
script($install);
ok(!-e $policy, 'a policy that was left is removed');

# A second run waits for the first.
write_policy(undef);
is(script(<<'RUNS'), "first\nsecond\n", 'one run installs at a time');
	waiting=$(mktemp)
	waits() { [[ -s $waiting ]] && grep -q '(flock) S' "/proc/$(<"$waiting")/stat"; }
	apt_install() { until waits; do sleep 0.1; done; echo first; }
	second() {
		flock() { command flock "$@" & echo "$!" >"$waiting"; wait "$!"; }
		apt_install() { echo second; }
		install_without_services a --
	}
	(until [[ -e $policy_file ]]; do sleep 0.1; done && second) &
	install_without_services a --
	wait $!
	rm "$waiting"
RUNS

# The tests of a client are skipped, and say so, where its language is missing.
{
	my $few = "$root/few";

	make_path($few);
	foreach my $program (qw(bash cat cp mkdir mktemp rm tar))
	{
		my ($found) = grep { -x } map { "$_/$program" } split(/:/, $ENV{PATH});
		symlink($found, "$few/$program") or die "no $program";
	}
	local $ENV{PATH} = $few;
	my ($stdout, $stderr);
	ok(IPC::Run::run([ 'clients/node/test/run' ], '>', \$stdout, '2>', \$stderr), 'without npm: no failure');
	is("$stdout$stderr" =~ /^(skipped: no npm)/ ? $1 : "$stdout$stderr", 'skipped: no npm', 'and a line says so');
}

done_testing();
