-- a lease that somebody else holds
SELECT lease_acquire('held:1', interval '1 minute', 'owner');
