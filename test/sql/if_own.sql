-- lease_request when the owner already holds the lease, and the reason that it returns.

\getenv source PG_ABS_SRCDIR
\set helpers :source '/sql/include/error_of.sql'
\i :helpers
\pset null '(null)'

-- refuse, which is the default
SELECT granted, reason FROM lease_request('door', '1 hour', 'ann');
SELECT granted, reason, blocked_by FROM lease_request('door', '1 hour', 'ann');
SELECT granted, reason, blocked_by FROM lease_request('door', '1 hour', 'ann', if_own => 'refuse');
-- renew: the same token, and one release still ends the lease
SELECT token FROM lease_status WHERE resource = 'door' \gset
SELECT granted, reason, token = :token AS same_token, expires_at > now() + interval '110 minutes' AS longer FROM lease_request('door', '2 hours', 'ann', if_own => 'renew');
SELECT holds, expires_in > '110 minutes' AS longer FROM lease_status WHERE resource = 'door';
-- it sets the end, which may be earlier
SELECT granted, reason, expires_at < now() + interval '11 minutes' AS shorter FROM lease_request('door', '10 minutes', 'ann', if_own => 'renew');
SELECT lease_release('door', 'ann') AS once, lease_release('door', 'ann') AS twice;
-- if nobody holds the lease, it is a grant like any other
SELECT granted, reason FROM lease_request('door', '1 hour', 'ann', if_own => 'renew');
-- the lease of another owner: reason held
SELECT granted, reason, blocked_by FROM lease_request('door', '1 hour', 'bob', if_own => 'renew');
-- options that are given replace those of the lease, NULL keeps them
SELECT granted FROM lease_request('opts', '1 hour', 'ann', payload => '1', min_hold => '30 minutes');
SELECT granted, reason FROM lease_request('opts', '1 hour', 'ann', if_own => 'renew');
SELECT payload, hold_until > now() + interval '20 minutes' AS hold FROM lease_lock WHERE resource = 'opts';
SELECT granted, reason FROM lease_request('opts', '1 hour', 'ann', if_own => 'renew', payload => '2', min_hold => '50 minutes');
SELECT payload, hold_until > now() + interval '40 minutes' AS hold FROM lease_lock WHERE resource = 'opts';
SELECT granted, reason FROM lease_request('opts', '1 hour', 'ann', if_own => 'renew', payload => 'null', min_hold => '0');
SELECT payload, hold_until FROM lease_lock WHERE resource = 'opts';
-- count: see request.sql
SELECT granted, reason FROM lease_request('opts', '1 hour', 'ann', if_own => 'count');
-- in another mode it is refused
SELECT granted, reason FROM lease_request('opts', '1 hour', 'ann', mode => 'shared', if_own => 'renew');
SELECT granted, reason FROM lease_request('hall', '1 hour', 'ann', mode => 'shared');
SELECT granted, reason FROM lease_request('hall', '1 hour', 'ann', if_own => 'renew');
SELECT granted, reason FROM lease_request('hall', '1 hour', 'ann', mode => 'shared', if_own => 'renew');
SELECT granted, reason FROM lease_request('hall', '1 hour', 'ann', mode => 'permit', permits => 5, if_own => 'renew');
SELECT granted, reason FROM lease_request('hall', '1 hour', 'bob', mode => 'permit', permits => 1);
-- valid values
SELECT code, message, hint FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', if_own => 'again') $$);
SELECT code, message, hint FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', if_own => NULL) $$);

TRUNCATE lease_lock;
