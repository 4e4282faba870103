# The locks of the portable edition, one by one: what a try, an ending, a renewal and an assertion do beside an
# open transaction, and what a snapshot that is older than a grant can do, at each isolation level. Never two holders.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

$ENV{LEASE_EDITION} = 'portable';
my $node = start_node('orders', "fsync = off\nautovacuum = off\n");
my $short = 0.3 * slowness($node);		# s: of a lease that expires soon, but not before the next call
my $until_over = "SELECT pg_sleep(1.3 * $short)";
my ($ann, $bob) = map { open_session($node) } 1, 2;

# What must not wait fails here, and what must wait says so soon.
$bob->query_safe("SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s'");
$_->query_safe('SET lease_lock.purge_after = 0') foreach $ann, $bob;

sub stop_process
{
	my ($pid) = @_;

	kill('STOP', $pid) or die "stop $pid: $!";
	1 until slurp_file("/proc/$pid/stat") =~ /\) T /;
	return;
}

sub fresh
{
	$_->query('ROLLBACK') foreach $ann, $bob;
	$_->{stderr} = '' foreach $ann, $bob;
	$ann->query_safe("DELETE FROM lease_lock; SET lock_timeout = 0");
	$bob->query_safe("SET lock_timeout = 0");
	return;
}

# The answer, or the SQLSTATE of the error.
sub ask
{
	my ($session, $sql) = @_;
	my $answer = $session->query($sql);
	my ($error) = $session->{stderr} =~ /ERROR:  (\w{5})/;

	$session->{stderr} = '';
	return $error // $answer;
}

sub answers
{
	my ($session, $sql, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(ask($session, $sql), $expected, $name);
}

# Bob waits, is stopped, and could be granted the lease. Returns his pid.
sub stop_first_in_line
{
	fresh();
	$node->safe_psql('postgres', "SELECT lease_acquire('r', '1 h', 'ann')");
	my $first = begin_query($bob, "SELECT lease_acquire('r', '1 h', 'bob', '1 h')");

	$node->poll_query_until('postgres', "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $first") or die 'nobody waits';
	stop_process($first);
	$node->safe_psql('postgres', "SELECT lease_release('r', 'ann')");
	return $first;
}

my $expire = "UPDATE lease_lock SET expires_at = clock_timestamp() - interval '1 ms' WHERE owner IS NOT NULL";
my $reason = "SELECT granted, reason FROM lease_request('r', '1 h', 'bob'";
my %acquire = (
	exclusive => "SELECT lease_acquire('r', '1 h', '%s')",
	shared => "SELECT lease_acquire_shared('r', '1 h', '%s')",
	permit => "SELECT lease_acquire_permit('r', 1, '1 h', '%s')");

# --- tries do not wait

foreach my $mode ('exclusive', 'shared', 'permit')
{
	foreach my $used (0, 1)
	{
		fresh();
		$ann->query_safe("SELECT lease_acquire('r', '1 h', 'x'), lease_release('r', 'x')") if $used;
		$ann->query_safe("BEGIN; " . sprintf $acquire{$mode}, 'ann');
		answers($bob, "$reason)", 'f|open', "a try beside an open $mode grant on a " . ($used ? 'used' : 'new') . ' resource is refused');
		$ann->query_safe('ROLLBACK');
		answers($bob, "$reason)", 't|', 'and granted when that was rolled back');
	}
}
fresh();
$ann->query_safe("SELECT lease_acquire('r', '1 h', 'ann'); BEGIN; SELECT lease_release('r', 'ann')");
answers($bob, "$reason)", 'f|held', 'a try beside an open release is refused');
fresh();
$ann->query_safe("BEGIN; SELECT lease_acquire('r', '1 h', 'ann')");
$bob->query_safe("BEGIN; SELECT lease_acquire('r', '1 h', 'bob')");
answers($bob, 'SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = $$advisory$$', 0, 'a refused try on a new resource keeps no lock');
fresh();
$ann->query_safe("SELECT lease_acquire('r', '1 h', 'ann'); BEGIN; SELECT lease_renew('r', '2 h', 'ann')");
answers($bob, "SELECT granted, reason FROM lease_request('r', '1 h', 'ann', if_own => 'renew')", 'f|open', 'nor does one of the same owner wait for an open renewal');

# --- assertions

foreach my $mode ('exclusive', 'shared', 'permit')
{
	foreach my $other ('exclusive', $mode eq 'shared' ? () : $mode eq 'exclusive' ? ('shared', 'permit') : 'permit')
	{
		fresh();
		$ann->query_safe(sprintf($acquire{$mode}, 'ann') . "; BEGIN; SELECT lease_assert('r', 'ann')");
		answers($bob, "SELECT lease_renew('r', '1 h', 'ann')", 't', "an assertion lets a renewal of the $mode lease pass");
		answers($bob, "SET lock_timeout = '10 ms'; SELECT lease_release('r', 'ann')", '55P03', 'a release waits for it');
		answers($bob, "SELECT lease_break('r')", '55P03', 'and so does a break');
		answers($bob, "SELECT lease_transfer('r', 'ann', 'x')", '55P03', 'and a transfer');
		$bob->query_safe("SET lock_timeout = 0");
		fresh();
		$ann->query_safe("SELECT lease_request('r', '$short s', 'ann', mode => '$mode'" . ($mode eq 'permit' ? ', permits => 1)' : ')')
			. "; BEGIN; SELECT lease_assert('r', 'ann')");
		$ann->query_safe($until_over);
		answers($bob, sprintf($acquire{$other}, 'bob'), 'f', "$other after $mode: an asserted lease that expired is not taken over");
		answers($ann, 'COMMIT; ' . sprintf($acquire{$other}, 'bob'), 't', 'until the transaction ends');
		answers($ann, "SELECT lease_release('r', 'ann')", 'f', 'and a late release answers false');
		answers($ann, "SELECT lease_assert('r', 'ann')", '55000', 'and a late assertion fails');
	}
}

# A permit beside an expired one, in a row that was released. The next one has no room beside it.
fresh();
$ann->query_safe("SELECT lease_acquire_permit('r', 3, '1 h', o) FROM unnest('{a,b,c}'::text[]) AS o; SELECT lease_release('r', 'b'), lease_release('r', 'c'); $expire");
answers($bob, "SELECT lease_acquire_permit('r', 2, '1 h', 'bob'), lease_token('r', 'bob') > 0", 't|t', 'a permit beside an expired one');
answers($bob, "SELECT lease_acquire_permit('r', 2, '1 h', 'carl')", 't', 'and one over it');
answers($ann, "SELECT lease_release('r', 'a')", 'f', 'whose owner learns of it');
fresh();
$ann->query_safe("SELECT lease_acquire_permit('r', 2, '1 h', 'a'); SELECT lease_acquire_permit('r', 2, '1 h', 'b'); SELECT lease_acquire_shared('r', '1 h', 'c')");
$ann->query_safe("UPDATE lease_lock SET expires_at = clock_timestamp() + interval '$short s' WHERE owner = 'a'; BEGIN; SELECT lease_assert('r', 'a'), pg_sleep(1.3 * $short)");
answers($bob, "SELECT lease_acquire_permit('r', 3, '1 h', 'bob')", 'f', 'an expired permit that is asserted counts');
answers($bob, "SELECT lease_acquire_permit('r', 4, '1 h', 'bob')", 't', 'as one');

# A shared lease beside one that has expired and is asserted, which keeps its row.
fresh();
$ann->query_safe("SELECT lease_acquire_shared('r', '$short s', 'a'); BEGIN; SELECT lease_assert('r', 'a'), pg_sleep(1.3 * $short)");
answers($bob, "SELECT lease_acquire_shared('r', '1 h', 'bob')", 't', 'a shared lease beside one that has expired and is asserted');
answers($bob, "SELECT count(*) FROM lease_status WHERE owner = 'a'", 1, 'does not take that over');

# A purge leaves slot 0 of a resource that has other leases: it orders the grants.
fresh();
$ann->query_safe("SELECT lease_acquire_shared('r', '1 h', 'a'); SELECT lease_purge()");
answers($bob, "SELECT count(*) FROM lease_lock WHERE slot = 0", 1, 'a purge leaves slot 0 beside other leases');

# A refusal that comes after slot 0 was locked leaves no lock behind.
fresh();
$ann->query_safe("SELECT lease_acquire_shared('r', '$short s', 'a'), lease_acquire_shared('r', '1 h', 'b'), lease_release('r', 'b'); BEGIN; SELECT lease_assert('r', 'a'), pg_sleep(1.3 * $short)");
$bob->query_safe('BEGIN');
answers($bob, $reason . ')', 'f|open', 'a writer is refused by an expired reader that is asserted');
answers($ann, "SELECT lease_acquire_shared('r', '1 h', 'c')", 't', 'and holds nobody off, though its transaction goes on');

# --- endings and renewals wait for what is open, and answer by what it left

sub while_open
{
	my ($open, $sql, $expected, $name, $end) = @_;
	my $pid;

	$ann->query_safe("BEGIN; $open");
	$pid = begin_query($bob, $sql);
	wait_until_blocked($node, $pid);
	$ann->query_safe($end // 'COMMIT');
	my $got = finish_query($bob) =~ s/^\n|\n$//gr;
	$got = $1 if $got =~ /ERROR:  (\w{5})/;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($got, $expected, $name);
	$bob->{stderr} = '';
	return;
}

my $takeover = "SELECT lease_acquire('r', '1 h', 'carl')";
foreach my $call ("lease_release('r', 'bob')", "lease_renew('r', '1 h', 'bob')", "lease_set_payload('r', 'bob', '1')", "lease_transfer('r', 'bob', 'dora') IS NOT NULL")
{
	fresh();
	$ann->query_safe("SELECT lease_acquire('r', '1 h', 'bob')");
	while_open("SELECT lease_release('r', 'bob'); $takeover", "SELECT $call", 'f', "$call behind a takeover: false");
	fresh();
	$ann->query_safe("SELECT lease_acquire('r', '1 h', 'bob')");
	while_open("SELECT lease_release('r', 'bob'); $takeover", "SELECT $call", 't', "$call behind one that is rolled back: true", 'ROLLBACK');
}
fresh();
$ann->query_safe("SELECT lease_acquire('r', '1 h', 'bob')");
while_open("SELECT lease_release('r', 'bob'); $takeover", "SELECT lease_assert('r', 'bob')", '55000', 'an assertion behind a takeover fails');
# A renewal in the same transaction, or another assertion, must not hide the end from the assertion that waits.
foreach my $body (
	"SELECT lease_renew('r', '1 h', 'bob'); SELECT lease_transfer('r', 'bob', 'carl')",
	"SELECT lease_set_payload('r', 'bob', '1'); SELECT lease_transfer('r', 'bob', 'carl')",
	"SELECT lease_renew_several('{r}', '1 h', 'bob'); SELECT lease_release('r', 'bob'); $takeover",
	"SELECT lease_renew('r', '1 h', 'bob'); SAVEPOINT s; SELECT lease_release('r', 'bob'); RELEASE s; $takeover",
	"SAVEPOINT s; SELECT lease_renew('r', '1 h', 'bob'); RELEASE s; SELECT lease_release('r', 'bob'); $takeover")
{
	foreach my $mode ('exclusive', 'permit')
	{
		fresh();
		$ann->query_safe(sprintf $acquire{$mode}, 'bob');
		my $claim = $mode eq 'permit' ? "_token('r', " . $ann->query_safe("SELECT lease_token('r', 'bob')") . ')' : "('r', 'bob')";
		while_open($body =~ s/\Q$takeover\E/sprintf $acquire{$mode}, 'carl'/er, "SELECT lease_assert$claim", '55000', "$mode: an assertion fails behind $body");
	}
}
fresh();
$ann->query_safe(sprintf $acquire{shared}, 'bob');
while_open("SELECT lease_renew('r', '1 h', 'bob'); SAVEPOINT s; SELECT lease_release('r', 'bob'); RELEASE s", "SELECT lease_assert('r', 'bob')", '55000', 'of a shared lease, too');
fresh();
$ann->query_safe("SELECT lease_acquire('r', '1 h', 'bob')");
while_open("SELECT lease_renew('r', '1 h', 'bob'); SELECT lease_transfer('r', 'bob', 'carl'); SELECT lease_transfer('r', 'carl', 'bob')", "SELECT lease_assert('r', 'bob') > 0", 't',
	'and finds the later lease of its owner');
fresh();
$ann->query_safe("SELECT lease_acquire('r', '$short s', 'bob')");
while_open("SELECT FROM lease_lock FOR UPDATE", "SELECT lease_renew('r', '1 h', 'bob')", 'f', 'a lease that expires while its renewal waits is not renewed',
	"$until_over; COMMIT");
fresh();
$ann->query_safe("SELECT lease_acquire_shared('r', '1 h', 'bob'); UPDATE lease_lock SET token = 9000000000000000000");
while_open("SELECT lease_acquire_shared('r', '1 h', 'carl')", "SELECT lease_transfer('r', 'bob', 'dora') > 0", 't', 'a transfer waits for an open grant');
answers($ann, "SELECT owner FROM lease_status ORDER BY token DESC LIMIT 1", 'dora', 'and its token is higher');

# A break waits for a grant, then for an assertion. Meanwhile the grant is committed, in a row that is new, and asserted.
{
	my ($carl, $dora) = map { open_session($node) } 1, 2;
	my $pid;

	fresh();
	$dora->query_safe("SELECT lease_acquire_shared('r', '1 h', 'dora'); BEGIN; SELECT lease_assert('r', 'dora')");
	$ann->query_safe("BEGIN; SELECT lease_acquire_shared('r', '1 h', 'carl')");
	$pid = begin_query($bob, "SELECT lease_break('r')");
	wait_until_blocked($node, $pid);
	$ann->query_safe('COMMIT');
	$node->poll_query_until('postgres', "SELECT pg_blocking_pids($pid) = ARRAY[" . $dora->query_safe('SELECT pg_backend_pid()') . ']');
	answers($carl, "BEGIN; SELECT lease_assert('r', 'carl') > 0", 't', 'an assertion while a break waits for another one');
	$dora->query_safe('COMMIT');
	$node->poll_query_until('postgres', "SELECT pg_blocking_pids($pid) = ARRAY[" . $carl->query_safe('SELECT pg_backend_pid()') . ']')
	  or die 'the break does not wait';
	is($node->safe_psql('postgres', "SELECT lease_token('r', 'carl') > 0"), 't', 'is waited for as well, though the row is new');
	$carl->query_safe('COMMIT');
	is(finish_query($bob) =~ s/^\n|\n$//gr, 't', 'the break ends it then');
	is($node->safe_psql('postgres', "SELECT count(*) FROM lease_status WHERE state = 'held'"), 0, 'and no lease is left');
	$_->quit foreach $carl, $dora;
}

# --- tokens

fresh();
$ann->query_safe("SELECT lease_acquire('r', '1 h', 'ann'), lease_release('r', 'ann'); UPDATE lease_lock SET token = 9000000000000000000");
answers($bob, "SELECT token FROM lease_request('r', '1 h', 'bob')", '9000000000000000001', 'a token is higher than the last one, whatever the clock says');
fresh();
$ann->query_safe("SELECT lease_acquire_shared('r', '1 h', 'ann'), lease_acquire_shared('r', '1 h', 'x'); UPDATE lease_lock SET token = 9000000000000000000 WHERE owner = 'ann'; SELECT lease_release('r', 'ann'), lease_release('r', 'x')");
answers($bob, "SELECT token > 9000000000000000000 FROM lease_request('r', '1 h', 'bob')", 't', 'also higher than that of a shared one');

# --- what belongs to others

fresh();
$ann->query_safe("SELECT lease_acquire('r', '1 h', 'ann'); SET lock_timeout = '1 s'");
$bob->query_safe('BEGIN');
answers($bob, "SELECT lease_transfer('r', 'nobody', 'x') IS NULL", 't', 'a transfer by somebody who has no lease');
answers($ann, "SELECT lease_renew('r', '1 h', 'ann'), lease_release('r', 'ann')", 't|t', 'locks nothing');
fresh();
$ann->query_safe("SELECT lease_acquire_shared('r', '$short s', 'ann'); BEGIN; SELECT lease_renew('r', '1 h', 'ann'); $until_over");
answers($bob, "SELECT lease_acquire_shared('r', '1 h', 'ann')", 'f', 'no second lease beside an expired one of the same owner that is being renewed');
answers($bob, "SELECT lease_acquire_shared('r', '1 h', 'bob')", 't', 'but one of another owner');
answers($ann, "COMMIT; SELECT lease_token('r', 'ann') > 0, lease_release('r', 'ann'), lease_token('r', 'ann') IS NULL", 't|t|t', 'which has one lease then');
fresh();
$ann->query_safe("SELECT lease_acquire('r', '1 h', 'ann')");
answers($bob, "SET lease_lock.purge_after = '-1 day'; SELECT lease_purge(), (SELECT count(*) FROM lease_status); SET lease_lock.purge_after = 0", '0|1', 'a purge removes no lease that is held');

# --- several at once

fresh();
$ann->query_safe("CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1.3 * $short); RETURN NEW; END';
	CREATE TRIGGER dawdle BEFORE INSERT ON lease_lock FOR EACH ROW WHEN (NEW.resource = 'b') EXECUTE FUNCTION dawdle()");
answers($bob, "SELECT lease_acquire_all('{a,b,c}', '$short s', 'bob', '1 ms')", 't', 'all of them, the last one when the wait is over');
answers($bob, "SELECT min(expires_at) >= max(granted_at) + interval '$short s' FROM lease_lock", 't', 'the ttl of all begins then');
$ann->query_safe('DROP TRIGGER dawdle ON lease_lock; DROP FUNCTION dawdle()');

# --- collations and settings of the caller

fresh();
answers($ann, "SELECT lease_acquire(r, '1 h', o), lease_renew(r, '1 h', o), lease_renew(r, '1 h', o, lease_token(r, o)), lease_assert(r, o) = lease_assert_token(r, lease_token(r, o)),
		lease_set_payload(r, o, '1'), lease_renew_all('1 h', o), lease_renew_several(ARRAY[r], '1 h', o), lease_transfer(r, o, o) > 0, lease_break(r),
		lease_acquire_all(ARRAY[r], '1 h', o, '1 ms'), lease_release(r, o, lease_token(r, o)), lease_acquire_any(ARRAY[r], '1 h', o), lease_release(r, o),
		(lease_request(r, '1 h', o, mode => 'shared')).granted, lease_release_all(o)
	FROM (SELECT 'r'::text COLLATE \"POSIX\" AS r, 'ann'::text COLLATE \"ucs_basic\" AS o) AS names", 't|t|t|t|t|1|t|t|t|t|t|r|t|t|1',
	'arguments may have collations of their own');
if ($ann->query_safe('SHOW server_version_num') < 190000)		# which has no others
{
	answers($ann, "SET standard_conforming_strings = off; SET escape_string_warning = off; SELECT lease_acquire('r', '-1 s', 'ann')", '22023', 'or be told in other strings');
	$ann->query_safe('RESET standard_conforming_strings; RESET escape_string_warning');
}
answers($ann, "CALL lease_wait('r', '1 h', 'ann', '300000 years')", '22023', 'a wait that is too long');
answers($ann, "SET plpgsql.extra_errors = 'all'; SELECT lease_acquire('r', '1 h', 'ann'), lease_acquire('r', '1 h', 'bob'), (lease_request('r', '1 h', 'ann', if_own => 'count')).granted,
	lease_acquire_shared('s', '1 h', 'ann'), lease_acquire_all('{t,u}', '1 h', 'ann', '1 ms'), lease_transfer('r', 'ann', 'bob') > 0, lease_release('r', 'bob')", 't|f|t|t|t|t|t',
	'checks that the caller has switched on');
$ann->query_safe('RESET plpgsql.extra_errors');

# --- old snapshots

# A try does not wait, also if its snapshot does not show a row that another transaction is changing.
foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	foreach my $change ("lease_renew('new', '2 h', 'ann')", "lease_release('new', 'ann')", "lease_transfer('new', 'ann', 'x') > 0",
		"lease_set_payload('new', 'ann', '1')", "lease_break('new')", "lease_release('new', 'ann'), lease_purge() > 0")
	{
		fresh();
		$bob->query_safe("BEGIN ISOLATION LEVEL $level; SET LOCAL lock_timeout = '50 s'; SELECT 1");
		$ann->query_safe("SELECT lease_acquire('new', '1 h', 'ann'); BEGIN; SELECT $change");
		answers($bob, "$acquire{shared}, current_setting('lock_timeout')" =~ s/'r'/'new'/r =~ s/%s/bob/r, 'f|50s', "$level: a try beside $change that is open");
	}
}

# What may happen after the snapshot was taken, from leases that were there before.
my @events = (
	[ '', "%s" ],
	[ "SELECT lease_acquire('r', '1 h', 'x'), lease_release('r', 'x')", "%s" ],
	[ "SELECT lease_acquire_shared('r', '1 h', 'x'), lease_release('r', 'x')", "%s" ],
	[ "SELECT lease_acquire('r', '1 h', 'x')", "SELECT lease_release('r', 'x'); %s" ],
	[ "SELECT lease_acquire('r', '1 h', 'x'), lease_release('r', 'x')", "SELECT lease_purge(); %s" ],
	[ "SELECT lease_acquire_shared('r', '$short s', 'ann'), lease_acquire_shared('r', '1 h', 'x'), lease_release('r', 'x')", "SELECT lease_renew('r', '1 h', 'ann')" ],
	[ "SELECT lease_acquire('r', '$short s', 'ann')", "SELECT lease_renew('r', '1 h', 'ann')" ],
	[ "SELECT lease_acquire_permit('r', 1, '$short s', 'x')", "SELECT lease_transfer('r', 'x', 'ann'), lease_renew('r', '1 h', 'ann')" ]);
my ($failed, $refused, $granted) = (0, 0, 0);
foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my @two;

	foreach my $event (@events)
	{
		foreach my $mode ($event->[1] =~ /%s/ ? ('exclusive', 'shared', 'permit') : '')
		{
			foreach my $other ('exclusive', 'shared', 'permit')
			{
				fresh();
				$ann->query_safe($event->[0]) if $event->[0];
				$bob->query_safe("BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM lease_lock");
				$ann->query_safe($mode ? sprintf($event->[1], sprintf $acquire{$mode}, 'ann') : $event->[1]);
				$ann->query_safe($until_over) if $event->[0] =~ /$short s/;
				my $answer = ask($bob, sprintf $acquire{$other}, 'bob');

				$failed++ if $answer eq '40001';
				$refused++ if $answer eq 'f';
				$granted++ if $answer eq 't';
				ask($bob, $answer =~ /^[tf]$/ ? 'COMMIT' : 'ROLLBACK');
				my $held = $ann->query_safe("SELECT string_agg(mode, ' ' ORDER BY mode) FROM lease_status WHERE state = 'held'");

				push @two, "@$event $mode $other: $answer, $held" if $held =~ /exclusive / || $held =~ /permit permit/ || $answer !~ /^([tf]|40001)$/
				  || $level eq 'READ COMMITTED' && $answer eq '40001';
			}
		}
	}
	is(join("\n", @two), '', "$level: a snapshot that is older than what another session did makes no second holder");
}
cmp_ok($_, '>', 10, 'requests of each outcome') foreach $failed, $refused, $granted;

# An assertion by an old snapshot: of a lease that was renewed since then, and has ended, or has not.
{
	my $carl = open_session($node);

	foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
	{
		foreach my $since (
			[ '', '', 't' ],
			[ 'renewed', "SELECT lease_renew('r', '1 h', 'ann')", '40001' ],
			[ 'asserted and transferred', "SELECT lease_renew('r', '1 h', 'ann'); BEGIN; SELECT lease_assert('r', 'ann'); SELECT lease_transfer('r', 'ann', 'x'); COMMIT", '40001' ],
			[ 'asserted twice and released', "BEGIN; SELECT lease_assert('r', 'ann'); %s SELECT lease_release('r', 'ann'); COMMIT", '40001' ])
		{
			my ($name, $sql, $expected) = @$since;
			my ($first, $rest) = split /%s/, $sql;

			fresh();
			$ann->query_safe("SELECT lease_acquire('r', '1 h', 'ann')");
			$bob->query_safe("BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM lease_lock");
			$ann->query_safe($first) if $first;
			$carl->query_safe("SELECT lease_renew('r', '1 h', 'ann'); SELECT lease_assert('r', 'ann')") if $rest;
			$ann->query_safe($rest) if $rest;
			answers($bob, "SELECT lease_assert('r', 'ann') > 0", $expected, "$level: an assertion of a lease that was " . ($name || 'not written') . ' since the snapshot');
		}
	}
	$carl->quit;
}

# The snapshot of the statement, or of a function that calls, is older: it is not used.
$node->safe_psql('postgres', "CREATE FUNCTION stable_try(text) RETURNS bool STABLE LANGUAGE plpgsql AS \$\$
	BEGIN PERFORM pg_advisory_xact_lock(1); RETURN lease_acquire(\$1, '1 h', 'bob'); END \$\$");
foreach my $sql ("SELECT stable_try('r')", "WITH x AS MATERIALIZED (SELECT pg_advisory_xact_lock(1)) SELECT lease_acquire('r', '1 h', 'bob') FROM x, lease_status")
{
	fresh();
	$ann->query_safe("SELECT lease_acquire('q', '1 h', 'ann'); SELECT lease_acquire('r', '1 h', 'x'), lease_release('r', 'x')");
	while_open('SELECT pg_advisory_lock(1)', $sql, 'f', 'nor is that of a statement: ' . substr($sql, 0, 30),
		"COMMIT; SELECT lease_acquire('r', '1 h', 'ann'); SELECT pg_advisory_unlock(1)");
}

# --- savepoints

fresh();
$ann->query_safe("BEGIN; SAVEPOINT s; SELECT lease_acquire('r', '1 h', 'ann'); ROLLBACK TO s");
answers($bob, "$reason)", 't|', 'what a savepoint undid is no obstacle');
fresh();
$ann->query_safe("SELECT lease_acquire('r', '$short s', 'ann'); BEGIN; SELECT lease_assert('r', 'ann'); SAVEPOINT s; SELECT lease_renew('r', '1 ms', 'ann'), lease_release('r', 'ann'); ROLLBACK TO s; $until_over");
answers($bob, "$reason)", 'f|open', 'an assertion outlives a release that a savepoint undid');

# --- waits

fresh();
$ann->query_safe("SELECT lease_acquire('r', '1 h', 'ann')");
$bob->query_safe("SET lock_timeout = '50 s'; BEGIN");
answers($bob, "SELECT lease_acquire('r', '1 h', 'bob', '20 ms'), current_setting('lock_timeout')", 'f|50s', 'a wait that is over is refused, and lock_timeout is as before');
answers($bob, 'SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = $$advisory$$', 0, 'and it keeps no place in the line');
answers($bob, "SAVEPOINT s; SET LOCAL lock_timeout = '20 ms'; SELECT lease_acquire('r', '1 h', 'bob', '1 h')", '55P03', 'lock_timeout ends a wait');
$bob->query_safe('ROLLBACK TO s');
answers($bob, "SELECT waited >= '20 ms' FROM lease_request('r', '1 h', 'bob', '20 ms')", 't', 'waited says how long');
$ann->query_safe("SELECT lease_acquire('soon', '300 ms', 'ann')");
answers($bob, "SET LOCAL lock_timeout = '3 h'; SELECT lease_acquire('soon', '1 h', 'bob', '2 h'), current_setting('lock_timeout')", 't|3h', 'after a wait that was granted, lock_timeout is as before');
$bob->query_safe('COMMIT');
foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	$bob->query_safe("BEGIN ISOLATION LEVEL $level");
	answers($bob, "SELECT lease_acquire('r', '1 h', 'bob', '20 ms')", '0A000', "a wait at $level is refused");
	$bob->query('ROLLBACK');
}
my $pid = begin_query($bob, "SELECT granted, expires_at - clock_timestamp() > '59 min', waited < '1 h' FROM lease_request('r', '1 h', 'bob', '1 h')");
$node->poll_query_until('postgres', "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $pid");
my $third = open_session($node);
my $next = begin_query($third, "SELECT lease_acquire('r', '1 h', 'carl', '1 h')");
wait_until_blocked($node, $next);
$third->{timeout_ok} = 1;
$ann->query_safe("SELECT lease_release('r', 'ann')");
is(finish_query($bob) =~ s/^\n|\n$//gr, 't|t|t', 'the first waiter is granted the lease');
$ann->query_safe("SELECT lease_release('r', 'bob')");
is(finish_query($third) =~ s/^\n|\n$//gr, 't', 'then the next one');

# An owner that has a permit itself stands aside for those that can be granted one: also if it got it while it was the first.
foreach my $has_it_before (1, 0)
{
	my $own = "SELECT lease_acquire_permit('r', 2, '1 h', 'ann')";
	my $holders = "SELECT lease_acquire_permit('r', 2, '1 h', 'x'), lease_acquire_permit('r', 2, '1 h', 'y')";

	fresh();
	$node->safe_psql('postgres', $has_it_before ? "$own, lease_acquire_permit('r', 2, '1 h', 'x')" : $holders);
	$pid = begin_query($ann, "SELECT lease_acquire_permit('r', 2, '1 h', 'ann', '1 h')");
	$node->poll_query_until('postgres', "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $pid") or die 'nobody waits';
	if (!$has_it_before)
	{
		# A transfer: as a grant it would be waited for.
		$node->safe_psql('postgres', "SELECT lease_transfer('r', 'y', 'ann')");
		$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_locks WHERE pid = $pid AND locktype = 'advisory'") or die 'it stays in the line';
	}
	my $waiter = begin_query($bob, "SELECT lease_acquire_permit('r', 2, '1 h', 'bob', '1 h')");
	$node->poll_query_until('postgres', "SELECT wait_event IN ('PgSleep', 'advisory') FROM pg_stat_activity WHERE pid = $waiter") or die 'nobody waits';
	$node->safe_psql('postgres', "SELECT lease_release('r', 'x')");
	is(finish_query($bob) =~ s/^\n|\n$//gr, 't', 'a waiter whose owner has a permit holds up nobody' . ($has_it_before ? '' : ', even if it has got it since'));
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
	like(finish_query($ann), qr/57014/, 'it waits on');
}

# It takes nothing that becomes free from those in the line.
fresh();
$node->safe_psql('postgres', "SELECT lease_acquire('r', '1 h', 'ann')");
my $first = begin_query($bob, "SELECT lease_acquire('r', '1 h', 'bob', '1 h')");
$node->poll_query_until('postgres', "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $first") or die 'nobody waits';
stop_process($first);
$pid = begin_query($ann, "SELECT lease_acquire('r', '1 h', 'ann', '1 h')");
$node->poll_query_until('postgres', "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $pid") or die 'nobody waits';
$node->safe_psql('postgres', "SELECT lease_release('r', 'ann')");
wait_until_blocked($node, $pid);
kill('CONT', $first);
is(finish_query($bob) =~ s/^\n|\n$//gr, 't', 'a waiter whose owner had the lease lets those in the line go first');
$node->safe_psql('postgres', "SELECT lease_release('r', 'bob')");
is(finish_query($ann) =~ s/^\n|\n$//gr, 't', 'and is granted it then');

# Nor does another call that waits.
$first = stop_first_in_line();
$pid = begin_query($ann, "SELECT lease_acquire('r', '1 h', 'ann', '1 h')");
wait_until_blocked($node, $pid);
kill('CONT', $first);
is(finish_query($bob) =~ s/^\n|\n$//gr, 't', 'a call that waits does not go before those in the line');
$node->safe_psql('postgres', "SELECT lease_release('r', 'bob')");
is(finish_query($ann) =~ s/^\n|\n$//gr, 't', 'and is granted the lease then');

# A holder that asks for its own lease stays aside while another transaction renews that.
fresh();
$ann->query_safe("SELECT lease_acquire('r', '1 h', 'ann')");
$next = begin_query($third, "SELECT lease_acquire('r', '1 h', 'carl', '1 h')");
$node->poll_query_until('postgres', "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $next") or die 'nobody waits';
$ann->query_safe("BEGIN; SELECT lease_renew('r', '1 h', 'ann')");
$pid = begin_query($bob, "SELECT granted, reason FROM lease_request('r', '1 h', 'ann', '20 s', if_own => 'renew')");
$node->poll_query_until('postgres', "SELECT wait_event IN ('PgSleep', 'advisory') FROM pg_stat_activity WHERE pid = $pid") or die 'it does not wait';
$ann->query_safe('COMMIT');
is(finish_query($bob) =~ s/^\n|\n$//gr, 't|renewed', 'a holder is granted its own lease when that is not written any more');
$node->safe_psql('postgres', "SELECT pg_cancel_backend($next)");
like(finish_query($third), qr/57014/, 'before those in the line');

# lock_timeout counts from the begin of the wait, also if the waiter steps aside and back.
fresh();
$node->safe_psql('postgres', "SELECT lease_acquire('r', '1 h', 'ann')");
$ann->query_safe("SET lock_timeout = '${\ (3 * slowness($node))} s'");
$pid = begin_query($ann, "SELECT lease_acquire('r', '1 h', 'ann', '1 h')");
my ($from, $to, $state) = ('ann', 'x', 'active');
for (my $end = time + $PostgreSQL::Test::Utils::timeout_default; time < $end && $state eq 'active';)
{
	$state = $node->safe_psql('postgres', "SELECT lease_transfer('r', '$from', '$to'); SELECT state FROM pg_stat_activity WHERE pid = $pid") =~ s/.*\n//r;
	($from, $to) = ($to, $from);
}
is($state, 'idle', 'lock_timeout ends a wait that steps aside again and again');
like(finish_query($ann), qr/55P03/, 'with its error');

# A call whose wait is over does not go before those in the line.
$first = stop_first_in_line();
answers($ann, "SELECT lease_acquire('r', '1 h', 'carl', '5 ms')", 'f', 'a wait that is over does not go before those in the line');
kill('CONT', $first);
is(finish_query($bob) =~ s/^\n|\n$//gr, 't', 'who are granted the lease');

# A transaction that ended or was granted a lease does not wait behind those who wait for its end.
my $soon = 10 * slowness($node);
foreach my $way (
	[ "SELECT lease_acquire('r', '1 h', 'ann')", "SELECT lease_acquire_shared('r', '1 h', 'bob', '1 h')",
		"SELECT lease_release('r', 'ann')", "SELECT lease_acquire_shared('r', '1 h', 'ann', '1 h')" ],
	[ "SELECT lease_acquire('r', '1 h', 'ann')", "SELECT lease_acquire_shared('r', '1 h', 'bob', '1 h')",
		"SELECT lease_break('r')", "SELECT lease_acquire_shared('r', '1 h', 'ann', '1 h')" ],
	[ "SELECT lease_acquire('r', '$short s', 'ann')", "SELECT lease_acquire('r', '1 h', 'bob', '1 h')",
		"SELECT lease_renew('r', '$short s', 'ann')", "SELECT lease_acquire('r', '$short s', 'ann', '1 h') FROM pg_sleep(1.3 * $short)" ],
	[ "SELECT lease_acquire('r', '$short s', 'ann')", "SELECT lease_acquire('r', '1 h', 'bob', '1 h')",
		"SELECT lease_assert('r', 'ann')", "SELECT lease_acquire('r', '$short s', 'ann', '1 h') FROM pg_sleep(1.3 * $short)" ],
	[ 'SELECT', "SELECT lease_acquire_permit('r', 5, '1 h', 'bob', '1 h')",
		"SELECT lease_acquire_permit('r', 5, '1 h', 'ann')", "SELECT lease_acquire_permit('r', 5, '1 h', 'eve', '1 h')" ])
{
	my ($before, $waits, $changes, $acquires) = @$way;

	fresh();
	$ann->query_safe("$before; BEGIN; $changes; SET LOCAL statement_timeout = '$soon s'");
	$pid = begin_query($bob, $waits);
	$node->poll_query_until('postgres', "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $pid") or die 'nobody waits';
	answers($ann, $acquires, 't', "a transaction does not wait behind those who wait for its end: $changes");
	$ann->query_safe('COMMIT');
	is(finish_query($bob) =~ s/^\n|\n$//gr, 't', 'who are granted theirs when it is over');
}

# A release and a shared lease in one transaction: at no time is the owner without a lease.
my $until_written = sub { wait_until_blocked($node, $pid); $ann->query_safe('COMMIT'); return finish_query($bob) =~ s/^\n|\n$//gr };
foreach my $call ("lease_renew('r', '1 h', 'ann')", "lease_set_payload('r', 'ann', '{}')", "lease_assert('r', 'ann') > 0", "lease_release('r', 'ann')")
{
	fresh();
	$ann->query_safe("SELECT lease_acquire('r', '1 h', 'ann'); BEGIN; SELECT lease_release('r', 'ann'), lease_acquire_shared('r', '1 h', 'ann')");
	$pid = begin_query($bob, "SELECT $call");
	is($until_written->(), 't', "a lease of another mode since: $call");
}

# A lease that was renewed after the snapshot, and would be over by now: that is not known there.
fresh();
my $token = $ann->query_safe("SELECT token FROM lease_request('r', '$short s', 'ann')");
$bob->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
$ann->query_safe("SELECT lease_renew('r', '1 h', 'ann')");
$ann->query_safe($until_over);
foreach my $call ("lease_assert('r', 'ann')", "lease_assert_token('r', $token)", "lease_renew('r', '1 h', 'ann')",
	"lease_set_payload('r', 'ann', '{}')", "lease_transfer('r', 'ann', 'eve')", "lease_release('r', 'ann')")
{
	$bob->query_safe('SAVEPOINT s');
	answers($bob, "SELECT $call", '40001', "an old snapshot does not say that the lease is lost: $call");
	$bob->query_safe('ROLLBACK TO s');
}

# The session's role is known by its name.
fresh();
$bob->query_safe('CREATE ROLE before; SET ROLE before');
$node->safe_psql('postgres', 'ALTER ROLE before RENAME TO after');
answers($bob, "SELECT lease_acquire('r', '1 h', 'bob')", '42704', 'a role that was renamed has to be set again');
$bob->query_safe('RESET ROLE; DROP ROLE after');

# A grant between the first look of a try and its lock. (The lock of the table stops the try there.)
fresh();
$ann->query_safe("SELECT lease_acquire('r', '1 h', 'ann'), lease_release('r', 'ann')");
$ann->query_safe("BEGIN; SELECT lease_acquire('r', '1 h', 'ann'); LOCK TABLE lease_lock IN EXCLUSIVE MODE");
$pid = begin_query($bob, "SELECT granted, reason FROM lease_request('r', '1 h', 'bob')");
is($until_written->(), 'f|held', 'a try looks again when it has the lock');

# The name of a resource may have a collation, also of a call that waits.
fresh();
$ann->query_safe("SELECT lease_acquire('r', '1 h', 'ann')");
answers($bob, "SELECT lease_acquire('r' COLLATE ucs_basic, '1 h', 'bob', '1 ms')", 'f', 'a wait for a resource with a collation');

# A transfer to an owner who has a lease waits for nothing of his.
fresh();
$node->safe_psql('postgres', "SELECT lease_acquire_shared('r', '1 h', 'ann'), lease_acquire_shared('r', '1 h', 'bob')");
$bob->query_safe("BEGIN; SELECT lease_assert('r', 'bob')");
$ann->query_safe("SET lock_timeout = '1 s'");
answers($ann, "SELECT lease_transfer('r', 'ann', 'bob')", '55006', 'a transfer to an owner who relies on a lease of his is refused at once');

# A lease that expired while an open transaction renews it may be held again: it counts as one of the new owner's.
fresh();
$node->safe_psql('postgres', "SELECT lease_acquire_shared('r', '1 h', 'ann')");
$bob->query_safe("SELECT lease_acquire_shared('r', '$short s', 'bob'); BEGIN; SELECT lease_renew('r', '1 h', 'bob')");
$ann->query_safe($until_over);
$pid = begin_query($ann, "SELECT lease_transfer('r', 'ann', 'bob')");
wait_until_blocked($node, $pid);
$bob->query_safe('COMMIT');
like(finish_query($ann), qr/55006/, 'a transfer to an owner whose lease is being renewed');
is($bob->query_safe("SELECT lease_token('r', 'bob') > 0"), 't', 'who has one lease');
$_->quit foreach $ann, $bob, $third;

$node->stop;
done_testing();
