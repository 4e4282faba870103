\set n random(1, :resources)
SELECT kept_acquire('free:' || :n, interval '1 minute', 'owner:' || :client_id);
SELECT kept_release('free:' || :n, 'owner:' || :client_id);
