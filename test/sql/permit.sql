-- Permits: at most a given number of owners at a time.

\getenv source PG_ABS_SRCDIR
\set helpers :source '/sql/include/error_of.sql'
\i :helpers

-- three of them
SELECT o, lease_acquire_permit('api', 3, '1 hour', o) FROM unnest(ARRAY['ann', 'bob', 'carl', 'dora']) AS o;
SELECT owner, mode, slot BETWEEN 1 AND 3 AS slot, state FROM lease_status ORDER BY owner;
-- one is released, one is acquired; never two by the same owner
SELECT lease_release('api', 'bob'), lease_acquire_permit('api', 3, '1 hour', 'ann'), lease_acquire_permit('api', 3, '1 hour', 'dora'), lease_acquire_permit('api', 3, '1 hour', 'bob');
-- not beside an exclusive lease, and an exclusive lease not beside them
SELECT lease_acquire('api', '1 hour', 'eve');
SELECT lease_release_all(o) FROM unnest(ARRAY['ann', 'carl', 'dora']) AS o;
SELECT lease_acquire('api', '1 hour', 'eve'), lease_acquire_permit('api', 3, '1 hour', 'ann'), lease_release('api', 'eve');

-- callers may state different numbers: each is compared with all permits that are held
SELECT o, lease_acquire_permit('api', 5, '1 hour', o) FROM unnest(ARRAY['a', 'b', 'c', 'd']) AS o;
SELECT lease_acquire_permit('api', 4, '1 hour', 'e') AS four, lease_acquire_permit('api', 3, '1 hour', 'e') AS three, lease_acquire_permit('api', 1, '1 hour', 'e') AS one;
SELECT lease_release('api', 'a'), lease_acquire_permit('api', 3, '1 hour', 'e') AS three, lease_acquire_permit('api', 4, '1 hour', 'e') AS four;
SELECT lease_acquire_permit('api', 5, '1 hour', 'f') AS five, lease_acquire_permit('api', 5, '1 hour', 'g') AS sixth;
SELECT count(*), max(slot) <= 5 AS in_range FROM lease_status;
-- permits in slots above the number count as well
TRUNCATE lease_lock;
SELECT count(*) FROM generate_series(1, 20) AS i WHERE lease_acquire_permit('wide', 20, '1 hour', 'o' || i);
SELECT count(lease_release('wide', owner)) FROM (SELECT owner FROM lease_status WHERE slot <= 10 OFFSET 0) AS s;
SELECT lease_acquire_permit('wide', 10, '1 hour', 'x') AS ten, lease_acquire_permit('wide', 11, '1 hour', 'x') AS eleven, lease_acquire_permit('wide', 11, '1 hour', 'y') AS twelfth;
-- readers count too
SELECT lease_acquire_shared('mixed', '1 hour', 'a'), lease_acquire_permit('mixed', 1, '1 hour', 'b') AS one, lease_acquire_permit('mixed', 2, '1 hour', 'b') AS two,
	lease_acquire_shared('mixed', '1 hour', 'c'), lease_acquire_permit('mixed', 3, '1 hour', 'd') AS three;
SELECT owner, mode FROM lease_status WHERE resource = 'mixed' ORDER BY owner;

-- an expired permit makes room; its owner can release it until it is taken over, and not afterwards
TRUNCATE lease_lock;
SELECT lease_acquire_permit('one', 1, '1 hour', 'ann');
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE slot > 0;
SELECT lease_renew('one', '1 hour', 'ann') AS renewed, lease_token('one', 'ann') AS token;
SELECT lease_acquire_permit('one', 1, '1 hour', 'bob'), lease_release('one', 'ann') AS not_anns;
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE slot > 0;
SELECT lease_release('one', 'bob'), lease_acquire_permit('one', 1, '1 hour', 'ann');
SELECT count(*) FROM lease_lock WHERE slot > 0;

-- renewed, with the same token
SELECT lease_token('one', 'ann') AS before \gset
SELECT lease_renew('one', '2 hours', 'ann'), lease_token('one', 'ann') = :before AS same_token;

-- the numbers that are allowed
SELECT lease_acquire_permit('most', 32767, '1 hour', 'ann'), lease_acquire_permit('least', 1, '1 hour', 'ann');
SELECT count(*) FROM generate_series(1, 300) AS i WHERE lease_acquire_permit('many', 200, '1 hour', 'o' || i);
SELECT count(*), count(DISTINCT slot), min(slot), max(slot) FROM lease_status WHERE resource = 'many';

\pset expanded on
\pset null '(null)'
SELECT * FROM error_of($$ SELECT lease_acquire_permit('api', 0, '1 hour', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire_permit('api', -1, '1 hour', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire_permit('api', 32768, '1 hour', 'ann') $$);
SELECT * FROM error_of($$ SELECT lease_acquire_permit('api', NULL, '1 hour', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_permit(NULL, 1, '1 hour', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_permit('api', 1, NULL, 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_permit('api', 1, '1 hour', NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_permit('', 1, '1 hour', 'ann', NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_permit('api', 1, '0', 'ann', '1 hour') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_permit('api', 1, '1 hour', 'ann', '-1 s') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_shared(NULL, '1 hour', 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_shared('doc', NULL, 'ann') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_shared('doc', '1 hour', NULL) $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_shared('doc', '1 hour', repeat('x', 1025), '1 hour') $$);
SELECT code, message FROM error_of($$ SELECT lease_acquire_shared('doc', '1 hour', 'ann', '-1 s') $$);
\pset expanded off

-- with a wait: at once when there is one, false when there is none in time
SELECT lease_acquire_permit('quick', 1, '1 hour', 'ann', '1 hour'), lease_acquire_shared('quick s', '1 hour', 'ann', NULL);
SELECT clock_timestamp() AS began \gset
SELECT lease_acquire_permit('quick', 1, '1 hour', 'bob', '50 ms'), lease_acquire('quick s', '1 hour', 'bob', '50 ms');
SELECT clock_timestamp() - :'began' BETWEEN '100 ms' AND '50 seconds' AS in_time;
-- the permit that ends first is the one to wait for
TRUNCATE lease_lock;
SELECT lease_acquire_permit('ends', 2, '1 hour', 'ann'), lease_acquire_permit('ends', 2, '100 ms', 'bob');
SELECT lease_acquire_permit('ends', 2, '1 hour', 'carl', '1 minute');
SELECT owner FROM lease_status ORDER BY owner;
-- an exclusive request waits for the last of the permits
TRUNCATE lease_lock;
SELECT lease_acquire_shared('ends', '150 ms', 'ann'), lease_acquire_shared('ends', '50 ms', 'bob');
SELECT max(expires_at) AS ends FROM lease_status \gset
SELECT lease_acquire('ends', '1 hour', 'carl', '1 minute');
SELECT granted_at BETWEEN :'ends'::timestamptz AND :'ends'::timestamptz + interval '50 seconds' AS in_time FROM lease_status WHERE owner = 'carl';
-- an expired permit is taken over if there is no room for both, although another row is free
TRUNCATE lease_lock;
SELECT lease_acquire_permit('both', 3, '1 hour', 'ann'), lease_acquire_permit('both', 3, '1 hour', 'carl'), lease_acquire_permit('both', 3, '1 ms', 'bob');
SELECT lease_release('both', 'carl'), pg_sleep(0.005)::text;
SELECT lease_acquire_permit('both', 2, '1 hour', 'dora');
SELECT lease_release('both', 'bob');

TRUNCATE lease_lock;
