# Leases that nobody waits for, beside many who wait for another one.
bystanders="0 400 700"

# Send sessions to wait for a lease, in some database; sets waiting_pids. A SELECT keeps its snapshot
# while it waits, CALL lease_wait does not.
send_to_wait()	# number, database, statement
{
	local i wait="SELECT lease_acquire('waited for', '1 hour', 'waiter', NULL)"

	[ "$3" = SELECT ] || wait="CALL lease_wait('waited for', '1 hour', 'waiter', NULL)"
	waiting_pids=()
	sql "$2" -c "SELECT lease_acquire('waited for', interval '1 hour', 'holder')" >/dev/null
	for ((i = 0; i < $1; i++)); do
		sql "$2" -c "$wait" >/dev/null 2>&1 &
		waiting_pids+=($!)
	done
	for ((i = 0; i < 600; i++)); do
		[ "$(sql "$2" -c 'SELECT count(*) FROM lease_waiters')" -lt "$1" ] || return 0
		sleep 0.1
	done
	die "not all of $1 sessions wait"
}

end_waits()	# database
{
	local pid

	sql "$1" -c 'SELECT pg_cancel_backend(pid) FROM lease_waiters' >/dev/null
	for pid in "${waiting_pids[@]}"; do
		wait "$pid" || true
	done
	sql "$1" -c "SELECT lease_release('waited for', 'holder')" >/dev/null
}

# Where they wait, and by which statement.
waits=('lease_bench SELECT' 'lease_bench CALL' 'lease_bench_other SELECT')

item_beside_waiters()
{
	local round count where wait statement

	echo '(beside_waiters) pairs beside waiters' >&2
	create_database lease_bench_other 1
	for ((round = 0; round < rounds; round++)); do
		for wait in "${waits[@]}"; do
			read -r where statement <<<"$wait"
			for count in $bystanders; do
				sql lease_bench -c 'TRUNCATE lease_lock'
				send_to_wait "$count" "$where" "$statement"
				measure "beside_waiters $wait $count" lease_bench pair_exclusive 8 "$fast"
				end_waits "$where"
			done
		done
	done
}

report_beside_waiters()
{
	local count wait where statement least=${bystanders%% *}

	printf '\n### (beside_waiters) Acquire and release beside sessions that wait for another lease: pairs per second, 8 clients, not durable\n'
	header 'they wait in' by waiters 'pairs per second' 'ratio to none'
	for wait in "${waits[@]}"; do
		read -r where statement <<<"$wait"
		for count in $bystanders; do
			row "${where/#lease_bench_other/another database}" "\`$statement\`" "$count" \
				"$(cell "beside_waiters $wait $count")" "$(ratio "beside_waiters $wait $count" "beside_waiters $wait $least")"
		done
	done
}
