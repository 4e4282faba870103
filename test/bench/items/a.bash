# Refused try.
item_a()
{
	local round count

	echo '(a) refused try' >&2
	sql lease_bench -c "SELECT lease_acquire('held:1', '1 day', 'somebody else')" >/dev/null
	sql lease_bench -c 'VACUUM lease_lock, lock_sql' -c CHECKPOINT
	for count in 1 2; do
		for ((round = 0; round < rounds; round++)); do
			measure "a select $count" lease_bench select_1 "$count" "$durable"
			measure "a lease $count" lease_bench try_lease "$count" "$durable"
			measure "a sql $count" lease_bench try_sql "$count" "$durable"
			measure "a sql async $count" lease_bench try_sql "$count" "$fast"
		done
	done
	expect 'every try was refused' lease_bench "SELECT count(*) = 2 AND bool_and(owner = 'somebody else')
		FROM (SELECT resource, owner FROM lease_lock UNION ALL SELECT resource, owner FROM lock_sql) AS l
		WHERE resource = 'held:1'"
}

report_a()
{
	local count

	printf '\n### (a) Refused try, tries per second\n'
	header clients 'SELECT 1' lease_acquire 'INSERT ... ON CONFLICT' 'the same, synchronous_commit = off' \
		'lease / SELECT 1' 'lease / INSERT' 'lease / INSERT, off'
	for count in 1 2; do
		row "$count" "$(cell "a select $count")" "$(cell "a lease $count")" "$(cell "a sql $count")" \
			"$(cell "a sql async $count")" "$(ratio "a lease $count" "a select $count")" \
			"$(ratio "a lease $count" "a sql $count")" "$(ratio "a lease $count" "a sql async $count")"
	done
}
