SELECT lease_acquire('own:' || :client_id, interval '1 minute', 'owner:' || :client_id);
SELECT lease_release('own:' || :client_id, 'owner:' || :client_id);
