-- Locks as one would write them by hand, with fencing tokens as the leases
-- have. The plain SQL and the PL/pgSQL each have a table of their own, so
-- that neither meets what the other left.

CREATE TABLE lock_sql (
	resource text COLLATE "C" PRIMARY KEY,
	owner text COLLATE "C" NOT NULL,
	token bigint NOT NULL,
	expires_at timestamptz NOT NULL
);
CREATE TABLE lock_plpgsql (LIKE lock_sql INCLUDING ALL);

CREATE SEQUENCE lock_sql_token;
CREATE SEQUENCE lock_plpgsql_token;

INSERT INTO lock_sql VALUES ('held:1', 'somebody else', 0, clock_timestamp() + interval '1 day');

CREATE FUNCTION lock_acquire(p_resource text, p_ttl interval, p_owner text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO lock_plpgsql AS l (resource, owner, token, expires_at)
	VALUES (p_resource, p_owner, nextval('lock_plpgsql_token'), clock_timestamp() + p_ttl)
	ON CONFLICT (resource) DO UPDATE
		SET owner = EXCLUDED.owner, token = EXCLUDED.token, expires_at = EXCLUDED.expires_at
		WHERE l.expires_at <= clock_timestamp();
	RETURN FOUND;
END
$$;

CREATE FUNCTION lock_release(p_resource text, p_owner text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM lock_plpgsql WHERE resource = p_resource AND owner = p_owner;
	RETURN FOUND;
END
$$;
