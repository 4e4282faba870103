# 64 waiters get the lease in the order of their arrival, even if many of them are cancelled, killed or run out of time
# while the queue moves.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use List::Util qw(shuffle);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use WaitTest;

my $waiters = 64;
my $seed = $ENV{TEST_SEED} // time;
srand $seed;
note("TEST_SEED=$seed");

my $node = start_waiting_node('order', $WaitTest::NEVER);

$node->safe_psql('postgres', q{
	CREATE TABLE log (id bigserial, resource text, owner text, token bigint, granted boolean, wait interval, waited interval);

	-- The grant and its line in the log commit together: nobody else can get
	-- the lease in between.
	CREATE FUNCTION acquire(r text, ttl interval, o text, wait interval) RETURNS boolean LANGUAGE plpgsql AS $$
	DECLARE
		since timestamptz = clock_timestamp();
		granted boolean = lease_acquire(r, ttl, o, wait);
	BEGIN
		INSERT INTO log (resource, owner, token, granted, wait, waited)
			VALUES (r, o, lease_token(r, o), granted, wait, clock_timestamp() - since);
		RETURN granted;
	END $$;
});

# Send sessions to wait, each seen at the end before the next one comes, unless its
# wait is over by then. Each releases the lease as soon as it gets it.
sub line_up
{
	my ($resource, $ttl, $hold, @sessions) = @_;

	foreach my $place (1 .. @sessions)
	{
		my ($session, $wait) = @{ $sessions[ $place - 1 ] };

		my $release = "SELECT lease_release('$resource', 'w$place')";

		send_sql($session, "SELECT acquire('$resource', '$ttl', 'w$place', $wait); $hold; $release");
		becomes($node, "SELECT (SELECT owner FROM lease_waiters WHERE resource = '$resource' ORDER BY position DESC LIMIT 1) = 'w$place'
				OR EXISTS (SELECT FROM pg_stat_activity WHERE state = 'idle' AND query LIKE \$\$$release%\$\$)",
			't', "$resource: waiter $place stands at the end");
	}
	return;
}

my @sessions = map { open_session($node) } 1 .. $waiters;
my $owners = join(',', map { "w$_" } 1 .. $waiters);

# No waiter is forgotten.
look($node, q{SELECT lease_acquire('all', '1 hour', 'holder')});
line_up('all', '1 hour', '', map { [ $_, 'NULL' ] } @sessions);
is(look($node, q{SELECT string_agg(owner, ',' ORDER BY position), bool_and(deadline = 'infinity'), bool_and(blocked_by_owner = 'holder'), count(blocked_by_xid)
	FROM lease_waiters}), "$owners|t|t|0", 'lease_waiters shows them in this order');
is(look($node, q{SELECT count(DISTINCT w.pid) FROM lease_waiters AS w JOIN pg_stat_activity AS a ON a.pid = w.pid
		AND a.usename = w.role AND w.waiting_since BETWEEN a.query_start AND clock_timestamp()}),
	$waiters, 'and which backends they are');
is(look($node, q{SELECT lease_release('all', 'holder')}), 't', 'the lease is released');
becomes($node, q{SELECT count(*) FROM log}, $waiters, 'everybody was granted');
is(look($node, q{SELECT string_agg(owner, ',' ORDER BY id), bool_and(granted) FROM log}),
	"$owners|t", 'in the order of their arrival');
is(look($node, q{SELECT count(*) FROM (SELECT token <= lag(token) OVER (ORDER BY id) AS wrong FROM log) AS t WHERE wrong}),
	0, 'with growing tokens');
like(answer($_), qr/^t\s+t$/, 'each got it and released it') foreach @sessions;
nothing_left($node, 'all');

# Leases on other resources do not mix with the queue.
look($node, q{SELECT lease_acquire('a', '1 hour', 'holder'), lease_acquire('b', '1 hour', 'holder')});
line_up('a', '1 hour', '', [ $sessions[0], 'NULL' ], [ $sessions[1], 'NULL' ]);
line_up('b', '1 hour', '', [ $sessions[2], 'NULL' ], [ $sessions[3], 'NULL' ]);
is(look($node, q{SELECT lease_release('b', 'holder')}), 't', 'one of two leases is released');
like(answer($_), qr/^t\s+t$/, 'its waiters get it') foreach @sessions[ 2, 3 ];
is(look($node, q{SELECT string_agg(resource || position, ',') FROM lease_waiters}), 'a1,a2', 'waiters for the other lease still wait');
is(look($node, q{SELECT lease_acquire('b', '1 hour', 'holder')}), 't', 'a try is granted');
is(look($node, q{SELECT lease_release('a', 'holder')}), 't', 'the other one is released');
like(answer($_), qr/^t\s+t$/, 'its waiters get it') foreach @sessions[ 0, 1 ];

# Three of four are lost: some run out of time before the lease is released or
# while the queue moves, others are cancelled or killed at any moment, also
# while they hold it. That lease expires, and the queue moves on.
my @fates = shuffle(map { ('stay', 'deadline', 'statement_timeout', 'cancel', 'kill')[ $_ % 5 ] } 1 .. $waiters);
my (@lost, @stay, @in_time, %pid);
my $first_end = 2500 * slowness($node);	# most have joined by then

look($node, q{TRUNCATE log});
look($node, q{SELECT lease_acquire('some', '1 hour', 'holder')});
foreach my $i (0 .. $#fates)
{
	$pid{ $i + 1 } = $sessions[$i]->query_safe('SELECT pg_backend_pid()');
	$sessions[$i]->query_safe('SET statement_timeout = ' . int($first_end + rand(2500))) if $fates[$i] eq 'statement_timeout';
	push @stay, 'w' . ($i + 1) if $fates[$i] eq 'stay';
	push @lost, $i + 1 if $fates[$i] =~ /cancel|kill/;
}
line_up('some', '700 ms', 'SELECT pg_sleep(0.03)',
	map { [ $sessions[$_], $fates[$_] eq 'deadline' ? sprintf("'%d ms'", $first_end + rand(2500)) : "'1 h'" ] } 0 .. $#fates);

@lost = shuffle(@lost);
foreach my $i (0 .. $#lost)
{
	my $how = $fates[ $lost[$i] - 1 ] eq 'kill' ? 'pg_terminate_backend' : 'pg_cancel_backend';

	if ($i == int(@lost / 3))
	{
		becomes($node, q{SELECT count(*) > 0 FROM log WHERE NOT granted}, 't', 'some run out of time while the lease is held');
		look($node, q{SELECT lease_release('some', 'holder')});
	}
	look($node, "SELECT $how($pid{$lost[$i]})");
	usleep(20_000 + rand(60_000)) if $i > int(@lost / 3);
}

# The waiting time shows which session is stuck.
becomes($node, q{SELECT count(*) FROM lease_waiters}, 0, 'the queue moves on until it is empty');
foreach my $i (0 .. $#fates)
{
	my $expected = $fates[$i] eq 'stay' ? qr/^t\s+[tf]$/
	  : $fates[$i] eq 'deadline' ? qr/^[tf]\s+[tf]$/
	  : $fates[$i] eq 'kill' ? qr/^$|FATAL:  57P01/m
	  : qr/^[tf]\s+[tf]$|ERROR:  57014/;
	my $got = $fates[$i] eq 'kill' ? last_words($sessions[$i]) : answer($sessions[$i]);

	like($got, $expected, 'waiter ' . ($i + 1) . ": $fates[$i]");
}
is(look($node, q{SELECT count(*) FROM (SELECT substr(owner, 2)::int < lag(substr(owner, 2)::int) OVER (ORDER BY id) AS wrong
		FROM log WHERE granted) AS t WHERE wrong}), 0, 'waiters got the lease in the order of arrival');
is(look($node, q{SELECT string_agg(owner, ',' ORDER BY id) FROM log WHERE granted AND owner IN ('} . join("','", @stay) . q{')}),
	join(',', @stay), 'waiters that stayed got the lease');
note(look($node, q{SELECT count(*) || ' of 64 got it, ' || (SELECT count(*) FROM log WHERE NOT granted) || ' ran out of time' FROM log WHERE granted}));
nothing_left($node, 'some');
becomes($node, q{SELECT lease_acquire('some', '1 hour', 'x')}, 't', 'in the end the lease is free');

# Many hand-offs, all by wake-up: a lost one would end in a refusal, and the
# division by zero. Some give back what they release, or get it for a moment.
$node->pgbench('--no-vacuum --client=12 --jobs=1 --transactions=100', 0,
	[qr/processed: (\d+)\/\1\n/], [qr/^$/], 'hand-offs between 12 sessions', {
		'hold@6' => q{
			SELECT 1 / lease_acquire('hot', '1 hour', 'c' || :client_id, '10 min')::int;
			SELECT 1 / lease_release('hot', 'c' || :client_id)::int;
		},
		'block@3' => q{
			BEGIN;
			SELECT 1 / lease_acquire('hot', '1 hour', 'c' || :client_id, '10 min')::int;
			SELECT 1 / lease_release('hot', 'c' || :client_id)::int;
			END;
		},
		'undo@2' => q{
			BEGIN;
			SELECT 1 / lease_acquire('hot', '1 hour', 'c' || :client_id, '10 min')::int;
			ROLLBACK;
		},
		'savepoint@2' => q{
			SELECT 1 / lease_acquire('hot', '1 hour', 'c' || :client_id, '10 min')::int;
			BEGIN;
			SAVEPOINT s;
			SELECT 1 / lease_release('hot', 'c' || :client_id)::int;
			ROLLBACK TO s;
			SELECT 1 / lease_release('hot', 'c' || :client_id)::int;
			END;
		},
		'expire@2' => q{
			SELECT 1 / lease_acquire('hot', '2 ms', 'c' || :client_id, '10 min')::int;
		},
		'give up@2' => q{
			SELECT lease_acquire('hot', '2 ms', 'c' || :client_id, '1 ms');
		},
		'procedure@2' => q{
			CALL lease_wait('hot', '1 hour', 'c' || :client_id, '10 min');
			SELECT 1 / lease_release('hot', 'c' || :client_id)::int;
		},
	});
nothing_left($node, 'hot');

$node->stop;
done_testing();
