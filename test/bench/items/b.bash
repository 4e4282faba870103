# Pairs of acquire and release on random resources.
item_b()
{
	local round count mode session key

	echo '(b) acquire and release, random resources' >&2
	create_database lease_bench_used $((resources * 2))
	for mode in durable fast; do
		session=${!mode}
		for count in $clients; do
			sql lease_bench -c 'VACUUM lock_sql, lock_plpgsql'
			for ((round = 0; round < rounds; round++)); do
				key="$mode $count"
				sql lease_bench -c 'TRUNCATE lease_lock'
				measure "b new $key" lease_bench pair_lease "$count" "$session" -D resources="$resources"
				measure "b plpgsql $key" lease_bench pair_plpgsql "$count" "$session" -D resources="$resources"
				measure "b used $key" lease_bench_used pair_lease "$count" "$session" -D resources="$resources"
				measure "b sql $key" lease_bench pair_sql "$count" "$session" -D resources="$resources"
				[ $mode = fast ] ||
					measure "b half $key" lease_bench_used pair_lease "$count" "$plans -c synchronous_commit=off" -D resources="$resources"
			done
		done
	done
	expect 'everything was released' lease_bench "SELECT count(*) = 0
		FROM (SELECT resource, owner FROM lease_lock UNION ALL SELECT resource, owner FROM lock_sql
			UNION ALL SELECT resource, owner FROM lock_plpgsql) AS l
		WHERE resource LIKE 'free:%' AND owner IS NOT NULL"
}

report_b()
{
	local count mode key

	printf '\n### (b) Acquire and release of one of %s resources, pairs per second\n' "$resources"
	header mode clients 'lease, row is there' 'lease, row is new' PL/pgSQL 'prepared SQL' \
		'there / PL/pgSQL' 'there / SQL' 'new / PL/pgSQL' 'new / SQL'
	for mode in durable fast; do
		for count in $clients; do
			key="$mode $count"
			row "${mode/fast/not durable}" "$count" "$(cell "b used $key")" "$(cell "b new $key")" \
				"$(cell "b plpgsql $key")" "$(cell "b sql $key")" \
				"$(ratio "b used $key" "b plpgsql $key")" "$(ratio "b used $key" "b sql $key")" \
				"$(ratio "b new $key" "b plpgsql $key")" "$(ratio "b new $key" "b sql $key")"
		done
	done

	printf '\nThe same with synchronous_commit = off: grants are durable, releases are not.\n'
	header clients 'lease, row is there' '/ PL/pgSQL, durable' '/ SQL, durable'
	for count in $clients; do
		row "$count" "$(cell "b half durable $count")" "$(ratio "b half durable $count" "b plpgsql durable $count")" \
			"$(ratio "b half durable $count" "b sql durable $count")"
	done
}
