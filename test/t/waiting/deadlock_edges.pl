# The edges of the deadlock search, one after the other, as the table in
# src/README.md states them: a circle through the edge is found, and ended by
# one victim; what is no edge makes no circle.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('edges', <<'CONF');
deadlock_timeout = 200ms
lease_lock.handoff_timeout = 1h
CONF

$node->safe_psql('postgres', 'CREATE ROLE alice; CREATE ROLE mallory');

sub has
{
	my ($session, $resource, $mode, $owner) = @_;

	return [ $session, 'has', "SELECT granted FROM lease_request('$resource', '1 hour', '" . ($owner // $session) . "', $mode)" ];
}

sub wants
{
	my ($session, $resource, $mode, $owner) = @_;

	return [ $session, 'wants', "SELECT granted FROM lease_request('$resource', '1 hour', '" . ($owner // $session) . "', wait => NULL, $mode)" ];
}

sub wants_any
{
	my ($session, @resources) = @_;

	return [ $session, 'wants', "SELECT lease_acquire_any('{" . join(',', @resources) . "}', '1 hour', '$session', NULL)" ];
}

sub does
{
	my ($session, $sql) = @_;

	return [ $session, 'has', $sql ];
}

my $alone = q{mode => 'exclusive'};
my $shared = q{mode => 'shared'};

sub permit
{
	return "mode => 'permit', permits => $_[0]";
}

# Name, the session that fails (undef: none does), and the steps. A session is its owner.
my @cases = (
	[ 'queued: a held lease, all of them', 'b',
		has('a', 'r1', $alone), has('b', 'r2', $alone), wants('a', 'r2', $alone), wants('b', 'r1', $alone) ],
	[ 'queued: one of two readers', 'b',
		has('a', 'r1', $shared), has('x', 'r1', $shared), has('b', 'r2', $alone), wants('a', 'r2', $alone), wants('b', 'r1', $alone) ],
	[ 'queued: the holder does not wait', undef,
		has('a', 'r1', $alone), has('x', 'r2', $alone), wants('a', 'r2', $alone), wants('b', 'r1', $alone) ],
	[ 'queued: a transaction', 'a',
		does('a', 'BEGIN'), has('a', 'r1', $alone), has('b', 'r2', $alone), wants('b', 'r1', $alone), wants('a', 'r2', $alone) ],
	[ 'aside: its own owner', undef,
		has('a', 'r1', $shared), has('b', 'r2', $alone), wants('c', 'r1', $alone, 'a'), wants('b', 'r1', $alone) ],
	[ 'aside: beside its own owner, a held lease', 'b',
		has('a', 'r1', $shared), has('a', 'r4', $alone), has('b', 'r1', $shared), wants('x', 'r1', $alone, 'a'), wants('b', 'r4', $alone) ],
	[ 'order: a reader behind a writer', 'c',
		has('a', 'r1', $shared), has('c', 'r2', $alone), wants('w', 'r1', $alone), wants('a', 'r2', $alone), wants('c', 'r1', $shared) ],
	[ 'order: a permit behind a writer', 'c',
		has('a', 'r1', permit(5)), has('c', 'r2', $alone), wants('w', 'r1', $alone), wants('a', 'r2', $alone), wants('c', 'r1', permit(5)) ],
	[ 'order: two before it', 'c',
		has('a', 'r1', $shared), has('c', 'r2', $alone), wants('w', 'r1', $alone), wants('v', 'r1', $shared), wants('a', 'r2', $alone), wants('c', 'r1', $shared) ],
	[ 'order: the one before it waits for somebody else', undef,
		has('x', 'r1', $shared), has('c', 'r2', $alone), wants('w', 'r1', $alone), wants('a', 'r2', $alone), wants('c', 'r1', $shared) ],
	[ 'order: any of several behind a writer', 'c',
		has('a', 'r1', $shared), has('d', 'r3', $alone), has('c', 'r2', $alone), wants('w', 'r1', $alone), wants('a', 'r2', $alone),
		wants('d', 'r2', $alone), wants_any('c', 'r1', 'r3') ],
	[ 'order: two before it, of which the nearest can leave by another line', 'c',
		has('c', 'r2', $alone), has('w', 'r1', $alone), has('s', 'r5', $shared), has('q', 'r4', $alone), wants('w', 'r2', $alone),
		wants('s', 'r2', $alone), wants_any('n', 'r1', 'r5'), wants_any('m', 'r4', 'r5'), wants('c', 'r5', $shared) ],
	[ 'permits: all holders wait', 'x',
		has('a', 'r1', permit(2)), has('b', 'r1', permit(2)), has('x', 'r2', $alone), wants('a', 'r2', $alone), wants('b', 'r2', $alone), wants('x', 'r1', permit(2)) ],
	[ 'permits: one of the holders does not wait', undef,
		has('a', 'r1', permit(2)), has('b', 'r1', permit(2)), has('x', 'r2', $alone), wants('a', 'r2', $alone), wants('x', 'r1', permit(2)) ],
	[ 'permits: two must end, and one of three does not wait', 'x',
		has('a', 'r1', permit(3)), has('b', 'r1', permit(3)), has('c', 'r1', permit(3)), has('x', 'r2', $alone),
		wants('a', 'r2', $alone), wants('b', 'r2', $alone), wants('x', 'r1', permit(2)) ],
	[ 'permits: a transaction and a lease', 'x',
		has('b', 'r1', permit(2)), has('x', 'r2', $alone), does('a', 'BEGIN'), has('a', 'r1', permit(2)),
		wants('a', 'r2', $alone), wants('b', 'r2', $alone), wants('x', 'r1', permit(2)) ],
	[ 'any: all holders wait', 'x',
		has('a', 'r1', $alone), has('b', 'r2', $alone), has('x', 'r3', $alone), wants('a', 'r3', $alone), wants('b', 'r3', $alone), wants_any('x', 'r1', 'r2') ],
	[ 'any: one holder does not wait', undef,
		has('a', 'r1', $alone), has('b', 'r2', $alone), has('x', 'r3', $alone), wants('a', 'r3', $alone), wants_any('x', 'r1', 'r2') ],
	[ 'any: a transaction and a lease', 'a',
		has('c', 'r4', $alone), has('b', 'r3', $alone), does('a', 'BEGIN'), has('a', 'r1', $alone),
		wants_any('b', 'r1', 'r4'), wants('c', 'r3', $alone), wants('a', 'r3', $alone) ],
	[ 'any: a free row that a transaction changes, and a lease', 'a',
		has('b', 'r3', $alone), has('a', 'r4', $alone), does('a', 'BEGIN'), has('a', 'r1', $alone), does('a', q{SELECT lease_release('r1', 'a')}),
		wants_any('b', 'r1', 'r4'), wants('a', 'r3', $alone) ],
	[ 'any: a free row that a transaction locks, and a lease', 'a',
		has('b', 'r3', $alone), has('a', 'r4', $alone), has('a', 'r1', $alone), does('a', q{SELECT lease_release('r1', 'a')}),
		does('a', 'BEGIN'), does('a', q{SELECT FROM lease_lock WHERE resource = 'r1' FOR UPDATE}),
		wants_any('b', 'r1', 'r4'), wants('a', 'r3', $alone) ],
	[ 'order: a permit behind one that waits for a free row', 'c',
		has('c', 'r3', $alone), has('a', 'r4', $alone), has('a', 'r1', $alone), does('a', q{SELECT lease_release('r1', 'a')}),
		does('a', 'BEGIN'), does('a', q{SELECT FROM lease_lock WHERE resource = 'r1' FOR UPDATE}),
		wants_any('b', 'r1', 'r4'), wants('a', 'r3', $alone), wants('c', 'r1', permit(2)) ],
	[ 'any: more resources than a waiter has lines', undef,
		has('a', 'r1', $alone), has('x', 'r3', $alone), does('y', q{SELECT count(lease_acquire('m' || i, '1 hour', 'y')) FROM generate_series(1, 20) AS i}),
		wants('a', 'r3', $alone), wants('y', 'r3', $alone), wants_any('x', 'r1', map { "m$_" } 1 .. 20) ],
	[ 'any: behind another deadlock', 'c',
		has('a', 'r1', $alone), has('n', 'r3', $alone), has('b', 'r2', $alone), has('c', 'r4', $alone),
		wants_any('n', 'r1', 'r2'), wants('a', 'r3', $alone), wants('b', 'r4', $alone), wants('c', 'r2', $alone) ],
	[ 'a role without privileges: a lease under the name of another', undef,
		does('m', 'SET ROLE mallory'), has('m', 'r1', permit(1), 'a'), does('a', 'SET ROLE alice'), has('x', 'r2', $alone),
		wants('a', 'r2', $alone), wants('x', 'r1', permit(1)) ],
	[ 'a role without privileges: a wait under the name of another', undef,
		does('a', 'SET ROLE alice'), has('a', 'r1', permit(1)), has('x', 'r2', $alone), does('m', 'SET ROLE mallory'),
		wants('m', 'r2', $alone, 'a'), wants('x', 'r1', permit(1)) ]);

sub run_case
{
	my ($name, $victim, @steps) = @_;
	my %sessions;
	my %waits;
	my $rolls_back = $victim && grep { $_->[0] eq $victim && $_->[2] eq 'BEGIN' } @steps;
	my $before = look($node, 'SELECT deadlocks FROM lease_stats');

	foreach my $step (@steps)
	{
		my ($who, $what, $sql) = @$step;
		my $session = $sessions{$who} //= open_session($node);

		if ($what eq 'has')
		{
			$session->query_safe($sql);
			next;
		}
		my $pid = $session->query_safe('SELECT pg_backend_pid()');
		send_sql($session, $sql);
		$waits{$who} = $pid;
		becomes($node, "SELECT count(*) FROM lease_waiters WHERE pid = $pid", 1, "$name: $who waits") if $step != $steps[-1];
	}

	if ($victim)
	{
		like(answer($sessions{$victim}), qr/ERROR:  40P01: deadlock detected while waiting for.*Process $waits{$victim} waits for/s, "$name: $victim is told why it fails");
		delete $waits{$victim};
	}
	look($node, 'SELECT pg_sleep(1)');
	is(look($node, 'SELECT deadlocks FROM lease_stats') - $before, $victim ? 1 : 0, "$name: " . ($victim ? 'nobody else fails' : 'nobody fails'));
	my $pids = join(',', values %waits);
	is(look($node, "SELECT count(*) FROM lease_waiters WHERE pid IN ($pids)"), scalar keys %waits, "$name: the others still wait") if !$rolls_back;

	look($node, "SELECT count(pg_cancel_backend(pid)) FROM lease_waiters");
	foreach my $who (sort keys %waits)
	{
		like(answer($sessions{$who}), qr/57014|^(t|r\d)$/, "$name: $who is cancelled, or goes on when another one is");
	}
	$_->query('ROLLBACK'), $_->quit foreach values %sessions;
	look($node, 'SELECT count(lease_break(resource)) FROM lease_status');
	nothing_left($node, $name);
	return;
}

run_case(@$_) foreach @cases;

# Many waiters that share an owner name cost little: each process, and each
# owner, is visited once in a search.
SKIP:
{
	skip 'no /proc', 1 if !-e "/proc/$$/stat";

	my @sessions;
	my $ticks = sub {
		my $sum = 0;

		foreach my $pid (split /\n/, look($node, 'SELECT pid FROM lease_waiters'))
		{
			my @fields = split(/ /, slurp_file("/proc/$pid/stat") =~ s/^.*\) //sr);

			$sum += $fields[11] + $fields[12];
		}
		return $sum;
	};

	look($node, q{SELECT count(lease_acquire('chain' || i || ' ' || j, '1 hour', 'o' || (i + 1))) FROM generate_series(1, 4) AS i, generate_series(1, 15) AS j});
	foreach my $i (1 .. 4)
	{
		foreach my $j (1 .. 15)
		{
			my $session = open_session($node);

			push @sessions, $session;
			send_sql($session, "SELECT lease_acquire('chain$i $j', '1 hour', 'o$i', NULL)");
		}
	}
	becomes($node, 'SELECT count(*) FROM lease_waiters', 60, 'a chain of four owners with fifteen waiters each');
	look($node, 'SELECT pg_sleep(3)');
	my $used = $ticks->();
	note("$used ticks");
	cmp_ok($used, '<', 500, 'a chain of four owners: searching takes little time');
	look($node, 'SELECT count(pg_cancel_backend(pid)) FROM lease_waiters');
	answer($_) foreach @sessions;
	look($node, 'SELECT count(lease_break(resource)) FROM lease_status');
	nothing_left($node, 'a chain of four owners');
	$_->quit foreach @sessions;
}

$node->stop;
done_testing();
