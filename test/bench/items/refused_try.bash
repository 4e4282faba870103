# Refused try.
item_refused_try()
{
	local round count

	echo '(refused_try) refused try' >&2
	sql lease_bench -c "SELECT lease_acquire('held:1', '1 day', 'somebody else')" >/dev/null
	sql lease_bench -c 'VACUUM lease_lock, lock_sql' -c CHECKPOINT
	for count in 1 2; do
		for ((round = 0; round < rounds; round++)); do
			measure "refused_try select $count" lease_bench select_1 "$count" "$durable"
			measure "refused_try lease $count" lease_bench try_lease "$count" "$durable"
			measure "refused_try sql $count" lease_bench try_sql "$count" "$durable"
			measure "refused_try sql async $count" lease_bench try_sql "$count" "$fast"
		done
	done
	expect 'every try was refused' lease_bench "SELECT count(*) = 2 AND bool_and(owner = 'somebody else')
		FROM (SELECT resource, owner FROM lease_lock UNION ALL SELECT resource, owner FROM lock_sql) AS l
		WHERE resource = 'held:1'"
}

report_refused_try()
{
	local count

	printf '\n### (refused_try) Refused try, tries per second\n'
	header clients 'SELECT 1' lease_acquire 'INSERT ... ON CONFLICT' 'the same, synchronous_commit = off' \
		'lease / SELECT 1' 'lease / INSERT' 'lease / INSERT, off'
	for count in 1 2; do
		row "$count" "$(cell "refused_try select $count")" "$(cell "refused_try lease $count")" "$(cell "refused_try sql $count")" \
			"$(cell "refused_try sql async $count")" "$(ratio "refused_try lease $count" "refused_try select $count")" \
			"$(ratio "refused_try lease $count" "refused_try sql $count")" "$(ratio "refused_try lease $count" "refused_try sql async $count")"
	done
}
