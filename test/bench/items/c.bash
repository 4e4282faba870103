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
item_c()
{
	local round

	echo '(c) one hot resource beside an old snapshot' >&2
	for ((round = 0; round < rounds; round++)); do
		sql lease_bench -c 'TRUNCATE lease_lock, lock_plpgsql' -c CHECKPOINT
		measure 'c lease free' lease_bench pair_lease 1 "$fast" -D resources=1
		measure 'c plpgsql free' lease_bench pair_plpgsql 1 "$fast" -D resources=1

		hold_horizon
		measure 'c lease cycles' lease_bench pair_lease 1 "$fast" -D resources=1 -t "$cycles"
		measure 'c lease pinned' lease_bench pair_lease 1 "$fast" -D resources=1
		measure 'c plpgsql cycles' lease_bench pair_plpgsql 1 "$fast" -D resources=1 -T "$cycles_seconds"
		samples['c plpgsql count']+="$transactions "
		measure 'c plpgsql pinned' lease_bench pair_plpgsql 1 "$fast" -D resources=1
		release_horizon
	done
}

report_c()
{
	printf '\n### (c) One hot resource beside an old snapshot, pairs per second, not durable, 1 client\n'
	header '' 'without the snapshot' 'cycles with it' 'then' 'then / without'
	row lease "$(cell 'c lease free')" "$cycles" "$(cell 'c lease pinned')" "$(ratio 'c lease pinned' 'c lease free')"
	row PL/pgSQL "$(cell 'c plpgsql free')" "$(cell 'c plpgsql count')" "$(cell 'c plpgsql pinned')" \
		"$(ratio 'c plpgsql pinned' 'c plpgsql free')"
}
