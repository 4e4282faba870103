-- everybody looks at the same moment
SELECT wait_at_gate();
SELECT min(code) FROM discount WHERE customer IS NULL;
