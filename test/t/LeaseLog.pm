# Many sessions make all kinds of calls on a few resources, and log them in the
# same transactions. So the log does not contain what was rolled back, and what
# it contains must keep the promises, in whatever order the calls ran.
package LeaseLog;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(set_up_log run_sessions check_log);

# Everything that the sessions do.
my @outcomes = (qw(all any break downgrade exclusive extend permit purge shared shorten), 'give', 'give all', 'hand over');

my $functions = q{
-- Leases, and how they ended. The time until which a lease keeps others out
-- comes from the lock table, so that the log depends on no clock but lease
-- time.
CREATE TABLE granted (token bigint PRIMARY KEY, resource text, slot int, mode "char", permits int, owner text,
	granted_at timestamptz, expires_at timestamptz, transferred boolean);
CREATE TABLE extended (n bigint GENERATED ALWAYS AS IDENTITY, token bigint, expires_at timestamptz);	-- or shortened
CREATE TABLE ended (token bigint PRIMARY KEY, given_back_at timestamptz, free_at timestamptz);
CREATE TABLE tried (what text, done boolean);

CREATE FUNCTION note_granted(resources text[], o text, permits int, transferred boolean DEFAULT false) RETURNS void
LANGUAGE sql AS $$
	INSERT INTO granted SELECT token, resource, slot, mode, CASE mode WHEN 'p' THEN permits END, owner, granted_at, expires_at,
		transferred
	FROM lease_lock WHERE resource = ANY (resources) AND owner = o AND xid = pg_current_xact_id()
	ON CONFLICT DO NOTHING;
$$;

-- Two transactions that write the same lease write it, and log it, in the same order.
CREATE FUNCTION note_extended(r text, o text) RETURNS void LANGUAGE sql AS $$
	INSERT INTO extended (token, expires_at) SELECT token, expires_at FROM lease_lock
	WHERE resource = r AND owner = o AND xmin = pg_current_xact_id()::xid;
$$;

-- Leases that our transaction released; others can have them after the commit.
-- Without a resource: on all resources.
CREATE FUNCTION note_ended(r text, given_back_at timestamptz) RETURNS void LANGUAGE sql AS $$
	INSERT INTO ended SELECT token, given_back_at, expires_at FROM lease_lock
	WHERE (r IS NULL OR resource = r) AND owner IS NULL AND xmin = pg_current_xact_id()::xid
	ON CONFLICT (token) DO UPDATE SET free_at = EXCLUDED.free_at;	-- was kept, and then broken
$$;

-- The number of exclusive leases that our transaction was granted.
CREATE FUNCTION own_grants(resources text[], o text) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM lease_lock
	WHERE resource = ANY (resources) AND slot = 0 AND owner = o AND xid = pg_current_xact_id();
$$;

CREATE FUNCTION one_of(VARIADIC list text[]) RETURNS text LANGUAGE sql AS $$
	SELECT list[1 + floor(random() * cardinality(list))::int];
$$;

-- Some resources are always the same. Others are new, and new to all sessions
-- at the same time.
CREATE FUNCTION some_resource(kind text) RETURNS text LANGUAGE sql AS $$
	SELECT kind || CASE WHEN random() < current_setting('test.new')::float8
		THEN '.' || floor(extract(epoch FROM clock_timestamp()) * 50) ELSE '' END;
$$;

-- Make one call on some resource. Its kind decides which leases it has: only
-- exclusive ones; shared; 2 permits; everything.
CREATE FUNCTION act(wait interval) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	kind text := one_of('only', 'shared', 'permits', 'mixed');
	r text := some_resource(kind);
	o text := one_of('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j');
	ttl interval := CASE WHEN random() < 0.3 THEN interval '1 h' ELSE random() * interval '4 ms' END + interval '1 us';
	what text := one_of('get', 'get', 'get', 'get', 'get', 'get', 'get', 'all', 'any', 'give', 'give', 'give', 'give', 'give all',
		'extend', 'shorten', 'downgrade', 'hand over', 'break', 'purge');
	mode text := CASE kind
		WHEN 'only' THEN 'exclusive'
		WHEN 'shared' THEN one_of('shared', 'shared', 'shared', 'exclusive')
		WHEN 'permits' THEN one_of('permit', 'permit', 'permit', 'exclusive')
		ELSE one_of('shared', 'permit', 'permit', 'exclusive') END;
	permits int := CASE WHEN mode = 'permit' THEN CASE kind WHEN 'permits' THEN 2 ELSE 1 + floor(random() * 4) END END;
	resources text[];
	got text;
	done boolean;
	token bigint;
	before bigint;
	begun timestamptz;
BEGIN
	IF what NOT IN ('get', 'all', 'any') THEN
		-- choose a lease that somebody has, as far as we know
		SELECT l.owner, l.resource, CASE l.mode WHEN 's' THEN 'shared' ELSE 'exclusive' END INTO o, r, mode
			FROM lease_lock AS l WHERE owner IS NOT NULL AND (l.resource = kind OR random() < 0.2) ORDER BY random() LIMIT 1;
		IF NOT FOUND THEN
			RETURN;
		END IF;
	END IF;

	begun := clock_timestamp();
	CASE what
	WHEN 'get' THEN
		IF random() < 0.5 THEN
			done := CASE mode WHEN 'exclusive' THEN lease_acquire(r, ttl, o, wait)
				WHEN 'shared' THEN lease_acquire_shared(r, ttl, o, wait)
				ELSE lease_acquire_permit(r, permits, ttl, o, wait) END;
		ELSE
			SELECT q.granted, q.token INTO done, token
				FROM lease_request(r, ttl, o, wait, mode, permits, if_own => CASE WHEN random() < 0.5 THEN 'count' ELSE 'refuse' END,
					min_hold => CASE WHEN random() < 0.2 THEN interval '2 ms' END) AS q;
			IF done THEN
				PERFORM note_extended(r, o);
			END IF;
		END IF;
		what := mode;
		IF done THEN
			PERFORM note_granted(ARRAY[r], o, permits);
		END IF;
	WHEN 'all' THEN
		resources := ARRAY[some_resource('mixed'), some_resource('only'), some_resource('shared')];
		before := own_grants(resources, o);
		done := lease_acquire_all(resources, ttl, o, wait);
		IF own_grants(resources, o) <> (CASE WHEN done THEN 3 ELSE before END) THEN
			RAISE EXCEPTION 'neither all nor none';
		END IF;
		PERFORM note_granted(resources, o, NULL);
	WHEN 'any' THEN
		resources := ARRAY[some_resource('permits'), some_resource('only'), some_resource('shared')];
		before := own_grants(resources, o);
		got := lease_acquire_any(resources, ttl, o, wait);
		done := got IS NOT NULL;
		IF own_grants(resources, o) - before NOT IN (0, done::int) OR done AND own_grants(ARRAY[got], o) <> 1 THEN
			RAISE EXCEPTION 'any of them is not one of them';
		END IF;
		PERFORM note_granted(ARRAY[got], o, NULL);
	WHEN 'give' THEN
		done := lease_release(r, o);
		PERFORM note_ended(r, begun);
	WHEN 'give all' THEN
		done := lease_release_all(o) > 0;
		PERFORM note_ended(NULL, begun);
	WHEN 'break' THEN
		done := lease_break(r);
		PERFORM note_ended(r, begun);
	WHEN 'extend' THEN
		done := lease_renew(r, ttl, o);
		PERFORM note_extended(r, o);
	WHEN 'shorten' THEN	-- by chance; a lease that has expired meanwhile is granted again
		done := granted FROM lease_request(r, ttl, o, mode => mode, if_own => 'renew');
		PERFORM note_granted(ARRAY[r], o, NULL);
		PERFORM note_extended(r, o);
	WHEN 'downgrade' THEN
		done := lease_downgrade(r, o) IS NOT NULL;
		PERFORM note_ended(r, begun);
		PERFORM note_granted(ARRAY[r], o, NULL);
	WHEN 'hand over' THEN
		BEGIN
			done := lease_transfer(r, o, o || '!') IS NOT NULL;
			SELECT g.permits INTO permits FROM lease_lock AS l JOIN granted AS g USING (resource, slot)
				WHERE resource = r AND l.owner = o || '!' AND l.xid = pg_current_xact_id() AND g.token < l.token
				ORDER BY g.token DESC LIMIT 1;
		EXCEPTION WHEN object_in_use THEN
			done := false;		-- has one already
		END;
		PERFORM note_granted(ARRAY[r], o || '!', permits, true);
	WHEN 'purge' THEN
		done := lease_purge() > 0;
	END CASE;
	INSERT INTO tried VALUES (what, done);
END $$;

-- Make one or more calls in one transaction, which may take some milliseconds.
-- Some calls are rolled back.
CREATE FUNCTION step(wait interval) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. CASE WHEN random() < 0.7 THEN 1 ELSE 2 + floor(random() * 3)::int END LOOP
		IF random() < 0.1 THEN
			BEGIN
				PERFORM act(wait);
				RAISE SQLSTATE 'UNDO1';
			EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
				NULL;
			END;
		ELSE
			PERFORM act(wait);
		END IF;
		IF random() < 0.2 THEN
			PERFORM pg_sleep(random() * 0.004);
		END IF;
	END LOOP;
END $$;

-- From when to when a lease was held, and until when it kept others out. The
-- next lease in the same slot is the transferred one.
CREATE VIEW leases AS
WITH l AS (
	SELECT g.*, CASE WHEN lead(transferred) OVER w THEN lead(granted_at) OVER w END AS handed_over_at
	FROM granted AS g WINDOW w AS (PARTITION BY resource, slot ORDER BY token)
), e AS (
	SELECT DISTINCT ON (token) token, expires_at FROM extended ORDER BY token, n DESC
)
SELECT l.token, resource, slot, mode, permits, owner, granted_at,
	least(coalesce(e.expires_at, l.expires_at), given_back_at, handed_over_at) AS held_until,
	least(coalesce(free_at, e.expires_at, l.expires_at), handed_over_at) AS free_at
FROM l LEFT JOIN e USING (token) LEFT JOIN ended USING (token);

CREATE VIEW beside_exclusive AS
SELECT * FROM (
	SELECT *, max(free_at) OVER w AS others_until, max(free_at) FILTER (WHERE mode = 'x') OVER w AS exclusive_until
	FROM leases WINDOW w AS (PARTITION BY resource ORDER BY granted_at, token ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS l
WHERE granted_at < CASE mode WHEN 'x' THEN others_until ELSE exclusive_until END;

-- Callers that state a larger number of permits may get one as well. But of the
-- callers that state this number or a smaller one, there are never more than
-- that.
CREATE VIEW too_many AS
SELECT * FROM (
	SELECT resource, n, token, sum(change) OVER (PARTITION BY resource, n ORDER BY at, change, token) AS holders
	FROM generate_series(1, 4) AS n
		JOIN leases ON permits <= n
		CROSS JOIN LATERAL (VALUES (granted_at, 1), (greatest(free_at, granted_at), -1)) AS c (at, change)
	WHERE free_at > granted_at
) AS l
WHERE holders > n;

CREATE VIEW two_of_one_owner AS
SELECT * FROM (
	SELECT *, max(held_until) OVER w AS earlier_until
	FROM leases WINDOW w AS (PARTITION BY resource, owner ORDER BY granted_at, token ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS l
WHERE granted_at < earlier_until;

CREATE VIEW wrong_tokens AS
SELECT * FROM (
	SELECT *, max(token) OVER w AS any_token, max(token) FILTER (WHERE mode = 'x') OVER w AS exclusive_token
	FROM leases WINDOW w AS (PARTITION BY resource ORDER BY granted_at, token ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS l
WHERE token < CASE mode WHEN 'x' THEN any_token ELSE exclusive_token END;

-- Differences between the lock table and the log at the end.
CREATE VIEW not_as_logged AS
SELECT resource, token FROM lease_lock AS l
	FULL JOIN (SELECT * FROM leases WHERE held_until > clock_timestamp()) AS g USING (resource, slot, token, owner)
WHERE (l IS NULL OR g IS NULL) AND (l.owner IS NULL OR l.expires_at > clock_timestamp()) AND (g IS NOT NULL OR l.owner IS NOT NULL);
};

sub set_up_log
{
	my ($node) = @_;

	$node->safe_psql('postgres', $functions);
	return;
}

# Run 16 sessions for some seconds, and again, for longer, until everything was done. wait is the wait of each call. new is the
# part of calls on new resources, and undone the percentage of transactions that
# are rolled back. The victim of a deadlock tries again. One or two sessions
# keep the token sequence busy, which each grant uses between its last look and
# its write. So grants often stop there, and other sessions come in between.
sub run_sessions
{
	my ($node, $name, $seconds, %params) = @_;
	my $wait = $params{wait} // '0';
	my $new = $params{new} // 0.3;
	my $undone = $params{undone} // 10;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->safe_psql('postgres', 'TRUNCATE granted, extended, ended, tried, lease_lock');
	local $ENV{PGOPTIONS} = "$ENV{PGOPTIONS} -c test.new=$new";
	foreach my $round (1 .. 10)
	{
		unlink glob $node->basedir . '/{keep,undo,tokens}*';
		$node->pgbench('--no-vacuum --client=16 --jobs=2 --max-tries=1000 --time=' . $seconds * $round, 0,
			[qr/number of failed transactions: 0 /], [qr/^$/], $name, {
				'keep@' . (90 - $undone) => "SELECT step('$wait');",
				"undo\@$undone" => "BEGIN;\nSELECT step('$wait');\nROLLBACK;\n",
				'tokens@10' => "SELECT count(nextval('lease_token_seq')) FROM generate_series(1, 5000);",
			});
		last if $node->safe_psql('postgres', 'SELECT count(DISTINCT what) FROM tried WHERE done') == @outcomes;
	}
	return;
}

# Test that the log keeps the promises, and show some rows that break them.
sub check_log
{
	my ($node, $name) = @_;
	my %promises = (
		beside_exclusive => 'never anybody beside an exclusive lease',
		too_many => 'never more holders than permits',
		two_of_one_owner => 'never two leases of one owner on a resource',
		wrong_tokens => 'tokens grow before and after every exclusive lease',
		not_as_logged => 'the lock table says in the end what the log says',
	);
	my $counts = $node->safe_psql('postgres', q{SELECT string_agg(concat_ws(' ', what, n, 'of', of), ', ' ORDER BY what)
		FROM (SELECT what, count(*) FILTER (WHERE done) AS n, count(*) AS of FROM tried GROUP BY what) AS t});

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	note($counts // 'nothing');
	foreach (@outcomes)
	{
		like($counts, qr/(^|, )\Q$_\E [1-9]/, "$name: something was done: $_");
	}
	foreach my $view (sort keys %promises)
	{
		is($node->safe_psql('postgres', "SELECT count(*) FROM $view"), 0, "$name: $promises{$view}")
		  or diag($node->safe_psql('postgres', qq{
			WITH w AS (SELECT l.* FROM $view JOIN leases AS l USING (token) LIMIT 1)
			SELECT l.token, l.resource, l.slot, l.mode, l.permits, l.owner, l.granted_at, l.held_until, l.free_at, l.token = w.token AS wrong
			FROM leases AS l JOIN w USING (resource)
			WHERE l.granted_at BETWEEN w.granted_at - interval '100 ms' AND w.granted_at + interval '10 ms' ORDER BY l.granted_at}));
	}
	return;
}

1;
