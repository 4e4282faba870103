# The examples in the documents print what the documents say, and links are not broken.
#
# A block of SQL is run in a session for the whole document, in a database of its own. If a block of text
# follows it with nothing in between, that is its output. Comments before a block say more:
#
#   <!-- not run: why -->      for the reader only
#   <!-- needs: NAME ... -->   run only if the extension has the functions, views, or arguments: function(argument)
use strict;
use warnings;

use File::Basename;
use FindBin;
use lib $FindBin::RealBin;

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../..";
my @documents = grep { -f "$root/$_" } qw(
  README.md CONTRIBUTING.md CHANGELOG.md docs/before-you-install.md docs/clients.md docs/clients-java.md docs/clients-ruby-go.md clients/python/README.md clients/node/README.md docs/guide.md docs/installation.md docs/lease_run.md docs/monitoring.md
  docs/operations.md docs/performance.md docs/reference.md docs/scaling.md docs/security.md examples/README.md
  src/README.md test/bench/README.md
);
# In this order: monitoring grants to roles that the reference creates.
my @with_examples = grep { -f "$root/$_" }
  qw(README.md docs/guide.md docs/reference.md docs/monitoring.md docs/operations.md docs/security.md);

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
		'<', \$script, '>&', \my $output, IPC::Run::timeout(180));
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

my $node = start_node('documents',
	"shared_preload_libraries = 'lease_lock'\nmax_prepared_transactions = 5\n");
check_examples($node, $_) foreach @with_examples;
$node->stop;

done_testing();
