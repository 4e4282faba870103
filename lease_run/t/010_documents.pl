# The commands with lease_run that the documents show run as they stand there. Service, hosts and programs are replaced.
use strict;
use warnings;

use File::Glob ':bsd_glob';
use FindBin;
use lib $FindBin::RealBin;

use LeaseRunTest;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../..";
my $folder = PostgreSQL::Test::Utils::tempdir();
my $node = start_node('documents', 'shared_preload_libraries = lease_lock');

# The programs print their name.
foreach my $program (qw(report scheduler wget))
{
	append_to_file("$folder/$program", qq{#!/bin/sh\necho "ran $program \$*"\n});
	chmod 0700, "$folder/$program";
}
append_to_file("$folder/services", '[jobs]' . "\nhost=" . $node->host . "\nport=" . $node->port . "\ndbname=postgres\nuser=postgres\n");

# The commands in the blocks of a document: lines of a shell, of cron, of systemd, and the list of a container.
sub commands
{
	my ($text) = @_;
	my @commands;

	while ($text =~ /^ *```\w*\n(.*?)^ *```$/msg)
	{
		foreach my $line (split /\n/, $1)
		{
			push @commands, $1 if $line =~ /^ *(?:[\d*]+ [\d*]+ \* \* \*  \w+  |ExecStart=)?((?:\/usr\/bin\/)?lease_run .*)$/ && $line !~ /\[OPTION\]/;
			push @commands, join(' ', map { "'$_'" } $1 =~ /"([^"]*)"/g) if $line =~ /^ *command: \[("lease_run".*)\]$/;
		}
	}
	return @commands;
}

my $found = 0;
# docs/jobs.md is a test of its own.
foreach my $document (grep { $_ ne 'docs/jobs.md' } map { s{^\Q$root/\E}{}r } bsd_glob("$root/{README.md,docs/*.md}"))
{
	foreach my $command (commands(slurp_file("$root/$document")))
	{
		my $runnable = $command =~ s{/usr/(?:local/)?bin/}{}gr =~ s{'host=\S+ dbname=jobs'}{service=jobs}r;
		local @ENV{qw(PATH PGSERVICEFILE PGSERVICE url)} = ("$folder:$ENV{PATH}", "$folder/services", 'jobs', 'u');
		my ($out, $err);

		# what an example before has kept
		$node->safe_psql('postgres', 'SELECT lease_break(resource) FROM (SELECT DISTINCT resource FROM lease_status) AS s');
		IPC::Run::run([ 'sh', '-c', $runnable ], '<', \undef, '>', \$out, '2>', \$err);
		like("$?: $out", qr/^0: ran (report|scheduler|wget)/, "$document: $command") or diag($err);
		$found++;
	}
}
cmp_ok($found, '>=', 6, 'commands were found');

$node->stop;
done_testing();
