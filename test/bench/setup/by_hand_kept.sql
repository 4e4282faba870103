-- The same locks written by hand, but a release keeps the row and lets it
-- expire instead. With :rows rows, half of them free, like leases.sql.

CREATE TABLE kept_sql (
	resource text COLLATE "C" PRIMARY KEY,
	owner text COLLATE "C" NOT NULL,
	token bigint NOT NULL,
	expires_at timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE TABLE kept_plpgsql (LIKE kept_sql INCLUDING ALL) WITH (fillfactor = 70);

CREATE SEQUENCE kept_sql_token;
CREATE SEQUENCE kept_plpgsql_token;

INSERT INTO kept_sql
SELECT 'free:' || n, 'somebody else', 0, t FROM generate_series(1, :rows / 2) AS n, clock_timestamp() AS t
UNION ALL
SELECT 'held:' || n, 'somebody else', 0, t + interval '1 day' FROM generate_series(1, :rows / 2) AS n, clock_timestamp() AS t;
INSERT INTO kept_plpgsql SELECT * FROM kept_sql;

VACUUM ANALYZE kept_sql, kept_plpgsql;

CREATE FUNCTION kept_acquire(p_resource text, p_ttl interval, p_owner text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO kept_plpgsql AS l (resource, owner, token, expires_at)
	VALUES (p_resource, p_owner, nextval('kept_plpgsql_token'), clock_timestamp() + p_ttl)
	ON CONFLICT (resource) DO UPDATE
		SET owner = EXCLUDED.owner, token = EXCLUDED.token, expires_at = EXCLUDED.expires_at
		WHERE l.expires_at <= clock_timestamp();
	RETURN FOUND;
END
$$;

CREATE FUNCTION kept_release(p_resource text, p_owner text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
	UPDATE kept_plpgsql SET expires_at = clock_timestamp()
	WHERE resource = p_resource AND owner = p_owner AND expires_at > clock_timestamp();
	RETURN FOUND;
END
$$;
