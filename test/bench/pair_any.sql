-- whichever of eight is free, waiting in turn
SELECT lease_acquire_any('{any:1,any:2,any:3,any:4,any:5,any:6,any:7,any:8}', interval '1 minute', 'owner:' || :client_id, interval '1 minute') AS got \gset
SELECT lease_release(:got, 'owner:' || :client_id);
