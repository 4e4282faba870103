\set ECHO none
-- Functions that execute a statement and return its error. Numbers that differ
-- from run to run are replaced. A test includes this file with:
--
--	\getenv source PG_ABS_SRCDIR
--	\set helpers :source '/sql/include/error_of.sql'
--	\i :helpers

CREATE OR REPLACE FUNCTION error_with_context(statement text, OUT code text, OUT message text, OUT detail text, OUT hint text, OUT context text)
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	message := 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
		detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT, context = PG_EXCEPTION_CONTEXT;
	detail := regexp_replace(regexp_replace(detail, '\d+\.\d+ seconds', '... seconds'), 'token \d+', 'token N');
	context := split_part(context, E'\n', 1);
END $$;

CREATE OR REPLACE FUNCTION error_of(statement text, OUT code text, OUT message text, OUT detail text, OUT hint text)
LANGUAGE sql AS 'SELECT code, message, detail, hint FROM error_with_context(statement)';
\set ECHO all
