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
		kept_policy_file=$policy.kept
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

	unlink $policy, "$policy.kept";
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

# Ours comes and goes, and that of the machine is there again.
write_policy('exit 0 # of the machine');
like(script('forbid_services; cat "$policy_file"'), qr/Of lease_lock/, 'a policy of our own');
like(slurp_file($policy), qr/of the machine/, 'and that of the machine is there again');
ok(!-e "$policy.kept" && !-e "$root/etc", 'and nothing else');
write_policy(undef);
like(script('forbid_services; cat "$policy_file"; exit 1', FAILS => 1), qr/Of lease_lock/, 'where the machine has none');
ok(!-e $policy, 'it has none again');

# The clean-up also works when a part of it is done already.
write_policy('exit 0 # of the machine');
script('forbid_services; as_root() { [[ $1 != rm ]] && "$@"; }', FAILS => 1);
like(slurp_file($policy), qr/of the machine/, 'a step that fails does not keep the policy');

# A policy that a killed run left behind counts as ours, not as the machine's.
write_policy('# Of lease_lock, while it installs packages.');
script('forbid_services');
ok(!-e $policy && !-e "$policy.kept", 'a policy that was left is removed');

# A second run waits for the first.
{
	write_policy(undef);
	my $order = script(<<'RUNS');
		forbid_services
		(
			trap - EXIT
			exec {install_lock}<&-
			forbid_services
			echo second
			allow_services
		) &
		second=$!
		until grep -qs "^PPid:[[:space:]]*$second\$" /proc/[0-9]*/status; do sleep 0.1; done
		echo first
		allow_services
		wait "$second"
RUNS
	is($order, "first\nsecond\n", 'one run installs at a time');
	ok(!-e $policy, 'and in the end there is no policy');
}

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
