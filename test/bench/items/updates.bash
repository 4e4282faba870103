# The statements; the table goes in place of the %s.
declare -A update_statements=(
	[update_row]='\set k random(1, 1000)
UPDATE item_%s SET n = n + 1 WHERE client = :client_id AND k = :k;'
	[update_each]=$(echo 'BEGIN;'; printf 'UPDATE item_%%s SET n = n + 1 WHERE client = :client_id AND k = %s;\n' {1..1000}; echo 'COMMIT;')
	[update_rows]='UPDATE item_%s SET n = n + 1 WHERE client = :client_id;'
	[count_row]='\set k random(1, 1000)
UPDATE item_%s SET n = n + 1, version = version + 1 WHERE client = :client_id AND k = :k;'
	[count_rows]='UPDATE item_%s SET n = n + 1, version = version + 1 WHERE client = :client_id;'
)

# Which tables each is measured on.
declare -A update_tables=(
	[update_row]='plain guarded empty' [update_rows]='plain guarded empty' [update_each]='plain guarded empty'
	[count_row]='plain versioned' [count_rows]='plain versioned'
)
update_kinds='update_row update_each update_rows count_row count_rows'

# Updates of protected tables, and of such with a version column.
item_updates()
{
	local round count mode session kind table length

	echo '(updates) updates behind a trigger' >&2
	sql lease_bench -f "$here/setup/guarded.sql" >/dev/null
	for kind in $update_kinds; do
		for table in ${update_tables[$kind]}; do
			echo "${update_statements[$kind]//%s/$table}" >"$work/${kind}_$table.sql"
		done
	done
	for mode in durable fast; do
		session="${!mode} -c lease_lock.owner=client"
		for count in 1 16; do
			for kind in $update_kinds; do
				# It takes a while until a session has prepared a thousand statements.
				length=$([ "$kind" = update_each ] && echo $((4 * seconds)) || echo "$seconds")
				sql lease_bench -c 'VACUUM item_plain, item_guarded, item_empty, item_versioned' -c CHECKPOINT
				for ((round = 0; round < rounds; round++)); do
					for table in ${update_tables[$kind]}; do
						measure "updates $kind $table $mode $count" lease_bench "$work/${kind}_$table" "$count" "$session" -T "$length"
					done
				done
			done
		done
	done
	expect 'versions were counted' lease_bench 'SELECT sum(version) > 0 AND bool_and(version = n) FROM item_versioned'
}

report_updates()
{
	local mode count kind label name table empty

	printf '\n### (updates) Updates behind a trigger, transactions per second\n'
	header mode clients 'what' 'no trigger' 'guard, or version' 'empty trigger' 'guard, or version / none' 'empty / none'
	for mode in durable fast; do
		for kind in $update_kinds; do
			case $kind in
				update_row) label='guard, 1 row' ;;
				update_each) label='guard, 1,000 rows, a statement for each' ;;
				update_rows) label='guard, 1,000 rows in one statement' ;;
				count_row) label='version, 1 row' ;;
				count_rows) label='version, 1,000 rows in one statement' ;;
			esac
			for count in 1 16; do
				name="updates $kind"
				table=$([[ $kind == count_* ]] && echo versioned || echo guarded)
				empty=$([[ $kind == count_* ]] && echo plain || echo empty)
				row "${mode/fast/not durable}" "$count" "$label" "$(cell "$name plain $mode $count")" \
					"$(cell "$name $table $mode $count")" "$(cell "$name $empty $mode $count")" \
					"$(ratio "$name $table $mode $count" "$name plain $mode $count")" \
					"$(ratio "$name $empty $mode $count" "$name plain $mode $count")"
			done
		done
	done
}
