-- Claiming the next job that nobody holds finds the last free one, however many
-- are held before it. This is the statement of the guide.
CREATE TABLE job (id bigint PRIMARY KEY, state text NOT NULL DEFAULT 'pending');
INSERT INTO job SELECT generate_series(1, 150);
CREATE FUNCTION claim(me text, OUT nothing_to_do boolean, OUT job bigint) LANGUAGE sql AS $$
	WITH free AS MATERIALIZED (
		SELECT array_agg(name) AS names
		FROM (
			SELECT 'job:' || id AS name FROM job
			WHERE state = 'pending'
				AND NOT EXISTS (SELECT FROM lease_status AS s WHERE s.resource = 'job:' || id AND s.state = 'held')
			ORDER BY id LIMIT 32
		) AS next
	)
	SELECT names IS NULL,
		CASE WHEN names IS NOT NULL THEN substr(lease_acquire_any(names, '5 minutes', me), 5)::bigint END
	FROM free
$$;

-- 100 are held, 50 are free: each of 50 workers gets one
SELECT count(lease_acquire('job:' || n, '1 hour', 'other')) AS held FROM generate_series(1, 100) AS n;
DO $$
DECLARE
	jobs bigint[] = '{}';
	answer record;
BEGIN
	FOR n IN 1 .. 50 LOOP
		SELECT * INTO answer FROM claim('worker ' || n);
		ASSERT NOT answer.nothing_to_do AND answer.job > 100, answer::text;
		jobs := jobs || answer.job;
		COMMIT;
	END LOOP;
	RAISE NOTICE '% jobs, from % to %', (SELECT count(DISTINCT j) FROM unnest(jobs) AS j), jobs[1], jobs[50];
END $$;
SELECT * FROM claim('one more');

-- expired and released ones are free again, done ones are not
UPDATE job SET state = 'done' WHERE id <= 100;
SELECT lease_release('job:3', 'other'), lease_release('job:120', 'worker 20');
SELECT * FROM claim('next');
UPDATE lease_lock SET expires_at = granted_at WHERE resource = 'job:150';
SELECT * FROM claim('next');
SELECT * FROM claim('next');

TRUNCATE lease_lock;
DROP FUNCTION claim;
DROP TABLE job;
