-- Discount codes that nobody has claimed yet, and a log of the claims.

DROP TABLE IF EXISTS code, claim;
CREATE TABLE code (id bigint PRIMARY KEY, claimed_by int) WITH (fillfactor = 50);
CREATE INDEX code_unclaimed ON code (id) WHERE claimed_by IS NULL;
CREATE TABLE claim (id bigint NOT NULL, claimed_by int NOT NULL);
INSERT INTO code SELECT generate_series(1, :codes);
VACUUM ANALYZE code;
TRUNCATE lease_lock;
