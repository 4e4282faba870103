-- Acquire: granted when nobody holds the lease, refused otherwise.

-- no lease yet
SELECT lease_acquire('door', '1 hour', 'ann');

-- held: refused, even to the owner itself
SELECT lease_acquire('door', '1 hour', 'bob');
SELECT lease_acquire('door', '1 hour', 'ann');

-- another resource is another lease
SELECT lease_acquire('window', '1 hour', 'ann');

-- names are compared byte for byte
SELECT lease_acquire('Door', '1 hour', 'bob');
SELECT lease_acquire('door ', '1 hour', 'bob');

-- released: anybody can acquire it
SELECT lease_release('door', 'ann');
SELECT lease_acquire('door', '1 hour', 'bob');

-- expired: anybody can acquire it, the former owner included
UPDATE lease_lock SET expires_at = now() - interval '1 second' WHERE resource IN ('door', 'window');
SELECT lease_acquire('door', '1 hour', 'ann');
SELECT lease_acquire('window', '1 hour', 'ann');

-- after a takeover the former owner has no lease
SELECT lease_token('door', 'bob') IS NULL AS nothing, lease_release('door', 'bob'), lease_renew('door', '1 hour', 'bob');

-- a lease lasts for its ttl from the moment it is granted, not from the start of the transaction
BEGIN;
SELECT lease_acquire('late', '1 hour', 'ann');
SELECT granted_at > now() AS after_start, expires_at - granted_at AS lasts FROM lease_lock WHERE resource = 'late';
COMMIT;

-- a month has 30 days and a day 24 hours, also where the clocks change
SET timezone = 'Europe/Berlin';
SELECT lease_acquire('long', '1 month 1 day 1 hour', 'ann');
SELECT extract(epoch FROM expires_at - granted_at) / 3600 AS hours FROM lease_lock WHERE resource = 'long';
SELECT lease_acquire('mixed', '1 day -23 hours', 'ann');
SELECT expires_at - granted_at AS lasts FROM lease_lock WHERE resource = 'mixed';
SELECT lease_acquire('longest', '100000 years', 'ann');
RESET timezone;

-- a short one ends by itself
SELECT lease_acquire('short', '1 microsecond', 'ann');
SELECT pg_sleep(0.001);
SELECT lease_acquire('short', '1 hour', 'bob');

-- the row tells which transaction granted it
BEGIN;
SELECT lease_acquire('when', '1 hour', 'ann');
SELECT xid = pg_current_xact_id() AS this_transaction FROM lease_lock WHERE resource = 'when';
COMMIT;

TRUNCATE lease_lock;
