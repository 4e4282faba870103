CALL acquire_patiently('account:alice', :'me');
\ir withdraw.sql
SELECT lease_release('account:alice', :'me');
