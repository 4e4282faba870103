# The library calls its own functions, whatever another library defines: one that
# is loaded first has a function of each name that our files share. Neither do
# the server's compiled expressions call others: JIT compilation with inlining.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $source = "$FindBin::RealBin/../../../src";
my ($bin) = run_command([ 'pg_config', '--bindir' ]);
my ($headers) = run_command([ 'pg_config', '--includedir-server' ]);

plan skip_all => "no headers of the server in $headers" if !-e "$headers/postgres.h";

# Names of the functions that the headers declare, but those that are exported.
my $declarations = join('', map { slurp_file($_) } grep { !/compat/ } glob("$source/*/*.h"));
my @names = grep { !/^lease_/ } $declarations =~ /^extern [^;(]*?\b(\w+)\(/mg;
cmp_ok(scalar(@names), '>', 100, 'functions that our files share');

sub build_other_library
{
	my $folder = PostgreSQL::Test::Utils::tempdir_short();
	my $definitions = join('', map { "FOREIGN($_)\n" } @names);

	append_to_file("$folder/Makefile", "MODULES = other\nPG_CFLAGS = -fvisibility=default -Wno-missing-prototypes\n"
		  . "override with_llvm = no\nPGXS := \$(shell $bin/pg_config --pgxs)\ninclude \$(PGXS)\n");
	append_to_file("$folder/other.c", <<"C");
#include "postgres.h"

#include "fmgr.h"

PG_MODULE_MAGIC;

#define FOREIGN(name) \\
	bool \\
	name(void) \\
	{ \\
		elog(ERROR, "%s() of another library was called", #name); \\
		return true; \\
	}

$definitions
C
	system_or_bail('make', '-s', '-C', $folder);
	return "$folder/other";
}

# A call of each function of the extension. They depend on those before.
my @calls = split(/\n/, <<'SQL');
SELECT lease_acquire('r', '1 hour', 'o')
SELECT lease_acquire('r', '1 hour', 'p', '1 ms')
SELECT lease_acquire_shared('s', '1 hour', 'o')
SELECT lease_acquire_shared('s', '1 hour', 'o2', '1 ms')
SELECT lease_acquire_permit('p', 2, '1 hour', 'o')
SELECT lease_acquire_permit('p', 2, '1 hour', 'o2', '1 ms')
SELECT lease_acquire_all(ARRAY['a', 'b'], '1 hour', 'o')
SELECT lease_acquire_all(ARRAY['a', 'b'], '1 hour', 'p', '1 ms')
SELECT lease_acquire_any(ARRAY['a', 'c'], '1 hour', 'o')
SELECT lease_acquire_any(ARRAY['a', 'c'], '1 hour', 'p', '1 ms')
SELECT lease_request('q', '1 hour', 'o', payload => '1')
CALL lease_wait('w', '1 hour', 'o', '1 ms')
SELECT lease_renew('r', '1 hour', 'o')
SELECT lease_renew('r', '1 hour', 'o', lease_token('r', 'o'))
SELECT lease_renew_several(ARRAY['a', 'b'], '1 hour', 'o')
SELECT lease_renew_all('1 hour', 'o')
SELECT lease_downgrade('q', 'o')
SELECT lease_set_payload('r', 'o', '2')
SELECT lease_assert('r', 'o')
SELECT lease_assert_token('r', lease_token('r', 'o'))
SELECT lease_transfer('r', 'o', 'o2')
SELECT lease_break('r')
SELECT lease_protect('t', '{name}')
SET lease_lock.owner = 'o'
INSERT INTO t VALUES ('a')
UPDATE t SET name = 'b'
SELECT lease_unprotect('t')
SELECT lease_purge()
SELECT lease_session_ended(1)
SELECT lease_watch('a', 'channel')
SELECT count(*) FROM lease_watches
SELECT lease_unwatch('a', 'channel')
SELECT count(*) FROM lease_status
SELECT count(*) FROM lease_waiters
SELECT count(*) FROM lease_contenders
SELECT count(*) FROM lease_waiters()
SELECT count(*) FROM lease_stats
SELECT lease_contended('r')
SELECT lease_stats()
SELECT lease_stats_reset()
SELECT lease_printable(E'a\nb')
SELECT lease_wait_graph()
SELECT lease_clock_difference()
SELECT lease_release('w', 'o')
SELECT lease_release('s', 'o', lease_token('s', 'o'))
SELECT lease_release_all('o')
SELECT lease_new_era()
SQL

my $library = build_other_library();
my $node = start_node('foreign', "shared_preload_libraries = '$library, lease_lock'\nlease_lock.purge_interval = 0\n");
$node->safe_psql('postgres', q{
	CREATE TABLE t (name text, version bigint);
	CREATE TRIGGER version BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION lease_version('version')});

my $functions = $node->safe_psql('postgres', q{SELECT DISTINCT proname FROM pg_proc AS p JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
	JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
	WHERE e.extname = 'lease_lock' AND prorettype <> 'trigger'::regtype ORDER BY 1});
is(join(' ', grep { my $name = $_; !grep { /\b$name\(/ } @calls } split(/\n/, $functions)), '', 'each function is called');

sub calls_succeed
{
	my ($name) = @_;
	my $session = open_session($node);

	$session->query_safe('SET lease_lock.durable = off');
	foreach my $call (@calls)
	{
		$session->query($call);
		is($session->{stderr}, '', "$name: $call");
		$session->{stderr} = '';
	}
	$session->quit;
	return;
}

calls_succeed('beside the other library');
$node->append_conf('postgresql.conf', "jit_above_cost = 0\njit_inline_above_cost = 0\njit_optimize_above_cost = 0\n");
$node->reload;
SKIP:
{
	skip 'no JIT compilation here', 1 if $node->safe_psql('postgres', 'SELECT pg_jit_available()') ne 't';
	calls_succeed('inlined');
}

# A waiter, and the processes that the library starts.
my ($holder, $waiter) = map { open_session($node) } 1 .. 2;
$holder->query_safe(q{SELECT lease_acquire('wait', '1 hour', 'holder')});
send_to_wait($node, $waiter, q{SELECT lease_acquire('wait', '1 hour', 'waiter', NULL)});
$holder->query_safe(q{SELECT lease_release('wait', 'holder')});
is(answer($waiter), 't', 'a waiter is called');
$node->safe_psql('postgres', q{SELECT lease_release('wait', 'waiter')});
$node->append_conf('postgresql.conf', "lease_lock.purge_interval = '100ms'\nlease_lock.purge_after = 0\n");
$node->reload;
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM lease_lock WHERE resource = 'wait'}), 'the purge worker works');
unlike(slurp_file($node->logfile), qr/of another library was called/, 'no function of the other library was called');

$_->quit foreach $holder, $waiter;
$node->stop;
done_testing();
