# lease_wait_graph(): the graph shows who waits for whom, Graphviz can draw it,
# and no name can forge parts of the graph.
use strict;
use warnings;

use Encode qw(decode encode FB_CROAK);
use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('graph', $WaitTest::NEVER . "max_prepared_transactions = 2\n");
my @sessions = map { open_session($node) } 0 .. 5;
my $have_dot = eval { run_command([ 'dot', '-V' ]); 1 };
diag('no Graphviz (Debian package graphviz): pictures are not drawn') if !$have_dot;

sub graph
{
	return look($node, 'SELECT lease_wait_graph()');
}

# The nodes and edges of a graph, by their labels, in a text that can be compared.
sub edges
{
	my ($graph) = @_;
	my %node = $graph =~ /^\t(n\d+) \[label="((?:[^"\\]|\\.)*)"/mg;
	my @edges;

	while ($graph =~ /^\t(n\d+) -> (n\d+) \[label="((?:[^"\\]|\\.)*?)\\nprocess \d+, position (\d+)"(, style=dashed)?\];$/mg)
	{
		push @edges, "$node{$1} -> $node{$2} ($3, $4" . ($5 ? ', open' : '') . ')' =~ s/\\nrole postgres//gr;
	}
	return join "\n", map { s/\\nrole postgres//gr } @edges;
}

# Draw it, and test that it is well formed and shows these lines of text.
sub draws
{
	my ($name, $graph, @lines) = @_;

  SKIP:
	{
		skip 'no Graphviz', 3 + @lines if !$have_dot;
		my $tempdir = PostgreSQL::Test::Utils::tempdir();
		my ($svg, $stderr);

		append_to_file("$tempdir/graph.dot", $graph);
		IPC::Run::run([ 'dot', '-Tsvg', "$tempdir/graph.dot" ], '>', \$svg, '2>', \$stderr);
		is($? >> 8, 0, "$name: Graphviz draws it");
		unlike($stderr, qr/syntax|invalid|warning.*(label|UTF-8|charset)/i, "$name: without complaint");
		$svg = decode('UTF-8', $svg, FB_CROAK);
		is(well_formed($svg), '', "$name: the picture is well formed");

		my @shown = map { encode('UTF-8', tr/\x{A0}/ /r) } map { s/&#(\d+);/chr $1/ger =~ s/&#x([0-9a-f]+);/chr hex $1/gier =~ s/&lt;/</gr =~ s/&gt;/>/gr =~ s/&quot;/"/gr =~ s/&amp;/&/gr }
		  $svg =~ m{<text[^>]*>([^<]*)</text>}g;
		foreach my $line (@lines)
		{
			ok((grep { $_ eq $line } @shown), "$name: it shows: $line") or diag(join "\n", @shown);
		}
	}
	return;
}

# What is wrong with an XML text: tags that do not match, invalid characters or
# entities. Not all there is to know about XML, but all that a name can break.
sub well_formed
{
	my ($xml) = @_;
	my @open;

	return 'a character that is none' if $xml =~ /[^\x09\x0A\x0D\x20-\x{D7FF}\x{E000}-\x{FFFD}\x{10000}-\x{10FFFF}]/;
	return "entity: $1" if $xml =~ /(&(?!(?:amp|lt|gt|quot|apos|#\d+|#x[0-9a-fA-F]+);).{0,10})/;
	$xml =~ s/<\?.*?\?>|<!--(?:(?!--).)*-->|<!DOCTYPE[^>]*>//gs;
	while ($xml =~ m{<(/?)([\w:]+)((?:\s+[\w:-]+="[^"<]*")*)\s*(/?)>|(<)}g)
	{
		return 'a stray <' if defined $5;
		next if $4;
		if (!$1)
		{
			push @open, $2;
		}
		elsif (!@open || pop @open ne $2)
		{
			return "tag $2 closed, but not opened";
		}
	}
	return @open ? "open: @open" : '';
}

my $empty = graph();
is($empty, "digraph lease_waits {\n\tnode [shape=box];\n}", 'nobody waits');
draws('empty', $empty);

# A chain, two positions in one queue, and a circle of three.
look($node, q{SELECT lease_acquire('r' || i, '1 hour', 'o' || i) FROM generate_series(0, 2) AS i; SELECT lease_acquire('door', '1 hour', 'ann')});
send_to_wait($node, $sessions[0], q{SELECT lease_acquire('door', '1 hour', 'bob', '10 min')});
send_to_wait($node, $sessions[1], q{SELECT lease_acquire('door', '1 hour', 'carl', '10 min')});
send_to_wait($node, $sessions[ 2 + $_ ], "SELECT lease_acquire('r" . ($_ + 1) % 3 . "', '1 hour', 'o$_', '10 min')") foreach 0 .. 2;
my $graph = graph();
is(edges($graph), join("\n", 'bob -> ann (door, 1)', 'carl -> ann (door, 2)', 'o0 -> o1 (r1, 1)', 'o1 -> o2 (r2, 1)', 'o2 -> o0 (r0, 1)'),
	'who waits for whom');
is(() = $graph =~ /^\tn\d+ \[/mg, 6, 'each owner is drawn once');
draws('circle', $graph, qw(ann bob carl o0 o1 o2 door r0 r1 r2), 'role postgres');

# another role sees the same picture without the owners
$node->safe_psql('postgres', 'CREATE ROLE other');
my $hidden = look($node, 'SET ROLE other; SELECT lease_wait_graph(); RESET ROLE') =~ s/^(SET|RESET)$//mgr;
is(edges($hidden), join("\n", ('(hidden) -> (hidden) (door, 1)', '(hidden) -> (hidden) (door, 2)'), map { "(hidden) -> (hidden) (r$_, 1)" } 1, 2, 0),
	'owners are hidden');
is(() = $hidden =~ /^\tn\d+ \[/mg, 9, 'each session and each lease has its own');
draws('hidden', $hidden, '(hidden)', 'door');
look($node, 'SELECT count(pg_cancel_backend(pid)) FROM lease_waiters');
like(answer($_), qr/57014/, 'cancelled') foreach @sessions[ 0 .. 4 ];

# Behind open transactions: one that does nothing else, one that is prepared, and
# one whose session waits for a lease itself, which closes a circle.
look($node, q{SELECT lease_acquire('a', '1 hour', 'a'), lease_acquire('b', '1 hour', 'b'), lease_release('door', 'ann')});
is($sessions[0]->query_safe(q{BEGIN; SELECT lease_acquire('idle', '1 hour', 'idler')}), 't', 'an open grant');
is($sessions[1]->query_safe(q{BEGIN; SELECT lease_renew('a', '1 hour', 'a')}), 't', 'an open renewal');
is($sessions[2]->query_safe(q{BEGIN; SELECT lease_acquire('prepared', '1 hour', 'p'); PREPARE TRANSACTION 'p'}), 't', 'a prepared grant');
send_to_wait($node, $sessions[3], q{SELECT lease_acquire('idle', '1 hour', 'w', '10 min')}, in_lock_manager());
send_to_wait($node, $sessions[1], q{SELECT lease_acquire('b', '1 hour', 'a', '10 min')});
send_to_wait($node, $sessions[4], q{SELECT lease_acquire('a', '1 hour', 'b', '10 min')}, in_lock_manager());
send_to_wait($node, $sessions[5], q{SELECT lease_acquire('prepared', '1 hour', 'w2', '10 min')}, in_lock_manager());
$graph = graph();
my $idle = $sessions[0]->query_safe('SELECT pg_backend_pid()');
my $prepared = look($node, 'SELECT transaction FROM pg_prepared_xacts');
is(edges($graph), join("\n", "w -> process $idle (idle, 1, open)", 'a -> b (b, 1)', 'b -> a (a, 1, open)', "w2 -> prepared transaction $prepared (prepared, 1, open)"),
	'transactions that are open');
draws('transactions', $graph, "process $idle", "prepared transaction $prepared");
look($node, q{SELECT count(pg_cancel_backend(pid)) FROM lease_waiters});
like(answer($_), qr/57014/, 'cancelled') foreach @sessions[ 1, 3, 4, 5 ];
$_->query_safe('ROLLBACK') foreach @sessions[ 0, 1 ];
look($node, q{ROLLBACK PREPARED 'p'});

# The lease is free and the first in the queue is about to take it.
{
	my $pid = send_to_wait($node, $sessions[0], q{SELECT lease_acquire('a', '1 hour', 'stopped', '10 min')});

	stop_backend($pid);
	look($node, q{SELECT lease_release('a', 'a')});
	is(edges(graph()), 'stopped -> nobody (a, 1)', 'free');
	draws('free', graph(), 'nobody');
	continue_backend($pid);
	is(answer($sessions[0]), 't', 'and taken');
	look($node, q{SELECT lease_release('a', 'stopped')});
}

# Names: as SQL expression, and as the picture has to show them.
my %hostile = (
	q('"]; n9 -> n8; x [label="') => '"]; n9 -> n8; x [label="',
	q{'back\slash\\'} => 'back\\\\slash\\\\',
	q{'\N \G \l'} => '\\\\N \\\\G \\\\l',
	q{'ends with \"'} => 'ends with \\\\"',
	q{'<b>&amp;</b> &#65; &'} => '<b>&amp;</b> &#65; &',
	q{E'two\nlines\tand a tab'} => 'two\nlines\tand a tab',
	q{E'bell\x07'} => 'bell\x07',
	q{'schön 中 😀'} => 'schön 中 😀',
	q('%s %n }') => '%s %n }',
	q('--> { } ; /* // #') => '--> { } ; /* // #');
foreach my $name (sort keys %hostile)
{
	look($node, "SELECT lease_acquire($name, '1 hour', $name)");
	send_to_wait($node, $sessions[0], "SELECT lease_acquire($name, '1 hour', 'w' || $name, '10 min')");
	$graph = graph();
	is(() = $graph =~ /\n/g, 5, "$name: six lines");
	draws($name, $graph, $hostile{$name}, "w$hostile{$name}");
	look($node, 'SELECT count(pg_cancel_backend(pid)) FROM lease_waiters');
	like(answer($sessions[0]), qr/57014/, "$name: cancelled");
	is(look($node, "SELECT lease_release($name, $name)"), 't', "$name: released");
}

nothing_left($node, 'graph');
$node->stop;
done_testing();
