SELECT lease_acquire_permit('permits:1', 20, interval '1 minute', 'owner:' || :client_id);
SELECT lease_release('permits:1', 'owner:' || :client_id);
