# Where the functions are: in the schema of the extension, wherever that moves; without the extension, in the schema that
# --schema names, as those of the portable edition; never where anybody could have put them.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaseRunTest;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('schema', 'shared_preload_libraries = lease_lock');
my $folder = PostgreSQL::Test::Utils::tempdir();
my $nothing = qr/^$/;

# Functions that only note how they were called, in a schema whose name needs quotes. Others in the search path.
$node->safe_psql('postgres', <<'SQL');
CREATE DATABASE portable;
\c portable
CREATE SCHEMA "Leases's";
SET search_path = "Leases's";
CREATE TABLE call (what text);
CREATE FUNCTION lease_request(resource text, ttl interval, owner text, wait interval DEFAULT '0', mode text DEFAULT 'exclusive',
	permits int4 DEFAULT NULL, if_own text DEFAULT 'refuse', min_hold interval DEFAULT NULL, payload jsonb DEFAULT NULL,
	OUT granted bool, OUT token int8, OUT expires_at timestamptz, OUT waited interval, OUT blocked_by text, OUT blocked_for interval,
	OUT reason text)
LANGUAGE sql AS $$
	INSERT INTO "Leases's".call VALUES ('request ' || resource);
	SELECT true, 7::int8, now() + ttl, '0'::interval, NULL::text, NULL::interval, NULL::text;
$$;
CREATE FUNCTION lease_renew(resource text, ttl interval, owner text, token int8) RETURNS bool
LANGUAGE sql AS $$ INSERT INTO "Leases's".call VALUES ('renew ' || token); SELECT true; $$;
CREATE FUNCTION lease_release(resource text, owner text, token int8) RETURNS bool
LANGUAGE sql AS $$ INSERT INTO "Leases's".call VALUES ('release ' || token); SELECT true; $$;
CREATE FUNCTION public.lease_request(text, interval, text, interval, mode text, permits int4, if_own text, min_hold interval, payload jsonb,
	OUT granted bool, OUT token int8, OUT expires_at timestamptz, OUT waited interval, OUT blocked_by text, OUT blocked_for interval,
	OUT reason text)
LANGUAGE sql AS $$ SELECT true, 1::int8, now(), '0'::interval, NULL::text, NULL::interval, NULL::text $$;
SQL

is_run(lease_run($node->connstr('portable'), q{--schema=Leases's}, 'job', 'sh', '-c', 'echo $LEASE_TOKEN'), 0, qr/^7$/, $nothing,
	'--schema names the functions of a database without the extension');
is($node->safe_psql('portable', q{SELECT string_agg(what, ', ') FROM "Leases's".call}), 'request job, release 7', 'which are called');
is_run(lease_run($node->connstr('portable'), 'job', 'echo', 'no'), 69, $nothing, qr/does not have the extension lease_lock\n.*--schema/,
	'without --schema, no function is found, though there are some');
is_run(lease_run($node->connstr('portable'), '--schema=nowhere', '--wait=1s', 'job', 'echo', 'no'), 69, $nothing,
	qr/(?:schema|function).*nowhere.* does not exist/, 'a schema that does not exist');
is_run(lease_run($node, '--schema=public', 'job', 'echo', 'no'), 69, $nothing,
	qr/has the extension lease_lock, and --schema names other functions\n.*Omit --schema/, 'both at once are an error');

# The extension moves while lease_run waits, and while the command runs.
{
	$node->safe_psql('postgres', q{CREATE SCHEMA elsewhere; SELECT lease_acquire('moved', '1 hour', 'ann')});
	my $run = start_run($node, '-v', '--ttl=20s', 'moved', 'sh', '-c', 'touch "$0"; until [ -e "$0.go" ]; do sleep 0.1; done; echo ran', "$folder/moved");

	until_sql('a waiter', $node, q{SELECT count(*) FROM lease_waiters}, 1);
	$node->safe_psql('postgres', 'ALTER EXTENSION lease_lock SET SCHEMA elsewhere');
	$node->safe_psql('postgres', q{SELECT elsewhere.lease_release('moved', 'ann')});
	until_true('the command begins', sub { -e "$folder/moved" });
	$node->safe_psql('postgres', 'ALTER EXTENSION lease_lock SET SCHEMA public');
	until_true('a renewal', sub { $run->{harness}->pump_nb; $run->{err} =~ /started.*renewed/s });
	append_to_file("$folder/moved.go", '');
	is_run(finish_run($run), 0, qr/^ran$/, qr/released/, 'the extension may move to another schema');
}

# It is dropped while the command runs: the lease is gone, and lease_run does not say that the command was not run.
{
	my $run = start_run($node, '--ttl=1h', 'dropped', 'sh', '-c', 'trap "echo signal; exit 5" TERM; touch "$0"; while :; do sleep 0.1; done', "$folder/dropped");

	until_true('the command begins', sub { -e "$folder/dropped" });
	$node->safe_psql('postgres', 'DROP EXTENSION lease_lock');
	until_true('no renewal', sub { renew_now($node); $run->{harness}->pump_nb; $run->{err} =~ /not renewed \(.*does not have the extension/ });
	$node->safe_psql('postgres', 'CREATE EXTENSION lease_lock');
	renew_now($node);
	is_run(finish_run($run), 75, qr/^signal$/, qr/lost/, 'the extension is dropped and created again: 75');
}

$node->stop;
done_testing();
