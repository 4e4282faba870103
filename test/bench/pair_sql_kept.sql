\set n random(1, :resources)
INSERT INTO kept_sql AS l (resource, owner, token, expires_at)
VALUES ('free:' || :n, 'owner:' || :client_id, nextval('kept_sql_token'), clock_timestamp() + interval '1 minute')
ON CONFLICT (resource) DO UPDATE
	SET owner = EXCLUDED.owner, token = EXCLUDED.token, expires_at = EXCLUDED.expires_at
	WHERE l.expires_at <= clock_timestamp()
RETURNING token;
UPDATE kept_sql SET expires_at = clock_timestamp() WHERE resource = 'free:' || :n AND owner = 'owner:' || :client_id AND expires_at > clock_timestamp();
