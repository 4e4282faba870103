-- one of many locks by hand that somebody else holds: a look that does not lock the row
\set n random(1, :resources)
SELECT owner FROM kept_sql WHERE resource = 'held:' || :n AND expires_at > clock_timestamp();
