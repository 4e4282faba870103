-- Clients that lease, and write down what they hold: what contrib/plproxy/demo and the tests count. For a router's
-- database; the clock of its server is the only one that counts.

CREATE EXTENSION IF NOT EXISTS dblink;
CREATE SCHEMA lease_demo;
CREATE TABLE lease_demo.held (resource text NOT NULL, token bigint NOT NULL, client text NOT NULL,
	got timestamptz NOT NULL, done timestamptz, PRIMARY KEY (resource, token));
CREATE TABLE lease_demo.errors (partition integer NOT NULL, client text NOT NULL, message text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());

-- A call of lease_token's kind: through the router, or straight to the partition, as a client does that hashes by itself.
CREATE FUNCTION lease_demo.ask(way text, resource text, call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	number CONSTANT integer = lease_router.logical_partition(resource) % lease_router.partition_count();
	target CONSTANT text = (SELECT connection FROM lease_router.partitions WHERE partition = number);
	link CONSTANT text = left(md5(target), 20);
	answer text;
BEGIN
	IF way = 'router' THEN
		EXECUTE call INTO answer;
		RETURN answer;
	END IF;
	IF link = ANY (dblink_get_connections()) IS NOT TRUE THEN
		PERFORM dblink_connect(link, target);
	END IF;
	SELECT a INTO answer FROM dblink(link, call) AS _ (a text);
	RETURN answer;
EXCEPTION WHEN OTHERS THEN
	-- The connection may be the reason; the next call asks again where the partition is.
	IF link = ANY (dblink_get_connections()) THEN
		PERFORM dblink_disconnect(link);
	END IF;
	RAISE;
END $$;

CREATE PROCEDURE lease_demo.work(client text, way text, names integer, until timestamptz) LANGUAGE plpgsql AS $$
DECLARE
	name text;
	owner text;
	number bigint;
	try integer = 0;
BEGIN
	WHILE clock_timestamp() < until LOOP
		try := try + 1;
		name := 'r ' || floor(random() * names);
		owner := client || ' ' || try;
		number := NULL;
		BEGIN
			number := lease_demo.ask(way, name, format('SELECT token::text FROM lease_request(%L, ''20 s'', %L)', name, owner));
			INSERT INTO lease_demo.held SELECT name, number, client, clock_timestamp() WHERE number IS NOT NULL;
		EXCEPTION WHEN OTHERS THEN
			INSERT INTO lease_demo.errors VALUES (lease_router.logical_partition(name) % lease_router.partition_count(), client, SQLERRM);
		END;
		COMMIT;
		IF number IS NOT NULL THEN
			UPDATE lease_demo.held SET done = clock_timestamp() WHERE resource = name AND token = number;
			COMMIT;
			BEGIN
				PERFORM lease_demo.ask(way, name, format('SELECT lease_release(%L, %L)::text', name, owner));
			EXCEPTION WHEN OTHERS THEN
				INSERT INTO lease_demo.errors VALUES (lease_router.logical_partition(name) % lease_router.partition_count(), client, SQLERRM);
			END;
		ELSE
			PERFORM pg_sleep(0.01);
		END IF;
		COMMIT;
	END LOOP;
END $$;

CREATE VIEW lease_demo.counts AS
SELECT count(*) AS grants,
	count(*) FILTER (WHERE got < last_done) AS double_holders,
	count(*) FILTER (WHERE token <= last_token) AS tokens_that_fell,
	(SELECT count(*) FROM lease_demo.errors) AS errors
FROM (
	SELECT token, got, lag(token) OVER w AS last_token,
		max(COALESCE(done, got)) OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS last_done
	FROM lease_demo.held WINDOW w AS (PARTITION BY resource ORDER BY got)
) AS h;
