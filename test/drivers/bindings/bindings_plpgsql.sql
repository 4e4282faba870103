-- The calls of the table of drivers in docs/drivers.md, by PL/pgSQL: variables
-- with types. CALL needs a variable for each result.
\set QUIET on
\pset tuples_only on
\pset format unaligned
SHOW server_version;
DO $$
DECLARE
	names text[] := '{a,b}';
	ttl interval := '1 hour';
	owner text := 'o';
	held_token bigint;
	acquired boolean;
	token bigint;
	expires_at timestamptz;
BEGIN
	RAISE INFO E'list\t%\t%', names, lease_renew_several(names, ttl, owner);
	held_token := lease_token('a', owner);
	RAISE INFO E'token\tbigint %\t%', held_token, lease_assert_token('a', held_token);
	CALL lease_wait('w', '1 minute', owner, '10 s', acquired, token, expires_at);
	RAISE INFO E'wait\tCALL lease_wait(r, t, o, w, acquired, token, expires_at)\t% % %', acquired, token, expires_at;
	BEGIN
		PERFORM lease_assert('free', owner);
	EXCEPTION WHEN object_not_in_prerequisite_state THEN
		RAISE INFO E'lost\tPERFORM lease_assert(r, o)\tobject_not_in_prerequisite_state %', SQLSTATE;
	END;
	BEGIN
		PERFORM lease_release('busy', owner);
	EXCEPTION WHEN lock_not_available THEN
		RAISE INFO E'timeout\tPERFORM lease_release(r, o)\tlock_not_available %', SQLSTATE;
	END;
END $$;
