-- The statements of docs/recipes.md.
\pset null '(null)'
SELECT granted FROM lease_request('leader', NULL, 'host-a', wait => NULL, payload => '{"url": "http://host-a"}', session => true);
SELECT owner, payload FROM lease_status WHERE resource = 'leader' AND state = 'held';
SELECT place, held, owner FROM lease_contenders WHERE resource = 'leader' ORDER BY place;
SELECT lease_watch('leader', 'leader');
SELECT lease_acquire_permit('report', 3, '1 minute', 'worker-1', '10 seconds');
SELECT lease_watch('batch', 'give_way', ARRAY['wanted']);
SELECT lease_acquire('cache', '1 minute', 'writer');
SELECT lease_downgrade('cache', 'writer') IS NOT NULL AS shared;
SELECT lease_acquire_shared('cache', '1 minute', 'reader');
SELECT granted FROM lease_request('group', NULL, 'node-1', mode => 'shared', payload => '{"port": 1234}', session => true);
SELECT lease_set_payload('group', 'node-1', '{"port": 1234, "load": 0.5}');
SELECT owner, payload FROM lease_status WHERE resource = 'group' AND state = 'held' ORDER BY owner;
-- done
SELECT lease_release('leader', 'host-a'), lease_release('report', 'worker-1'), lease_release('cache', 'reader'), lease_release('cache', 'writer'), lease_release('group', 'node-1');
SELECT lease_unwatch('leader', 'leader'), lease_unwatch('batch', 'give_way');
TRUNCATE lease_lock;
