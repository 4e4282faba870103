\set n random(1, :resources)
SELECT lease_acquire('free:' || :n, interval '1 minute', 'owner:' || :client_id);
SELECT lease_release('free:' || :n, 'owner:' || :client_id);
