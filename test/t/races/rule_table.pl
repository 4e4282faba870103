# Requests for a lease, and actions on one, in every state that a row of the
# lock table can be in. The states combine what is committed, what an open
# transaction does to it, its owner and its mode; and again beside a second row.
# The answers are compared with the rules as they are stated here.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

# --- states -------------------------------------------------------------------

# A row has a version that is committed (before), and maybe one that an open transaction
# wrote (after), or a row lock. A version is absent, or a lease of an owner or a tombstone
# (free, or kept by min_hold). A lease is held, or has expired. A renewal keeps the lease,
# everything else ends it.
my $absent = { state => 'absent' };
my $free = { state => 'free' };
my $kept = { state => 'kept' };

sub lease
{
	my ($state, $owner) = @_;

	return { state => $state, owner => $owner };
}

# All states of a row.
sub all_states
{
	my @locks = map { $_ ? { lock => $_ } : {} } undef, 'KEY SHARE', 'SHARE', 'NO KEY UPDATE', 'UPDATE';
	my @grants = map { { after => lease('held', $_) } } 'me', 'other';
	my @states = map { { before => $absent, %$_ } } {}, { after => $free }, @grants;

	foreach my $before ($free, $kept)
	{
		push @states, map { { before => $before, %$_ } } @locks, @grants, { after => $absent };
	}
	foreach my $owner ('me', 'other')
	{
		foreach my $state ('held', 'expired')
		{
			push @states, map { { before => lease($state, $owner), %$_ } } @locks, @grants, { after => $absent }, { after => $free };
		}
		push @states, { before => lease('held', $owner), after => lease('held', $owner), renewed => 1 };
	}
	return @states;
}

# What may be beside it: a shared lease of somebody else, in some states.
my @beside = (
	{ before => lease('held', 'third') },
	{ before => lease('expired', 'third') },
	{ before => lease('expired', 'third'), lock => 'KEY SHARE' },
	{ before => $absent, after => lease('held', 'third') },
	{ before => lease('held', 'third'), after => $free },
	{ before => $free, lock => 'UPDATE' });

sub describe
{
	my ($row) = @_;
	my $version = sub { join ' of ', grep { defined } @{ $_[0] }{ 'state', 'owner' } };

	return "$row->{mode} " . $version->($row->{before})
	  . ($row->{lock} ? ", locked FOR $row->{lock}" : '')
	  . ($row->{renewed} ? ', open renewal' : $row->{after} ? ', open change to ' . $version->($row->{after}) : '');
}

# --- the rules ----------------------------------------------------------------

# An open change is an obstacle, unless the row is nothing before and after it.
# Otherwise a lease is an obstacle while it is held, and so is a kept
# tombstone. An expired lease is an obstacle while a transaction relies on it.
sub in_the_way
{
	my ($row) = @_;

	return grep { $_->{state} !~ /^(absent|free)$/ } $row->{before}, $row->{after} if $row->{after};
	return $row->{before}{state} =~ /^(held|kept)$/ || $row->{before}{state} eq 'expired' && $row->{lock};
}

# A renewal writes no key, so it can be written beside FOR KEY SHARE.
sub stops_renewal
{
	my ($row) = @_;

	return $row->{lock} && $row->{lock} ne 'KEY SHARE';
}

sub is_exclusive
{
	my ($row) = @_;

	return $row->{mode} eq 'exclusive';
}

# In the portable edition, a grant and a purge lock slot 0. So all that they have left open is behind that lock.
sub locks_slot_0
{
	my ($row) = @_;

	return 0 if !is_portable();
	return $row->{after} || $row->{lock} if is_exclusive($row);
	return $row->{after} && !$row->{renewed} && ($row->{before} == $absent || $row->{after}{state} ne 'free');
}

# I hold a lease, as it is committed, and nobody changes that.
sub is_mine
{
	my ($row) = @_;

	return !$row->{after} && $row->{before}{state} eq 'held' && $row->{before}{owner} eq 'me';
}

# I may hold a lease when an open transaction has ended.
sub may_be_mine
{
	my ($row) = @_;

	return $row->{after} && grep { $_->{state} eq 'held' && $_->{owner} eq 'me' } $row->{before}, $row->{after};
}

# Does "me" get the lease that it asks for?
sub is_granted
{
	my ($request, @rows) = @_;
	my ($exclusive) = grep { is_exclusive($_) } @rows;
	my @others = grep { !is_exclusive($_) } @rows;

	if ($request->{mode} eq 'exclusive')
	{
		# its own again; else alone, in a row that nobody is changing or locking
		return $request->{reentrant} && !stops_renewal($exclusive) if $exclusive && is_mine($exclusive);
		return 0 if grep { in_the_way($_) || locks_slot_0($_) } @rows;
		return !$exclusive || !$exclusive->{after} && !$exclusive->{lock};
	}

	# beside others, but not beside an exclusive lease, and not two for one owner
	return 0 if $exclusive && in_the_way($exclusive);
	if (my ($mine) = grep { is_mine($_) } @others)
	{
		return $request->{reentrant} && $mine->{mode} eq $request->{mode} && !stops_renewal($mine);
	}
	return 0 if grep { may_be_mine($_) } @others;
	# The portable edition cannot see whether the open transaction renews my former lease.
	return 0 if is_portable() && grep { ($_->{before}{owner} // '') eq 'me' && ($_->{after} || $_->{lock}) } @others;
	return 0 if grep { locks_slot_0($_) } @rows;
	return $request->{mode} eq 'shared' || (grep { in_the_way($_) } @others) < $request->{permits};
}

# What a call of "me" with its lease answers: yes, no, or that it waits. It acts on what is
# committed. It waits for open changes, so that its answer is final, and for row locks that
# conflict with what it does. An assertion needs no more than that the lease stays.
sub answer
{
	my ($call, $row) = @_;
	my $lease = $row->{before};
	my $mine = ($lease->{owner} // '') eq 'me';
	my $held = $mine && $lease->{state} eq 'held';
	my $lock = $row->{lock} // '';

	return 'no' if is_portable() && ($call eq 'renew' || $call eq 'transfer') && !$held;
	if (is_portable() && ($call eq 'break' || $call eq 'transfer'))
	{
		# These lock slot 0 first, if they see it, and a break all rows.
		return 'no' if is_exclusive($row) && $lease == $absent;
		return 'waits' if locks_slot_0($row) || $call eq 'break' && ($row->{after} || $lock);
	}
	if ($call eq 'break')
	{
		return 'waits' if in_the_way($row) && ($row->{after} || $lock);
		return in_the_way($row) ? 'yes' : 'no';
	}
	return $held ? 'yes' : 'no' if $call eq 'token';
	return 'no' if !$mine;
	if ($call eq 'assert')
	{
		return 'no' if !$held;
		return $row->{after} && !$row->{renewed} || $lock eq 'UPDATE' ? 'waits' : 'yes';
	}
	return 'waits' if $row->{after} || ($call eq 'renew' ? stops_renewal($row) : $lock);
	return $call eq 'release' || $held ? 'yes' : 'no';
}

# --- a row in the lock table --------------------------------------------------

# The columns that make up a version, and what they are.
sub columns
{
	my ($version) = @_;
	my $owner = defined $version->{owner} ? "'$version->{owner}'" : 'NULL';
	my $expires = $version->{state} =~ /^(held|kept)$/ ? "now() + interval '1 h'" : "now() - interval '1 h'";

	return "$owner, $expires, nextval('lease_token_seq')";
}

# SQL that makes what is committed, and SQL for the open transaction.
sub sql
{
	my ($resource, $slot, $row) = @_;
	my $mode = { exclusive => 'x', shared => 's', permit => 'p' }->{ $row->{mode} };
	my $key = "resource = '$resource' AND slot = $slot";
	my $insert = sub {
		return 'INSERT INTO lease_lock (owner, expires_at, token, resource, slot, granted_at, xid, role, mode, holds) VALUES ('
		  . columns($_[0]) . ", '$resource', $slot, now(), pg_current_xact_id(), 10, '$mode', 1);\n";
	};
	my $before = $row->{before}{state} eq 'absent' ? '' : $insert->($row->{before});
	my $locks = '';

	if (is_portable())
	{
		$before = 'INSERT INTO lease_lock VALUES (' . "'$resource', 0, NULL, now() - interval '1 h', 1, now(), pg_current_xact_id(), 10, 'x', 0)"
		  . " ON CONFLICT DO NOTHING;\n$before" if $slot > 0;
		$locks = "PERFORM pg_advisory_xact_lock(_lease_key(1, '$resource'));\n" if $slot == 0 && $row->{before} == $absent && $row->{after};
		$locks .= "PERFORM FROM lease_lock WHERE resource = '$resource' AND slot = 0 FOR UPDATE;\n" if $slot > 0 && locks_slot_0($row);
		$locks .= "PERFORM FROM lease_lock WHERE $key FOR UPDATE;\n" if $row->{after} && !$row->{renewed};
	}
	my $open = $locks
	  . ($row->{lock} ? "PERFORM FROM lease_lock WHERE $key FOR $row->{lock};\n"
	  : !$row->{after} ? ''
	  : $row->{before} == $absent ? $insert->($row->{after})
	  : $row->{after} == $absent ? "DELETE FROM lease_lock WHERE $key;\n"
	  : $row->{renewed} ? "UPDATE lease_lock SET expires_at = now() + interval '2 h' WHERE $key;\n"
	  : "UPDATE lease_lock SET (owner, expires_at, token) = (SELECT " . columns($row->{after}) . ") WHERE $key;\n");

	return ($before, $open);
}

# --- the test -----------------------------------------------------------------

my $node = start_node('rules', "autovacuum = off\nfsync = off\nmax_locks_per_transaction = 200\n");
$node->safe_psql('postgres', 'CREATE SEQUENCE lease_token_seq') if is_portable();

$node->safe_psql('postgres', q{
	-- Ask for a lease and undo it. A grant leaves no other lease that it excludes, and
	-- one lease of the owner.
	CREATE FUNCTION ask(r text, mode text, permits int, reentrant boolean) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		answer text;
		wrong bigint;
	BEGIN
		SELECT CASE WHEN granted THEN 'yes' ELSE 'no' END INTO answer
		FROM lease_request(r, '1 h', 'me', '0', mode, permits, CASE WHEN reentrant THEN 'count' ELSE 'refuse' END);
		SELECT count(*) INTO wrong FROM lease_lock AS l
		WHERE resource = r AND owner IS NOT NULL
			AND (owner <> 'me' AND 'x' IN (l.mode, left(replace(ask.mode, 'exclusive', 'x'), 1))
				OR owner = 'me' AND expires_at > clock_timestamp() AND token <> lease_token(r, 'me'));
		IF answer = 'yes' AND wrong > 0 THEN
			answer := format('yes, but beside %s', wrong);
		END IF;
		RAISE SQLSTATE 'UNDO1';
	EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
		RETURN answer;
	END $$;

	-- Do something with the lease, and undo it.
	CREATE FUNCTION act(what text, r text) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		answer boolean;
	BEGIN
		answer := CASE what
			WHEN 'release' THEN lease_release(r, 'me')
			WHEN 'renew' THEN lease_renew(r, '1 h', 'me')
			WHEN 'transfer' THEN lease_transfer(r, 'me', 'heir') IS NOT NULL
			WHEN 'assert' THEN lease_assert(r, 'me') > 0
			WHEN 'token' THEN lease_token(r, 'me') IS NOT NULL
			WHEN 'break' THEN lease_break(r) END;
		RAISE SQLSTATE 'UNDO1';
	EXCEPTION
		WHEN SQLSTATE 'UNDO1' THEN
			RETURN CASE WHEN answer THEN 'yes' ELSE 'no' END;
		WHEN lock_not_available THEN
			RETURN 'waits';
		WHEN object_not_in_prerequisite_state THEN
			RETURN 'no';
	END $$});

my @requests;
foreach my $reentrant (0, 1)
{
	push @requests, map { { %$_, reentrant => $reentrant } }
	  { mode => 'exclusive' }, { mode => 'shared' }, map { { mode => 'permit', permits => $_ } } 1, 2, 3;
}

# Every state on a resource of its own; then with something beside it.
my @cases;
foreach my $mode ('exclusive', 'shared', 'permit')
{
	foreach my $state (all_states())
	{
		my $row = { %$state, mode => $mode };

		push @cases, [$row];
		next if is_portable() && is_exclusive($row) && $row->{before} == $absent;	# with other rows, there is one in slot 0
		push @cases, map { [ $row, { %$_, mode => 'shared' } ] } @beside unless is_exclusive($row) && is_mine($row);
	}
}

my ($before, $open) = ('', '');
foreach my $case (0 .. $#cases)
{
	my ($first, $second) = @{ $cases[$case] };
	my $slot = is_exclusive($first) ? 0 : 1;
	my @sql = sql($case, $slot, $first);

	@sql = map { $sql[$_] . (sql($case, $slot + 1, $second))[$_] } 0, 1 if $second;
	$before .= $sql[0];
	$open .= $sql[1];
}

my $other = open_session($node);
$node->safe_psql('postgres', $before);
$node->safe_psql('postgres', "CREATE PROCEDURE open_changes() LANGUAGE plpgsql AS \$\$ BEGIN\n$open END \$\$");
$other->query_safe('BEGIN; CALL open_changes()');

sub compare
{
	my ($sql, $expected, $name) = @_;
	my %got = map { split /=/ } split /\n/, $node->safe_psql('postgres', $sql);
	my @wrong = grep { $got{$_} ne $expected->{$_} } sort keys %$expected;

	is(scalar keys %got, scalar keys %$expected, "$name: all " . keys(%$expected) . ' answers are there');
	is(scalar @wrong, 0, "$name: as the rules say");
	foreach (grep { defined } @wrong[ 0 .. 9 ])
	{
		my ($case, $call) = split /:/;

		diag("$call beside ", join(' and ', map { describe($_) } @{ $cases[$case] }), ": expected $expected->{$_}, got $got{$_}");
	}
	return;
}

my %expected;
foreach my $case (0 .. $#cases)
{
	foreach (@requests)
	{
		my $name = "$case:" . join '-', map { $_ // '' } @$_{ 'mode', 'permits', 'reentrant' };

		$expected{$name} = is_granted($_, @{ $cases[$case] }) ? 'yes' : 'no';
	}
}
my $asked = join ', ', map { "('$_->{mode}', " . ($_->{permits} // 'NULL') . ", $_->{reentrant})" } @requests;
compare("SELECT c || ':' || mode || '-' || coalesce(permits::text, '') || '-' || again || '=' || ask(c::text, mode, permits, again = 1)
	FROM generate_series(0, $#cases) AS c, (VALUES $asked) AS q (mode, permits, again)", \%expected, 'requests');

# What is refused leaves no trace in the extension, in whatever state and mode: no transaction id, no WAL, no
# row that was locked or written, no lock. Once before, since reading a page may tidy it up.
my $refused = "SELECT count(*) FILTER (WHERE granted) AS granted
	FROM (VALUES " . join(', ', map { my ($c, $q) = split /:/; $expected{$_} eq 'no' ? "($c, '$q')" : () } sort keys %expected) . ") AS refused (c, q)
		JOIN (VALUES $asked) AS q (mode, permits, again) ON q = mode || '-' || coalesce(permits::text, '') || '-' || again,
		lease_request(c::text, '1 h', 'me', '0', mode, permits, CASE again WHEN 1 THEN 'count' ELSE 'refuse' END)";
$node->safe_psql('postgres', q{
	CREATE FUNCTION rows() RETURNS text LANGUAGE sql AS $$
		SELECT md5(string_agg(concat_ws(' ', resource, slot, ctid, xmin, xmax), ',' ORDER BY resource, slot)) FROM lease_lock
	$$});
$node->safe_psql('postgres', "$refused; SELECT rows()");
$node->safe_psql('postgres', $_) foreach 'VACUUM pg_catalog.pg_proc', 'CHECKPOINT';
is_portable() or is($node->safe_psql('postgres', qq{
	SELECT rows() AS rows, pg_current_wal_insert_lsn() AS lsn, pg_snapshot_xmax(pg_current_snapshot()) AS next_xid \\gset
	BEGIN;
	$refused;
	SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid, pg_snapshot_xmax(pg_current_snapshot()) = :'next_xid' AS no_xid_of_others,
		pg_current_wal_insert_lsn() - :'lsn' AS wal, rows() = :'rows' AS same_rows,
		(SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype NOT IN ('relation', 'virtualxid')) AS locks;
	COMMIT}), "0\nt|t|0|t|0", 'what is refused leaves no trace');

# What "me" can do with its lease.
my @single = grep { @{ $cases[$_] } == 1 } 0 .. $#cases;
my @calls = ('release', 'renew', 'transfer', 'assert', 'token', 'break');
%expected = ();
foreach my $case (@single)
{
	$expected{"$case:$_"} = answer($_, $cases[$case][0]) foreach @calls;
}
compare("SET lock_timeout = '5 ms'; SELECT c || ':' || call || '=' || act(call, c::text) FROM unnest('{" . join(',', @single)
	. "}'::int[]) AS c, unnest('{" . join(',', @calls) . "}'::text[]) AS call", \%expected, 'calls with a lease');

$other->query_safe('ROLLBACK');
$other->quit;

# What a release leaves, by the end of the lease and by min_hold: the row is free, unless
# min_hold is not over and the lease was still held. Then it is kept until min_hold is over,
# even if the lease would have ended before.
my %ends = (expired => '-1 h', held => '1 h');
my %min_holds = (none => undef, over => '-1 min', shorter => '1 min', longer => '2 h');
my ($rows, $wrong) = ('', '');
foreach my $mode ('x', 's', 'p')
{
	foreach my $end (sort keys %ends)
	{
		foreach my $min_hold (sort keys %min_holds)
		{
			my $kept = $end eq 'held' && $min_hold =~ /^(shorter|longer)$/ ? "now() + interval '$min_holds{$min_hold}'" : 'NULL';
			my $until = defined $min_holds{$min_hold} ? "now() + interval '$min_holds{$min_hold}'" : 'NULL';
			my $slot = $mode eq 'x' ? 0 : 1;
			my $kept_for = is_portable() ? '' : " OR kept_for IS DISTINCT FROM CASE WHEN $kept IS NOT NULL THEN 'me' END";

			$rows .= "INSERT INTO lease_lock (resource, slot, owner, expires_at, hold_until, token, granted_at, xid, role, mode, holds)
				VALUES ('$mode $end $min_hold', $slot, 'me', now() + interval '$ends{$end}', $until, 1, now(), pg_current_xact_id(), 10, '$mode', 1);\n";
			$wrong .= "SELECT '$mode $end $min_hold' FROM lease_lock WHERE resource = '$mode $end $min_hold'
				AND (owner IS NOT NULL OR hold_until IS NOT NULL$kept_for
					OR CASE WHEN $kept IS NULL THEN expires_at > clock_timestamp() ELSE expires_at IS DISTINCT FROM $kept END);\n";
		}
	}
}
is($node->safe_psql('postgres', "BEGIN; TRUNCATE lease_lock; $rows
	SELECT count(*) FROM lease_lock WHERE NOT lease_release(resource, 'me'); $wrong COMMIT"), 0, 'what a release leaves');
$node->stop;
done_testing();
