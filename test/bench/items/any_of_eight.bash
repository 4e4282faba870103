# One of several leases, for which many wait at a time.
any_clients="4 32 128"

item_any_of_eight()
{
	local round count

	echo '(any_of_eight) any of eight' >&2
	for ((round = 0; round < rounds; round++)); do
		for count in $any_clients; do
			sql lease_bench -c 'TRUNCATE lease_lock'
			measure "any_of_eight $count" lease_bench pair_any "$count" "$fast"
		done
	done
	expect 'everything was released' lease_bench "SELECT count(owner) = 0 FROM lease_lock"
}

report_any_of_eight()
{
	local count least=${any_clients%% *}

	printf '\n### (any_of_eight) lease_acquire_any of eight, with a wait, and release: pairs per second, not durable\n'
	header sessions 'pairs per second' "ratio to $least"
	for count in $any_clients; do
		row "$count" "$(cell "any_of_eight $count")" "$(ratio "any_of_eight $count" "any_of_eight $least")"
	done
}
