-- Tables of 16,000 rows, 1,000 for each of 16 clients, that differ in their
-- triggers only: none; a guard, with one lease for the rows of a client; one of
-- the server's own that does next to nothing; none and one on a version column.

CREATE TABLE item_plain (
	client int NOT NULL,
	k int NOT NULL,
	n int NOT NULL DEFAULT 0,
	version int NOT NULL DEFAULT 0,
	filler text NOT NULL DEFAULT repeat('x', 80),
	PRIMARY KEY (client, k)
) WITH (fillfactor = 40);
CREATE TABLE item_guarded (LIKE item_plain INCLUDING ALL) WITH (fillfactor = 40);
CREATE TABLE item_empty (LIKE item_plain INCLUDING ALL) WITH (fillfactor = 40);
CREATE TABLE item_versioned (LIKE item_plain INCLUDING ALL) WITH (fillfactor = 40);

INSERT INTO item_plain (client, k) SELECT client, k FROM generate_series(0, 15) AS client, generate_series(1, 1000) AS k;
INSERT INTO item_guarded SELECT * FROM item_plain;
INSERT INTO item_empty SELECT * FROM item_plain;
INSERT INTO item_versioned SELECT * FROM item_plain;

SELECT lease_acquire('item:' || client, '1 day', 'client') FROM generate_series(0, 15) AS client;
SELECT lease_protect('item_guarded', 'item:{client}');
CREATE TRIGGER empty BEFORE UPDATE ON item_empty FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
CREATE TRIGGER version BEFORE UPDATE ON item_versioned FOR EACH ROW EXECUTE FUNCTION lease_version('version');

VACUUM ANALYZE item_plain, item_guarded, item_empty, item_versioned;
