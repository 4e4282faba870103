SELECT wait_at_gate();
SELECT code FROM (SELECT code FROM discount WHERE customer IS NULL ORDER BY code LIMIT 100) AS next
WHERE lease_acquire('discount:' || code, '15 minutes', 'cart-' || :'me') LIMIT 1;
