-- Release and renewal with the token: if an owner name is used again, the earlier
-- holder cannot act on the new lease.

SELECT lease_acquire('door', '1 hour', 'ann');
SELECT lease_token('door', 'ann') AS first \gset
SELECT lease_release('door', 'ann', :first);
SELECT lease_release('door', 'ann', :first) AS twice;
SELECT lease_acquire('door', '1 hour', 'ann');
SELECT lease_token('door', 'ann') AS second \gset

-- the earlier one
SELECT lease_renew('door', '2 hours', 'ann', :first) AS renewed;
SELECT lease_release('door', 'ann', :first) AS released;
SELECT lease_token('door', 'ann') = :second AS still_held;

-- the right token with the wrong owner, and tokens that were never handed out
SELECT lease_renew('door', '2 hours', 'bob', :second) AS renewed;
SELECT lease_release('door', 'bob', :second) AS released;
SELECT lease_release('door', 'ann', 0) AS zero, lease_release('door', 'ann', -1) AS negative,
	lease_release('door', 'ann', 9223372036854775807) AS last;

-- the present one
SELECT lease_renew('door', '2 hours', 'ann', :second) AS renewed;
SELECT expires_in > interval '1 hour' AS longer FROM lease_status;
SELECT lease_release('door', 'ann', :second) AS released;

-- expired: not renewed, but released
SELECT lease_acquire('door', '1 hour', 'ann');
UPDATE lease_lock SET expires_at = now() - interval '1 second';
SELECT lease_renew('door', '2 hours', 'ann', token) AS renewed FROM lease_lock;
SELECT lease_release('door', 'ann', token) AS released FROM lease_lock;

TRUNCATE lease_lock;
