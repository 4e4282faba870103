\set n random(1, :resources)
SELECT lock_acquire('free:' || :n, interval '1 minute', 'owner:' || :client_id);
SELECT lock_release('free:' || :n, 'owner:' || :client_id);
