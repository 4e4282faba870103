# The portable edition is installed by a plain owner, in a schema that nobody else can change, and can be run
# again: leases, tokens and privileges stay, calls go on meanwhile, and a newer version replaces an older one.
# The same file is the script of an extension, as pg_tle makes one.
use strict;
use warnings;

use Cwd qw(abs_path);
use FindBin;
use lib "$FindBin::RealBin/..";

use IPC::Run;
use LeaseCluster;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $file = abs_path("$FindBin::RealBin/../../../portable/lease_lock.sql");
my $node = LeaseCluster->new('install');

$node->init;
$node->append_conf('postgresql.conf', "fsync = off\n");
$node->start;
$node->safe_psql('postgres', q{
	CREATE ROLE app LOGIN; CREATE ROLE guest LOGIN; CREATE ROLE admin LOGIN;
	CREATE DATABASE plain OWNER app; CREATE DATABASE tle OWNER app});

# As docs/portable.md says, in one transaction. Returns what psql wrote to stderr.
sub install
{
	my ($role, $source, @before) = @_;
	my @command = ('psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=verbose', '--single-transaction', '-U', $role);
	my $stderr = '';

	IPC::Run::run([ @command, '-d', $node->connstr('plain'), (map { ('-c', $_) } 'SET client_min_messages = warning', @before), '-f', $source ],
		'<', \undef, '>', '/dev/null', '2>', \$stderr);
	return $stderr;
}

sub value
{
	my ($role, $sql) = @_;

	return $node->safe_psql('plain', "SET search_path = lease; $sql", extra_params => [ '-U', $role ]) =~ s/\A\n*|\n*\z//gr;
}

# --- where it is not installed

like(install('app', $file, 'SET search_path = nowhere'), qr/42501: .*does not belong to role/, 'not without a schema');
like(install('app', $file, 'SET search_path = information_schema'), qr/42501/, 'not in the schema of another role');
foreach my $grantee ('PUBLIC', 'guest')
{
	like(install('app', $file, 'CREATE SCHEMA open', "GRANT CREATE ON SCHEMA open TO $grantee", 'SET search_path = open'),
		qr/42501: .*other roles may create objects in schema open: $grantee/, "not where $grantee may create objects");
}
# A role that could create objects once may have left some, for the file to find.
$node->safe_psql('plain', "CREATE SCHEMA left_open; GRANT ALL ON SCHEMA left_open TO guest;
	CREATE FUNCTION left_open.same(int, text) RETURNS bool LANGUAGE sql AS 'SELECT true'", extra_params => [ '-U', 'app' ]);
foreach my $object (
	[ 'TABLE', 'lease_lock', '(resource text)' ],
	[ 'TYPE', '_lease_request', 'AS (resource text)' ],
	[ 'FUNCTION', '_lease_caller(int)', q{RETURNS oid LANGUAGE sql AS 'SELECT 1::oid'} ],
	[ 'OPERATOR', '=', '(LEFTARG = int, RIGHTARG = text, FUNCTION = left_open.same)' ])
{
	my ($kind, $name, $rest) = @$object;

	$node->safe_psql('plain', "CREATE $kind left_open.$name $rest", extra_params => [ '-U', 'guest' ]);
	like(install('app', $file, 'REVOKE CREATE ON SCHEMA left_open FROM guest', 'SET search_path = left_open'),
		qr/42501: .*left_open has objects of other roles/, 'not beside the ' . lc($kind) . ' of another role');
	$node->safe_psql('plain', "DROP $kind left_open.$name" . ($kind eq 'OPERATOR' ? ' (int, text)' : ''));
}
my $stderr;
$node->psql('plain', "CREATE SCHEMA alone; SET search_path = alone;\n\\i $file", stderr => \$stderr, extra_params => [ '-U', 'app' ]);
like($stderr,
	qr/this file must run in one transaction/, 'not without a transaction around it');
$node->psql('plain', "SET search_path = alone;\n\\i $file", on_error_stop => 0, stderr => \$stderr, extra_params => [ '-U', 'app' ]);
like($stderr, qr/must run in one transaction.*no schema has been selected to create in/s, 'nor if psql goes on after the error');
$node->safe_psql('plain', 'DROP SCHEMA alone');	# it is empty

# Default privileges of its owner give others no more than it says.
$node->safe_psql('plain', 'ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO guest; ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO guest', extra_params => [ '-U', 'app' ]);
is(install('app', $file, 'CREATE SCHEMA generous', 'SET search_path = generous'), '', 'installed where others have default privileges');
is($node->safe_psql('plain', "SELECT has_table_privilege('guest', 'generous.lease_lock', 'SELECT,UPDATE'), has_table_privilege('guest', 'generous.lease_status', 'UPDATE'),
	has_function_privilege('guest', 'generous.lease_break(text,interval)', 'EXECUTE'), has_function_privilege('guest', 'generous._lease_caller()', 'EXECUTE'),
	has_table_privilege('guest', 'generous.lease_status', 'SELECT'), has_function_privilege('guest', 'generous.lease_token(text,text)', 'EXECUTE')"), 'f|f|f|f|t|t', 'they have those of PUBLIC');
$node->safe_psql('plain', 'ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM guest; ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM guest;
	SET client_min_messages = warning; DROP SCHEMA generous CASCADE', extra_params => [ '-U', 'app' ]);

# --- a plain owner

is(install('app', $file, 'CREATE SCHEMA lease', 'SET search_path = lease'), '', 'a plain owner installs it');
is(value('app', 'SELECT lease_portable_version()'), '1.0.0', 'SQL can ask for the version');
$node->safe_psql('plain', 'GRANT USAGE ON SCHEMA lease TO PUBLIC; GRANT EXECUTE ON FUNCTION lease.lease_break(text, interval) TO admin;
	REVOKE EXECUTE ON FUNCTION lease.lease_acquire_shared(text, interval, text) FROM PUBLIC', extra_params => [ '-U', 'app' ]);
is(value('guest', "SELECT lease_acquire('door', '1 hour', 'ann')"), 't', 'any role uses it');
foreach ("lease_break('door')", 'lease_purge()', "_lease_caller()", '(SELECT count(*) FROM lease_lock)')
{
	$node->psql('plain', "SET search_path = lease; SELECT $_", stderr => \$stderr, extra_params => [ '-U', 'guest' ]);
	like($stderr, qr/permission denied/, "a visitor cannot use $_");
}
is(value('admin', "SELECT owner IS NULL, state FROM lease_status"), 't|held', 'nor see the owner of a lease');
my $token = value('guest', "SELECT lease_token('door', 'ann')");

# Otherwise the server would plan them in each call, which can take longer than all the rest of a try.
my $parts = value('app', 'EXPLAIN (VERBOSE, COSTS off) SELECT _lease_span(hold_until - granted_at), _lease_caller(), _lease_may_act(role),
	_lease_next_token(token, granted_at), _lease_key(1, resource), _lease_left(granted_at), _lease_lock_timeout() FROM lease_lock');
is(join(' ', $parts =~ /(?<!\w)_lease_\w+(?=\()/g), '', 'the server puts the parts in SQL in place of their calls');

# --- again, and over an older version, while others work

my $text = slurp_file($file);
sub variant
{
	my ($name, $version, $change) = @_;
	my $variant = "$PostgreSQL::Test::Utils::tmp_check/$name.sql";
	my $changed = $text =~ s/'1\.0\.0'/'$version'/gr;

	$change->($changed) if $change;
	open my $handle, '>', $variant or die $!;
	print $handle $changed;
	close $handle;
	return $variant;
}

my $older = variant('older', '0.9.0', sub {
	$_[0] =~ s/^CREATE OR REPLACE FUNCTION lease_purge.*?^REVOKE ALL ON FUNCTION lease_purge[^\n]*\n//ms or die;
	$_[0] =~ s/^CREATE OR REPLACE FUNCTION lease_contended.*?^COMMENT ON FUNCTION lease_contended[^\n]*\n//ms or die;
	$_[0] =~ s/coalesce\(r.payload, payload\)/r.payload/ or die;
	$_[0] =~ s/^\tNULL::int4 AS session_pid\n//m && $_[0] =~ s/AS payload,\nFROM/AS payload\nFROM/ or die;
});
my $newer = variant('newer', '1.0.1');
value('app', 'SELECT 1');
$node->safe_psql('plain', 'DROP FUNCTION lease.lease_contended, lease.lease_purge; DROP VIEW lease.lease_status', extra_params => [ '-U', 'app' ]);
like(install('app', $older, 'SET search_path = lease'), qr/55000: .*newer version/, 'an older file does not replace a newer version');
$node->safe_psql('plain', 'CREATE OR REPLACE FUNCTION lease.lease_portable_version() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN $$0.8.0$$'
	=~ s/RETURN \$\$(.*)\$\$/AS \$\$ SELECT '$1' \$\$/r, extra_params => [ '-U', 'app' ]);
is(install('app', $older, 'SET search_path = lease'), '', 'an older version is there');
$node->safe_psql('plain', 'REVOKE SELECT ON lease.lease_status FROM PUBLIC; GRANT SELECT ON lease.lease_status TO guest', extra_params => [ '-U', 'app' ]);

my $stop = "$PostgreSQL::Test::Utils::tmp_check/install_stop";
my @runs = map {
	my $report = "$PostgreSQL::Test::Utils::tmp_check/worker$_";
	my $script = "DO \$\$ BEGIN FOR i IN 1..20 LOOP PERFORM lease_acquire('w' || i % 3, '1 minute', 'o$_'), lease_release('w' || i % 3, 'o$_'); COMMIT; END LOOP; END \$\$";

	{ report => $report, handle => IPC::Run::start([ 'sh', '-c', 'while [ ! -e "$1" ] && kill -0 "$PPID"; do psql -Xq -U guest -d "$2" -c "SET search_path = lease" -c "$3"; done', 'sh', $stop, $node->connstr('plain'), $script ],
		'<', \undef, '>', '/dev/null', '2>', $report) };
} 1 .. 4;
is(install('app', $file, 'SET search_path = lease'), '', 'this version replaces it');
is(install('app', $file, 'SET search_path = lease'), '', 'and can be run again');
is(install('app', $newer, 'SET search_path = lease'), '', 'and so can a newer one');
append_to_file($stop, '');
$_->{handle}->finish foreach @runs;
is(join('', map { slurp_file($_->{report}) } @runs), '', 'calls go on meanwhile');
is(value('app', 'SELECT lease_portable_version()'), '1.0.1', 'it is the newer one');
is(value('guest', "SELECT lease_token('door', 'ann')"), $token, 'leases and tokens stay');
is(value('guest', "SELECT lease_contended('door') IS NULL, (SELECT count(session_pid) FROM lease_status)"), 't|0', 'what is new is there');
is(value('admin', "SELECT has_function_privilege('guest', 'lease_purge()', 'EXECUTE')"), 'f', 'and belongs to the owner alone, if it is for administrators');
is(value('admin', "SELECT lease_break('door'), has_function_privilege('guest', 'lease_break(text,interval)', 'EXECUTE'),
	has_function_privilege('guest', 'lease_acquire_shared(text,interval,text)', 'EXECUTE'), has_table_privilege('admin', 'lease_status', 'SELECT')"), 't|f|f|f', 'privileges stay');

# --- as an extension

SKIP:
{
	my $folder = qx($ENV{PG_CONFIG} --sharedir) =~ s/\n//r . '/extension';

	skip 'the folder of extensions cannot be written', 4 if !-w $folder;
	my %files = ('.control' => "default_version = '1.0.0'\nsuperuser = false\n", '--1.0.0.sql' => $text, '--1.0.0--1.0.1.sql' => slurp_file($newer));
	foreach (keys %files)
	{
		unlink "$folder/lease_lock_portable$_";
		append_to_file("$folder/lease_lock_portable$_", $files{$_});
	}
	$node->safe_psql('tle', 'CREATE SCHEMA lease; CREATE EXTENSION lease_lock_portable SCHEMA lease', extra_params => [ '-U', 'app' ]);
	is($node->safe_psql('tle', "SELECT lease.lease_acquire('door', '1 hour', 'ann')"), 't', 'it is the script of an extension');
	$node->safe_psql('tle', "ALTER EXTENSION lease_lock_portable UPDATE TO '1.0.1'", extra_params => [ '-U', 'app' ]);
	is($node->safe_psql('tle', "SELECT lease.lease_portable_version(), lease.lease_token('door', 'ann') > 0"), '1.0.1|t', 'and of its update');
	is($node->safe_psql('tle', "SELECT count(*) FROM pg_proc WHERE pronamespace = 'lease'::regnamespace AND NOT EXISTS
		(SELECT FROM pg_depend WHERE objid = pg_proc.oid AND deptype = 'e')"), 0, 'which owns all functions');
	$node->safe_psql('tle', 'DROP EXTENSION lease_lock_portable', extra_params => [ '-U', 'app' ]);
	is($node->safe_psql('tle', "SELECT count(*) FROM pg_class WHERE relnamespace = 'lease'::regnamespace"), 0, 'and takes them along');
	unlink map { "$folder/lease_lock_portable$_" } keys %files;
}
$node->stop;
done_testing();
