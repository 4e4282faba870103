-- The codes that nobody has claimed as far as we see; the first whose lease is
-- free. It was claimed meanwhile if its lease has ended again.
WITH next AS MATERIALIZED (
	SELECT lease_acquire_any(
		ARRAY(SELECT 'code:' || id FROM code WHERE claimed_by IS NULL ORDER BY id LIMIT 32),
		interval '1 minute', 'owner:' || :client_id) AS name
), claimed AS (
	UPDATE code SET claimed_by = :client_id FROM next
	WHERE id = substr(name, 6)::bigint AND claimed_by IS NULL
	RETURNING id
)
INSERT INTO claim SELECT id, :client_id FROM claimed;
