-- Watches: who may set them up, and what is stored. Their notices are tested in t/views/watches.pl.

\pset null '(null)'
SELECT lease_watch('job/', 'jobs');
SELECT lease_watch('job/', 'others', ARRAY['released', 'granted', 'granted']);
SELECT lease_watch('', 'all', ARRAY['renewed']);
SELECT prefix, channel, events, creator = current_user AS own FROM lease_watches ORDER BY prefix, channel;
-- replaced
SELECT lease_watch('job/', 'others', ARRAY['expired']);
SELECT prefix, channel, events, creator = current_user AS own FROM lease_watches ORDER BY prefix, channel;
SELECT lease_unwatch('job/', 'others') AS once, lease_unwatch('job/', 'others') AS twice;
BEGIN;
SELECT lease_unwatch('', 'all');
ROLLBACK;
SELECT prefix, channel FROM lease_watches ORDER BY prefix, channel;
-- not for everybody
CREATE ROLE regress_lease_watcher;
SET ROLE regress_lease_watcher;
SELECT lease_watch('job/', 'mine');
SELECT lease_unwatch('job/', 'jobs');
SELECT * FROM lease_watches;
SELECT * FROM lease_watch;
RESET ROLE;
GRANT EXECUTE ON FUNCTION lease_watch(text, text, text[]), lease_unwatch(text, text) TO regress_lease_watcher;
SET ROLE regress_lease_watcher;
SELECT lease_watch('job/', 'mine');
RESET ROLE;
SELECT prefix, channel, creator FROM lease_watches WHERE channel = 'mine';
ALTER ROLE regress_lease_watcher RENAME TO regress_lease_renamed;
SELECT prefix, channel, creator FROM lease_watches WHERE channel = 'mine';
ALTER ROLE regress_lease_renamed RENAME TO regress_lease_watcher;
SELECT lease_unwatch('job/', 'mine'), lease_unwatch('job/', 'jobs'), lease_unwatch('', 'all');
DROP OWNED BY regress_lease_watcher;
DROP ROLE regress_lease_watcher;
-- arguments that are refused
SELECT lease_watch(NULL, 'c');
SELECT lease_watch(repeat('x', 1025), 'c');
SELECT lease_watch('x', NULL);
SELECT lease_watch('x', '');
SELECT lease_watch('x', repeat('c', 64));
SELECT lease_watch('x', 'c', ARRAY['granted', 'stolen']);
SELECT lease_watch('x', 'c', ARRAY[NULL]);
SELECT lease_watch('x', 'c', '{}');
SELECT count(*) FROM lease_watches;
-- refused in a read-only transaction
BEGIN READ ONLY;
SELECT lease_watch('x', 'c');
ROLLBACK;
