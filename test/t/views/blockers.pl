# Whatever keeps a waiter from its lease, lease_waiters names the process, the
# graph shows it, and so do the queries of the pages that an operator looks up.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('blockers', "max_prepared_transactions = 2\n");
my ($blocker, $second, $waiter) = map { open_session($node) } 1 .. 3;
my ($pid, $second_pid) = map { $_->query_safe('SELECT pg_backend_pid()') } $blocker, $second;
my $root = "$FindBin::RealBin/../../..";

$node->safe_psql('postgres', q{
	CREATE TABLE guarded (x int);
	SELECT lease_protect('guarded', 'r');
	SELECT lease_acquire('never free', '10 days', 'o');
	ALTER SYSTEM SET lease_lock.purge_after = 0;
	SELECT pg_reload_conf()});

# The queries of a page that show a process.
sub queries
{
	my ($page) = @_;
	my $text = slurp_file("$root/docs/$page");

	return map { s/\s*\\watch.*//r =~ s/;\s*$//r } grep { /\b(?:l|b|a)\.pid\b/ } $text =~ /^```sql\n(.*?)^```$/msg;
}

my %query = map { ($_ => [ queries($_) ]) } 'operations.md', 'monitoring.md';
is(scalar @{ $query{'operations.md'} }, 2, 'queries of operations.md');
is(scalar @{ $query{'monitoring.md'} }, 1, 'queries of monitoring.md');

# How a lease is blocked: what is done before, and what then stays open. A lease
# that must have expired is short.
my $held = q{SELECT lease_acquire('r', '1 hour', 'o')};
my $free = "$held; SELECT lease_release('r', 'o')";
my $short = q{SELECT lease_acquire('r', '1 s', 'o')};
my @kinds = (
	{ name => 'an open grant', open => "BEGIN; $held" },
	{ name => 'a grant in a savepoint', open => "BEGIN; SAVEPOINT s; $held" },
	{ name => 'a grant in a savepoint of a savepoint', open => "BEGIN; SAVEPOINT a; SAVEPOINT b; $held; RELEASE b" },
	{ name => 'an open lease_acquire_all', open => q{BEGIN; SELECT lease_acquire_all(ARRAY['r', 's'], '1 hour', 'o')} },
	{ name => 'an open release', before => $held, open => q{BEGIN; SELECT lease_release('r', 'o')} },
	{ name => 'an open renewal', before => $held, open => q{BEGIN; SELECT lease_renew('r', '1 hour', 'o')} },
	{ name => 'an assertion of a lease that has expired', before => $short, open => q{BEGIN; SELECT lease_assert('r', 'o')}, expires => 1 },
	{ name => 'a guarded write, after the lease has expired', before => $short, expires => 1,
		open => q{BEGIN; SET LOCAL lease_lock.owner = 'o'; INSERT INTO guarded VALUES (1)} },
	{ name => 'a row lock of a held row', before => $held, open => q{BEGIN; SELECT resource FROM lease_lock WHERE resource = 'r' FOR UPDATE} },
	{ name => 'a row lock of a free row', before => $free, open => q{BEGIN; SELECT resource FROM lease_lock WHERE resource = 'r' FOR UPDATE}, only => 'exclusive' },
	{ name => 'an open purge', before => $free, open => q{BEGIN; SELECT lease_purge() > 0}, only => 'exclusive' },
	{ name => 'an open break', before => $held, open => q{BEGIN; SELECT lease_break('r')} },
	{ name => 'a change by hand', before => $held, open => q{BEGIN; UPDATE lease_lock SET token = token WHERE resource = 'r'} },
	{ name => 'a prepared transaction', open => "BEGIN; $held; PREPARE TRANSACTION 'p'", pids => 0 },
	{ name => 'the session of a session lease', open => q{SELECT granted FROM lease_request('r', NULL, 'o', session => true)}, no_lock => 1 },
	{ name => 'several that have locked a row', before => $short, expires => 1, both => 1, open => q{BEGIN; SELECT lease_assert('r', 'o')} },
	{ name => 'several that have locked a held row', before => $held, both => 1,
		open => q{BEGIN; SELECT resource FROM lease_lock WHERE resource = 'r' FOR SHARE} },
	{ name => 'a locked table', before => $held, open => q{BEGIN; LOCK TABLE lease_lock IN EXCLUSIVE MODE}, no_lock => 1, waits_first => 1, only => 'exclusive' },
);

# How the waiter asks.
my %modes = (
	exclusive => q{SELECT lease_acquire('r', '1 hour', 'w', '10 min')},
	shared => q{SELECT lease_acquire_shared('r', '1 hour', 'w', '10 min')},
	permit => q{SELECT lease_acquire_permit('r', 1, '1 hour', 'w', '10 min')},
	any => q{SELECT lease_acquire_any(ARRAY['never free', 'r'], '1 hour', 'w', '10 min')},
);

# Does a result have these processes in its columns?
sub has_pids
{
	my ($rows, @pids) = @_;
	my %field = map { $_ => 1 } split /[|\n]/, $rows, -1;

	return !grep { !$field{$_} } @pids;
}

foreach my $kind (@kinds)
{
	foreach my $mode ($kind->{only} // sort keys %modes)
	{
		my $name = "$kind->{name}, $mode";
		my @pids = sort { $a <=> $b } $kind->{both} ? ($pid, $second_pid) : $kind->{pids} // $pid;
		my $shown = '{' . join(',', @pids) . '}';

		# A machine that is too slow for a short lease tries again with a longer one.
		for (my $ttl = 1;; $ttl *= 2)
		{
			$node->safe_psql('postgres', $kind->{before} =~ s/'1 s'/'$ttl s'/r) if $kind->{before};
			send_to_wait($node, $waiter, $modes{$mode}) if $kind->{waits_first};
			$blocker->query($kind->{open});
			$second->query($kind->{open}) if $kind->{both};
			last if !grep { $_->{stderr} =~ /55000/ } $blocker, $second;
			$_->query('ROLLBACK') foreach $blocker, $second;
			$_->{stderr} = '' foreach $blocker, $second;
			becomes($node, q{SELECT state FROM lease_status WHERE resource = 'r'}, 'expired', "$name: too slow");
		}
		becomes($node, q{SELECT state FROM lease_status WHERE resource = 'r'}, 'expired', "$name: the lease has expired") if $kind->{expires};
		send_sql($waiter, $modes{$mode}) if !$kind->{waits_first};

		becomes($node, q{SELECT string_agg(blocked_by_pids::text, ' ') FROM lease_waiters}, $shown, "$name: lease_waiters shows it")
		  or diag(look($node, 'TABLE lease_waiters'));
		foreach my $page (sort keys %query)
		{
			foreach my $query (@{ $query{$page} })
			{
				my $of_locks = $query =~ /pg_locks/;

				next if $of_locks && $kind->{no_lock};
				ok(has_pids(look($node, $query), $of_locks && "@pids" eq '0' ? '' : @pids), "$name: a query of $page shows it")
				  or diag($query, "\n", look($node, $query), "\n", $shown);
			}
		}
		like(look($node, 'SELECT lease_wait_graph()'), $_ == 0 ? qr/prepared transaction/ : qr/process $_"/, "$name: the graph shows it") foreach @pids;

		is(look($node, q{SELECT lease_contended('r')}), 't', "$name: the lease is contended");
		look($node, q{ROLLBACK PREPARED 'p'}) if $kind->{name} =~ /prepared/;
		look($node, q{SELECT pg_cancel_backend(pid) FROM lease_waiters});
		answer($waiter);
		$_->query('ROLLBACK') foreach $blocker, $second;
		$blocker->query(q{SELECT lease_release('r', 'o')});
		$_->{stderr} = '' foreach $blocker, $second;
		look($node, q{SELECT count(lease_break(resource)) FROM lease_status WHERE resource <> 'never free'});
	}
}

# Transactions of other databases, which may be copies with the same OIDs, and
# sessions that only wait, do not keep a try from its lease.
$node->safe_psql('postgres', 'CREATE DATABASE original');
$node->safe_psql('original', q{CREATE EXTENSION lease_lock; SELECT lease_acquire('r', '1 hour', 'o')});
$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE original');
my %session = map { ($_ => open_session($node, $_ eq 'elsewhere' ? 'copy' : 'original')) } 'elsewhere', 'asserts', 'releases';
my $asserting = $session{asserts}->query_safe('SELECT pg_backend_pid()');
my ($of_locks) = grep { /pg_locks/ } @{ $query{'operations.md'} };
$session{elsewhere}->query_safe(q{BEGIN; SELECT lease_renew('r', '1 hour', 'o')});
$session{asserts}->query_safe(q{BEGIN; SELECT lease_assert('r', 'o') > 0});
my $releasing = begin_query($session{releases}, q{SELECT lease_release('r', 'o')});
ok(wait_until_blocked($node, $releasing), 'a release waits');
$node->safe_psql('original', "BEGIN; SELECT lease_acquire('$_', '1 hour', 'o'); PREPARE TRANSACTION '$_'") foreach 'p', 'q';

is($node->safe_psql('original', "SELECT string_agg(coalesce(f.pid::text, f.query), ' ' ORDER BY f.pid, f.query) FROM ($of_locks) AS f"),
	"$asserting p q", 'the query of operations.md shows who is in the way, and nobody else');
$node->safe_psql('original', "ROLLBACK PREPARED '$_'") foreach 'p', 'q';
$session{asserts}->query_safe('ROLLBACK');
is(finish_query($session{releases}), 't', 'the release ends');
$_->quit foreach values %session;

nothing_left($node, 'at the end');
is(look($node, q{SELECT lease_contended('r')}), 'f', 'at the end: nobody waits');
$_->quit foreach $blocker, $second, $waiter;
$node->stop;
done_testing();
