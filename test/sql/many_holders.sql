-- A thousand holders of one resource, readers and permits: each has its own lease,
-- and never one more than allowed.

CREATE VIEW holders AS
SELECT mode, count(*) AS held, count(DISTINCT slot) AS slots, count(DISTINCT owner) AS owners, count(DISTINCT token) AS tokens
FROM lease_status WHERE state = 'held' GROUP BY mode;

-- as many permits as there are, and no lock that lasts as long as the transaction
BEGIN;
SELECT count(*) AS granted FROM generate_series(1, 10) AS i WHERE lease_acquire_permit('r', 1000, '1 hour', 'o' || i);
SELECT count(*) AS locks FROM pg_locks WHERE pid = pg_backend_pid() \gset
SELECT count(*) AS granted FROM generate_series(11, 1010) AS i WHERE lease_acquire_permit('r', 1000, '1 hour', 'o' || i);
SELECT count(*) - :locks AS more_locks FROM pg_locks WHERE pid = pg_backend_pid();
COMMIT;
SELECT * FROM holders;
SELECT max(slot) FROM lease_lock;

-- each owner finds its lease, and gets no second one
SELECT count(*) FILTER (WHERE lease_acquire_permit('r', 2000, '1 hour', 'o' || i)) AS twice,
	count(*) FILTER (WHERE lease_renew('r', '2 hours', 'o' || i)) AS renewed,
	count(DISTINCT lease_assert('r', 'o' || i)) AS asserted
FROM generate_series(1, 1000, 37) AS i;
SELECT count(*) AS released FROM generate_series(1, 1000, 10) AS i WHERE lease_release('r', 'o' || i);

-- later grants use the rows of released leases
SELECT count(*) AS readers FROM generate_series(1, 100) AS i WHERE lease_acquire_shared('r', '1 hour', 'r' || i);
SELECT lease_acquire_permit('r', 1000, '1 hour', 'late') AS full, lease_acquire_permit('r', 1001, '1 hour', 'late') AS one_more;
SELECT * FROM holders;
SELECT max(slot), count(*) AS rows FROM lease_lock;

-- a writer is refused until all of them end, and takes over those that expired
SELECT lease_acquire('r', '1 hour', 'writer') AS beside_them;
SELECT sum(lease_release_all('o' || i)) AS released FROM generate_series(1, 20) AS i;
UPDATE lease_lock SET expires_at = '2000-01-01' WHERE owner IS NOT NULL;
SELECT lease_acquire('r', '1 hour', 'writer') AS after_them, lease_acquire_shared('r', '1 hour', 'o1') AS beside_it;
SELECT count(*) AS late FROM generate_series(1, 1000, 7) AS i WHERE lease_release('r', 'o' || i);
SELECT * FROM holders;

DROP VIEW holders;
TRUNCATE lease_lock;
