# The examples in the documents print what the documents say, links are not broken, and promises name tests.
#
# A block of SQL is run in a session for the whole document, in a database of its own. If a block of text
# follows it with nothing in between, that is its output. Comments before a block say more:
#
#   <!-- not run: why -->      for the reader only
#   <!-- needs: NAME ... -->   run only if the extension has the functions, views, or arguments: function(argument)
#
# A block of shell commands is run, too, unless %elsewhere says what runs it, or why nothing does.
use strict;
use warnings;

use File::Basename;
use File::Glob ':bsd_glob';
use FindBin;
use lib "$FindBin::RealBin/..";

use ClientTest;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../../..";
my @documents = map { s{^\Q$root/\E}{}r } glob "$root/{,docs/,examples/,src/,clients/*/,test/*/}*.md";

# Roles that one document creates are used in another: in this order, then the others.
my @first = qw(README.md docs/guide.md docs/reference.md docs/monitoring.md docs/operations.md docs/security.md);
my %is_first = map { $_ => 1 } @first;
my @in_order = (@first, grep { !$is_first{$_} } sort @documents);

# Blocks of shell commands that this test does not run, by their beginning.
my %elsewhere = (
	'scripts/demo' => 'scripts/demo and scripts/check themselves',
	'sudo apt-get' => 'scripts/package',
	'make' => 'scripts/package; scripts/check builds and tests',
	'/usr/bin/python3 -m pytest' => 'scripts/check',
	'test/bench/run' => 'takes an hour; with --quick, minutes',
	'lease_run' => 'lease_run/t/010_documents.pl and jobs.pl',
	'ln -sf "$(pg_config --bindir)/lease_run"' => 'lease_run/t/jobs.pl',
	'systemctl' => 'needs systemd; lease_run/t/jobs.pl verifies the units',
	'#!/bin/sh' => 'lease_run/t/jobs.pl',
	'psql -h' => 'test/t/partitions/plproxy.pl',
	'psql -v ON_ERROR_STOP=1 --single-transaction' => 'portable_install.pl and portable_to_extension.pl in test/t/portable',
	'contrib/plproxy/move-partition' => 'test/t/partitions/move_partition.pl');

# The fenced blocks of a document: language, text, the comment before, and whether only blank lines
# separate it from the block before.
sub blocks
{
	my ($text) = @_;
	my @blocks;
	my $end = -1;

	while ($text =~ /(?:^<!-- (not run|needs): ([^\n]*?) -->\n\s*)?^```(\w*)\n(.*?)^```$/msg)
	{
		my %block = (comment => $1 // '', argument => $2 // '', language => $3, text => $4);
		my ($start, $stop) = ($-[0], $+[0]);

		$block{follows} = $end >= 0 && substr($text, $end, $start - $end) =~ /^\s*$/;
		push @blocks, \%block;
		$end = $stop;
	}
	return @blocks;
}

# The SQL of a document, each block with the output that the document shows, if it does.
sub examples
{
	my @examples;

	foreach my $block (blocks(slurp_file("$root/$_[0]")))
	{
		if ($block->{language} eq 'sql')
		{
			push @examples, $block;
		}
		elsif ($block->{language} eq 'text' && $block->{follows} && @examples)
		{
			# several blocks of SQL can stand before the output of the last
			$examples[-1]{output} //= $block->{text};
		}
	}
	return @examples;
}

# A row of psql's output without the tokens in these columns.
sub without_tokens
{
	my ($row, @columns) = @_;
	my @cells = split /\|/, $row, -1;

	s/\d+/<token>/ foreach grep { defined } @cells[@columns];
	return join '|', @cells;
}

# Replace what differs from run to run, tokens included: numbers of 15 digits.
sub comparable
{
	my ($output) = @_;
	my (@columns, @lines);

	foreach my $line (split /\n/, $output, -1)
	{
		my @names = split /\|/, $line;

		if ($line =~ /\btoken\b/ && $line !~ /\d/)
		{
			@columns = grep { $names[$_] =~ /token\s*$/ } 0 .. $#names;
		}
		@columns = () if $line =~ /^\(\d+ rows?\)/;
		$line = without_tokens($line, @columns) if @columns;
		$line =~ s/^(token +\|) \d+/$1 <token>/;
		push @lines, $line;
	}
	$output = join "\n", @lines;
	$output =~ s/\((\d+) \w+ \.\. (\d+) \w+\)/($1 .. $2)/g; # 16: ranges have units
	$output =~ s/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?[+-]\d\d(:\d\d)?/<time>/g;
	$output =~ s/\d+(\.\d+)? (ms|milliseconds|seconds)\b/<duration>/g;
	$output =~ s/\b\d\d:\d\d:\d\d\.\d+/<duration>/g;
	$output =~ s/Time: .*/<duration>/g;
	$output =~ s/^(xid +\|) \d+/$1 <xid>/mg;
	$output =~ s/\bPID \d+/PID <pid>/g;
	$output =~ s/"token": \d+/"token": <token>/g;
	$output =~ s/\b\d{15}\b/<token>/g;
	$output =~ s/^(BEGIN|COMMIT|ROLLBACK|(UPDATE|INSERT 0|DELETE) \d+|(RE)?SET|CALL|LISTEN|(CREATE|DROP|ALTER) [A-Z]+|GRANT|REVOKE)\n//mg;
	$output =~ s/-{3,}/---/g;
	$output =~ s/[ \t]+/ /g;
	$output =~ s/ $//mg;
	$output =~ s/\n{2,}/\n/g;
	$output =~ s/^\n//;
	return $output;
}

# Whether the extension has all of these: functions, views, arguments of functions.
sub has
{
	my ($node, $names) = @_;

	return $node->safe_psql('postgres', qq{
		SELECT count(*) FROM regexp_matches('$names', '(\\w+)(?:\\((\\w+)\\))?', 'g') AS name
		WHERE to_regclass(name[1]) IS NULL
			AND NOT EXISTS (SELECT FROM pg_proc WHERE proname = name[1]
				AND (name[2] IS NULL OR name[2] = ANY (proargnames)))
	}) eq '0';
}

# Runs the examples of a document, and compares.
sub check_examples
{
	my ($node, $document) = @_;
	my @examples = examples($document);
	my $script = "\\set QUIET on\n\\set VERBOSITY default\n";
	my (@outputs, @skipped);

	foreach my $i (0 .. $#examples)
	{
		my $example = $examples[$i];

		$example->{skipped} = $example->{comment} eq 'not run'
		  || $example->{comment} eq 'needs' && !has($node, $example->{argument});
		$script .= "\\echo <<<$i>>>\n" . ($example->{skipped} ? '' : $example->{text} =~ s/\s*\\watch \d+$/;/mgr);
	}
	my $database = $document =~ s/\W/_/gr;
	$node->safe_psql('postgres', qq{CREATE DATABASE "$database"});
	$node->safe_psql($database, 'CREATE EXTENSION lease_lock')
	  unless grep { $_->{text} =~ /^CREATE EXTENSION/m } @examples;
	IPC::Run::run([ 'psql', '-X', '-d', $node->connstr($database) ],
		'<', \$script, '>&', \my $output);
	my %printed = $output =~ /^<<<(\d+)>>>\n(.*?)(?=^<<<|\z)/msg;

	subtest "$document: what the examples print" => sub {
		foreach my $i (0 .. $#examples)
		{
			my ($first) = $examples[$i]{text} =~ /^(.{1,60})/;

		  SKIP:
			{
				skip "$examples[$i]{comment}: $examples[$i]{argument}", 1 if $examples[$i]{skipped};
				if (defined $examples[$i]{output})
				{
					is(comparable($printed{$i} // ''), comparable($examples[$i]{output}), $first);
				}
				else
				{
					unlike($printed{$i} // 'nothing', qr/^ERROR:/m, $first);
				}
			}
		}
	};
}

# Runs the shell commands of a document, one block after the other, in a folder from which they see the sources. Hosts are
# the node, a loop that waits for ever comes to its end, and a block must not fail.
sub check_commands
{
	my ($node, $document, @blocks) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir();
	my $prelude = <<'PRELUDE';
set -euo pipefail
rounds=0
sleep() { ((rounds++ == 0)); }
psql() {
	local arguments=("$@")
	command psql "${arguments[@]/#db[12]/$PGHOST}"
}
PRELUDE
	local @ENV{qw(PGHOST PGPORT PGUSER PGDATABASE)} = ($node->host, $node->port, 'postgres', 'commands');

	symlink $_, "$folder/" . basename($_) or die "$folder: $!" foreach glob "$root/*";
	subtest "$document: commands" => sub {
		foreach my $block (@blocks)
		{
			my ($first) = $block->{text} =~ /^(.{1,60})/;
			my ($why) = map { $elsewhere{$_} } grep { index($block->{text}, $_) == 0 } sort { length $b <=> length $a } keys %elsewhere;
			my ($missing) = grep { $block->{text} =~ /\b\Q$_\E\b/ && !can_run([$_], '-V') } 'dot';
			my $output = '';

		  SKIP:
			{
				skip "$first: " . ($why // "no $missing"), 1 if defined($why // $missing);
				IPC::Run::run([ 'bash', '-c', "cd '$folder'\n$prelude$block->{text}" ], '<', \undef, '>&', \$output);
				is($?, 0, $first) or diag($output);
				unlike($output, qr/^(psql: |ERROR: )/m, "$first: no error") if $block->{text} =~ /psql/;
			}
		}
	};
}

# The anchors of a document, as GitHub makes them of its headings.
sub anchors
{
	my $text = slurp_file($_[0]);
	my %anchors;

	$text =~ s/^```.*?^```$//msg;
	while ($text =~ /^#+ (.*)$/mg)
	{
		my $anchor = lc $1 =~ s/\[([^]]*)\]\([^)]*\)/$1/gr;

		$anchor =~ s/[^\w\- ]//g;
		$anchor =~ s/ /-/g;
		$anchors{$anchor} = 1;
	}
	return \%anchors;
}

# The broken links of a document.
sub broken_links
{
	my ($document) = @_;
	my $text = slurp_file("$root/$document");
	my @broken;

	$text =~ s/^```.*?^```$//msg;
	while ($text =~ /\]\(([^)\s]+)\)/g)
	{
		my $link = $1;
		next if $link =~ /^https?:/;
		my ($path, $anchor) = split /#/, $link;
		my $target = $path eq '' ? "$root/$document" : dirname("$root/$document") . "/$path";

		push @broken, $link
		  if !-e $target || defined $anchor && !anchors($target)->{$anchor};
	}
	return \@broken;
}

is_deeply(broken_links($_), [], "$_: links") foreach @documents;

# The rows of the table: a name, a promise, links to tests.
my ($promises) = slurp_file("$root/README.md") =~ /^## What is promised$(.*?)^## /ms;
my @rows = $promises =~ /^\| [a-z].*/mg;

cmp_ok(scalar @rows, '>', 5, 'promises');
is(join("\n", grep { !m{\]\(test/[^)]+\)[^|]*\|$} } @rows), '', 'each names a test');

my $node = start_node('documents',
	"shared_preload_libraries = 'lease_lock'\nmax_prepared_transactions = 5\n");
$node->safe_psql('postgres', 'CREATE DATABASE commands');
$node->safe_psql('commands', 'CREATE EXTENSION lease_lock');
foreach my $document (@in_order)
{
	my @blocks = blocks(slurp_file("$root/$document"));
	my @commands = grep { $_->{language} =~ /^(ba)?sh$/ } @blocks;

	check_examples($node, $document) if grep { $_->{language} eq 'sql' } @blocks;
	check_commands($node, $document, @commands) if @commands;
}
$node->stop;

done_testing();
