# Events in the server's log: which of them, what they say, and that no name can
# forge a line or show an owner to somebody else.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Every line of the log says so at its beginning.
my $prefix = '<line of %p>';
my $node = start_node('log', "log_line_prefix = '$prefix'\nlog_statement = none\n");
my $session = open_session($node);
my $seen = -s $node->logfile;

# What was logged since the last time.
sub logged
{
	my $log = slurp_file($node->logfile, $seen);

	$seen += length $log;
	return $log;
}

# Run SQL, and test what it logs: these lines, in this order, and nothing else.
sub logs
{
	my ($name, $sql, @lines) = @_;

	logged();
	$session->query($sql);
	is($session->{stderr}, '', "$name: nothing goes to the client");
	$session->{stderr} = '';

	my $log = logged();
	my $pattern = join '', map { "<line of \\d+>LOG:  $_\n" } @lines;
	like($log, qr/^$pattern$/, "$name: " . (@lines ? 'logged' : 'not logged'));
	return $log;
}

my $ms = '\d+\.\d{3} ms';
my $by = 'process \d+, application "log.pl"';
my $until = 'until \d{4}-\d\d-\d\d [\d:.]+\S+';
my $expired = q{SELECT lease_acquire('door', '1 ms', 'ann'); SELECT pg_sleep(0.005)};
my $takeover = "$expired; SELECT lease_acquire('door', '1 hour', 'bob')";
my $takeover_line = qq{lease on "door" taken over by owner "bob" of role "postgres" from owner "ann" of role "postgres" $ms after it expired, token \\d+ after \\d+, $by};
my $rest = q{SELECT lease_renew('door', '2 hours', 'bob'), lease_acquire('door', '1 hour', 'carl'); SELECT lease_release('door', 'bob')};

$session->query_safe(q{SET client_min_messages = 'log'});
$session->query_safe(q{LOAD 'lease_lock'});
is($session->query_safe('SHOW lease_lock.log_events'), 'takeover', 'takeovers are logged by default');

logs('takeover', $takeover, $takeover_line);
logs('takeover', $rest);
logs('takeover', q{SELECT lease_acquire('door', '1 hour', 'ann'), lease_release('door', 'ann')});

$session->query_safe(q{SET lease_lock.log_events = 'none'});
logs('none', "$takeover; $rest");

$session->query_safe(q{SET lease_lock.log_events = 'all'});
logs('all', "$takeover; $rest",
	qq{lease on "door" granted to owner "ann" of role "postgres" $until, token \\d+, $by},
	$takeover_line,
	qq{lease on "door" renewed by owner "bob" of role "postgres" $until, token \\d+},
	qq{lease on "door" released by owner "bob" of role "postgres" $ms before it expired, token \\d+});
logs('all', "$expired; SELECT lease_release('door', 'ann')",
	qq{lease on "door" granted .*},
	qq{lease on "door" released by owner "ann" of role "postgres" $ms after it expired, token \\d+});
logs('release of all', q{SELECT lease_acquire('a', '1 hour', 'all'), lease_acquire('b', '1 hour', 'all'); SELECT lease_release_all('all')},
	'lease on "a" granted .*', 'lease on "b" granted .*', 'lease on "a" released .*', 'lease on "b" released .*');

# how late, and which tokens
$session->query_safe(q{SET lease_lock.log_events = 'takeover'});
{
	my $tokens = $session->query_safe(q{SELECT lease_acquire('door', '1 ms', 'ann') \gset
		SELECT token FROM lease_status WHERE resource = 'door'});
	$session->query_safe(q{UPDATE lease_lock SET expires_at = expires_at - interval '1 hour', granted_at = granted_at - interval '1 hour' WHERE resource = 'door'});
	my $log = logs('late', q{SELECT lease_acquire('door', '1 hour', 'bob')}, $takeover_line);
	my ($late, $new, $old) = $log =~ /([\d.]+) ms after it expired, token (\d+) after (\d+)/;
	cmp_ok($late, '>', 3_600_000, 'by an hour');
	cmp_ok($late, '<', 3_700_000, 'and not much more');
	is($old, $tokens, 'the token of the lease that expired');
	is($new, $session->query_safe(q{SELECT lease_token('door', 'bob')}), 'and that of the new one');
	$session->query_safe(q{SELECT lease_release('door', 'bob')});
}

# A lease is taken over by one of another mode, and is reported as lost only once.
foreach my $step (
	[ "lease_acquire_permit('desk', 1, '1 ms', 'p1')" ],
	[ "lease_acquire('desk', '1 ms', 'w1')", 'w1', 'p1' ],
	[ "lease_acquire_permit('desk', 1, '1 ms', 'p2')", 'p2', 'w1' ],
	[ "lease_acquire_permit('desk', 1, '1 hour', 'p3')", 'p3', 'p2' ],
	[ "lease_release('desk', 'p3')" ],
	[ "lease_acquire('desk', '1 ms', 'w2')" ],
	[ "lease_acquire('desk', '1 hour', 'w3')", 'w3', 'w2' ],
	[ "lease_release('desk', 'w3')" ],
	[ "lease_acquire_permit('desk', 1, '1 ms', 'p4')" ],
	[ "lease_acquire('desk', '1 hour', 'w4')", 'w4', 'p4' ],
	[ "lease_release('desk', 'w4')" ],
	[ "lease_acquire_permit('desk', 1, '1 hour', 'p5')" ])
{
	my ($call, $new, $old) = @$step;

	logs($call, "SELECT 1 / CAST($call AS int); SELECT pg_sleep(0.005)",
		$new ? qq{lease on "desk" taken over by owner "$new" of role "postgres" from owner "$old" of role "postgres" $ms after .*} : ());
}
foreach my $readers ([ 'ann', 'bob' ], [ 'bob', 'ann' ])
{
	my ($first, $last) = @$readers;
	my $resource = "read by $first and $last";

	logs($resource, "SELECT lease_acquire_shared('$resource', '1 ms', '$first'), lease_acquire_shared('$resource', '1 ms', '$last'), pg_sleep(0.005);
		SELECT lease_acquire('$resource', '1 hour', 'carl')", qq{lease on "$resource" taken over by owner "carl" .* from owner "$last" .*});
}

# A takeover that is rolled back was logged; its token is used up.
{
	my ($new) = logs('rollback', "$expired; BEGIN; SELECT lease_acquire('door', '1 hour', 'bob'); ROLLBACK", $takeover_line)
	  =~ /token (\d+) after/;

	is($session->query_safe("SELECT lease_acquire('door', '1 hour', 'bob')"), 't', 'rollback: granted again');
	cmp_ok($session->query_safe("SELECT lease_token('door', 'bob')"), '>', $new, 'rollback: with another token');
	$session->query_safe("SELECT lease_release('door', 'bob')");
}

# another role's lease, and a role that was dropped
$node->safe_psql('postgres', qq{CREATE ROLE "two\tparts" LOGIN; CREATE ROLE thief LOGIN});
{
	my $late = q{SELECT lease_acquire('roles', '1 ms', 'secret'); SELECT pg_sleep(0.005)};
	my $stderr;

	$node->safe_psql('postgres', qq{SET ROLE "two\tparts"; $late});
	logged();
	is($node->safe_psql('postgres', q{SET client_min_messages = 'debug1'; SELECT lease_acquire('roles', '1 hour', 'new')},
			extra_params => [ '-U', 'thief' ]), 't', 'another role takes a lease over');
	$node->psql('postgres', q{SET client_min_messages = 'debug1'; SELECT lease_release('roles', 'new')},
		extra_params => [ '-U', 'thief' ], stderr => \$stderr);
	unlike($stderr, qr/secret/, 'and is not told whose it was');
	like(logged(), qr/taken over by owner "new" of role "thief" from owner "secret" of role "two\\tparts" /, 'the log is');
	$node->safe_psql('postgres', qq{SET ROLE "two\tparts"; $late});
	$node->safe_psql('postgres', qq{DROP ROLE "two\tparts"});
	logs('dropped role', q{SELECT lease_acquire('roles', '1 hour', 'new')},
		'lease on "roles" taken over by owner "new" of role "postgres" from owner "secret" of role "unknown \(OID=\d+\)" .*');
}

# Names that try to forge log lines. Each is logged on one line, and no character
# in the name can end the quotes around it.
my %hostile = (
	q{E'x\n<line of 1>LOG:  lease on "door" released'} => '"x\n<line of 1>LOG:  lease on \"door\" released"',
	q{E'x\r\n\ty'} => '"x\r\n\ty"',
	q{'x" taken over by owner "y'} => '"x\" taken over by owner \"y"',
	q{E'\\\\n'} => '"\\\\n"',
	q{'%s%n%m %%'} => '"%s%n%m %%"',
	q{E'\x1B[31mred\x07'} => '"\x1B[31mred\x07"',
	q{U&'\202Egnp.\2028x\0085'} => '"\xE2\x80\xAEgnp.\xE2\x80\xA8x\xC2\x85"',
	q{'schön 中 😀'} => '"schön 中 😀"',
	q{repeat('😀', 256)} => '"' . '😀' x 256 . '"');

$session->query_safe(q{SET lease_lock.log_events = 'all'});
foreach my $name (sort keys %hostile)
{
	my $shown = quotemeta $hostile{$name};

	logs($name, "SELECT lease_acquire($name, '1 hour', $name); SELECT lease_release($name, $name)",
		"lease on $shown granted to owner $shown of role \"postgres\" .*",
		"lease on $shown released by owner $shown of role \"postgres\" .*");
}

# Where bytes above ASCII have no meaning, none is written.
{
	$node->safe_psql('postgres', 'CREATE DATABASE ascii TEMPLATE template0 ENCODING SQL_ASCII LC_COLLATE "C" LC_CTYPE "C"');
	$node->safe_psql('ascii', 'CREATE EXTENSION lease_lock');
	logged();
	$node->safe_psql('ascii', q{SET lease_lock.log_events = 'all'; SELECT lease_acquire(E'\xFF\xC3', '1 hour', E'\xE2\x80')});
	like(logged(), qr/lease on "\\xFF\\xC3" granted to owner "\\xE2\\x80" of role/, 'bytes without an encoding');
}

# Control characters of encodings with one byte a character.
{
	my $shown = qr/"a\\x80\\x9B31m\\x9F\xA0\xE4"/;

	foreach my $encoding ('LATIN1', 'WIN1252', 'KOI8R')
	{
		$node->safe_psql('postgres', qq{CREATE DATABASE $encoding TEMPLATE template0 ENCODING '$encoding' LC_COLLATE "C" LC_CTYPE "C"});
		$node->safe_psql(lc $encoding, 'CREATE EXTENSION lease_lock');
		logged();
		$node->safe_psql(lc $encoding, qq{SET client_encoding = '$encoding'; SET lease_lock.log_events = 'all'; SELECT lease_acquire(E'a\\x80\\x9B31m\\x9F\\xA0\\xE4', '1 hour', 'o')});
		like(logged(), qr/lease on $shown granted/, "$encoding: no control character is written");
	}
}

# A role whose takeovers are logged may not change the setting, not even before
# the library is loaded.
{
	my $stderr;

	logged();
	$node->psql('postgres', qq{SET lease_lock.log_events = 'none'; $takeover}, extra_params => [ '-U', 'thief' ], stderr => \$stderr);
	like($stderr, qr/WARNING:  permission denied to set parameter "lease_lock.log_events"/, 'set before the library is loaded: refused then');
	like(logged(), qr/lease on "door" taken over by owner "bob" of role "thief"/, 'and it is logged');
	sql_fails($node, q{SELECT lease_token('r', 'o'); SET lease_lock.log_events = 'none'}, '42501', 'permission denied to set parameter', 'set later: refused', role => 'thief');
}
is($node->safe_psql('postgres', q{LOAD 'lease_lock'; SELECT context, enumvals FROM pg_settings WHERE name = 'lease_lock.log_events'}),
	'superuser|{none,takeover,all}', 'the setting is a superuser\'s');

# An option of the connection takes the place of what the superuser set for the
# role, and is refused only when the library is loaded. All is logged then.
$node->safe_psql('postgres', q{LOAD 'lease_lock'; ALTER ROLE thief SET lease_lock.log_events = 'all'});
foreach my $option ('none', 'takeover', 'all', 'nonsense')
{
	local $ENV{PGOPTIONS} = "-c lease_lock.log_events=$option";

	logged();
	$node->psql('postgres', q{SELECT lease_acquire('hidden', '1 hour', 'o'); SELECT lease_release('hidden', 'o'); SET lease_lock.log_events = 'none'; RESET lease_lock.log_events;
		SELECT lease_acquire('hidden', '1 hour', 'o'); SELECT lease_release('hidden', 'o')}, extra_params => [ '-U', 'thief' ], on_error_stop => 0);
	is(() = logged() =~ /lease on "hidden" (granted|released)/g, 4, "an option of the connection hides nothing from the log: $option");
}
{
	local $ENV{PGOPTIONS} = '-c lease_lock.log_events=none';

	is($node->safe_psql('postgres', q{LOAD 'lease_lock'; SHOW lease_lock.log_events}), 'none', 'a superuser may change the setting');
}

$node->stop;
done_testing();
