# Leases that are held beside others.
item_modes()
{
	local round count kind number

	echo '(modes) shared leases and permits' >&2
	for count in 1 16; do
		for ((round = 0; round < rounds; round++)); do
			sql lease_bench -c 'TRUNCATE lease_lock'
			for kind in exclusive shared permit; do
				measure "modes $kind $count" lease_bench "pair_$kind" "$count" "$fast"
			done
		done
	done
	expect 'everything was released' lease_bench "SELECT count(owner) = 0 FROM lease_lock WHERE resource ~ '^(own|shared|permits):'"

	sql lease_bench -c 'TRUNCATE lease_lock'
	for number in $holders; do
		sql lease_bench -v holders="$number" -f "$here/setup/permits.sql"
	done
	for ((round = 0; round < rounds; round++)); do
		for number in $holders; do
			measure "modes among $number" lease_bench pair_among 1 "$fast" -D holders="$number"
		done
	done
	expect 'nobody lost a permit' lease_bench "SELECT count(owner) = $((${holders// /+})) FROM lease_lock WHERE slot > 0"
}

report_modes()
{
	local count number least=${holders%% *}

	printf '\n### (modes) Acquire and release, pairs per second, not durable\n'
	header clients 'exclusive, each its own' 'shared, all the same' 'permit, all the same' 'shared / exclusive' 'permit / exclusive'
	for count in 1 16; do
		row "$count" "$(cell "modes exclusive $count")" "$(cell "modes shared $count")" "$(cell "modes permit $count")" \
			"$(ratio "modes shared $count" "modes exclusive $count")" "$(ratio "modes permit $count" "modes exclusive $count")"
	done

	printf '\nA permit beside so many that are taken, pairs per second, 1 client:\n'
	header taken 'pairs per second' 'microseconds for each that is taken'
	for number in $holders; do
		row "$number" "$(cell "modes among $number")" "$(awk -v a="$(statistics "modes among $number")" \
			-v b="$(statistics "modes among $least")" -v n="$((number - least))" \
			'BEGIN {split(a, x, " "); split(b, y, " "); if (n > 0) printf "%.2f", (1 / x[1] - 1 / y[1]) * 1e6 / n}')"
	done
}
