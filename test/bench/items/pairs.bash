# Pairs of acquire and release on random resources.
item_pairs()
{
	local round count mode session key

	echo '(pairs) acquire and release, random resources' >&2
	create_database lease_bench_used $((resources * 2))
	sql lease_bench_used -v rows=$((resources * 2)) -f "$here/setup/by_hand_kept.sql"
	for mode in durable fast; do
		session=${!mode}
		for count in $clients; do
			sql lease_bench -c 'VACUUM lock_sql, lock_plpgsql'
			sql lease_bench_used -c 'VACUUM kept_sql, kept_plpgsql, lease_lock'
			for ((round = 0; round < rounds; round++)); do
				key="$mode $count"
				sql lease_bench -c 'TRUNCATE lease_lock'
				measure "pairs used $key" lease_bench_used pair_lease "$count" "$session" -D resources="$resources"
				measure "pairs plpgsql_kept $key" lease_bench_used pair_plpgsql_kept "$count" "$session" -D resources="$resources"
				measure "pairs sql_kept $key" lease_bench_used pair_sql_kept "$count" "$session" -D resources="$resources"
				measure "pairs new $key" lease_bench pair_lease "$count" "$session" -D resources="$resources"
				measure "pairs plpgsql $key" lease_bench pair_plpgsql "$count" "$session" -D resources="$resources"
				measure "pairs sql $key" lease_bench pair_sql "$count" "$session" -D resources="$resources"
				[ $mode = fast ] ||
					measure "pairs half $key" lease_bench_used pair_lease "$count" "$plans -c synchronous_commit=off" -D resources="$resources"
			done
		done
	done
	expect 'everything was released' lease_bench "SELECT count(*) = 0
		FROM (SELECT resource, owner FROM lease_lock UNION ALL SELECT resource, owner FROM lock_sql
			UNION ALL SELECT resource, owner FROM lock_plpgsql) AS l
		WHERE resource LIKE 'free:%' AND owner IS NOT NULL"
	expect 'everything was released' lease_bench_used "SELECT count(*) = 0
		FROM (SELECT resource, expires_at FROM lease_lock UNION ALL SELECT resource, expires_at FROM kept_sql
			UNION ALL SELECT resource, expires_at FROM kept_plpgsql) AS l
		WHERE resource LIKE 'free:%' AND expires_at > clock_timestamp()"
}

# One table of leases against the same by hand, in two languages.
compare_pairs()	# title, kind of lease, kinds of its rivals
{
	local title=$1 lease=$2 plpgsql=$3 sql=$4 count mode key

	printf '\n%s\n' "$title"
	header mode clients lease PL/pgSQL 'prepared SQL' 'lease / PL/pgSQL' 'lease / SQL'
	for mode in durable fast; do
		for count in $clients; do
			key="$mode $count"
			row "${mode/fast/not durable}" "$count" "$(cell "pairs $lease $key")" "$(cell "pairs $plpgsql $key")" \
				"$(cell "pairs $sql $key")" "$(ratio "pairs $lease $key" "pairs $plpgsql $key")" "$(ratio "pairs $lease $key" "pairs $sql $key")"
		done
	done
}

report_pairs()
{
	local count

	printf '\n### (pairs) Acquire and release of one of %s resources, pairs per second\n' "$resources"
	compare_pairs 'The row stays: every resource has one from earlier, and a release keeps it.' used plpgsql_kept sql_kept
	compare_pairs 'The row is new: the locks by hand delete it at each release, the leases begin with an empty table.' new plpgsql sql
	compare_pairs 'Both ways against each other: leases whose row stays, locks by hand that delete theirs.' used plpgsql sql

	printf '\nLeases whose row stays, with synchronous_commit = off: grants are durable, releases are not.\n'
	header clients lease '/ PL/pgSQL, durable' '/ SQL, durable'
	for count in $clients; do
		row "$count" "$(cell "pairs half durable $count")" "$(ratio "pairs half durable $count" "pairs plpgsql_kept durable $count")" \
			"$(ratio "pairs half durable $count" "pairs sql_kept durable $count")"
	done
}
