# Besides, the same by hand: pairs as in item pairs, and a look that finds the row held.

# The first write to a page after a checkpoint logs the whole page. That is no
# matter of the table's size but of how long ago the checkpoint was, and would
# hit every write to the large table and none to the small one.
touch_pages()	# table, column
{
	echo "UPDATE $1 SET $2 = $2 FROM generate_series(0, pg_relation_size('$1') / 8192 - 1) AS page
		WHERE $1.ctid = format('(%s,1)', page)::tid"
}

# A large table against a small one.
item_large_table()
{
	local round mode session size database half

	echo "(large_table) $rows leases against $small_rows" >&2
	create_database lease_bench_small "$small_rows"
	create_database lease_bench_large "$rows"
	sql lease_bench_small -v rows="$small_rows" -f "$here/setup/by_hand_kept.sql"
	sql lease_bench_large -v rows="$rows" -f "$here/setup/by_hand_kept.sql"
	sql lease_bench_large -c CHECKPOINT -c "$(touch_pages lease_lock granted_at)" -c "$(touch_pages kept_sql token)"
	for mode in durable fast; do
		session=${!mode}
		for ((round = 0; round < rounds; round++)); do
			for size in small large; do
				database=lease_bench_$size
				half=$(($([ $size = small ] && echo "$small_rows" || echo "$rows") / 2))
				measure "large_table pair $size $mode" "$database" pair_lease 1 "$session" -D resources="$half"
				measure "large_table pair by hand $size $mode" "$database" pair_sql_kept 1 "$session" -D resources="$half"
				measure "large_table try $size $mode" "$database" try_random 1 "$session" -D resources="$half"
				measure "large_table try by hand $size $mode" "$database" look_random 1 "$session" -D resources="$half"
			done
		done
	done
	large_size=$(sql lease_bench_large -c "SELECT pg_size_pretty(pg_total_relation_size('lease_lock'))")
	expect 'nothing was taken over' lease_bench_large "SELECT count(*) = $((rows / 2)) FROM lease_lock WHERE owner = 'somebody else'"
}

report_large_table()
{
	local mode kind

	printf '\n### (large_table) A table of %s leases (%s) against one of %s, per second, 1 client\n' "$rows" "$large_size" "$small_rows"
	header mode 'of what' "$small_rows leases" "$rows leases" 'cost, large / small'
	for mode in durable fast; do
		for kind in pair 'pair by hand' try 'try by hand'; do
			row "${mode/fast/not durable}" "${kind/try/refused try}" "$(cell "large_table $kind small $mode")" \
				"$(cell "large_table $kind large $mode")" "$(ratio "large_table $kind small $mode" "large_table $kind large $mode")"
		done
	done
}
