-- one more permit beside many that are taken
SELECT lease_acquire_permit('permits:' || :holders, 20000, interval '1 minute', 'owner');
SELECT lease_release('permits:' || :holders, 'owner');
