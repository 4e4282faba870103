-- lease_request when the owner holds the lease already, and the reason that it gives.

CREATE FUNCTION error_of(statement text, OUT code text, OUT message text, OUT hint text)
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	message := 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
END $$;
\pset null '(null)'

-- refuse, which is the default
SELECT granted, reason FROM lease_request('door', '1 hour', 'ann');
SELECT granted, reason, blocked_by FROM lease_request('door', '1 hour', 'ann');
SELECT granted, reason, blocked_by FROM lease_request('door', '1 hour', 'ann', if_own => 'refuse');
-- renew: the same token, nothing to be released once more
SELECT token FROM lease_status WHERE resource = 'door' \gset
SELECT granted, reason, token = :token AS same_token, expires_at > now() + interval '110 minutes' AS longer FROM lease_request('door', '2 hours', 'ann', if_own => 'renew');
SELECT holds, expires_in > '110 minutes' AS longer FROM lease_status WHERE resource = 'door';
-- it sets the end, which may be earlier
SELECT granted, reason, expires_at < now() + interval '11 minutes' AS shorter FROM lease_request('door', '10 minutes', 'ann', if_own => 'renew');
SELECT lease_release('door', 'ann') AS once, lease_release('door', 'ann') AS twice;
-- on a lease that nobody holds it is a grant like any other
SELECT granted, reason FROM lease_request('door', '1 hour', 'ann', if_own => 'renew');
-- the lease of another owner is held
SELECT granted, reason, blocked_by FROM lease_request('door', '1 hour', 'bob', if_own => 'renew');
-- what is given replaces what the lease had, NULL keeps it
SELECT granted FROM lease_request('opts', '1 hour', 'ann', payload => '1', lock_delay => '5 minutes', min_hold => '30 minutes');
SELECT granted, reason FROM lease_request('opts', '1 hour', 'ann', if_own => 'renew');
SELECT payload, lock_delay, hold_until > now() + interval '20 minutes' AS hold FROM lease_lock WHERE resource = 'opts';
SELECT granted, reason FROM lease_request('opts', '1 hour', 'ann', if_own => 'renew', payload => '2', lock_delay => '1 minute', min_hold => '50 minutes');
SELECT payload, lock_delay, hold_until > now() + interval '40 minutes' AS hold FROM lease_lock WHERE resource = 'opts';
SELECT granted, reason FROM lease_request('opts', '1 hour', 'ann', if_own => 'renew', payload => 'null', lock_delay => '0', min_hold => '0');
SELECT payload, lock_delay, hold_until FROM lease_lock WHERE resource = 'opts';
-- count: see request.sql
SELECT granted, reason FROM lease_request('opts', '1 hour', 'ann', if_own => 'count');
-- another mode is no lease of the same kind
SELECT granted, reason FROM lease_request('opts', '1 hour', 'ann', mode => 'shared', if_own => 'renew');
SELECT granted, reason FROM lease_request('hall', '1 hour', 'ann', mode => 'shared');
SELECT granted, reason FROM lease_request('hall', '1 hour', 'ann', if_own => 'renew');
SELECT granted, reason FROM lease_request('hall', '1 hour', 'ann', mode => 'shared', if_own => 'renew');
SELECT granted, reason FROM lease_request('hall', '1 hour', 'ann', mode => 'permit', permits => 5, if_own => 'renew');
SELECT granted, reason FROM lease_request('hall', '1 hour', 'bob', mode => 'permit', permits => 1);
-- renewals count as renewals
SELECT renewals > 0 AS counted FROM lease_stats;
-- what it can be
SELECT * FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', if_own => 'again') $$);
SELECT * FROM error_of($$ SELECT lease_request('door', '1 hour', 'ann', if_own => NULL) $$);

DROP FUNCTION error_of;
TRUNCATE lease_lock;
