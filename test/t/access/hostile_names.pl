# Names that are hard: bytes that are no characters; long names of long
# characters, in every place that shows them.
use strict;
use warnings;

use Encode qw(decode encode FB_CROAK);
use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('hostile', "deadlock_timeout = 100ms\nlease_lock.handoff_timeout = 1h\nclient_min_messages = error\n");

# Two names of 1024 bytes each, in a deadlock, in the views and in errors.
sub everywhere
{
	my ($dbname, $what, %name) = @_;	# names as SQL expressions
	my @sessions = map { open_session($node, $dbname) } 0, 1;
	my $observer = open_session($node, $dbname);
	my $hex = sub { my ($column) = @_; return "encode(convert_to($column, getdatabaseencoding()), 'hex')" };
	my $bytes = sub { my ($name) = @_; return $observer->query_safe('SELECT ' . $hex->($name)) };

	$observer->query_safe(q{SET client_encoding = 'SQL_ASCII'}) if $dbname eq 'ascii';
	is($observer->query_safe("SELECT lease_acquire($name{r0}, '1 hour', $name{o0}), lease_acquire($name{r1}, '1 hour', $name{o1})"), 't|t', "$what: granted");
	is($observer->query_safe('SELECT count(*) FROM lease_status WHERE ' . $hex->('resource') . ' = ' . $hex->($name{r0}) . ' AND ' . $hex->('owner') . ' = ' . $hex->($name{o0})),
		1, "$what: lease_status has it to the byte");
	my $pid = $sessions[0]->query_safe('SELECT pg_backend_pid()');
	send_sql($sessions[0], "SELECT lease_acquire($name{r1}, '1 hour', $name{o0}, '1 min')");
	$node->poll_query_until('postgres', "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $pid") or die 'does not wait';
	is($observer->query_safe('SELECT ' . join(', ', map { $hex->($_) } qw(resource owner blocked_by_owner)) . ' FROM lease_waiters'),
		join('|', map { $bytes->($name{$_}) } qw(r1 o0 o1)), "$what: lease_waiters has it to the byte");
	my $graph = $observer->query_safe('SELECT lease_wait_graph()');

	$sessions[1]->query("SELECT lease_acquire($name{r0}, '1 hour', $name{o1}, '1 min')");
	my $error = $sessions[1]->{stderr};
	$sessions[1]->{stderr} = '';
	like($error, qr/40P01: deadlock detected while waiting for the lease on/, "$what: a deadlock");

	is($observer->query_safe("SELECT lease_release_all($name{o1})"), 1, "$what: released");
	is(answer($sessions[0]), 't', "$what: handed on");
	$observer->query("SELECT lease_acquire($name{r0}, '0', $name{o0})");
	my $range = $observer->{stderr};
	$observer->{stderr} = '';
	is($observer->query_safe("SELECT lease_release_all($name{o0})"), 2, "$what: released again");
	$_->quit foreach @sessions, $observer;
	return ($graph, $error, $range);
}

sub contains
{
	my ($text, $part, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(index($text, $part) >= 0, $name);
	return;
}

{
	my %long = (r0 => q{repeat('😀', 256)}, r1 => q{repeat('中', 341) || 'x'}, o0 => q{repeat('ä', 512)}, o1 => q{repeat('я', 512)});
	my ($graph, $error, $range) = everywhere('postgres', 'long', %long);

	contains($graph, $_, 'long: the graph has the whole name') foreach '中' x 341 . 'x', 'ä' x 512, 'я' x 512;
	contains($error, qq{on "$_"}, 'long: the error has the whole name') foreach '😀' x 256, '中' x 341 . 'x';
	contains($error, qq{for owner "$_"}, 'long: the error has the whole owner') foreach 'ä' x 512, 'я' x 512;
	contains($range, '"' . '😀' x 256 . '" is out of range', 'long: so has another one');
	ok(eval { decode('UTF-8', $_, FB_CROAK); 1 }, 'long: no character is cut') foreach map { "$_" } $graph, $error, $range;
	session_fails(open_session($node), q{SELECT lease_acquire(repeat('😀', 256) || 'x', '1 hour', 'o')}, '22023', 'must not be longer than 1024 bytes.*It has 1025 bytes',
		'long: one byte more');
	sql_fails($node, q{SELECT lease_acquire(E'\xFF', '1 hour', 'o')}, '22021', 'invalid byte sequence', 'UTF8: bytes that are no characters come from nowhere');
}

# Characters that are not seen are escaped; others are not.
{
	my $escaped = sub {
		return $node->safe_psql('postgres', 'SELECT string_agg(to_hex(c), \' \' ORDER BY c) FROM unnest(ARRAY['
			  . join(', ', map { "x'" . sprintf('%08X', $_) . "'::int" } @_) . ']) AS c WHERE lease_printable(chr(c)) <> chr(c)');
	};
	my @invisible = (0x1, 0x7F, 0x9F, 0xAD, 0x34F, 0x61C, 0x115F, 0x180E, 0x200B, 0x202E, 0x2066, 0x3164, 0xFE0F, 0xFEFF, 0xFFA0, 0xFFF9, 0xFFFB, 0x1D173, 0xE0001,
		0xE007F, 0xE01EF);
	my @visible = (0x41, 0xA0, 0xAC, 0xAE, 0xE9, 0x1161, 0x200A, 0x2010, 0x3163, 0x4E2D, 0xFFFC, 0x1F600, 0x1D172, 0xE1000);

	is($escaped->(@invisible), join(' ', map { sprintf('%x', $_) } @invisible), 'characters that are not seen are escaped');
	is($escaped->(@visible), '', 'others are not');
	is($node->safe_psql('postgres', q{SELECT length(lease_printable(repeat('x', 100000000)))}), 1027, 'of a text that is no name the beginning is shown');
}

# an encoding of one byte a character: 1024 of them
{
	$node->safe_psql('postgres', q{CREATE DATABASE latin TEMPLATE template0 ENCODING LATIN1 LC_COLLATE "C" LC_CTYPE "C"});
	$node->safe_psql('latin', 'CREATE EXTENSION lease_lock');
	my ($graph, $error) = everywhere('latin', 'LATIN1', r0 => q{repeat(chr(228), 1024)}, r1 => q{repeat(chr(233), 1024)}, o0 => q{chr(255)}, o1 => q{chr(160)});
	$graph = encode('UTF-8', decode('latin1', $graph)) if index($graph, "\xC3\xA9") < 0;
	contains($graph, 'é' x 1024, 'LATIN1: the graph has the whole name');
	sql_fails($node, q{SELECT lease_acquire(repeat(chr(228), 1025), '1 hour', 'o')}, '22023', 'It has 1025 bytes', 'LATIN1: one more', dbname => 'latin');
}

# no encoding at all: any bytes but zero
{
	$node->safe_psql('postgres', q{CREATE DATABASE ascii TEMPLATE template0 ENCODING SQL_ASCII LC_COLLATE "C" LC_CTYPE "C"});
	$node->safe_psql('ascii', 'CREATE EXTENSION lease_lock');
	my ($graph) = everywhere('ascii', 'SQL_ASCII',
		r0 => q{repeat(E'\xF0\x9F', 512)}, r1 => q{E'\xFF\xFE\x80"\\\\'}, o0 => q{E'\xC3'}, o1 => q{E'\xE2\x80'});
	contains($graph, 'label="\\\\xFF\\\\xFE\\\\x80\\"\\\\\\\\\\n', 'SQL_ASCII: the graph has bytes by their number');
	unlike($graph, qr/[^\x00-\x7F]/, 'SQL_ASCII: and is ASCII');
	is($node->safe_psql('ascii', q{SELECT lease_acquire(E'\xC3', '1 hour', 'o'), lease_acquire(E'\xC3\xA4', '1 hour', 'o'), lease_acquire(E'\xC3', '1 hour', 'o')}),
		't|t|f', 'SQL_ASCII: half a character is another name than the whole');
}

$node->stop;
done_testing();
