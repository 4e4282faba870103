-- A client that counts the ttl from the time when it sent the request, plus
-- waited, never counts beyond the end of the lease.
CREATE FUNCTION count_from(call text, ttl interval, OUT granted boolean, OUT ends_in_time boolean) LANGUAGE plpgsql AS $$
DECLARE
	sent timestamptz := clock_timestamp();
	answer record;
BEGIN
	EXECUTE call INTO answer;
	granted := answer.granted;
	ends_in_time := sent + answer.waited + ttl <= answer.expires_at;
END $$;

SELECT * FROM count_from($$ SELECT * FROM lease_request('r', '1 hour', 'a') $$, '1 hour');
SELECT * FROM count_from($$ SELECT * FROM lease_request('r', '2 hours', 'a', if_own => 'renew') $$, '2 hours');
SELECT * FROM count_from($$ SELECT * FROM lease_request('r', '3 hours', 'a', if_own => 'count') $$, '3 hours');

-- what the call does after the grant does not count: here it writes to a slow index
CREATE FUNCTION slowly(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM pg_sleep(0.2); RETURN $1; END $$;
CREATE INDEX slow ON lease_lock (slowly(owner));
SELECT * FROM count_from($$ SELECT * FROM lease_request('slow', '1 hour', 'a') $$, '1 hour');
-- nor a wait before it: the lease ends after a second
SELECT lease_acquire('brief', '1 second', 'b');
SELECT * FROM count_from($$ SELECT * FROM lease_request('brief', '1 hour', 'a', '1 minute') $$, '1 hour');
-- a refusal tells how long the call took
SELECT granted, waited >= '0.1 seconds' AS waited FROM lease_request('brief', '1 hour', 'c', '0.1 seconds');

DROP INDEX slow;
DROP FUNCTION slowly, count_from;
TRUNCATE lease_lock;
