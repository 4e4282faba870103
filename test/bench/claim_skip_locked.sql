WITH next AS MATERIALIZED (
	SELECT id FROM code WHERE claimed_by IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
), claimed AS (
	UPDATE code SET claimed_by = :client_id FROM next
	WHERE code.id = next.id
	RETURNING code.id
)
INSERT INTO claim SELECT id, :client_id FROM claimed;
