# CALL lease_wait(...) with every option that lease_request() has, and as one role.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('lease_wait_options', $WaitTest::NEVER);
my $session = open_session($node);

$node->safe_psql('postgres', q{
	CREATE ROLE alice;
	GRANT alice TO postgres;
});

like($session->query_safe(q{CALL lease_wait('r', '1 hour', 'a', '0', mode => 'permit', permits => 2, payload => '{"n": 1}')}),
	qr/^t\|\d+\|\d{4}-/, 'a permit: token and end');
is($session->query_safe(q{SELECT mode, owner, payload ->> 'n', token = lease_token('r', 'a') FROM lease_status}), 'permit|a|1|t', 'as lease_request grants it');
like($session->query_safe(q{CALL lease_wait('r', '1 hour', 'b', '1 s', mode => 'permit', permits => 2)}), qr/^t\|/, 'a second one');
is($session->query_safe(q{CALL lease_wait('r', '1 hour', 'c', '100 ms', mode => 'permit', permits => 2)}), 'f||', 'the third is refused, after a wait');
is($session->query_safe(q{SELECT lease_release('r', 'a')}), 't', 'one is released');
like($session->query_safe(q{CALL lease_wait('r', '1 hour', 'b', '0', mode => 'permit', permits => 2, if_own => 'count')}), qr/^t\|/, 'again to the same owner');
is($session->query_safe(q{SELECT holds FROM lease_status}), 2, 'counted');
like($session->query_safe(q{CALL lease_wait('s', '1 hour', 'b', '0', mode => 'shared', min_hold => '1 min')}), qr/^t\|/, 'shared');
is($session->query_safe(q{SELECT hold_until - granted_at FROM lease_lock WHERE resource = 's'}), '00:01:00', 'with min_hold');
session_fails($session, q{CALL lease_wait('r', '1 hour', 'c', '0', NULL, NULL, NULL, 'any')}, '22023', 'mode of the lease', 'an unknown mode');
session_fails($session, q{CALL lease_wait('r', '1 hour', 'c', '0', NULL, NULL, NULL, 'shared', 3)}, '22023', 'can be given only with mode permit', 'permits without their mode');
session_fails($session, q{CALL lease_wait('r', '1 hour', 'c', '0', if_own => NULL)}, '22004', 'if_own', 'if_own is unknown');
session_fails($session, q{BEGIN; CALL lease_wait('r', '1 hour', 'c', '0')}, '2D000', 'HINT:  ', 'in a transaction block');
$session->query_safe('ROLLBACK');

# Waits for a shared lease, and gets it with what was asked for.
look($node, q{SELECT lease_acquire('w', '1 hour', 'holder')});
my $pid = send_to_wait($node, $session, q{CALL lease_wait('w', '1 hour', 'x', NULL, mode => 'shared', payload => '[2]')});
is(look($node, "SELECT backend_xmin IS NULL AND backend_xid IS NULL FROM pg_stat_activity WHERE pid = $pid"), 't', 'sleeps without a snapshot');
is(look($node, q{SELECT mode FROM lease_waiters}), 'shared', 'in its mode');
look($node, q{SELECT lease_release('w', 'holder')});
is(answer($session), 't', 'granted after a wait');
is(look($node, q{SELECT mode, payload FROM lease_status WHERE resource = 'w'}), 'shared|[2]', 'as asked for');

# In PL/pgSQL.
is($session->query(q{DO $$ DECLARE g bool; t bigint; e timestamptz; BEGIN
		CALL lease_wait('plpgsql', '1 hour', 'p', '0', g, t, e, 'shared');
		ASSERT g AND t = lease_token('plpgsql', 'p') AND e > clock_timestamp();
	END $$}), '', 'in PL/pgSQL');
is($session->{stderr}, '', 'without an error');

# SET LOCAL ROLE ends when lease_wait commits: the lease would be granted to
# somebody else, but only if it has to wait.
my $as_alice = q{DO $$ DECLARE g bool; t bigint; e timestamptz; BEGIN SET LOCAL ROLE alice; CALL lease_wait('role', '1 hour', 'x', '1 min', g, t, e); RAISE WARNING 'granted: %%', g; END $$};
$session->query(sprintf $as_alice);
like($session->{stderr}, qr/granted: t/, 'SET LOCAL ROLE: granted without a wait');
$session->{stderr} = '';
is(look($node, q{SELECT role FROM lease_status WHERE resource = 'role'}), 'alice', 'SET LOCAL ROLE: to that role');
send_sql($session, sprintf $as_alice);
like(answer($session), qr/ERROR:  2D000: role changed while lease_wait\(\) was waiting/, 'SET LOCAL ROLE: an error when it has to wait');
nothing_left($node, 'role');
$session->query_safe('SET ROLE alice');
send_to_wait($node, $session, q{CALL lease_wait('role', '1 hour', 'x', '1 min')});
look($node, q{SELECT lease_release_all('x')});
is(answer($session), 't', 'SET ROLE: waits as that role');
is(look($node, q{SELECT role FROM lease_status WHERE resource = 'role'}), 'alice', 'SET ROLE: and is granted to it');
nothing_left($node, 'set role');

$node->stop;
done_testing();
