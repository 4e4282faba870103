# docs/jobs.md, followed from its beginning to its end: each line runs as printed. Replaced are only the address of the server and
# folders: those of programs, and that of the service file, which libpq is told.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaseRunTest;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $node = start_node('jobs', 'shared_preload_libraries = lease_lock');
my $folder = PostgreSQL::Test::Utils::tempdir_short();
my $page = slurp_file("$FindBin::RealBin/../../docs/jobs.md");
my ($lease_run) = grep { -x } map { "$_/lease_run" } split(/:/, $ENV{PATH});

# The blocks of the step whose heading matches; with where they go, if the text before them says so.
sub blocks
{
	my ($step, $language) = @_;
	my ($text) = $page =~ /^(## [^\n]*$step.*?)(?=^## |\z)/ms or die "no step $step";
	my @blocks;

	push @blocks, { file => $1, language => $2, text => $3 }
	  while $text =~ /(?:`(\/[^`\n]+)`[^`]*)?^```(\w*)\n(.*?)^```$/msg;
	return grep { !defined $language || $_->{language} eq $language } @blocks;
}

# As cron, systemd and containers run it: with no more in the environment than they give, and what names the server of this test.
sub run_line
{
	my ($line, @environment) = @_;
	my ($out, $err) = ('', '');

	$line =~ s{/usr/bin/lease_run}{$lease_run}g;
	$line =~ s{/usr/local/bin/}{$folder/}g;
	my @sanitizer = defined $ENV{ASAN_OPTIONS} ? "ASAN_OPTIONS=$ENV{ASAN_OPTIONS}" : ();
	IPC::Run::run([ 'env', '-i', @sanitizer, "PATH=" . ($lease_run =~ s{/lease_run$}{}r) . ':/usr/bin:/bin', 'HOME=/', 'SHELL=/bin/sh', "PGSERVICEFILE=$folder/pg_service.conf",
			@environment, '/bin/sh', '-c', $line ], '<', \undef, '>', \$out, '2>', \$err);
	return { status => $? >> 8, out => $out, err => $err };
}

sub write_program
{
	my ($name, $text) = @_;

	append_to_file("$folder/$name", $text =~ s{/usr/local/bin/}{$folder/}gr);
	chmod 0755, "$folder/$name";
	return;
}

sub free_all
{
	$node->safe_psql('jobs', 'SELECT lease_break(resource) FROM (SELECT DISTINCT resource FROM lease_status) AS s');
	return;
}

write_program($_, qq{#!/bin/sh\necho "ran $_ \$*"\n}) foreach qw(report scheduler);

# 1. The database.
$node->psql('postgres', $_->{text}, on_error_die => 1) foreach blocks('The database', 'sql');

# 2. Each host.
my ($link) = blocks('Each host', 'sh');
is(run_line($link->{text})->{status}, 0, 'the link for cron');
ok(-l "$folder/lease_run" && -x "$folder/lease_run", 'leads to lease_run');
my ($service) = grep { $_->{text} =~ /^\[jobs\]\n/ } blocks('Each host');
is(scalar(() = $service->{text} =~ /\n/g), 4, 'the service has four lines');
append_to_file("$folder/pg_service.conf", $service->{text} =~ s/^host=.*/"host=" . $node->host . "\nport=" . $node->port/emr);
my ($try) = grep { $_->{text} =~ /^lease_run/ } blocks('Each host', 'sh');
is_run(run_line($try->{text}), 0, qr/^it works$/, qr/connected to server/, 'the first try');

# 3. cron: a line of cron.d names the account, one of a crontab does not.
my %lines = (crond => 0, crontab => 0);
foreach my $step ('3\. cron', '8\. Tell me')
{
	foreach my $line (map { split /\n/, $_->{text} } grep { $_->{text} =~ /^\d/ } blocks($step))
	{
		my ($command) = $line =~ /^\d+ \d+ \* \* \*  (?:jobs  )?(\/usr\/bin\/.*)$/;

		ok(defined $command, "a line for cron: $line");
		$lines{ $line =~ /\*  jobs  / ? 'crond' : 'crontab' }++;
		next if $step =~ /^8/;
		free_all();
		is_run(run_line($command), 0, qr/^ran report/, qr/^$/, 'runs');
		is_run(run_line($command), 0, qr/^$/, qr/^$/, 'on one host') unless $command =~ /--wait/;
	}
}
cmp_ok($lines{$_}, '>=', 1, "lines for $_") foreach sort keys %lines;
foreach my $block (grep { $_->{text} =~ /^lease_run/ } blocks('3\. cron', 'sh'))
{
	free_all();
	is_run(run_line($block->{text}), 0, qr/^ran report/, qr/^$/, "runs: $block->{text}");
}

# 4. systemd.
my @units = grep { ($_->{file} // '') =~ /^\/etc\/systemd\// } blocks('4\. systemd');
is(scalar @units, 3, 'three units');
foreach my $unit (@units)
{
	my ($name) = $unit->{file} =~ /([^\/]+)$/;
	my ($command) = $unit->{text} =~ /^ExecStart=(.*)$/m;

	append_to_file("$folder/$name", $unit->{text} =~ s{/usr/bin/lease_run}{$lease_run}gr =~ s{/usr/local/bin/}{$folder/}gr);
	next unless $command;
	free_all();
	is_run(run_line($command), 0, qr/^ran (report|scheduler)/, qr/^$/, "$name: its command runs");
	like($unit->{text}, qr/^KillMode=mixed$/m, "$name: SIGTERM is sent once");
	like($unit->{text}, qr/^StartLimitIntervalSec=0$/m, "$name: systemd goes on after errors") if $unit->{text} =~ /^Restart=/m;
}
SKIP:
{
	my @files = map { "$folder/" . ($_->{file} =~ s/.*\///r) } @units;

	skip 'no systemd-analyze', 1 if system('systemd-analyze --version >/dev/null 2>&1') != 0;
	is(qx{XDG_RUNTIME_DIR=$folder systemd-analyze verify --man=no @files 2>&1}, '', 'systemd-analyze verify has nothing to say');
}

# 5. A container: the lists of the two files.
my $in_container = 0;
foreach my $block (blocks('A container'))
{
	foreach my $list ($block->{text} =~ /^\s*(?:ENTRYPOINT|command:) \[(.*)\]$/mg)
	{
		free_all();
		is_run(run_line(join(' ', map { "'$_'" } $list =~ /"([^"]*)"/g), 'PGHOST=' . $node->host, 'PGPORT=' . $node->port, 'PGDATABASE=jobs', 'PGUSER=jobs'),
			0, qr/^ran report/, qr/^$/, "runs: $list");
		$in_container++;
	}
	next unless $block->{text} =~ /^apiVersion/;
  SKIP:
	{
		skip 'no Python with yaml', 1 if system(q{python3 -c 'import yaml' 2>/dev/null}) != 0;
		append_to_file("$folder/cronjob.yaml", $block->{text});
		is(system('python3', '-c', 'import sys, yaml; assert yaml.safe_load(open(sys.argv[1]))["kind"] == "CronJob"', "$folder/cronjob.yaml"), 0, 'the manifest is one');
	}
}
is($in_container, 2, 'two lists');

# 6. A deploy: SIGTERM ends the command, and the next host begins at once.
{
	my @line = ($node->connstr('jobs'), '--ttl=1h', 'scheduler', 'sh', '-c');
	my $first = start_run(@line, 'touch "$0"; exec sleep 1000', "$folder/first");
	until_true('the first one', sub { -e "$folder/first" });
	my $second = start_run(@line, 'echo second');
	until_true('the second one waits', sub { $node->safe_psql('jobs', q{SELECT count(*) FROM lease_waiters}) eq '1' });
	kill('TERM', $first->{pid});
	is_run(finish_run($first), 143, qr/^$/, qr/^$/, 'a deploy ends the command');
	is_run(finish_run($second), 0, qr/^second$/, qr/^$/, 'and the next host begins');

	# From afar.
	my $ttl = 9 * slowness($node);
	$first = start_run($node->connstr('jobs'), "--ttl=${ttl}s", 'scheduler', 'sh', '-c', 'trap "" TERM; echo $$ >"$0"; while :; do sleep 0.1; done', "$folder/third");
	until_log("$folder/third", qr/\d+\n/);
	my ($break) = blocks('A deploy', 'sql');
	is($node->safe_psql('jobs', $break->{text} =~ s/'20 s'/'$ttl s'/r), 't', 'lease_break with a grace');
	$second = start_run($node->connstr('jobs'), '--ttl=1h', 'scheduler', 'sh', '-c', q{grep -qs ') [^ZX]' "/proc/$0/stat" && echo beside; echo second},
		slurp("$folder/third") + 0);
	is_run(finish_run($second), 0, qr/^second$/, qr//, 'the next one begins after the old one has ended');
	is_run(finish_run($first), 75, qr/^$/, qr/lost/, 'which says so');
}

# 7. Which host ran last.
my ($table, $last, $now) = blocks('Which host ran last', 'sql');
$node->safe_psql('jobs', "SET ROLE jobs; $table->{text}");
my ($recorded, $line) = blocks('Which host ran last', 'sh');
write_program('recorded', $recorded->{text});
free_all();
is_run(run_line($line->{text}), 0, qr/^ran report/, qr/^$/, 'a run that is recorded');
my $host = qx{hostname} =~ s/\n//r;
like($node->safe_psql('jobs', $last->{text}), qr/^nightly\|\Q$host\E\|[^|]+\|[^|]+\|0$/, 'which host ran last, and how it ended');
is($node->safe_psql('jobs', q{SELECT granted_at BETWEEN now() - interval '10 min' AND ended_at FROM job_run}), 't', 'at a time that LEASE_GRANTED_AT says');
like($node->safe_psql('jobs', $now->{text}), qr/^$|nightly/, 'who runs now');
free_all();
write_program('failing', "#!/bin/sh\nexit 7\n");
is_run(run_line($line->{text} =~ s{/usr/local/bin/report}{/usr/local/bin/failing}r), 7, qr/^$/, qr/^$/, 'its status is passed on');
like($node->safe_psql('jobs', $last->{text}), qr/^nightly\|.*\|7$/, 'and recorded');

# 8. Tell me if nobody ran.
my ($nobody) = blocks('Tell me', 'sh');
my ($asks) = map { $_->{text} =~ /jobs  (.*)/ } grep { $_->{text} =~ /^\d/ } blocks('Tell me');
write_program('nobody-ran', $nobody->{text});
free_all();
is_run(run_line($asks), 0, qr/^$/, qr/^$/, 'a good run: nothing is said');
$node->safe_psql('jobs', q{UPDATE job_run SET ended_at = ended_at - interval '1 day', granted_at = granted_at - interval '1 day'});
free_all();
is_run(run_line($asks), 0, qr/^nightly: no good run within 2 hours; the last one began \d/, qr/^$/, 'no good run: it says so');
is_run(run_line($asks), 0, qr/^$/, qr/^$/, 'on one host');
$node->safe_psql('jobs', 'DELETE FROM job_run');
free_all();
is_run(run_line($asks), 0, qr/the last one began never/, qr/^$/, 'or never');

$node->stop;
done_testing();
