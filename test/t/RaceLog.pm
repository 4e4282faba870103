# Two or three sessions make all kinds of calls on very few resources. Their
# results must agree with each other, whatever happened between a look and a
# write.
#
# Each session reports every call with the time before and after it, even if the
# call is rolled back later. The checks compare results only where these times,
# the tokens and the ends of the transactions leave no doubt about the order.
package RaceLog;

use strict;
use warnings;

use Exporter 'import';
use IPC::Run;
use List::Util qw(max min);
use PostgreSQL::Test::Utils;

our @EXPORT = qw(set_up_races run_round violations);

my $functions = q{
CREATE FUNCTION us(t timestamptz) RETURNS bigint LANGUAGE sql AS 'SELECT (extract(epoch FROM t) * 1000000)::bigint';
CREATE FUNCTION us(t interval) RETURNS bigint LANGUAGE sql AS 'SELECT (extract(epoch FROM t) * 1000000)::bigint';

CREATE FUNCTION one_of(VARIADIC list text[]) RETURNS text LANGUAGE sql AS $$
	SELECT list[1 + floor(random() * cardinality(list))::int];
$$;

CREATE FUNCTION report(VARIADIC what text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE INFO '%', array_to_string(what, '|', '');
END $$;

-- The leases that the session was granted.
CREATE TYPE known AS (token bigint, resource text, owner text);

-- Make one call on the resource, or with a lease that the session has had, and
-- report the call. Returns the lease if it is a new one.
CREATE FUNCTION act(me text, r text, was known) RETURNS known LANGUAGE plpgsql AS $$
DECLARE
	what text := one_of('get', 'get', 'get', 'get', 'get', 'release', 'release', 'release', 'renew', 'assert', 'assert',
		'transfer', 'break', 'purge', 'release_all');
	o text := me || one_of('', 'b');
	mode text := CASE left(r, 1) WHEN 'r' THEN 'shared' WHEN 'p' THEN one_of('shared', 'permit')
		WHEN 'x' THEN 'exclusive' WHEN 'q' THEN 'permit' ELSE one_of('exclusive', 'shared', 'permit', 'permit') END;
	permits int := CASE WHEN mode = 'permit' THEN CASE left(r, 1) WHEN 'p' THEN 100 ELSE one_of('1', '2', '3', '10')::int END END;
	ttl interval := CASE WHEN random() < 0.15 THEN interval '1 h' ELSE random() * interval '8 ms' END + interval '1 us';
	keep interval := CASE WHEN random() < 0.1 THEN least(ttl, interval '2 ms') END;
	again boolean := random() < 0.3;
	until timestamptz;
	ok boolean := false;
	new_token bigint;
	slot int;
	t0 timestamptz;
	t1 timestamptz;
BEGIN
	IF was IS NULL AND what NOT IN ('get', 'purge', 'break') THEN
		RETURN NULL;
	END IF;
	IF what IN ('break', 'purge') AND random() < 0.7 THEN
		RETURN NULL;
	END IF;
	IF what NOT IN ('get', 'break', 'purge') THEN
		r := was.resource;
		o := was.owner;
	END IF;

	-- A transfer is of what the owner holds now. Only this session can change that, but for its end.
	IF what = 'transfer' THEN
		was.token := lease_token(r, o);
	END IF;
	t0 := clock_timestamp();
	CASE what
	WHEN 'get' THEN
		SELECT q.granted, q.token, q.expires_at INTO ok, new_token, until
		FROM lease_request(r, ttl, o, '0', mode, permits, CASE WHEN again THEN 'count' ELSE 'refuse' END, keep) AS q;
	WHEN 'release' THEN
		ok := lease_release(r, o, was.token);
	WHEN 'release_all' THEN
		ok := lease_release_all(o) > 0;
	WHEN 'renew' THEN
		ok := lease_renew(r, ttl, o, was.token);
	WHEN 'assert' THEN
		BEGIN
			PERFORM lease_assert_token(r, was.token);
			ok := true;
		EXCEPTION WHEN object_not_in_prerequisite_state THEN
			ok := false;
		END;
	WHEN 'transfer' THEN
		BEGIN
			new_token := lease_transfer(r, o, CASE WHEN o LIKE '%!' THEN rtrim(o, '!') ELSE o || '!' END);
			ok := new_token IS NOT NULL;
			o := CASE WHEN o LIKE '%!' THEN rtrim(o, '!') ELSE o || '!' END;
		EXCEPTION WHEN object_in_use THEN
			ok := false;
		END;
	WHEN 'break' THEN
		ok := lease_break(r);
	WHEN 'purge' THEN
		ok := lease_purge() > 0;
	END CASE;
	t1 := clock_timestamp();

	-- A snapshot of SERIALIZABLE would see conflicts with writes of other sessions.
	IF new_token IS NOT NULL AND current_setting('transaction_isolation') = 'read committed' THEN
		SELECT l.slot INTO slot FROM lease_lock AS l WHERE l.token = new_token;
	END IF;
	PERFORM report('call', what, r, o, us(t0)::text, us(t1)::text, ok::text, coalesce(new_token, was.token)::text,
		CASE what WHEN 'get' THEN mode END, permits::text, slot::text, us(until)::text, us(ttl)::text, us(keep)::text,
		was.token::text);
	IF ok AND new_token IS NOT NULL THEN
		RETURN (new_token, r, o)::known;
	END IF;
	RETURN NULL;
END $$;

CREATE PROCEDURE play(me text, seed float8, resources text[], seconds float8) LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + seconds * interval '1 s';
	had known[];
	k known;
	undone boolean;
BEGIN
	PERFORM setseed(seed);
	WHILE clock_timestamp() < until LOOP
		PERFORM set_config('default_transaction_isolation',
			one_of('read committed', 'read committed', 'read committed', 'repeatable read', 'serializable'), false);
		COMMIT;
		FOR i IN 1 .. CASE WHEN random() < 0.6 THEN 1 ELSE 1 + floor(random() * 3)::int END LOOP
			undone := random() < 0.1;
			BEGIN
				IF undone THEN
					PERFORM report('savepoint');
				END IF;
				k := act(me, one_of(VARIADIC resources), had[cardinality(had) - floor(random() * least(cardinality(had), 4))::int]);
				IF k IS NOT NULL THEN
					had := had || k;
				END IF;
				IF undone THEN
					PERFORM report('undo', us(clock_timestamp())::text);
					RAISE SQLSTATE 'UNDO1';
				END IF;
			EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
				PERFORM report('undone', us(clock_timestamp())::text);
			END;
			IF random() < 0.2 THEN
				PERFORM pg_sleep(random() * 0.004);
			END IF;
		END LOOP;
		PERFORM report('end', us(clock_timestamp())::text);
		IF random() < 0.15 THEN
			ROLLBACK;
			PERFORM report('rolled back', us(clock_timestamp())::text);
		ELSE
			COMMIT;
			PERFORM report('committed', us(clock_timestamp())::text);
		END IF;
	END LOOP;
END $$;
};

sub set_up_races
{
	my ($node) = @_;

	$node->safe_psql('postgres', $functions);
	return;
}

# --- a round ------------------------------------------------------------------

# Run the given number of sessions for some seconds; returns their calls and
# errors.
sub run_round
{
	my ($node, $seed, $sessions, $seconds, @resources) = @_;
	my @runs;
	my @calls;
	my $errors = '';

	$node->safe_psql('postgres', 'TRUNCATE lease_lock');
	foreach my $me (1 .. $sessions)
	{
		# To a file: if its reports were not read, a session would block in the
		# middle of a transaction.
		my $run = { report => PostgreSQL::Test::Utils::tempdir_short() . "/$me" };
		my $sql = "CALL play('s$me', " . (($seed * 7 + $me) % 1000) / 1000 . ", '{" . join(',', @resources) . "}', $seconds)";

		$run->{handle} = IPC::Run::start(
			[ 'psql', '-X', '-q', '-v', 'VERBOSITY=terse', '-d', $node->connstr('postgres'), '-c', $sql ],
			'<', \undef, '>', '/dev/null', '2>', $run->{report});
		push @runs, $run;
	}
	foreach my $me (1 .. $sessions)
	{
		my $run = $runs[ $me - 1 ];

		$run->{handle}->finish;
		my $report = slurp_file($run->{report});
		$errors .= join '', grep { !/^INFO:/ } split /^/, $report;
		push @calls, read_session($me, $report);
	}
	return (\@calls, $errors);
}

# Read the report of a session: its calls, and how they ended.
#
# A call is open from its begin until its transaction, or the savepoint before
# it, has certainly ended (gone_at), and at least until that end began
# (open_until). It is final if it was committed.
sub read_session
{
	my ($me, $report) = @_;
	my (@calls, @open, @in_savepoint, $saved);
	my @columns = ('what', 'resource', 'owner', 't0', 't1', 'ok', 'token', 'mode', 'permits', 'slot', 'until', 'ttl', 'keep', 'old_token');

	foreach (split /\n/, $report)
	{
		next unless s/^INFO:  //;
		my ($kind, @values) = split /\|/, $_, -1;

		if ($kind eq 'call')
		{
			my %call = (session => $me, number => scalar @calls);

			@call{@columns} = @values;
			$call{ok} = $call{ok} eq 'true';
			push @calls, \%call;
			push @{ $saved ? \@in_savepoint : \@open }, \%call;
		}
		elsif ($kind eq 'savepoint')
		{
			$saved = 1;
		}
		elsif ($kind eq 'undo')
		{
			$_->{open_until} = $values[0] foreach @in_savepoint;
		}
		elsif ($kind eq 'undone')
		{
			$_->{gone_at} = $values[0] foreach @in_savepoint;
			$_->{undone} = 1 foreach @in_savepoint;
			@in_savepoint = ();
			$saved = 0;
		}
		elsif ($kind eq 'end')
		{
			$_->{open_until} = $values[0] foreach @open;
		}
		else
		{
			foreach (@open)
			{
				$_->{gone_at} = $values[0];
				$_->{final} = 1 if $kind eq 'committed';
			}
			@open = ();
		}
	}
	return @calls;
}

# --- leases -------------------------------------------------------------------

my $never = 9e18;

# Did this call certainly end the lease? It may have released one of several
# holds, or the lease may have been granted after the break of the others on the
# resource.
sub surely_ended
{
	my ($lease, $call) = @_;

	return 0 if $call->{what} eq 'release_all' || $call->{what} eq 'release' && $lease->{again};
	return $call->{what} ne 'break' || $lease->{t1} < $call->{t0};
}

# The leases that the calls report, in the order of their tokens, each with the
# calls that extended, asserted and ended it.
sub find_leases
{
	my ($calls) = @_;
	my %lease;

	foreach my $call (sort { $a->{t1} <=> $b->{t1} } grep { $_->{ok} && ($_->{what} eq 'get' || $_->{what} eq 'transfer') } @$calls)
	{
		my $token = $call->{token};

		if ($call->{what} eq 'get' && $lease{$token})
		{
			# acquired again: a release may be only one of several
			push @{ $lease{$token}{extended} }, $call;
			$lease{$token}{again} = 1;
			$lease{$token}{keep} = $never if $call->{keep} ne '';
			next;
		}
		my $from = $call->{what} eq 'transfer' ? $lease{ $call->{old_token} } : undef;

		$lease{$token} = {
			%$call,
			grant => $call,
			mode => $from ? $from->{mode} : $call->{mode},
			keep => $from ? $never : $call->{keep} || 0,
			from => $from,
			granted_at => $from ? $call->{t0} : $call->{until} - $call->{ttl},
			latest_grant => $from ? $call->{t1} : $call->{until} - $call->{ttl},
			extended => $from ? [] : [$call],
			asserted => [],
			ended => []
		};
	}
	foreach my $call (@$calls)
	{
		my $lease = $call->{what} =~ /^(release|renew|assert)$/ && $lease{ $call->{token} };

		next unless $call->{ok};
		push @{ $lease->{ended} }, $call if $lease && $call->{what} eq 'release';
		push @{ $lease->{asserted} }, $call if $lease && $call->{what} eq 'assert';
		push @{ $lease->{extended} }, { %$call, until => $call->{t1} + $call->{ttl} } if $lease && $call->{what} eq 'renew';
		push @{ $lease{ $call->{old_token} }{ended} }, $call if $call->{what} eq 'transfer';
		if ($call->{what} eq 'break' || $call->{what} eq 'release_all')
		{
			foreach (values %lease)
			{
				push @{ $_->{ended} }, $call
				  if $_->{t0} < $call->{t1} && ($call->{what} eq 'break' ? $_->{resource} eq $call->{resource} : $_->{owner} eq $call->{owner});
			}
		}
	}

	# A renewal was written somewhere between the begin and the end of its call.
	my @leases = sort { $a->{token} <=> $b->{token} } values %lease;
	foreach my $l (@leases)
	{
		my @final = grep { $_->{final} } @{ $l->{ended} };
		my @until = map { $_->{what} eq 'renew' ? $_->{t0} + $_->{ttl} : $_->{until} } grep { $_->{final} } @{ $l->{extended} };
		my @late = map { $_->{until} } @{ $l->{extended} };

		for (my $from = $l->{from}; $from; $from = $from->{from})
		{
			push @until, map { $_->{what} eq 'renew' ? $_->{t0} + $_->{ttl} : $_->{until} } grep { $_->{final} } @{ $from->{extended} };
			push @late, map { $_->{until} } @{ $from->{extended} };
		}
		# held until then at least, and keeps others out until then at most
		$l->{held_until} = min(max(0, @until), map { $_->{t0} } @final);
		$l->{taken_until} = min(max(0, @until), map { $_->{t0} } @final);
		$l->{free_by} = max(0, @late);
		$l->{free_by} = min($l->{free_by}, map { $l->{keep} ? max($_->{gone_at}, min($l->{keep} + $l->{t1}, $l->{free_by})) : $_->{gone_at} }
			grep { surely_ended($l, $_) } @final);
		$l->{free_by} = max($l->{free_by}, map { $_->{gone_at} } @{ $l->{extended} }, @{ $l->{asserted} }, @{ $l->{ended} }, $l->{grant});
	}
	return @leases;
}

# --- what they have in common -------------------------------------------------

my $problems;

sub show
{
	my ($c) = @_;
	my $base = $problems->{base};

	return sprintf '%s%s %s by s%d/%s token %s at %.3f..%.3f ms, %s open until %.3f', $c->{what}, $c->{mode} ? " $c->{mode}$c->{permits}" : '',
	  $c->{resource}, $c->{session}, $c->{owner}, $c->{token}, ($c->{t0} - $base) / 1000, ($c->{t1} - $base) / 1000,
	  ($c->{ok} ? 'yes' : 'no') . ($c->{final} ? '' : $c->{undone} ? ' (undone)' : ' (rolled back)'), ($c->{open_until} - $base) / 1000;
}

sub violation
{
	my ($what, @calls) = @_;

	push @{ $problems->{found} }, join "\n    ", $what, map { show($_) } @calls;
	return;
}

# Do two leases exclude each other?
sub exclude
{
	my ($x, $y) = @_;

	return $x->{mode} eq 'exclusive' || $y->{mode} eq 'exclusive';
}

# Was the first granted in place of the second?
sub replaces
{
	my ($new, $old) = @_;

	return 0 if ($new->{from} // 0) == $old;
	return exclude($new, $old) || $new->{slot} ne '' && $new->{slot} eq $old->{slot};
}

# May the first have been granted in place of the second?
sub may_replace
{
	my ($new, $old) = @_;

	return exclude($new, $old) || $new->{slot} eq '' || $old->{slot} eq '' || $new->{slot} eq $old->{slot};
}

# The smallest number of lease slots that the leases can take beside a new one.
# If one transaction ended a lease and was granted another in its place, the two
# share a slot, which only some reports name.
sub fewest_slots
{
	my ($new, @leases) = @_;
	my @held = grep { $_->{final} && $_->{taken_until} > $new->{latest_grant} } @leases;
	my %named = map { $_->{slot} => 1 } grep { $_->{slot} ne '' } @leases;

	return max(scalar @held, scalar keys %named);
}

# Check a new lease against the leases that were there when it was granted.
sub check_grant
{
	my ($new, @before) = @_;
	my @beside;

	foreach my $old (@before)
	{
		my $same_session = $old->{session} == $new->{session};
		my $meets;

		next if ($new->{from} // 0) == $old;
		# A transaction sees its own changes, even if they are rolled back
		# later.
		next if $same_session && !($new->{final} && $old->{final});
		$meets = $old->{final} && $old->{taken_until} > $new->{latest_grant}
		  || !$same_session && $old->{open_until} > $new->{t1};
		# Ended by a transaction that was rolled back, or by its own: other
		# checks cover this.
		next if !$new->{final} && grep { $_->{session} == $new->{session} } @{ $old->{ended} };

		violation('two leases that exclude each other', $old, $new) if $meets && exclude($old, $new);
		violation('two leases of one owner', $old, $new)
		  if $old->{final} && $new->{final} && $old->{owner} eq $new->{owner} && $old->{held_until} > $new->{latest_grant};
		push @beside, $old if $meets;
	}
	violation("one permit of $new->{permits} too many", $new, @beside)
	  if $new->{what} eq 'get' && $new->{mode} eq 'permit' && fewest_slots($new, @beside) >= $new->{permits};
	return;
}

# Check that no call with the old lease succeeded after the new one was granted
# in its place.
sub check_lost
{
	my ($new, $old) = @_;

	return unless replaces($new, $old);
	foreach my $call (grep { $_->{session} == $old->{session} } @{ $old->{ended} }, @{ $old->{extended} })
	{
		next if $call->{what} =~ /^(release_all|break)$/ || $call == $old->{grant};
		violation("$call->{what} of a lease that was lost", $old, $new, $call)
		  if $new->{final} && $call->{t1} >= $new->{t1} && $call->{t1} > $old->{t1};
	}
	return if $new->{session} == $old->{session};
	# A transaction that was rolled back may have broken the lease before it
	# took its place.
	return if !$new->{final} && grep { $_->{session} == $new->{session} } @{ $old->{ended} };
	foreach my $call (@{ $old->{asserted} })
	{
		violation('an asserted lease was lost', $old, $call, $new) if $call->{open_until} > $new->{t1};
	}
	return;
}

# Does a later call of the session still see the effect of this one?
sub sees
{
	my ($later, $call) = @_;

	return $call->{final} || $call->{gone_at} > $later->{t0};
}

# Check that a release returned false only if the lease was ended or replaced.
sub check_refused_release
{
	my ($call, $lease, $later, $all) = @_;

	return if !$lease || !sees($call, $lease->{grant});
	return if grep { $_->{t0} < $call->{t1} && ($_->{session} != $call->{session} ? $_->{final} : sees($call, $_)) } @{ $lease->{ended} };
	return if grep { $_->{t0} < $call->{t1} && may_replace($_, $lease) && ($_->{final} || $_->{session} == $call->{session}) } @$later;
	return if grep { $_->{what} eq 'purge' && $_->{ok} && $_->{t0} < $call->{t1} && $_->{t1} > $lease->{held_until} &&
		  ($_->{final} || $_->{session} == $call->{session}) } @$all;
	violation('a release answers false, although nobody took the lease over', $lease, $call);
	return;
}

my %writes = map { $_ => 1 } 'get', 'release', 'release_all', 'renew', 'assert', 'transfer', 'break', 'purge';

# Check that a request was refused only if there was, or may have been, an
# obstacle.
sub check_refusal
{
	my ($call, $leases, $all) = @_;
	my @writers = grep {
		$_->{ok} && $_->{session} != $call->{session} && $_->{t0} <= $call->{t1} && $_->{gone_at} >= $call->{t0} &&
		  ($_->{resource} eq $call->{resource} || $_->{what} eq 'purge' || $_->{what} eq 'release_all')
	} @$all;
	my @holders = grep { $_->{t0} <= $call->{t1} && $_->{free_by} >= $call->{t0} } @$leases;
	my $only_shared = $call->{resource} =~ /^[rp]/;

	return if grep { $_->{owner} eq $call->{owner} } @holders;
	if ($call->{mode} eq 'exclusive')
	{
		return if @writers || @holders;
	}
	else
	{
		# A transaction that takes over an expired exclusive lease keeps others
		# out until it ends.
		return if !$only_shared && (@writers || grep { $_->{mode} eq 'exclusive' } @holders);
		return if $call->{mode} eq 'permit' && @writers + @holders >= $call->{permits};
	}
	violation('refused, although nothing was in the way', $call, sort { $a->{t0} <=> $b->{t0} }
		grep { $_->{ok} && $_->{t0} < $call->{t1} && $_->{gone_at} > $call->{t0} - 30_000 && $_->{resource} eq $call->{resource} } @$all);
	return;
}

# Describe the violations that the calls of a round show.
sub violations
{
	my ($calls) = @_;
	my %by_resource;
	my %lease;

	$problems = { found => [], base => min(map { $_->{t0} } @$calls) };
	push @{ $by_resource{ $_->{resource} } }, $_ foreach find_leases($calls);
	foreach my $leases (values %by_resource)
	{
		foreach my $i (0 .. $#$leases)
		{
			$lease{ $leases->[$i]{token} } = { lease => $leases->[$i], later => [ @$leases[ $i + 1 .. $#$leases ] ] };
			check_grant($leases->[$i], @$leases[ 0 .. $i - 1 ]);
			check_lost($leases->[$i], $_) foreach @$leases[ 0 .. $i - 1 ];
		}
	}
	foreach my $call (@$calls)
	{
		next if $call->{ok};
		check_refusal($call, $by_resource{ $call->{resource} } // [], $calls) if $call->{what} eq 'get';
		check_refused_release($call, $lease{ $call->{token} }{lease}, $lease{ $call->{token} }{later}, $calls) if $call->{what} eq 'release';
	}
	return @{ $problems->{found} };
}

1;
