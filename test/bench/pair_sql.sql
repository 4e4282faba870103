\set n random(1, :resources)
INSERT INTO lock_sql AS l (resource, owner, token, expires_at)
VALUES ('free:' || :n, 'owner:' || :client_id, nextval('lock_sql_token'), clock_timestamp() + interval '1 minute')
ON CONFLICT (resource) DO UPDATE
	SET owner = EXCLUDED.owner, token = EXCLUDED.token, expires_at = EXCLUDED.expires_at
	WHERE l.expires_at <= clock_timestamp()
RETURNING token;
DELETE FROM lock_sql WHERE resource = 'free:' || :n AND owner = 'owner:' || :client_id;
