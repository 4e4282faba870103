-- read
SELECT balance >= 30 AS enough FROM account WHERE id = 'alice' \gset
-- wait here until all others have read, too
SELECT wait_at_gate();
-- act on what was read
\if :enough
	UPDATE account SET balance = balance - 30 WHERE id = 'alice';
	INSERT INTO withdrawal VALUES (:me);
\endif
