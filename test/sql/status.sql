-- The view lease_status: who holds what until when.

SELECT lease_acquire('held', '1 hour', 'ann'), lease_acquire('expired', '1 hour', 'ann'), lease_acquire('released', '1 hour', 'ann');
UPDATE lease_lock SET expires_at = now() - interval '1 hour' WHERE resource = 'expired';
SELECT lease_release('released', 'ann');

SELECT s.resource, s.slot, s.owner, s.token = l.token AS token, s.state,
	s.expires_in > interval '0' AS time_left, s.granted_at = l.granted_at AS granted_at, s.expires_at = l.expires_at AS expires_at,
	s.role = current_user AS role, s.xid = l.xid AS xid
FROM lease_status AS s JOIN lease_lock AS l USING (resource) ORDER BY resource;

\d lease_status

-- the owner name can release a lease, so it is shown only to roles that may release it
CREATE ROLE regress_lease_holder;
CREATE ROLE regress_lease_member IN ROLE regress_lease_holder;
CREATE ROLE regress_lease_other;
SET ROLE regress_lease_holder;
SELECT lease_acquire('secret', '1 hour', 'password');
SELECT owner FROM lease_status WHERE resource = 'secret';
SET ROLE regress_lease_member;
SELECT owner FROM lease_status WHERE resource = 'secret';
SET ROLE regress_lease_other;
SELECT resource, owner, state, role FROM lease_status WHERE resource = 'secret';
SELECT count(*) FROM lease_status WHERE owner IS NOT NULL;
RESET ROLE;

-- a role that was dropped: an administrator can still see and release it
DROP ROLE regress_lease_member, regress_lease_holder;
SELECT resource, owner, role LIKE 'unknown%' AS unknown FROM lease_status WHERE resource = 'secret';
SET ROLE regress_lease_other;
SELECT resource, owner FROM lease_status WHERE resource = 'secret';
SELECT lease_release('secret', 'password');
RESET ROLE;
SELECT lease_release('secret', 'password');
DROP ROLE regress_lease_other;

TRUNCATE lease_lock;
