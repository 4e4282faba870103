-- Renew: extends a lease that is held; never inserts, revives or shortens.

SELECT lease_renew('door', '1 hour', 'ann');
SELECT count(*) FROM lease_lock;

SELECT lease_acquire('door', '1 hour', 'ann');
SELECT token, granted_at, expires_at, xid FROM lease_lock \gset before_

SELECT lease_renew('door', '2 hours', 'bob');
SELECT lease_renew('door', '2 hours', 'ann');
SELECT expires_at > :'before_expires_at'::timestamptz + interval '30 minutes' AS extended,
	token = :before_token AS same_token,
	granted_at = :'before_granted_at' AS same_grant,
	xid = :'before_xid'::xid8 AS same_transaction
FROM lease_lock;

-- a shorter ttl does not shorten the lease
SELECT expires_at FROM lease_lock \gset long_
SELECT lease_renew('door', '1 second', 'ann');
SELECT expires_at = :'long_expires_at' AS not_shortened FROM lease_lock;

-- an expired lease cannot be renewed, even if nobody took it over
UPDATE lease_lock SET expires_at = now() - interval '1 second';
SELECT lease_renew('door', '1 hour', 'ann');
SELECT state FROM lease_status;

-- a released lease cannot be renewed
SELECT lease_acquire('door', '1 hour', 'ann');
SELECT lease_release('door', 'ann');
SELECT lease_renew('door', '1 hour', 'ann');

TRUNCATE lease_lock;
