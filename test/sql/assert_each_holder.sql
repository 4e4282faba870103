-- A transaction may assert several leases on one resource. Each stays asserted until
-- the transaction ends, even if it expires, and whatever the transaction does with the
-- others. A lease that the transaction itself ends is lost.

SET lease_lock.purge_after = 0;

CREATE PROCEDURE expire(who text) LANGUAGE sql AS
	$$ UPDATE lease_lock SET expires_at = '2000-01-01' WHERE owner = who $$;
CREATE FUNCTION still_asserted(who text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN lease_assert('r', who) IS NOT NULL;
EXCEPTION WHEN object_not_in_prerequisite_state THEN
	RETURN false;
END $$;

SELECT lease_acquire_shared('r', '1 hour', who) FROM unnest('{a,b,c}'::text[]) AS who;

-- by owner and by token
BEGIN;
SELECT lease_token('r', 'a') AS a, lease_token('r', 'b') AS b \gset
SELECT lease_assert('r', 'a') = :a AS a, lease_assert_token('r', :b) = :b AS b;
CALL expire('a');
CALL expire('b');
SELECT lease_assert('r', 'a') = :a AS a, lease_assert_token('r', :a) = :a AS a_by_token,
	lease_assert('r', 'b') = :b AS b, lease_assert_token('r', :b) = :b AS b_by_token;
-- a lease that was not asserted can be lost
CALL expire('c');
SELECT still_asserted('c') AS c;
ROLLBACK;

-- another lease is granted, transferred, released
BEGIN;
SELECT lease_assert('r', 'a') IS NOT NULL AS a;
SELECT lease_acquire_shared('r', '1 hour', 'd');
SELECT lease_assert('r', 'd') IS NOT NULL AS d;
CALL expire('a');
SELECT lease_transfer('r', 'd', 'e') IS NOT NULL AS handed_over;
SELECT still_asserted('a') AS a, still_asserted('d') AS d, still_asserted('e') AS e;
SELECT lease_release('r', 'e');
SELECT still_asserted('a') AS a, still_asserted('e') AS e;
-- now this lease
SELECT lease_release('r', 'a');
SELECT still_asserted('a') AS a;
ROLLBACK;

-- a rollback to a savepoint ends one assertion, the other stays
BEGIN;
SELECT lease_assert('r', 'a') IS NOT NULL AS a;
SAVEPOINT s;
SELECT lease_assert('r', 'b') IS NOT NULL AS b;
ROLLBACK TO s;
CALL expire('a');
CALL expire('b');
SELECT still_asserted('a') AS a, still_asserted('b') AS b;
ROLLBACK;

-- the transaction grants the slot of an expired lease to another owner
BEGIN;
SELECT lease_assert('r', 'a') IS NOT NULL AS a;
CALL expire('a');
SELECT lease_acquire_shared('r', '1 hour', 'd');
SELECT still_asserted('a') AS a, still_asserted('d') AS d;
ROLLBACK;

-- the transaction acquires the exclusive lease: no assertion is left
BEGIN;
SELECT lease_assert('r', who) IS NOT NULL AS asserted FROM unnest('{a,b,c}'::text[]) AS who;
UPDATE lease_lock SET expires_at = '2000-01-01' WHERE owner IS NOT NULL;
SELECT lease_acquire('r', '1 hour', 'x');
SELECT still_asserted('a') AS a, still_asserted('b') AS b, still_asserted('c') AS c, still_asserted('x') AS x;
-- and back
CALL expire('x');
SELECT lease_acquire_shared('r', '1 hour', 'y');
SELECT still_asserted('x') AS x, still_asserted('y') AS y;
ROLLBACK;

-- all of them are broken, or purged
BEGIN;
SELECT lease_assert('r', who) IS NOT NULL AS asserted FROM unnest('{a,b,c}'::text[]) AS who;
SELECT lease_break('r');
SELECT still_asserted('a') AS a, still_asserted('b') AS b, still_asserted('c') AS c;
ROLLBACK;
BEGIN;
SELECT lease_assert('r', who) IS NOT NULL AS asserted FROM unnest('{a,b,c}'::text[]) AS who;
CALL expire('b');
SELECT lease_purge() > 0 AS purged;
CALL expire('a');
SELECT still_asserted('a') AS a, still_asserted('b') AS b;
ROLLBACK;

DROP PROCEDURE expire;
DROP FUNCTION still_asserted;
TRUNCATE lease_lock;
