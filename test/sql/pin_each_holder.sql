-- A transaction may rely on several leases on one resource. Each stays pinned
-- until the transaction ends, whatever it does with the others, even when its
-- time runs out; what it ends itself is lost.

SET lease_lock.purge_after = 0;

CREATE PROCEDURE expire(who text) LANGUAGE sql AS
	$$ UPDATE lease_lock SET expires_at = '2000-01-01' WHERE owner = who $$;
CREATE FUNCTION still_pinned(who text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN lease_assert('r', who) IS NOT NULL;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END $$;

SELECT lease_acquire_shared('r', '1 hour', who) FROM unnest('{a,b,c}'::text[]) AS who;

-- by owner and by token
BEGIN;
SELECT lease_token('r', 'a') AS a, lease_token('r', 'b') AS b \gset
SELECT lease_assert('r', 'a') = :a AS a, lease_assert('r', :b) = :b AS b;
CALL expire('a');
CALL expire('b');
SELECT lease_assert('r', 'a') = :a AS a, lease_assert('r', :a) = :a AS a_by_token,
	lease_assert('r', 'b') = :b AS b, lease_assert('r', :b) = :b AS b_by_token;
-- never asserted, so not pinned
CALL expire('c');
SELECT still_pinned('c') AS c;
ROLLBACK;

-- another one is granted, handed over, released
BEGIN;
SELECT lease_assert('r', 'a') IS NOT NULL AS a;
SELECT lease_acquire_shared('r', '1 hour', 'd');
SELECT lease_assert('r', 'd') IS NOT NULL AS d;
CALL expire('a');
SELECT lease_transfer('r', 'd', 'e') IS NOT NULL AS handed_over;
SELECT still_pinned('a') AS a, still_pinned('d') AS d, still_pinned('e') AS e;
SELECT lease_release('r', 'e');
SELECT still_pinned('a') AS a, still_pinned('e') AS e;
-- now this one
SELECT lease_release('r', 'a');
SELECT still_pinned('a') AS a;
ROLLBACK;

-- one goes with its savepoint, the other stays
BEGIN;
SELECT lease_assert('r', 'a') IS NOT NULL AS a;
SAVEPOINT s;
SELECT lease_assert('r', 'b') IS NOT NULL AS b;
ROLLBACK TO s;
CALL expire('a');
CALL expire('b');
SELECT still_pinned('a') AS a, still_pinned('b') AS b;
ROLLBACK;

-- the own transaction gives the slot of an expired one to somebody else
BEGIN;
SELECT lease_assert('r', 'a') IS NOT NULL AS a;
CALL expire('a');
SELECT lease_acquire_shared('r', '1 hour', 'd');
SELECT still_pinned('a') AS a, still_pinned('d') AS d;
ROLLBACK;

-- the own transaction takes the resource for itself: nothing is left
BEGIN;
SELECT lease_assert('r', who) IS NOT NULL AS pinned FROM unnest('{a,b,c}'::text[]) AS who;
UPDATE lease_lock SET expires_at = '2000-01-01' WHERE owner IS NOT NULL;
SELECT lease_acquire('r', '1 hour', 'x');
SELECT still_pinned('a') AS a, still_pinned('b') AS b, still_pinned('c') AS c, still_pinned('x') AS x;
-- and back
CALL expire('x');
SELECT lease_acquire_shared('r', '1 hour', 'y');
SELECT still_pinned('x') AS x, still_pinned('y') AS y;
ROLLBACK;

-- all of them are broken, or purged
BEGIN;
SELECT lease_assert('r', who) IS NOT NULL AS pinned FROM unnest('{a,b,c}'::text[]) AS who;
SELECT lease_break('r');
SELECT still_pinned('a') AS a, still_pinned('b') AS b, still_pinned('c') AS c;
ROLLBACK;
BEGIN;
SELECT lease_assert('r', who) IS NOT NULL AS pinned FROM unnest('{a,b,c}'::text[]) AS who;
CALL expire('b');
SELECT lease_purge() > 0 AS purged;
CALL expire('a');
SELECT still_pinned('a') AS a, still_pinned('b') AS b;
ROLLBACK;

DROP PROCEDURE expire;
DROP FUNCTION still_pinned;
SELECT lease_break('r') AS broken, lease_purge() > 0 AS purged;
