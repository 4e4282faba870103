# A command under a lease: what it sees, its output and exit status, and what
# lease_run says.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaseRunTest;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('command', 'shared_preload_libraries = lease_lock');
my $nothing = qr/^$/;

# Output, input, exit status.
is_run(lease_run($node, 'job', 'sh', '-c', 'echo out; echo err >&2; exit 3'), 3, qr/^out\n$/, qr/^err\n$/,
	'output, errors and exit status are those of the command');
is_run(lease_run($node, 'job', '--', 'sh', '-c', 'echo b a | tr " " "\n" | sort | tail -n 1; exit 0'), 0, qr/^b\n$/, $nothing,
	'a pipeline within the command');
is(`printf 'b\\na\\n' | lease_run -d '${\$node->connstr('postgres')}' job sort | tr -d '\\n'; echo " \$?"`, "ab 0\n",
	'in a pipeline');
is_run(lease_run($node, 'job', 'sh', '-c', 'kill -USR1 $$'), 138, $nothing, $nothing, 'ended by signal 10: 128 + 10');
is_run(lease_run($node, 'job', 'sh', '-c', 'kill -KILL $$'), 137, $nothing, $nothing, 'ended by signal 9: 128 + 9');
is_run(lease_run($node, 'job', '/nonexistent/job'), 127, $nothing,
	qr/^lease_run: error: lease on "job": could not execute command "\/nonexistent\/job": No such file or directory$/m,
	'not found: 127');
is_run(lease_run($node, 'job', '/etc/passwd'), 126, $nothing,
	qr/lease on "job": could not execute command "\/etc\/passwd": Permission denied/, 'not executable: 126');
is(held($node, 'job'), 0, 'released after each of them');
is_run(lease_run($node, 'job', 'sh', '-c', 'trap "" PIPE; yes | head -n 1; kill -PIPE $$; echo ignored'), 0, qr/^y\nignored\n$/,
	qr//, 'SIGPIPE is as usual: not ignored, but the command can');
is(`lease_run -d '${\$node->connstr('postgres')}' job yes | head -n 1`, "y\n", 'the reader may leave');

# What it sees, and the lease while it runs.
is_run(lease_run($node, '--owner=me', 'job', 'sh', '-c', 'echo $LEASE_RESOURCE $LEASE_OWNER $((LEASE_TOKEN > 0))'),
	0, qr/^job me 1\n$/, $nothing, 'it sees resource, owner and token');
my $psql = "psql -XAtq -d '" . $node->connstr('postgres') . "'";
is_run(lease_run($node, 'job', 'sh', '-c', qq{$psql -c "SELECT lease_assert('\$LEASE_RESOURCE', '\$LEASE_OWNER') = \$LEASE_TOKEN"}),
	0, qr/^t\n$/, $nothing, 'and can fence what it writes');
my $host = qx{hostname} =~ s/\n//r;
is_run(lease_run($node, 'job', 'sh', '-c', 'echo $LEASE_OWNER'), 0, qr/^\Q$host\E:\d+:[0-9a-f]{16}\n$/, $nothing,
	'the owner names host and process');
my $status = q{SELECT mode, payload, round(extract(epoch FROM expires_at - granted_at)) FROM lease_status WHERE state = 'held'};
is_run(lease_run($node, '--ttl=5min', '--payload={"job": 1}', 'job', 'sh', '-c', qq{$psql -c "$status"}),
	0, qr/^exclusive\|\{"job": 1\}\|300\n$/, $nothing, 'ttl and payload');
is_run(lease_run($node, '-s', '-t', '1.5 min', 'job', 'sh', '-c', qq{$psql -c "$status"}), 0, qr/^shared\|\|90\n$/, $nothing,
	'shared');
is_run(lease_run($node, '--permits=2', 'job', 'sh', '-c', qq{$psql -c "$status"}), 0, qr/^permit\|\|30\n$/, $nothing,
	'a permit');
is_run(lease_run($node, '-n', '--min-hold=20s', 'kept', 'true'), 0, $nothing, $nothing, 'with --min-hold, it runs');
is_run(lease_run($node, '-n', '--min-hold=20s', 'kept', 'echo', 'twice'), 1, $nothing, qr/^lease_run: warning: lease on "kept": taken/,
	'and is kept afterwards');

# A command that fails. Its lease is kept as well, or given back at once.
is_run(lease_run($node, '--min-hold=1h', 'failed', 'sh', '-c', 'exit 3'), 3, $nothing, $nothing, 'a command that fails');
is_run(lease_run($node, '-n', 'failed', 'echo', 'no'), 1, $nothing, qr/taken/, 'its lease is kept');
foreach my $mode ([], ['--shared'], ['--permits=1'])
{
	my @options = ('-n', '--min-hold=1h', '--retry-failed', @$mode);
	my $name = "@$mode" || 'exclusive';

	is_run(lease_run($node, @options, "retried $name", 'sh', '-c', 'exit 3'), 3, $nothing, $nothing, "$name: --retry-failed");
	is_run(lease_run($node, @options, "retried $name", 'sh', '-c', 'kill -TERM $$'), 143, $nothing, $nothing,
		'gives the lease back at once, and if a signal ended the command');
	is_run(lease_run($node, @options, "retried $name", 'echo', 'ran'), 0, qr/^ran$/, $nothing, 'so that another one can run');
	is_run(lease_run($node, '-n', "retried $name", 'echo', 'no'), 1, $nothing, qr/taken/, 'but keeps that of a good run');
}
is_run(lease_run($node, '-n', '--min-hold=1h', '--retry-failed', 'retried', '/nonexistent'), 127, $nothing, qr/No such file/,
	'a command that is not found has failed, too');
is(held($node, 'retried'), 0, 'and its lease is not kept');

# Taken.
$node->safe_psql('postgres', q{SELECT lease_acquire('taken', '1 hour', 'ann')});
is_run(lease_run($node, '-n', 'taken', 'echo', 'no'), 1, $nothing,
	qr/^lease_run: warning: lease on "taken": taken by "ann", for another 3[56]\d\d\.\d+ s unless that renews or releases it$/,
	'taken: 1, and who has it');
is_run(lease_run($node, '-n', '-E', '0', 'taken', 'echo', 'no'), 0, $nothing, qr/taken/, 'another status for it');
is_run(lease_run($node, '-q', '-n', '--conflict-exit-code=42', 'taken', 'echo', 'no'), 42, $nothing, $nothing, 'quietly');
is_run(lease_run($node, '-n', '--owner=ann', 'taken', 'echo', 'no'), 1, $nothing, qr/taken by the same owner/,
	'an owner who has it already elsewhere is refused, too');

# No server, no extension, no privilege.
is_run(lease_run('host=/nonexistent', '-n', '--server-wait=0s', 'job', 'echo', 'no'), 69, $nothing,
	qr/^lease_run: error: lease on "job": connection to server .*\nlease_run: hint: The command was not run\. /, 'no server: 69');
$node->safe_psql('postgres', 'CREATE DATABASE bare');
is_run(lease_run($node->connstr('bare'), 'job', 'echo', 'no'), 69, $nothing,
	qr/the database "bare" does not have the extension lease_lock\n.*CREATE EXTENSION/, 'no extension');
$node->safe_psql('postgres', 'CREATE ROLE nobody LOGIN; REVOKE EXECUTE ON FUNCTION lease_request FROM PUBLIC');
is_run(lease_run($node->connstr('postgres') . ' user=nobody', 'job', 'echo', 'no'), 69, $nothing,
	qr/lease on "job": ERROR:  ?permission denied for function lease_request/, 'no privilege');

# In a schema that is not in the search path, and with hostile functions in front of it.
$node->safe_psql('postgres', q{
	CREATE DATABASE elsewhere;
	\c elsewhere
	CREATE SCHEMA "My Leases";
	CREATE EXTENSION lease_lock SCHEMA "My Leases";
	CREATE FUNCTION lease_request(text, interval, text, wait interval, mode text, permits int, if_own text, min_hold interval,
		payload jsonb, OUT granted bool, OUT token bigint, OUT waited interval, OUT reason text, OUT blocked_by text,
		OUT blocked_for interval) LANGUAGE sql AS $$ SELECT true, 1::bigint, '0'::interval, '', '', '0'::interval $$;
});
is_run(lease_run($node->connstr('elsewhere'), 'job', 'sh', '-c', "$psql -d '" . $node->connstr('elsewhere')
	  . q{' -c 'SELECT count(*) FROM "My Leases".lease_status'}), 0, qr/^1\n$/, $nothing, 'the schema of the extension is found');

# Usage.
foreach (
	[ [], qr/no resource and no command specified/ ],
	[ ['job'], qr/no command specified/ ],
	[ [ 'job', '--' ], qr/no command specified/ ],
	[ [ '--frobnicate', 'job', 'true' ], qr/unrecognized option/ ],
	[ [ '--ttl=30', 'job', 'true' ], qr/invalid value "30" for option --ttl\n.*Valid units/ ],
	[ [ '--ttl=-5s', 'job', 'true' ], qr/invalid value/ ],
	[ [ '--ttl=nans', 'job', 'true' ], qr/invalid value/ ],
	[ [ '--wait=1fortnight', 'job', 'true' ], qr/invalid value/ ],
	[ [ '-s', '--permits=2', 'job', 'true' ], qr/--shared and --permits cannot be used together/ ],
	[ [ '--permits=0', 'job', 'true' ], qr/--permits must be in range 1/ ],
	[ [ '--signal=FOO', 'job', 'true' ], qr/invalid value "FOO" for option --signal/ ],
	[ [ '--ttl=1s', 'job', 'true' ], qr/a ttl of 1 s is too short for a kill-after of 0\.1 s/ ],
	[ [ '--ttl=10s', '--kill-after=4.5s', 'job', 'true' ], qr/a ttl of 10 s is too short for a kill-after of 4\.5 s\n.*detail: SIGKILL is sent 1 s before/ ],
	[ [ '-E', '256', 'job', 'true' ], qr/must be in range 0..255/ ],
	[ [ '--payload=x', 'job', 'true' ], qr/invalid input syntax for type json/ ],
	[ [ '', 'true' ], qr/resource of a lease must not be empty/ ])
{
	my ($arguments, $message) = @$_;

	is_run(lease_run($node, @$arguments), 64, $nothing, $message, "refused: @$arguments");
}
is_run(lease_run($node, '--ttl=10s', '--kill-after=4s', 'job', 'true'), 0, $nothing, $nothing, 'the longest kill-after');
program_help_ok('lease_run');
program_version_ok('lease_run');

# Every byte that a name can have.
my $name = join('', map { chr } 1 .. 127) . join('', map { my $c = chr; utf8::encode($c); $c } 128 .. 255, 0x20ac, 0x1f600);
foreach my $first (grep { index($name, chr) < 0 } 0xc2 .. 0xf4)
{
	# The first character that begins with this byte, but not one that needs fewer bytes.
	my $char = chr(
		  $first < 0xe0 ? ($first - 0xc0) * 0x40
		: $first < 0xf0 ? ($first - 0xe0) * 0x1000 || 0x800
		: ($first - 0xf0) * 0x40000 || 0x10000);

	utf8::encode($char);
	$name .= $char;
}
is(scalar(grep { index($name, chr) < 0 } 1 .. 127, 128 .. 191, 194 .. 244), 0, 'a name with every byte that UTF-8 has');
my $hex = unpack('H*', $name);
my $shown = lease_run($node, '-v', $name, 'sh', '-c',
	$psql . q{ -c "SELECT encode(convert_to(resource, 'UTF8'), 'hex') FROM lease_status WHERE state = 'held' AND resource <> 'kept' AND resource <> 'taken'"; printf %s "$LEASE_RESOURCE" | od -An -v -tx1 | tr -d ' \n'});
is_run($shown, 0, qr/^$hex\n$hex$/, qr/lease on "\\x01.*\\x0a.*": .*granted/, 'is locked, and seen by the command, as it is');
is(scalar(() = $shown->{err} =~ /\n/g), scalar(() = $shown->{err} =~ /^lease_run: /mg), 'messages show it on one line');

# Each step with its time; nothing on standard output.
is_run(lease_run($node, '-v', 'job', 'true'), 0, $nothing,
	qr/connected.*granted, token \d+, ends in.*started true.*the command has ended, exit status 0.*released/s,
	'--verbose tells each step');

$node->stop;
done_testing();
