-- one of many leases that somebody else holds
\set n random(1, :resources)
SELECT lease_acquire('held:' || :n, interval '1 minute', 'owner:' || :client_id);
