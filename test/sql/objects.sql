-- The objects of the extension: signatures, volatility, comments, privileges.

SELECT p.oid::regprocedure AS function, p.prorettype::regtype AS returns, p.provolatile, p.proparallel,
	p.proisstrict, p.proleakproof, p.prosecdef, has_function_privilege('public', p.oid, 'EXECUTE') AS public,
	obj_description(p.oid, 'pg_proc') IS NOT NULL AS commented
FROM pg_proc AS p JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
	JOIN pg_extension AS e ON d.refobjid = e.oid AND d.deptype = 'e'
WHERE e.extname = 'lease_lock' ORDER BY p.oid::regprocedure::text COLLATE "C";

\d lease_lock
\d lease_token_seq
\d lease_era_seq
\d lease_era_began_seq
\d lease_status
\d lease_waiters
\d lease_stats
\d lease_contenders
\d lease_watch
\d lease_watches

SELECT obj_description(oid, 'pg_class') IS NOT NULL AS commented, relname FROM pg_class
WHERE relname IN ('lease_lock', 'lease_status', 'lease_waiters', 'lease_stats', 'lease_contenders', 'lease_watch', 'lease_watches') ORDER BY relname;
SELECT c.relname, c.reloptions, c.relacl IS NOT NULL AND NOT EXISTS (SELECT FROM aclexplode(c.relacl) AS a WHERE a.grantee <> c.relowner) AS only_for_owner FROM pg_class AS c WHERE c.relname IN ('lease_lock', 'lease_watch') ORDER BY c.relname;
SELECT attname, attstorage FROM pg_attribute WHERE attrelid = 'lease_lock'::regclass AND atttypid = 'text'::regtype;
SELECT extconfig::regclass[] AS dumped FROM pg_extension WHERE extname = 'lease_lock';
SELECT table_name, privilege_type FROM information_schema.role_table_grants
WHERE grantee = 'PUBLIC' AND table_name LIKE 'lease\_%' ORDER BY table_name;
-- none: a write through a view would have the rights of its owner
SELECT relname FROM pg_class WHERE relname LIKE 'lease\_%' AND relkind = 'v' AND pg_relation_is_updatable(oid, false) <> 0;

-- settings, once the library is loaded; without preloading, there are no settings of the server start, and the clock
-- is another one
SELECT lease_token('any', 'one');
SELECT name, unit, context, vartype, min_val, max_val, boot_val FROM pg_settings WHERE name LIKE 'lease\_lock.%' AND context NOT IN ('postmaster', 'internal') ORDER BY name;
