# Every function and view against every kind of role, as one table; what a role
# may do without any privilege; and how administration is given.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('roles', "deadlock_timeout = 1h\nlease_lock.handoff_timeout = 1h\n");

$node->safe_psql('postgres', q{
	DROP EXTENSION lease_lock;
	CREATE ROLE owner LOGIN SUPERUSER;
	CREATE ROLE alice LOGIN;
	CREATE ROLE gone LOGIN;
	CREATE ROLE ordinary LOGIN;
	CREATE ROLE member LOGIN IN ROLE alice;
	CREATE ROLE lazy LOGIN NOINHERIT IN ROLE alice;
	CREATE ROLE monitor LOGIN IN ROLE pg_monitor;
	CREATE ROLE stats LOGIN IN ROLE pg_read_all_stats;
	CREATE ROLE lazy_stats LOGIN NOINHERIT IN ROLE pg_read_all_stats;
	CREATE ROLE admin LOGIN;
});
# The extension belongs to the role that created it, even if that is no
# superuser any more.
$node->safe_psql('postgres', q{SET ROLE owner; CREATE EXTENSION lease_lock; RESET ROLE; ALTER ROLE owner NOSUPERUSER});
$node->safe_psql('postgres', 'GRANT EXECUTE ON FUNCTION lease_purge(), lease_break(text, interval), lease_stats_reset() TO admin');

# A lease that alice holds and waits for, and one of a role that was dropped.
$node->safe_psql('postgres', q{SET ROLE alice; SELECT granted FROM lease_request('held', '1 day', 'held-by', payload => '7')});
$node->safe_psql('postgres', q{SET ROLE gone; SELECT lease_acquire('orphan', '1 day', 'orphan-of')});
$node->safe_psql('postgres', 'DROP ROLE gone');
my $waiter = open_session($node);
$waiter->query_safe('SET ROLE alice');
send_to_wait($node, $waiter, q{SELECT lease_acquire('held', '1 day', 'waits-as', '10 min')});

# What to try. Each is rolled back.
my %try = (
	acquire => q{SELECT lease_acquire('own', '1 min', 'o')},
	acquire_wait => q{SELECT lease_acquire('own', '1 min', 'o', '1 s')},
	shared => q{SELECT lease_acquire_shared('own', '1 min', 'o')},
	permit => q{SELECT lease_acquire_permit('own', 2, '1 min', 'o')},
	all => q{SELECT lease_acquire_all('{own,too}', '1 min', 'o')},
	any => q{SELECT lease_acquire_any('{held,own}', '1 min', 'o')},
	request => q{SELECT granted FROM lease_request('own', '1 min', 'o')},
	blocked_by => q{SELECT blocked_by FROM lease_request('held', '1 min', 'o')},
	renew_own => q{SELECT lease_acquire('own', '1 min', 'o') \gset
		SELECT lease_renew('own', '1 min', 'o')},
	release_own => q{SELECT lease_acquire('own', '1 min', 'o') \gset
		SELECT lease_release('own', 'o')},
	token => q{SELECT lease_token('held', 'held-by') > 0},
	renew => q{SELECT lease_renew('held', '1 day', 'held-by')},
	release => q{SELECT lease_release('held', 'held-by')},
	assert => q{SELECT lease_assert('held', 'held-by') > 0},
	transfer => q{SELECT lease_transfer('held', 'held-by', 'x') > 0},
	renew_several => q{SELECT lease_renew_several('{held}'::text[], '1 day', 'held-by')},
	renew_all => q{SELECT lease_renew_all('1 day', 'held-by')},
	reacquire => q{SELECT reason FROM lease_request('held', '1 day', 'held-by', if_own => 'renew')},
	downgrade => q{SELECT lease_downgrade('held', 'held-by') > 0},
	set_payload => q{SELECT lease_set_payload('held', 'held-by', '8')},
	break => q{SELECT lease_break('held')},
	release_all => q{SELECT lease_release_all('held-by')},
	release_orphan => q{SELECT lease_release('orphan', 'orphan-of')},
	purge => q{SELECT lease_purge()},
	stats_reset => q{SELECT lease_stats_reset()},
	new_era => q{SELECT lease_new_era()},
	watch => q{SELECT lease_watch('', 'c')},
	unwatch => q{SELECT lease_unwatch('', 'c')},
	watches => q{SELECT count(*) FROM lease_watches},
	session_ended => q{SELECT lease_session_ended(1)},
	difference => q{SELECT lease_clock_difference()},
	stats => q{SELECT scope FROM lease_stats},
	status => q{SELECT owner FROM lease_status WHERE resource = 'held'},
	status_orphan => q{SELECT owner FROM lease_status WHERE resource = 'orphan'},
	payload => q{SELECT payload FROM lease_status WHERE resource = 'held'},
	contenders => q{SELECT string_agg(owner, ',' ORDER BY position) FROM lease_contenders WHERE resource = 'held'},
	waiter => q{SELECT owner FROM lease_waiters},
	blocker => q{SELECT blocked_by_owner FROM lease_waiters},
	graph => q{SELECT string_agg(label[1], ',' ORDER BY label[1]) FROM regexp_matches(lease_wait_graph(), 'n\d+ .label="(held-by|waits-as|.hidden.)', 'g') AS label},
	table => q{SELECT count(*) > 0 FROM lease_lock},
	watch_table => q{SELECT count(*) FROM lease_watch},
	era => q{SELECT is_called IS NOT NULL FROM lease_era_seq},
	sequence => q{SELECT is_called FROM lease_token_seq},
	write => q{UPDATE lease_lock SET owner = owner WHERE false});

# "!" is permission denied, "-" NULL or hidden, anything else the answer.
my @roles = qw(postgres owner alice ordinary member lazy monitor stats lazy_stats admin);
my $expected = <<'TABLE';
                postgres owner alice ordinary member lazy monitor stats lazy_stats admin
acquire         t        t     t     t        t      t    t       t     t          t
acquire_wait    t        t     t     t        t      t    t       t     t          t
shared          t        t     t     t        t      t    t       t     t          t
permit          t        t     t     t        t      t    t       t     t          t
all             t        t     t     t        t      t    t       t     t          t
any             own      own   own   own      own    own  own     own   own        own
request         t        t     t     t        t      t    t       t     t          t
blocked_by      held-by  -     held-by -      held-by -   held-by held-by -        -
renew_own       t        t     t     t        t      t    t       t     t          t
release_own     t        t     t     t        t      t    t       t     t          t
token           t        t     t     t        t      t    t       t     t          t
renew           t        !     t     !        t      !    !       !     !          !
release         t        !     t     !        t      !    !       !     !          !
assert          t        !     t     !        t      !    !       !     !          !
transfer        t        !     t     !        t      !    !       !     !          !
renew_several   t ! t ! t ! ! ! ! !
renew_all       1 0 1 0 1 0 0 0 0 0
reacquire       renewed own renewed own renewed own own own own own
downgrade       t ! t ! t ! ! ! ! !
set_payload     t ! t ! t ! ! ! ! !
break           t        t     !     !        !      !    !       !     !          t
release_all     1        0     1     0        1      0    0       0     0          0
release_orphan  t        !     !     !        !      !    !       !     !          !
purge           0        0     !     !        !      !    !       !     !          0
stats_reset     -        -     !     !        !      !    !       !     !          -
new_era         -        -     !     !        !      !    !       !     !          !
watch           - - ! ! ! ! ! ! ! !
unwatch         f f ! ! ! ! ! ! ! !
watches         0 0 ! ! ! ! ! ! ! !
session_ended   t t t t t t t t t t
difference      00:00:00 00:00:00 00:00:00 00:00:00 00:00:00 00:00:00 00:00:00 00:00:00 00:00:00 00:00:00
stats           database database database database database database database database database database
status          held-by  -     held-by -      held-by -   held-by held-by -        -
status_orphan   orphan-of -    -     -        -      -    orphan-of orphan-of -    -
payload         7 - 7 - 7 - 7 7 - -
contenders      held-by,waits-as - held-by,waits-as - held-by,waits-as - held-by,waits-as held-by,waits-as - -
waiter          waits-as -     waits-as -     waits-as -  waits-as waits-as -      -
blocker         held-by  -     held-by -      held-by -   held-by held-by -        -
graph           held-by,waits-as (hidden),(hidden) held-by,waits-as (hidden),(hidden) held-by,waits-as (hidden),(hidden) held-by,waits-as held-by,waits-as (hidden),(hidden) (hidden),(hidden)
table           t        t     !     !        !      !    !       !     !          !
watch_table     0 0 ! ! ! ! ! ! ! !
era             t t ! ! ! ! ! ! ! !
sequence        t        t     !     !        !      !    !       !     !          !
write           -        -     !     !        !      !    !       !     !          !
TABLE

my %sessions;

sub outcome
{
	my ($role, $sql) = @_;
	my $session = $sessions{$role} //= open_session($node, 'postgres', '-U', $role);
	my $stdout = $session->query("BEGIN;\n$sql;\nROLLBACK");
	my $stderr = $session->{stderr};

	$session->{stderr} = '';
	return '!' if $stderr =~ /^psql:\S+ ERROR:  42501: permission denied/;
	return $stderr if $stderr ne '';
	return $stdout eq '' ? '-' : $stdout;
}

my (undef, @rows) = split /\n/, $expected;
is(scalar @rows, scalar keys %try, 'all is tried');
foreach my $row (@rows)
{
	my ($what, @outcomes) = split ' ', $row;

	is(outcome($roles[$_], $try{$what}), $outcomes[$_], "$what: $roles[$_]") foreach 0 .. $#roles;
}

# The error of a deadlock shows owners if the role that acts may see them, and
# the role of the session, too.
{
	my $alice = open_session($node);

	$node->safe_psql('postgres', q{
		GRANT CREATE ON SCHEMA public TO alice;
		ALTER ROLE ordinary SET deadlock_timeout = '10 ms';
		ALTER ROLE alice SET deadlock_timeout = '10 ms';
		SET ROLE alice;
		CREATE FUNCTION wait_as_definer() RETURNS boolean SECURITY DEFINER SET search_path = public
			RETURN lease_acquire('first', '1 day', 'secret-2', '10 min');
		SELECT lease_acquire('first', '1 day', 'secret-1'), lease_acquire('second', '1 day', 'secret-2')});
	$alice->query_safe('SET ROLE alice');
	send_to_wait($node, $alice, q{SELECT lease_acquire('second', '1 day', 'secret-1', '10 min')});
	(delete $sessions{$_})->quit foreach qw(alice ordinary);	# new ones know the settings

	my $shown = outcome('alice', 'SELECT wait_as_definer()');
	my $hidden = outcome('ordinary', 'SELECT wait_as_definer()');

	like($shown, qr/40P01.*for owner "secret-2".*for owner "secret-1"/s, 'a deadlock shows owners to who may see them');
	like($hidden, qr/40P01.*Process \d+ waits for the lease on "first"; held/s, 'not to who may only call a function');
	unlike($hidden, qr/secret/, 'in no part');
	$node->safe_psql('postgres', q{SET ROLE alice; SELECT lease_release('second', 'secret-2')});
	is(answer($alice), 't', 'the other session goes on');
}

# How the documents hide names from those who need not see them.
$node->safe_psql('postgres', q{
	REVOKE SELECT ON lease_status, lease_waiters, lease_contenders FROM PUBLIC;
	REVOKE EXECUTE ON FUNCTION lease_waiters() FROM PUBLIC;
	GRANT SELECT ON lease_status, lease_waiters, lease_contenders TO monitor;
	GRANT EXECUTE ON FUNCTION lease_waiters() TO monitor});
$try{function} = 'SELECT count(*) FROM lease_waiters()';
foreach my $what (qw(status payload contenders waiter blocker function graph))
{
	is(outcome('ordinary', $try{$what}), '!', "hidden names: $what");
	isnt(outcome('monitor', $try{$what}), '!', "hidden names, granted: $what");
}
$node->safe_psql('postgres', q{
	GRANT SELECT ON lease_status, lease_waiters, lease_contenders TO PUBLIC;
	GRANT EXECUTE ON FUNCTION lease_waiters() TO PUBLIC});

# No function was left out of the table.
is($node->safe_psql('postgres', q{
		SELECT string_agg(DISTINCT proname, ' ' ORDER BY proname) FROM pg_proc AS p JOIN pg_depend AS d ON d.objid = p.oid AND d.deptype = 'e'
		WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'lease_lock') AND d.classid = 'pg_proc'::regclass
			AND NOT has_function_privilege('public', p.oid, 'EXECUTE')}),
	'lease_break lease_new_era lease_purge lease_stats_reset lease_unwatch lease_watch', 'what is not for everybody');

# CALL cannot be in a transaction block.
foreach my $role (@roles)
{
	like($node->safe_psql('postgres', q{CALL lease_wait('call', '1 min', 'o', '1 s'); SELECT lease_release('call', 'o')}, extra_params => [ '-U', $role ]),
		qr/^t\|\d+\|.*\nt$/, "lease_wait: $role");
}

# Acting as the role that holds it, or that may see.
is(outcome('lazy', "SET ROLE alice; $try{release}"), 't', 'a member without INHERIT, after SET ROLE: release');
is(outcome('lazy', "SET ROLE alice; $try{waiter}"), 'waits-as', 'a member without INHERIT, after SET ROLE: waiters');
is(outcome('lazy_stats', "SET ROLE pg_read_all_stats; $try{status}"), 'held-by', 'a member without INHERIT, after SET ROLE: status');
is(outcome('postgres', "SET ROLE ordinary; $try{graph}"), '(hidden),(hidden)', 'a superuser after SET ROLE sees what that role sees');

# SECURITY DEFINER: the function's owner decides, for what is shown as well.
$node->safe_psql('postgres', q{
	CREATE FUNCTION status_as_alice() RETURNS text LANGUAGE sql SECURITY DEFINER AS $$ SELECT owner FROM public.lease_status WHERE resource = 'held' $$;
	ALTER FUNCTION status_as_alice() OWNER TO alice;
	CREATE FUNCTION graph_as_ordinary() RETURNS text LANGUAGE sql SECURITY DEFINER AS $$ SELECT public.lease_wait_graph() $$;
	ALTER FUNCTION graph_as_ordinary() OWNER TO ordinary;
	CREATE FUNCTION reset_as_owner() RETURNS void LANGUAGE sql SECURITY DEFINER AS $$ SELECT public.lease_stats_reset() $$;
	ALTER FUNCTION reset_as_owner() OWNER TO owner;
});
is(outcome('ordinary', 'SELECT status_as_alice()'), 'held-by', 'SECURITY DEFINER: sees as its owner');
is(outcome('alice', q{SELECT graph_as_ordinary() ~ 'held-by'}), 'f', 'SECURITY DEFINER: or does not');
is(outcome('ordinary', 'SELECT reset_as_owner()'), '-', 'SECURITY DEFINER: administration through a function');

# A hidden owner is never drawn as one that is seen: that would confirm a guess.
{
	my $guess = open_session($node);

	$guess->query_safe('SET ROLE ordinary');
	send_to_wait($node, $guess, q{SELECT lease_acquire('held', '1 min', 'waits-as', '10 min')});
	is(look($node, q{SET ROLE ordinary;
			SELECT string_agg(label[1], ',' ORDER BY label[1]) FROM regexp_matches(lease_wait_graph(), 'n\d+ .label="(held-by|waits-as|.hidden.)', 'g') AS label;
			RESET ROLE}), '(hidden),(hidden),waits-as', 'a guess is not confirmed');
	look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters WHERE role = 'ordinary'});
	like(answer($guess), qr/57014/, 'the guessing waiter is cancelled');
	$guess->quit;
}

# What was revoked from PUBLIC.
$node->safe_psql('postgres', q{
	DO $$
	DECLARE
		object text;
	BEGIN
		FOR object IN
			SELECT format('ROUTINE %s', p.oid::regprocedure) FROM pg_proc AS p JOIN pg_depend AS d ON d.objid = p.oid AND d.deptype = 'e'
			WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'lease_lock') AND d.classid = 'pg_proc'::regclass
			UNION ALL VALUES ('TABLE lease_status'), ('TABLE lease_waiters'), ('TABLE lease_contenders'), ('TABLE lease_stats')
		LOOP
			EXECUTE format('REVOKE ALL ON %s FROM PUBLIC', object);
		END LOOP;
	END $$;
	GRANT SELECT ON lease_status TO stats;
	GRANT EXECUTE ON FUNCTION lease_stats(), lease_waiters(), lease_clock_difference(), lease_session_ended(bigint) TO stats;
	GRANT SELECT ON lease_stats TO stats;
});
is(outcome('ordinary', $try{$_}), '!', "revoked: $_") foreach sort keys %try;
sql_fails($node, q{CALL lease_wait('call', '1 min', 'o', '1 s')}, '42501', 'permission denied for procedure lease_wait', 'revoked: lease_wait', role => 'ordinary');
is(outcome('stats', $try{$_}), $_ eq 'stats' ? 'database' : 'held-by', "granted again: $_") foreach qw(stats status);
is(outcome('stats', $try{waiter}), '!', 'granted again: not the others');

look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
like(answer($waiter), qr/57014/, 'the waiter is cancelled');
$_->quit foreach values %sessions;
$node->stop;
done_testing();
