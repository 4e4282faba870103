# Have a session hold back the removal of dead rows, until let go.
hold_horizon()
{
	coproc holder { sql lease_bench; }
	echo 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1;' >&"${holder[1]}"
	read -r <&"${holder[0]}"
}

release_horizon()
{
	# shellcheck disable=SC2154 # coproc sets it
	local session=$holder_PID

	eval "exec ${holder[1]}>&-"
	wait "$session"
}

# One hot resource beside an old snapshot.
item_old_snapshot()
{
	local round

	echo '(old_snapshot) one hot resource beside an old snapshot' >&2
	for ((round = 0; round < rounds; round++)); do
		sql lease_bench -c 'TRUNCATE lease_lock, lock_plpgsql' -c CHECKPOINT
		measure 'old_snapshot lease free' lease_bench pair_lease 1 "$fast" -D resources=1
		measure 'old_snapshot plpgsql free' lease_bench pair_plpgsql 1 "$fast" -D resources=1

		hold_horizon
		measure 'old_snapshot lease cycles' lease_bench pair_lease 1 "$fast" -D resources=1 -t "$cycles"
		measure 'old_snapshot lease pinned' lease_bench pair_lease 1 "$fast" -D resources=1
		measure 'old_snapshot plpgsql cycles' lease_bench pair_plpgsql 1 "$fast" -D resources=1 -T "$cycles_seconds"
		samples['old_snapshot plpgsql count']+="$transactions "
		measure 'old_snapshot plpgsql pinned' lease_bench pair_plpgsql 1 "$fast" -D resources=1
		release_horizon
	done
}

report_old_snapshot()
{
	printf '\n### (old_snapshot) One hot resource beside an old snapshot, pairs per second, not durable, 1 client\n'
	header '' 'without the snapshot' 'cycles with it' 'then' 'then / without'
	row lease "$(cell 'old_snapshot lease free')" "$cycles" "$(cell 'old_snapshot lease pinned')" "$(ratio 'old_snapshot lease pinned' 'old_snapshot lease free')"
	row PL/pgSQL "$(cell 'old_snapshot plpgsql free')" "$(cell 'old_snapshot plpgsql count')" "$(cell 'old_snapshot plpgsql pinned')" \
		"$(ratio 'old_snapshot plpgsql pinned' 'old_snapshot plpgsql free')"
}
