# Limits that a superuser sets: the longest ttl, and how many leases an owner may
# have; and that nobody else can get around them.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('quota', "max_prepared_transactions = 5\n");

$node->safe_psql('postgres', q{
	CREATE ROLE free LOGIN;
	CREATE ROLE limited LOGIN;
	CREATE ROLE trusted LOGIN;
	ALTER ROLE limited SET lease_lock.max_ttl = '1 min';
	ALTER ROLE limited SET lease_lock.max_leases_per_owner = 2;
	CREATE DATABASE strict;
});
$node->safe_psql('strict', q{CREATE EXTENSION lease_lock; ALTER DATABASE strict SET lease_lock.max_ttl = '250 ms'});

sub as
{
	my ($role, $sql, $dbname) = @_;

	return $node->safe_psql($dbname // 'postgres', $sql, extra_params => [ '-U', $role ]);
}

sub refused
{
	my ($role, $sql, $sqlstate, $match, $name, $dbname) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	sql_fails($node, $sql, $sqlstate, $match, $name, role => $role, dbname => $dbname // 'postgres');
	return;
}

my $too_long = 'ttl of the lease on "r" is longer than allowed.*DETAIL:  Setting "lease_lock.max_ttl" is 1min\..*HINT:  Use a shorter ttl';
my $too_many = 'too many leases for the owner of the lease on "c".*DETAIL:  Setting "lease_lock.max_leases_per_owner" is 2\..*HINT:  Release another';
my $two = q{SELECT lease_acquire('a', '1 min', 'o'), lease_acquire('b', '1 min', 'o')};
my $third = q{SELECT lease_acquire('c', '1 min', 'o')};

sub clean
{
	$node->safe_psql('postgres', 'TRUNCATE lease_lock');
	return;
}

# the longest ttl
is(as('limited', q{SELECT lease_acquire('r', '1 min', 'o'), lease_renew('r', '60 s', 'o')}), 't|t', 'ttl: up to the limit');
refused('limited', "SELECT $_", '22023', $too_long, "ttl: beyond it: $_")
  foreach q{lease_acquire('r', '60.001 s', 'o')}, q{lease_acquire('r', '100000 years', 'o')},
  q{lease_acquire('r', '61 s', 'o', '1 s')}, q{lease_renew('r', '1 hour', 'o')};
refused('limited', q{CALL lease_wait('r', '1 hour', 'o', '1 s')}, '22023', $too_long, 'ttl: beyond it: lease_wait');
is(as('free', q{SELECT lease_acquire('f', '100000 years', 'o')}), 't', 'ttl: other roles have no limit');
is(as('limited', q{SELECT lease_acquire('r', '250 ms', 'o')}, 'strict'), 't', 'ttl: the limit of a database');
is(as('free', q{SELECT lease_acquire('r2', '250 ms', 'o')}, 'strict'), 't', 'ttl: for every role');
refused('free', q{SELECT lease_acquire('r2', '250.001 ms', 'o')}, '22023', 'lease_lock.max_ttl" is 250ms', 'ttl: beyond it, by a microsecond', 'strict');
is($node->safe_psql('postgres', q{SET lease_lock.max_ttl = '30 d'; SELECT lease_acquire('x', '30 days', 'o'); SHOW lease_lock.max_ttl}),
	"t\n30d", 'ttl: a month can be a limit');

is(as('limited', q{SELECT granted FROM lease_request('k', '1 s', 'o', min_hold => '1 min')}), 't', 'min_hold: up to the limit');
refused('limited', q{SELECT lease_request('r', '1 s', 'o', min_hold => '61 s')}, '22023',
	'min_hold of the lease on "r" is longer than allowed.*DETAIL:  Setting "lease_lock.max_ttl" is 1min\..*HINT:  Use a shorter one', 'min_hold: beyond it');

# how many leases
clean();
is(as('limited', $two), 't|t', 'leases: up to the limit');
refused('limited', $third, '53400', $too_many, 'leases: beyond it');
refused('limited', q{SELECT lease_acquire('c', '1 min', 'o', '1 min')}, '53400', $too_many, 'leases: beyond it, with a wait');
refused('limited', q{CALL lease_wait('c', '1 min', 'o', '1 min')}, '53400', $too_many, 'leases: beyond it, lease_wait');
is($node->safe_psql('postgres', q{SELECT count(*) FROM lease_lock WHERE resource = 'c'}), 0, 'leases: a refused grant leaves no row');
is(as('limited', q{SELECT lease_acquire('a', '1 min', 'o'), lease_renew('a', '1 min', 'o')}), 'f|t', 'leases: at the limit, a held lease is refused and can be renewed');
is(as('limited', q{SELECT lease_acquire('d', '1 min', 'p'), lease_acquire('e', '1 min', 'p')}), 't|t', 'leases: another owner has a count of its own');
is(as('limited', "SELECT lease_release('a', 'o'); $third"), "t\nt", 'leases: a released one does not count');
is(as('free', q{SELECT lease_acquire('f' || i, '1 hour', 'o') FROM generate_series(1, 5) AS i}), join("\n", ('t') x 5), 'leases: other roles have no limit');
refused('limited', q{SELECT lease_acquire('d2', '1 min', 'o')}, '53400', 'too many leases', 'leases: at the limit of this role');

# Another role cannot use up the limit by acquiring or transferring leases under
# the same owner, which this role could not release.
clean();
is(as('free', q{SELECT lease_acquire('junk' || i, '1 hour', CASE WHEN i < 3 THEN 'o' ELSE 'x' END) FROM generate_series(1, 4) AS i}), join("\n", ('t') x 4), 'another role takes leases');
is(as('free', q{SELECT count(lease_transfer('junk' || i, 'x', 'o')) FROM generate_series(3, 4) AS i}), 2, 'and transfers leases');
is(as('limited', $two), 't|t', 'which do not count');
refused('limited', $third, '53400', $too_many, 'but those of this role do');

# Leases that other owners acquired cannot be handed over beyond the limit, either.
clean();
is(as('limited', "$two; SELECT lease_acquire('c', '1 min', 'p')"), "t|t\nt", 'handed over: another owner acquires');
refused('limited', q{SELECT lease_transfer('c', 'p', 'o')}, '53400', $too_many, 'handed over: beyond the limit');
is($node->safe_psql('postgres', q{SELECT owner FROM lease_status WHERE resource = 'c'}), 'p', 'handed over: the lease stays where it was');
is(as('limited', q{SELECT lease_transfer('a', 'o', 'o') IS NOT NULL, lease_transfer('b', 'o', 'p') IS NOT NULL, lease_transfer('c', 'p', 'o') IS NOT NULL}), 't|t|t', 'handed over: up to the limit, or to the same owner');

# what has expired does not count, nor what was taken over
clean();
as('limited', q{SELECT lease_acquire('a', '1 ms', 'o'), lease_acquire('b', '1 ms', 'o'); SELECT pg_sleep(0.005)});
is(as('limited', q{SELECT lease_acquire('c', '1 min', 'o'); SELECT lease_acquire('a', '1 min', 'o')}), "t\nt", 'leases: expired ones do not count, and can be taken over');
refused('limited', q{SELECT lease_acquire('b', '1 min', 'o')}, '53400', 'too many leases', 'leases: taken over, it counts again');
is($node->safe_psql('postgres', q{SELECT owner, state FROM lease_status WHERE resource = 'b'}), 'o|expired', 'leases: the row is as it was');

# what is kept after a release counts, for its owner and role alone, as long as it is kept
my $keep = q{SELECT granted FROM lease_request('a', '1 s', 'o', min_hold => '1 min'); SELECT lease_release('a', 'o')};
clean();
is(as('limited', "$keep; SELECT lease_acquire('b', '1 min', 'o')"), "t\nt\nt", 'kept: up to the limit');
refused('limited', $third, '53400', $too_many, 'kept: counts');
is(as('limited', q{SELECT lease_acquire('c', '1 min', 'p'), lease_acquire('d', '1 min', 'p')}), 't|t', 'kept: not for another owner');
is(as('free', q{SELECT lease_acquire('e', '1 min', 'o')}), 't', 'kept: not for another role');
$node->safe_psql('postgres', q{UPDATE lease_lock SET expires_at = now() WHERE resource = 'a'; SELECT lease_release('c', 'p')});
is(as('limited', $third), 't', 'kept: not when that is over');
clean();
is(as('limited', "$keep; SELECT lease_acquire('b', '1 min', 'o')"), "t\nt\nt", 'kept, and broken: up to the limit');
is($node->safe_psql('postgres', q{SELECT lease_break('a')}), 't', 'kept, and broken: by an administrator');
is(as('limited', $third), 't', 'kept, and broken: no longer counts');

# within one transaction
clean();
is(as('limited', qq{BEGIN; $two; SELECT lease_release('b', 'o'); $third; COMMIT}), "t|t\nt\nt", 'transaction: what it released does not count');
clean();
refused('limited', qq{BEGIN; $two; $third}, '53400', $too_many, 'transaction: what it acquired counts');
is(as('limited', qq{BEGIN; SAVEPOINT s; $two; ROLLBACK TO s; $two; COMMIT}), "t|t\nt|t", 'transaction: what was rolled back does not count');
clean();
refused('limited', q{SELECT lease_acquire('n' || i, '1 min', 'o') FROM generate_series(1, 3) AS i}, '53400', 'too many leases', 'statement: fails as a whole');
is($node->safe_psql('postgres', 'SELECT count(*) FROM lease_status'), 0, 'statement: grants nothing');

# an open transaction of another session: counts until it is rolled back
my $open = open_session($node);
$open->query_safe('SET ROLE limited');
foreach my $end ('COMMIT', 'ROLLBACK', 'ROLLBACK TO s', 'PREPARE TRANSACTION')
{
	clean();
	$open->query_safe("BEGIN; SAVEPOINT s; $two");
	if ($end eq 'ROLLBACK TO s')
	{
		$open->query_safe($end);
		is(as('limited', $third), 't', "open, $end: no longer counts");
		$open->query_safe('ROLLBACK');
		next;
	}
	refused('limited', $third, '53400', $too_many, 'open: counts');
	$open->query_safe($end eq 'PREPARE TRANSACTION' ? "$end 'p'" : $end);
	if ($end eq 'ROLLBACK')
	{
		is(as('limited', $third), 't', "open, $end: no longer counts");
	}
	else
	{
		refused('limited', $third, '53400', $too_many, "open, $end: counts");
	}
	if ($end eq 'PREPARE TRANSACTION')
	{
		$node->safe_psql('postgres', q{ROLLBACK PREPARED 'p'});
		is(as('limited', $third), 't', "open, $end: rolled back, no longer counts");
	}
}

# What was granted and changed by the same open transaction has many versions.
clean();
$open->query_safe(q{BEGIN; SELECT lease_acquire('a', '1 min', 'o'); SELECT lease_renew('a', i * interval '1 hour', 'o') FROM generate_series(1, 5) AS i});
is(as('limited', q{SELECT lease_acquire('b', '1 min', 'o')}), 't', 'open, renewed: the lease counts once');
refused('limited', $third, '53400', $too_many, 'open, renewed: and not zero times');
$open->query_safe('ROLLBACK');

# An open renewal, of which there are two versions, and an open release.
clean();
as('limited', $two);
$open->query_safe(q{BEGIN; SELECT lease_renew('a', '1 hour', 'o')});
is($node->safe_psql('postgres', q{SET lease_lock.max_leases_per_owner = 3; SET ROLE limited; SELECT lease_acquire('c', '1 min', 'o')}), 't', 'open renewal: the lease counts once');
$open->query_safe(q{SELECT lease_release('b', 'o')});
sql_fails($node, q{SET lease_lock.max_leases_per_owner = 3; SET ROLE limited; SELECT lease_acquire('d', '1 min', 'o')}, '53400', 'too many leases', 'open release: the lease still counts');

# The limits are those of a session. So there are no leases where the server runs code of a table's owner in a session of others, as autovacuum does.
$node->safe_psql('postgres', q{
	CREATE FUNCTION take(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
	BEGIN
		IF current_setting('bait.is_set', true) = 'on' THEN
			PERFORM public.lease_acquire('bait', '100 years', 'o');
		END IF;
		RETURN x;
	END $$;
	CREATE TABLE bait (x int);
	CREATE INDEX ON bait (take(x));
	INSERT INTO bait VALUES (1);
	ALTER TABLE bait OWNER TO limited});
sql_fails($node, q{SET bait.is_set = 'on'; ANALYZE bait}, '42501', 'permission denied to acquire or renew leases in this session.*table.s owner', 'index expression: no limit is evaded');
$node->safe_psql('postgres', 'DROP TABLE bait; DROP FUNCTION take');
$open->query_safe('COMMIT');
is($node->safe_psql('postgres', q{SET lease_lock.max_leases_per_owner = 3; SET ROLE limited; SELECT lease_acquire('d', '1 min', 'o')}), 't', 'until it is committed');

# a waiter that is over the limit when its turn comes lets the next one go on
{
	my $waiter = open_session($node);
	my $next = open_session($node);

	clean();
	as('limited', $two);
	look($node, q{SELECT lease_acquire('c', '1 hour', 'holder')});
	$waiter->query_safe('SET lease_lock.max_leases_per_owner = 2; SET ROLE limited');
	send_to_wait($node, $waiter, q{SELECT lease_acquire('c', '1 min', 'o', '1 min')});
	send_to_wait($node, $next, q{SELECT lease_acquire('c', '1 min', 'next', '1 min')});
	is(look($node, q{SELECT lease_release('c', 'holder')}), 't', 'waiter: its turn comes');
	like(answer($waiter), qr/53400/, 'waiter: it has too many');
	is(answer($next), 't', 'waiter: the next one gets it');
	nothing_left($node, 'waiter');
	$_->quit foreach $waiter, $next;
}

# Of several leases, those that expire while the call waits for the others are begun anew, and count again.
foreach my $limit (1, 2)
{
	my $waiter = open_session($node);
	my $ttl = 0.5 * slowness($node);	# time enough to count

	clean();
	look($node, q{SELECT lease_acquire('b', '1 hour', 'holder')});
	$waiter->query_safe("SET lease_lock.max_leases_per_owner = $limit; SET ROLE limited");
	send_to_wait($node, $waiter, "SELECT lease_acquire_all('{a,b}', '$ttl s', 'o', '1 hour')");
	look($node, "SELECT pg_sleep($ttl)");
	look($node, q{SELECT lease_release('b', 'holder')});
	like(answer($waiter), $limit == 1 ? qr/53400/ : qr/^t$/, "several that expire: a limit of $limit");
	$waiter->quit;
}

# Two sessions of an owner ask for its last lease, and both are kept, by a lock on
# the token sequence, from writing theirs until both have been let through.
{
	my @both = map { open_session($node) } 0, 1;
	my @granted;

	clean();
	as('limited', q{SELECT lease_acquire('a', '1 min', 'o')});
	$open->query_safe('RESET ROLE; BEGIN; ALTER SEQUENCE lease_token_seq CACHE 1');
	$_->query_safe('SET lease_lock.max_leases_per_owner = 2; SET ROLE limited') foreach @both;
	send_to_wait($node, $both[$_], "SELECT lease_acquire('last$_', '1 min', 'o')", in_lock_manager()) foreach 0, 1;
	$open->query_safe('COMMIT');
	@granted = map { answer($_) } @both;
	like($_, qr/^t$|53400/, 'both at once: granted or too many leases') foreach @granted;
	cmp_ok((grep { $_ eq 't' } @granted), '<=', 1, 'both at once: never both');
	is(look($node, q{SELECT count(*) FROM lease_status WHERE owner = 'o'}), 1 + (grep { $_ eq 't' } @granted), 'both at once: the leases that are held');
	$_->quit foreach @both;
}

# Many sessions of one owner, all at once, each with names of its own: never more
# than the limit at any time, committed or not.
clean();
$node->safe_psql('postgres', 'ALTER ROLE trusted SET lease_lock.max_leases_per_owner = 3');
$node->pgbench('-n -U trusted -c 8 -t 30 -M prepared', 0, [qr{actually processed: 240/240}], [qr/^$/], 'race', { 'race' => q{
	DO $$
	DECLARE
		mine text := 'race' || pg_backend_pid();
	BEGIN
		PERFORM lease_acquire(mine, '1 hour', 'o');
		PERFORM pg_sleep(0.002);
	EXCEPTION WHEN configuration_limit_exceeded THEN
		NULL;
	END $$;
	SELECT CASE WHEN count(*) > 3 THEN 1 / (count(*) - count(*)) END FROM lease_status WHERE owner = 'o' AND state = 'held';
	SELECT lease_release('race' || pg_backend_pid(), 'o');
}});
is($node->safe_psql('postgres', q{SELECT count(*) FROM lease_status WHERE owner = 'o'}), 0, 'race: all ended');
cmp_ok($node->safe_psql('postgres', 'SELECT granted FROM lease_stats'), '>', 30, 'race: some sessions were granted leases');

is($node->safe_psql('postgres', q{LOAD 'lease_lock';
		SELECT name, setting, unit, vartype, context, min_val FROM pg_settings WHERE name ~ '^lease_lock.max_' ORDER BY 1}),
	"lease_lock.max_leases_per_owner|0||integer|superuser|0\nlease_lock.max_ttl|0|ms|real|superuser|0", 'the settings, and that there is no limit by default');
$node->stop;

# Attempts to get around the limits. If the library is preloaded,
# the settings are known as those of a superuser; where it is not, they are
# nobody's until the first call, which then decides who had the right to set them.
foreach my $preload (1, 0)
{
	my $server = start_waiting_node("around$preload", '', preload => $preload);
	my %over = (
		max_ttl => q{SELECT lease_acquire('r', '1 hour', 'o')},
		max_leases_per_owner => q{SELECT lease_acquire('c', '1 min', 'full')});
	my $limit = '(22023: ttl of the lease on "r" is longer than allowed|53400: too many leases for the owner)';
	my $denied = '42501: permission denied to set parameter';

	$server->safe_psql('postgres', q{
		CREATE ROLE limited LOGIN;
		LOAD 'lease_lock';
		ALTER ROLE limited SET lease_lock.max_ttl = '1 min';
		ALTER ROLE limited SET lease_lock.max_leases_per_owner = 2;
		SET ROLE limited;
		SELECT lease_acquire('a', '1 hour', 'full'), lease_acquire('b', '1 hour', 'full');
	});
	foreach my $setting (sort keys %over)
	{
		my $name = "lease_lock.$setting";
		my %try = (
			"SET $name = 0" => "SET $name = 0; $over{$setting}",
			"set_config()" => "SELECT set_config('$name', '0', false); $over{$setting}",
			'SET LOCAL' => "BEGIN; SET LOCAL $name = 0; $over{$setting}; COMMIT",
			'SET, then RESET' => "SET $name = 0; RESET $name; $over{$setting}",
			RESET => "RESET $name; $over{$setting}",
			'RESET ALL' => "RESET ALL; $over{$setting}",
			'DISCARD ALL' => "DISCARD ALL; $over{$setting}",
			'function' => qq{SET check_function_bodies = off;
				CREATE FUNCTION pg_temp.around() RETURNS boolean LANGUAGE sql SET $name = 0 AS \$\$ $over{$setting} \$\$;
				SELECT pg_temp.around()},
			'ALTER ROLE' => "ALTER ROLE limited SET $name = 0",
			'SET after the library is loaded' => "SELECT lease_token('r', 'o'); SET $name = 0");

		foreach my $how (sort keys %try)
		{
			my ($status, undef, $stderr) = $server->psql('postgres', "\\set VERBOSITY verbose\n$try{$how}", extra_params => [ '-U', 'limited' ]);

			like($stderr, qr/ERROR:  ($denied|$limit)/, "preload $preload, $setting: $how");
		}
		{
			local $ENV{PGOPTIONS} = "-c $name=0";
			my (undef, $stderr) = run_command([ 'psql', '-X', '-v', 'VERBOSITY=verbose', '-U', 'limited', '-d', $server->connstr('postgres'), '-c', $over{$setting} ]);

			like($stderr, $preload ? qr/FATAL:  permission denied to set parameter/
				: qr/ERROR:  42501: permission denied to acquire or renew leases in this session/,
				"preload $preload, $setting: set by the connection");
		}
		{
			local $ENV{PGOPTIONS} = "-c $name=9";

			is($server->safe_psql('postgres', "SELECT lease_acquire('o', '9 ms', 'o'); SELECT lease_release('o', 'o'); SHOW $name"),
				"t\nt\n9" . ($setting eq 'max_ttl' ? 'ms' : ''), "preload $preload, $setting: a superuser may");
		}
		is($server->safe_psql('postgres', "SELECT lease_token('r', 'o') IS NULL; SHOW $name", extra_params => [ '-U', 'limited' ]),
			"t\n" . ($setting eq 'max_ttl' ? '1min' : '2'), "preload $preload, $setting: is as it was");
	}
	is($server->safe_psql('postgres', 'SELECT string_agg(resource, \',\' ORDER BY resource) FROM lease_status'), 'a,b', "preload $preload: nothing was granted");
	$server->stop;
}
done_testing();
