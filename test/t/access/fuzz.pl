# Random calls of every function by a role without privileges, with arguments
# that make sense and that do not, in databases of several encodings. Other
# sessions do the same, and there are cancels, timeouts and terminated sessions.
# No session crashes, no internal error is raised, and nothing is left behind.
# No role sees the owner, or ends the lease, of another role.
#
# FUZZ_CALLS=n sets the number of calls, FUZZ_SEED=n repeats a run.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use IPC::Run qw(start);
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $wanted = $ENV{FUZZ_CALLS} // 5000;
my $seed = $ENV{FUZZ_SEED} // time;
my $sessions = 4;
my $calls_per_session = 500;

srand $seed;
note("FUZZ_SEED=$seed");

my $node = start_waiting_node('fuzz', <<'CONF');
fsync = off
autovacuum = on
autovacuum_naptime = 1s
deadlock_timeout = 20ms
lease_lock.handoff_timeout = 100ms
max_prepared_transactions = 10
lease_lock.purge_interval = 200ms
log_statement = none
log_min_messages = log
CONF
my @databases = qw(utf8 latin1 sql_ascii euc_jp);

$node->safe_psql('postgres', 'CREATE ROLE stranger LOGIN');
foreach my $database (@databases)
{
	$node->safe_psql('postgres', qq{CREATE DATABASE $database TEMPLATE template0 ENCODING '$database' LC_COLLATE "C" LC_CTYPE "C"});
	$node->safe_psql($database, q{
		CREATE EXTENSION lease_lock;
		SELECT lease_acquire('guarded', '1 day', 'SECRET'), lease_acquire('known', '1 day', 'a'), lease_acquire_shared('shared', '1 day', 'SECRET');
		CREATE TABLE guarded (name text, v int, version int);
		INSERT INTO guarded VALUES ('guarded', 0, 0), ('free', 0, 0);
		SELECT lease_protect('guarded', '{name}');
		CREATE TRIGGER version BEFORE UPDATE ON guarded FOR EACH ROW EXECUTE FUNCTION lease_version('version');
		GRANT SELECT, INSERT, UPDATE, DELETE ON guarded TO PUBLIC});
}

# Cancels and terminates sessions, until it is terminated itself.
my $killer = start([ 'psql', '-X', '-q', '-d', $node->connstr('postgres') . ' application_name=killer', '-c', q{
	DO $$
	BEGIN
		SET client_min_messages = error;
		LOOP
			PERFORM CASE WHEN random() < 0.02 THEN pg_terminate_backend(pid) ELSE pg_cancel_backend(pid) END
			FROM (SELECT pid FROM pg_stat_activity WHERE usename = 'stranger' ORDER BY random() LIMIT 1) AS s;
			COMMIT;
			PERFORM pg_sleep(0.02);
			COMMIT;
		END LOOP;
	END $$} ], '<', \undef, '&>', \my $killer_output);

# What there is to call: kind, name, types and names of the arguments, how many
# may be left out.
my @functions = map { [ split /\|/, $_, -1 ] } split /\n/, $node->safe_psql('utf8', q{
	SELECT p.prokind, p.proname, array_to_string(ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) AS t), ','),
		array_to_string(p.proargnames, ','), p.pronargdefaults
	FROM pg_proc AS p JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'lease_lock')
	ORDER BY p.oid});
cmp_ok(scalar @functions, '>', 30, 'all functions are called');

sub one_of
{
	return $_[ int rand @_ ];
}

# Literals of each type. Those of an interval are short where they are waits.
my @names = map { "'$_'" } qw(a b c d free known guarded shared);
my @odd_names = (q{''}, q{' '}, q{repeat('x', 1024)}, q{repeat('x', 1025)}, q{repeat('x', 100000)}, q{E'\n\r\t'}, q{E'\x1B[31m'}, q{E'\x80\x9B'}, q{E'\xFF'},
	q{E'\xC3'}, q{E'\xA4\xA2'}, q{U&'\202E'}, q{'%s%n'}, q{'"\\'}, q{'{id}'}, "'{{'", q{'{v}'}, q{'insert,delete'}, q{'x'}, q{chr(160)}, q{repeat(chr(252), 512)});
my %literals = (
	text => sub { return rand() < 0.8 ? one_of(@names) : one_of(@odd_names, qw('exclusive' 'shared' 'permit' 'renew' 'count' 'refuse')) },
	interval => sub { return one_of(qw('1ms' '5ms' '1s' '1h' '1us' '0' '-1s' '1mon' '100000years' '100001years' '178000000years'), q{'infinity'}) },
	wait => sub { return one_of(qw('0' '0' '1ms' '3ms' '1us' '-1ms' '1h' NULL)) },
	integer => sub { return one_of(qw(1 2 3 0 -1 32767 32768 2147483647 -2147483648)) },
	bigint => sub { return one_of(1 .. 9, qw(0 -1 9223372036854775807 -9223372036854775808)) },
	boolean => sub { return one_of(qw(true false)) },
	jsonb => sub { return one_of(q{'{}'}, q{'null'}, q{'[1,"a"]'}, q{to_jsonb(repeat('x', 5000))}, q{'nonsense'}) },
	regclass => sub { return one_of(q{'t'}, q{'guarded'}, q{'lease_lock'}, q{'lease_status'}, q{'pg_class'}, q{'lease_token_seq'}, q{'missing'}, 0, 16384) },
	'text[]' => sub { return one_of(q{'{a,b}'}, q{'{b,a}'}, q{'{c,d,free}'}, q{'{}'}, q{'{a,a}'}, q{'{NULL}'}, q{'{{a,b},{c,d}}'}, q{'{a,""}'}, q{'{guarded,known}'},
			q{ARRAY(SELECT 'n' || i FROM generate_series(1, 100) AS i)}) });

sub literal
{
	my ($type, $name) = @_;
	my $kind = $type eq 'interval' && $name =~ /^wait/ ? 'wait' : $type;

	return 'NULL' if rand() < 0.03;
	return exists $literals{$kind} ? $literals{$kind}->() : 'NULL';
}

sub call
{
	my ($kind, $name, $types, $names, $ndefaults) = @{ one_of(@functions) };
	my @types = split /,/, $types;
	my @names = split /,/, $names;
	my $nargs = @types - int rand($ndefaults + 1);
	my $args = join ', ', map { literal($types[$_], $names[$_] // '') } 0 .. $nargs - 1;

	return "CALL $name($args)" if $kind eq 'p';
	return one_of("SELECT $name($args)", "SELECT $name($args)", "SELECT * FROM $name($args)", "SELECT $name($args) FROM generate_series(1, 3)",
		"DO \$do\$ BEGIN PERFORM $name($args); EXCEPTION WHEN OTHERS THEN PERFORM lease_token('a', 'a'); END \$do\$");
}

# What goes before, between and after calls.
sub around
{
	return one_of('BEGIN', 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'BEGIN READ ONLY', ('COMMIT') x 6, ('ROLLBACK') x 6, 'SAVEPOINT s', 'ROLLBACK TO s', 'RELEASE s',
		q{PREPARE TRANSACTION 'p'}, q{ROLLBACK PREPARED 'p'}, q{COMMIT PREPARED 'p'},
		'SET statement_timeout = ' . one_of(2, 5, 20), 'SET lock_timeout = ' . one_of(0, 1, 10),
		'SET client_encoding = ' . one_of(qw(utf8 latin1 sql_ascii sjis win1252)),
		'SET lease_lock.owner = ' . one_of(@names, @odd_names[0 .. 1], q{E'\xFF'}), 'SET lease_lock.token = ' . one_of(qw('' '1' '-1' 'x')), 'SET LOCAL lease_lock.owner = ' . one_of(@names),
		'SET lease_lock.durable = ' . one_of(qw(on off)), 'SET lease_lock.purge_after = ' . one_of(0, 60), 'SET lease_lock.log_events = all', 'SET lease_lock.max_ttl = 1',
		'SET row_security = ' . one_of(qw(on off)), 'DISCARD ALL', 'RESET ALL', 'SET statement_timeout = 20',
		'CREATE TEMP TABLE IF NOT EXISTS t (id int, v text, version int)', 'DROP TABLE IF EXISTS t',
		'TABLE lease_status', 'TABLE lease_waiters', 'TABLE lease_stats', 'TABLE lease_lock', 'SELECT lease_purge()', 'SELECT setval(\'lease_token_seq\', 1)',
		q{UPDATE guarded SET v = v + 1}, q{UPDATE guarded SET v = v + 1 WHERE name = 'free'}, q{UPDATE guarded SET version = 7}, q{DELETE FROM guarded WHERE name = 'guarded'}, q{INSERT INTO t VALUES (1, 'a', 1)}, q{UPDATE t SET v = 'b'},
		'DECLARE c' . int(rand 5) . " CURSOR WITH HOLD FOR SELECT lease_acquire('a', '1 ms', 'b') FROM generate_series(1, 3)", 'FETCH c' . int(rand 5), 'CLOSE ALL');
}

sub script
{
	my $sql = "\\set VERBOSITY verbose\nSET statement_timeout = 20;\n";

	for my $call (1 .. $calls_per_session)
	{
		$sql .= around() . ";\n" if rand() < 0.3;
		$sql .= call() . ";\n";
		$sql .= "\\echo CALLS 50\nROLLBACK;\nSET statement_timeout = 20;\n" if $call % 50 == 0;
	}
	return $sql;
}

# One round of some sessions at the same time. Returns how many calls they made,
# and what they were told.
sub fuzz
{
	my @files = map { $node->basedir . "/fuzz$_.sql" } 1 .. $sessions;
	my ($calls, $output) = (0, '');
	my @runs;

	foreach my $i (0 .. $#files)
	{
		unlink $files[$i];
		append_to_file($files[$i], script());
		push @runs, start([ 'psql', '-X', '-q', '-A', '-t', '-f', $files[$i], '-d', $node->connstr(one_of(@databases)) . ' user=stranger' ],
			'<', \undef, '&>', "$files[$i].out");
	}
	$_->finish foreach @runs;
	$output .= slurp_file("$_.out") foreach @files;
	$calls += 50 * (() = $output =~ /^CALLS 50$/mg);
	return ($calls, $output);
}

my $calls = 0;
my %codes;
my ($internal, $secrets, $crashes, $seen) = ('', 0, '', 0);

# What the server's log says of crashes, since the last time.
sub crashes
{
	my $log = slurp_file($node->logfile, $seen);

	$seen += length $log;
	return join "\n", $log =~ /^.*(?:PANIC|TRAP:|terminated by signal|crash).*$/mg;
}

while ($calls < $wanted)
{
	my ($made, $output) = fuzz();

	$calls += $made;
	$codes{$_}++ foreach $output =~ /ERROR:  (\w{5}): /g;
	$internal .= $1 while $output =~ /^(.*(?:ERROR|FATAL|PANIC):  (?:XX|58|F0|53[1])\w{3}: .*\n(?:.*\n){0,2})/mg;
	$secrets++ while $output =~ /SECRET/g;
	$crashes .= crashes();
	last if $internal || $secrets || $crashes;
}
note(join ' ', 'calls:', $calls, 'errors:', map { "$_:$codes{$_}" } sort keys %codes);
cmp_ok($calls, '>=', $wanted, "calls were made (FUZZ_SEED=$seed)");
is($internal, '', 'no internal error');
is($secrets, 0, 'nobody saw the owner of another role\'s lease');
is($crashes, '', 'no crash');

# Nothing is left behind but leases.
is($node->safe_psql('postgres', q{SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'killer'}), 1, 'somebody cancelled sessions all the time');
$killer->finish;
foreach my $database (@databases)
{
	$node->safe_psql($database, q{SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts WHERE database = current_database() \gexec});
}
becomes($node, q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'stranger'}, 0, 'no session');
becomes($node, q{SELECT count(*) FROM pg_locks LEFT JOIN pg_stat_activity USING (pid) WHERE pid IS NULL OR (backend_type = 'client backend' AND pid <> pg_backend_pid())},
	0, 'no lock, of a session or of a prepared transaction');
foreach my $database (@databases)
{
	is($node->safe_psql($database, 'SELECT count(*) FROM lease_waiters'), 0, "$database: no waiter");
	is($node->safe_psql($database, q{SELECT resource, owner, state FROM lease_status WHERE resource IN ('guarded', 'known', 'shared') AND role = 'postgres' ORDER BY 1}),
		"guarded|SECRET|held\nknown|a|held\nshared|SECRET|held", "$database: nobody ended the leases of another role");
	is($node->safe_psql($database, q{SELECT count(*) FROM guarded WHERE name = 'guarded' AND v = 0 AND version = 0}), 1, "$database: nor wrote under them");
	$node->safe_psql($database, q{SET lease_lock.purge_after = 0; SELECT count(lease_break(resource)) FROM (SELECT DISTINCT resource FROM lease_status) AS s; SELECT lease_purge(); SELECT lease_purge()});
	is($node->safe_psql($database, q{SELECT count(*) FROM lease_lock; SELECT lease_acquire('a', '1 hour', 'o')}), "0\nt", "$database: leases can be ended and taken as ever");
}

$node->stop;
done_testing();
