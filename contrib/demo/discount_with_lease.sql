SELECT wait_at_gate();
SELECT lease_acquire_any(ARRAY(SELECT 'discount:' || code FROM discount WHERE customer IS NULL ORDER BY code LIMIT 100),
	'15 minutes', 'cart-' || :'me');
