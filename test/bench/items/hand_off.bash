hand_off_locks=(advisory row lease durable 'poll 10' 'poll 50')

# Have so many sessions and one more hand on one lock for a while.
measure_hand_off()	# lock, waiters
{
	local lock=$1 session=$fast pause=0 i pids=() waiting starter rate p50 p99
	local name="hand_off $lock $2"

	case $lock in
		durable) lock=lease session=$durable ;;
		poll*) pause=0.0${lock#poll } lock=poll ;;
	esac
	choose_cpus $(($2 + 1))
	sql lease_bench -c 'TRUNCATE hand_off_log' -c 'VACUUM lease_lock, hand_off_row'

	coproc gate { sql lease_bench; }
	# shellcheck disable=SC2154 # coproc sets it
	starter=$gate_PID
	echo 'SELECT pg_advisory_lock(0) IS NOT NULL;' >&"${gate[1]}"
	read -r <&"${gate[0]}"
	for ((i = 0; i <= $2; i++)); do
		PGOPTIONS=$session sql lease_bench -c "CALL hand_off('$lock', $pause, $seconds)" 2>>"$work/hand_off.err" &
		pids+=($!)
	done
	for ((i = 0; i < 600; i++)); do
		waiting=$(sql lease_bench -c "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
		[ "$waiting" -le "$2" ] || break
		sleep 0.1
	done
	[ "$waiting" -gt "$2" ] || die "$name: only $waiting sessions began: $(cat "$work/hand_off.err")"
	echo '\q' >&"${gate[1]}"
	wait "$starter"
	for i in "${pids[@]}"; do
		wait "$i" || die "$name: $(cat "$work/hand_off.err")"
	done

	expect 'nobody got the lock before the last one let it go' lease_bench 'SELECT least >= 0 FROM hand_off_result'
	read -r rate p50 p99 <<<"$(sql lease_bench -F ' ' -c 'SELECT per_second, p50, p99 FROM hand_off_result')"
	samples["$name rate"]+="$rate "
	samples["$name p50"]+="$p50 "
	samples["$name p99"]+="$p99 "
	printf '%s: %.0f/s, p50 %.0f us, p99 %.0f us\n' "$name" "$rate" "$p50" "$p99" >&2
}

# One lock that goes from hand to hand.
item_hand_off()
{
	local round count lock

	echo '(hand_off) hand-off' >&2
	sql lease_bench -f "$here/setup/hand_off.sql"
	for count in $waiters; do
		for ((round = 0; round < rounds; round++)); do
			for lock in "${hand_off_locks[@]}"; do
				measure_hand_off "$lock" "$count"
			done
		done
	done
}

report_hand_off()
{
	local count lock label name least=${waiters%% *}

	printf '\n### (hand_off) Hand-off of one lock, per second, and latency in microseconds\n'
	header waiters lock 'hand-offs per second' 'latency p50' 'latency p99' 'p50 / advisory' 'p99 / advisory' \
		"per second / with $least"
	for count in $waiters; do
		for lock in "${hand_off_locks[@]}"; do
			case $lock in
				advisory) label=pg_advisory_lock ;;
				row) label='advisory lock, and two updates of a row' ;;
				durable) label='lease, durable' ;;
				poll*) label="lease, polled every ${lock#poll } ms" ;;
				*) label=$lock ;;
			esac
			name="hand_off $lock $count"
			row "$count" "$label" "$(cell "$name rate")" "$(cell "$name p50")" "$(cell "$name p99")" \
				"$(ratio "$name p50" "hand_off advisory $count p50")" "$(ratio "$name p99" "hand_off advisory $count p99")" \
				"$(ratio "$name rate" "hand_off $lock $least rate")"
		done
	done
}
