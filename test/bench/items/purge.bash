# Memory of its own, in kB, of the purge worker, if there is one now.
worker_memory()
{
	local cmdline

	for cmdline in $(grep -ls 'lease_lock purge worker' /proc/[0-9]*/cmdline); do
		sed -n 's/^RssAnon:[^0-9]*\([0-9]*\) kB/\1/p' "${cmdline%cmdline}status" 2>/dev/null || true
	done
}

sample_memory()	# file
{
	while :; do
		worker_memory >>"$1"
		sleep 0.5
	done
}

purge_every()	# interval
{
	sql lease_bench_purge -c "ALTER SYSTEM SET lease_lock.purge_interval = '$1'" -c 'SELECT pg_reload_conf()' >/dev/null
}

left_to_purge()
{
	sql lease_bench_purge -c "SELECT count(*) FROM lease_lock WHERE resource LIKE 'ended:%'"
}

# The purge worker beside clients that work with leases.
item_purge()
{
	local round mode session sampler begun

	echo "(purge) purge of $ended leases beside clients" >&2
	create_database lease_bench_purge 2000
	for mode in durable fast; do
		session=${!mode}
		for ((round = 0; round < rounds; round++)); do
			sql lease_bench_purge -v rows="$ended" -f "$here/setup/ended.sql" -c CHECKPOINT
			measure "purge without $mode" lease_bench_purge pair_lease 16 "$session" -D resources=1000

			: >"$work/memory"
			sample_memory "$work/memory" &
			sampler=$!
			begun=$(date +%s%N)
			purge_every 100ms
			measure "purge with $mode" lease_bench_purge pair_lease 16 "$session" -D resources=1000
			[ "$(left_to_purge)" != 0 ] ||
				die 'all was purged before the run was over: take more leases (--ended), or fewer --seconds'
			while [ "$(left_to_purge)" != 0 ]; do
				sleep 0.1
			done
			samples["purge rate $mode"]+="$((ended * 1000 / (($(date +%s%N) - begun) / 1000000))) "
			kill "$sampler"
			wait "$sampler" 2>/dev/null || true
			samples["purge memory $mode"]+="$(tr '\n' ' ' <"$work/memory")"
			purge_every 0
		done
	done
	sql lease_bench_purge -c 'ALTER SYSTEM RESET lease_lock.purge_interval' -c 'SELECT pg_reload_conf()' >/dev/null
	expect 'only what ended was purged' lease_bench_purge "SELECT count(*) = 2000 FROM lease_lock"
}

report_purge()
{
	local mode

	printf '\n### (purge) Purge of %s expired leases beside 16 clients that acquire and release\n' "$ended"
	header mode 'pairs per second without' 'beside the purge' 'beside / without' 'leases purged per second' 'memory of the worker, kB'
	for mode in durable fast; do
		row "${mode/fast/not durable}" "$(cell "purge without $mode")" "$(cell "purge with $mode")" \
			"$(ratio "purge with $mode" "purge without $mode")" "$(cell "purge rate $mode")" "$(cell "purge memory $mode")"
	done
}
