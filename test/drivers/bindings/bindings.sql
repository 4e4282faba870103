-- The calls of the table of drivers in docs/drivers.md, by psql: variables as
-- literals, which the server sees without types.
\set QUIET on
\set ON_ERROR_STOP off
\set VERBOSITY sqlstate
\pset tuples_only on
\pset format unaligned
\echo :VERSION_NAME
\set names '{a,b}'
SELECT lease_renew_several(:'names', '1 hour', 'o') AS answer \gset
\set line 'list\t' '\'' :names '\'' '\t' :answer
\echo :line
SELECT lease_token('a', 'o') AS token \gset
SELECT lease_assert_token('a', :'token') AS answer \gset
\set line 'token\t' '\'' :token '\'' '\t' :answer
\echo :line
CALL lease_wait('w', '1 minute', 'o', '10 s') \gset
\set line 'wait\t' 'CALL lease_wait(\'w\', \'1 minute\', \'o\', \'10 s\')\t' :acquired ', ' :token ', ' :expires_at
\echo :line
SELECT lease_assert('free', 'o');
\set line 'lost\t' 'SELECT lease_assert(\'free\', \'o\')\t' 'LAST_ERROR_SQLSTATE ' :LAST_ERROR_SQLSTATE
\echo :line
SELECT lease_release('busy', 'o');
\set line 'timeout\t' 'SELECT lease_release(\'busy\', \'o\')\t' 'LAST_ERROR_SQLSTATE ' :LAST_ERROR_SQLSTATE
\echo :line
