# A driver that sends parameters without types gets what typed ones get: each
# function means one thing for each argument. pgbench sends them that way in the
# extended protocol, as psycopg 3 does with strings, and node-pg with everything.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest qw(look);

my $node = start_node('untyped', "client_min_messages = error\n");
my $file = "$PostgreSQL::Test::Utils::tmp_check/untyped.sql";

# The leases before each call: a and b of owner o, c of another one.
our $setup = q{
	TRUNCATE lease_lock;
	SELECT lease_acquire_all('{a,b}', '1 hour', 'o'), lease_acquire('c', '1 hour', 'p'), lease_unwatch('x', 'y'), lease_unprotect('item')};

# Values of every argument, by its name. A name with a number is that of another call.
my %value = (
	resource => 'a', resources => '{a,b}', ttl => '2 hours', owner => 'o', new_owner => 'q', wait => '10 ms', permits => '3',
	mode => 'exclusive', if_own => 'renew', min_hold => '1 s', payload => '{"n": 1}', session => 'false', grace => '1 s',
	acquired => 'false', expires_at => '2000-01-01', prefix => 'x', channel => 'y', events => '{granted}',
	table => 'item', resource_template => 'item:{id}', operations => 'insert', exclusive => 'true', session_number => '1',
	name => "a\tb");
my @calls = split /\n/, $node->safe_psql('postgres', q{
	SELECT p.proname || '|' || p.prokind::text || '|' || array_to_string(p.proargnames[1 : p.pronargs], ',') || '|' || p.oid
	FROM pg_depend AS d JOIN pg_proc AS p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
	WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'lease_lock') AND d.deptype = 'e' AND p.pronargs > 0
	ORDER BY p.proname, p.pronargs});

$node->safe_psql('postgres', 'CREATE TABLE item (id int PRIMARY KEY); CREATE TABLE answer (answer text)');
cmp_ok(scalar @calls, '>', 25, 'there are functions');

# Without what differs from call to call: tokens, times and durations.
sub same_form
{
	my ($answer) = @_;

	return $answer =~ s/\d{4}-\d\d-\d\d[ T\d:.+]+/TIME/gr =~ s/\b\d\d:\d\d:\d\d(?:\.\d+)?\b/SPAN/gr =~ s/\b\d{2,}\b/N/gr;
}

sub typed
{
	my ($call) = @_;

	look($node, $setup);
	return same_form(look($node, $call));
}

# Run the call with these values as parameters without types.
sub untyped
{
	my ($call, $procedure, %parameters) = @_;
	my $script = $procedure ? "$call \\gset\nINSERT INTO answer VALUES (concat_ws('|', :acquired::text, :token::text, :expires_at::text));\n"
	  : "$call \\gset\nINSERT INTO answer VALUES (:answer);\n";

	PostgreSQL::Test::Utils::append_to_file($file, $script);
	look($node, "$setup; TRUNCATE answer");
	my $done = $node->run_log([ 'pgbench', '-n', '-M', 'extended', '-t', '1', '-f', $file,
		(map { ('-D', "$_=$parameters{$_}") } sort keys %parameters), $node->connstr('postgres') ]);
	unlink $file;
	return $done ? same_form(look($node, 'TABLE answer')) : 'failed';
}

foreach my $line (@calls)
{
	my ($function, $kind, $arguments, $oid) = split /\|/, $line;
	my @names = split /,/, $arguments;
	my @more = $function =~ /^lease_(?:wait|request)$/ ? (mode => 'permit', if_own => 'refuse', resource => 'new') : ();
	my %given = (%value, @more);
	my ($typed, $untyped);

	$given{token} = look($node, "$setup; SELECT lease_token('a', 'o')") =~ s/.*\n//sr;
	ok(defined $given{$_}, "$function: there is a value for $_") foreach @names;

	# A token that stays the same in all calls.
	local $setup = "$setup; UPDATE lease_lock SET token = $given{token} WHERE resource = 'a'" if grep { $_ eq 'token' } @names;

	local $setup = "$setup; SELECT lease_protect('item', 'item:{id}')" if $function eq 'lease_unprotect';

	my $list = join ', ', map { ":p_$_" } @names;
	my $literals = join ', ', map { my $v = $given{$_}; "'$v'" } @names;
	if ($kind eq 'p')
	{
		# The typed call is one of a function with the same arguments.
		$typed = typed("CALL $function($literals)");
		$untyped = untyped("CALL $function($list)", 1, map { ("p_$_" => $given{$_}) } @names);
		like($typed, qr/^t\|/, "$function: granted");
	}
	else
	{
		my $types = look($node, "SELECT string_agg(format_type(t, NULL), ';' ORDER BY n) FROM pg_proc, unnest(proargtypes) WITH ORDINALITY AS a (t, n) WHERE oid = $oid");
		my @types = split /;/, $types;
		my $place = 0;

		$typed = typed("SELECT $function(" . join(', ', map { "CAST('$given{$_}' AS " . $types[ $place++ ] . ')' } @names) . ')::text');
		$untyped = untyped("SELECT $function($list)::text AS answer", 0, map { ("p_$_" => $given{$_}) } @names);
		is( look($node, "DEALLOCATE ALL; PREPARE p AS SELECT $function(" . join(', ', map { "\$$_" } 1 .. @names) . ');'
				. " SELECT string_agg(format_type(t, NULL), ';' ORDER BY n) FROM pg_prepared_statements, unnest(parameter_types::oid[]) WITH ORDINALITY AS a (t, n)"),
			$types, "$function($arguments): the types that the server infers are those of the function");
	}
	is($untyped, $typed, "$function($arguments): the same answer");
}

# What used to go wrong: an array was taken for one name, and a token for an owner.
is(untyped('SELECT lease_renew_several(:r, :t, :o)::text AS answer', 0, r => '{a,b}', t => '2 hours', o => 'o'), 'true', 'several leases are renewed');
is(untyped('SELECT lease_renew_several(:r, :t, :o)::text AS answer', 0, r => '{a,c}', t => '2 hours', o => 'o'), 'false', 'of which one is not held');
my $token = look($node, "$setup; SELECT lease_token('a', 'o')") =~ s/.*\n//sr;
{
	local $setup = "$setup; UPDATE lease_lock SET token = $token WHERE resource = 'a'";
	is(untyped('SELECT lease_assert_token(:r, :t)::text AS answer', 0, r => 'a', t => $token), 'N', 'a token is asserted');
	is(untyped('SELECT lease_release(:r, :o, :t)::text AS answer', 0, r => 'a', o => 'o', t => $token), 'true', 'and released');
}

# No two functions of one name have arguments of different types in one place.
is($node->safe_psql('postgres', q{
	SELECT string_agg(DISTINCT p.oid::regprocedure || ' and ' || q.oid::regprocedure, ', ')
	FROM pg_proc AS p JOIN pg_proc AS q ON p.proname = q.proname AND p.oid < q.oid,
		LATERAL unnest(p.proargtypes::oid[], q.proargtypes::oid[]) AS a (one, other)
	WHERE p.proname LIKE 'lease\_%' AND a.one <> a.other}), '', 'one name, one type for each argument');
is($node->safe_psql('postgres', q{
	SELECT string_agg(DISTINCT p.oid::regprocedure || ' and ' || q.oid::regprocedure, ', ')
	FROM pg_proc AS p JOIN pg_proc AS q ON p.proname = q.proname AND p.oid < q.oid
	WHERE p.proname LIKE 'lease\_%' AND p.pronargs - p.pronargdefaults <= q.pronargs AND q.pronargs - q.pronargdefaults <= p.pronargs}), '',
	'and one function for a number of arguments');

$node->stop;
done_testing();
