SELECT lease_acquire_shared('shared:1', interval '1 minute', 'owner:' || :client_id);
SELECT lease_release('shared:1', 'owner:' || :client_id);
